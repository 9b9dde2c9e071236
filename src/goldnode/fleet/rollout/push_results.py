"""Meaning of the results of one Ansible run of a push: observations of its nodes, or why there are none. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from goldnode.fleet.rollout.model import (
    Answer,
    Direction,
    NodeObservation,
    SchedulerObservation,
    StepPhase,
    from_json,
)
from goldnode.fleet.rollout.parts import NodeTask, Observation
from goldnode.node.ground.text import clean, cleaned

Line = Mapping[str, Any]

# Words of the lines that goldnode.fleet.control.push_job writes: what became of a task, and the key of the last line.
OK, FAILED, UNREACHABLE = "ok", "failed", "unreachable"
ENDED = "ended"  # the status of the run by ansible-runner

# Refusals of a node that end by themselves, and those about its hardware. Any other one counts against the change.
PASSING = frozenset({"gpu-in-use", "dpkg-locked"})
OF_HARDWARE = frozenset({"gpu-count", "wrong-gpu", "unknown-gpu"})
LONGEST = 300  # characters of a cause
REBOOT = "Reboot the node"  # the task of roles/node_class/tasks/reboot.yml


class PushEnd(StrEnum):
    """Meaning of a run for its task."""

    DONE = "done"  # nothing is left to do
    AGAIN = "again"  # not reached, cut off or undecided: the same again, after a pause
    REFUSED = "refused"  # the application failed: again a few times, then the node has failed


@dataclass(frozen=True)
class PushResult:
    """Result of a run for one node. `problem`: why it is not done. `failure`: to report once it is not tried again."""

    end: PushEnd
    observations: tuple[Observation, ...] = ()
    problem: str | None = None
    failure: NodeObservation | None = None


def phase(task: NodeTask) -> str:
    """Return the phase of the playbook for a task."""
    if task.phase is StepPhase.APPLYING:
        return "back" if task.direction is Direction.BACK else "apply"
    return "drain" if task.phase is StepPhase.GRANTED else "return"


@dataclass(frozen=True)
class PushTerms:
    """Terms of a result: the lock that the rollout moves to, and the mark of its drains."""

    target: str
    mark: str


def result(
    task: NodeTask, lines: Sequence[Line], began: float, ended: float, terms: PushTerms
) -> PushResult:
    """Return the result of a run for the node of its task."""
    own = [line for line in lines if line.get("host") == task.node]
    # Before the status of the run, which a failed task has made "failed": the task has the better message.
    bad = next((line for line in own if line["what"] in (FAILED, UNREACHABLE)), None)
    if bad is not None:
        return _bad(task, bad, ended)
    status = next((line[ENDED] for line in lines if ENDED in line), "cut off")
    if status != "successful":
        return PushResult(PushEnd.AGAIN, problem=f"Ansible did not finish ({status})")
    if task.phase is StepPhase.APPLYING:
        return _applied(
            own, terms.target if task.direction is Direction.FORWARD else task.prior.digest
        )
    answer = next((line["result"] for line in reversed(own) if line["result"].get("drain")), None)
    if answer is None:
        return PushResult(PushEnd.AGAIN, problem="Ansible reported nothing of the node")
    if task.phase is StepPhase.RETURNING:
        return _returned(task, answer["drain"], ended)
    if answer.get("again"):  # the scheduler does not end it by itself
        return PushResult(PushEnd.AGAIN, problem="work is left on the node")
    if not answer.get("empty"):  # the scheduler shows when it is
        return PushResult(PushEnd.DONE)
    return PushResult(PushEnd.DONE, _drained(task, answer["drain"], began, ended, terms.mark))


def observations(lines: Iterable[Line]) -> dict[str, NodeObservation]:
    """Return the newest observation of each node that was read."""
    return {
        str(line["host"]): from_json(NodeObservation, cleaned(line["result"]["observation"]))
        for line in lines
        if (line.get("result") or {}).get("observation")
    }


def _applied(own: Sequence[Line], wanted: str | None) -> PushResult:
    observed = next(iter(observations(own).values()), None)
    if observed is None:
        return PushResult(PushEnd.AGAIN, problem="the node was not observed")
    if observed.digest != wanted:
        return PushResult(
            PushEnd.AGAIN,
            (observed,),
            f"has {observed.digest or 'no whole lock'} after its application",
        )
    if observed.verdict in (Answer.PASSES, Answer.FAILS):
        return PushResult(PushEnd.DONE, (observed,))
    why = next(
        (
            str(line["result"].get("msg") or "")
            for line in reversed(own)
            if line["result"].get("observation")
        ),
        "",
    )
    return PushResult(
        PushEnd.AGAIN, (observed,), clean(why) or "its check could not check everything"
    )


def _drained(
    task: NodeTask, drain: Mapping[str, Any], began: float, ended: float, mark: str
) -> tuple[Observation, ...]:
    """Return the state before the drain and after it, with the reason of the one who holds the node."""
    record = drain.get("record") or {}  # none without a scheduler
    was, before = clean(str(record.get("was") or "")), bool(drain["in_service"])
    reason = clean(str(record.get("reason") or mark) if before else was)
    return (
        SchedulerObservation(task.node, began, before, 0.0, was),
        SchedulerObservation(task.node, ended, False, 0.0, reason),
    )


def _returned(task: NodeTask, drain: Mapping[str, Any], ended: float) -> PushResult:
    note = clean(str(drain.get("note") or ""))
    # Another run may still work on it, or its record is of another scheduler.
    if drain["in_service"] and note:
        return PushResult(PushEnd.AGAIN, problem=note)
    reason = (
        "" if drain["in_service"] else clean(str((drain.get("record") or {}).get("was") or note))
    )
    return PushResult(
        PushEnd.DONE,
        (SchedulerObservation(task.node, ended, bool(drain["in_service"]), 0.0, reason),),
    )


def _bad(task: NodeTask, line: Line, ended: float) -> PushResult:
    """Return the result of a run in which a task failed. Only a failed application counts against anything."""
    name, answer = str(line.get("task") or ""), line["result"]
    text = _first_line(str(answer.get("msg") or answer.get("stderr") or "no message"))
    if line["what"] == UNREACHABLE:
        return PushResult(PushEnd.AGAIN, problem=f"not reached: {text}")
    if task.phase is not StepPhase.APPLYING or answer.get("lost") or answer.get("busy"):
        return PushResult(PushEnd.AGAIN, problem=f"{name}: {text}")
    if name.endswith(REBOOT):
        return PushResult(PushEnd.AGAIN, problem=f"did not return from its reboot: {text}")
    refusals = answer.get("refusals") or []
    codes = [str(row["code"]) for row in refusals]
    if codes and set(codes) <= PASSING:
        return PushResult(PushEnd.AGAIN, problem=clean(f"{codes[0]}: {refusals[0]['message']}"))
    hardware: tuple[str, ...] = ()
    if codes:
        cause = f"{codes[0]}: {refusals[0]['message']}"
        hardware = tuple(codes) if set(codes) & OF_HARDWARE else ()
    elif answer.get("error"):
        row = answer["error"]
        cause = f"{row['part']}: {row['kind']} {row['resource']}: {_first_line(str(row['error']))}"
    else:
        cause = f"{answer.get('part') or name}: {text}"
    cause = clean(cause)[:LONGEST]
    failure = NodeObservation(task.node, ended, hardware=hardware, not_applied=cause)
    return PushResult(PushEnd.REFUSED, problem=cause, failure=failure)


def _first_line(text: str) -> str:
    """Return the first line of a message: causes of several nodes are compared, and further lines differ."""
    lines = [line.strip() for line in re.sub(r"^\[?ERROR\]?[:!]? *", "", text.strip()).splitlines()]
    return clean(next((line for line in lines if line), "no message"))

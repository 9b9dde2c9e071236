"""Effects of the gate outside the node's files: drain and return of the node in Slurm, or by
commands of the site.

Each has one order. The intent is recorded durably in :data:`RECORD`, the effect happens, and its
outcome is recorded. Without a durable record there is no effect (:class:`UnrecordedError`). A check
that is killed in between leaves an intent, which the next one settles (:func:`settle`): Slurm shows
whether it was carried out, and of a command :data:`NOTE` has the exit status, because the shell
that runs the command notes it.
"""

from __future__ import annotations

import json
import os
import time

from ..ground import drained, scheduler
from ..ground.gate_files import NO_TARGET, RECORD
from ..ground.json_lines import as_map, by_lines
from ..ground.scheduler import HookError
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

    from ..ground.host import Host, Json

NOTE = "/var/lib/goldnode/gate.hook"  # ID, then ID STATUS, of the last command
OWN = "goldnode:"  # prefix of our reasons
REMEDY = "make room there, or see dmesg for why it is read-only"
# The command runs only with its beginning on the disk. Its status is noted even if the check is
# killed meanwhile.
NOTING = (
    'n=$1 id=$2; shift 2; echo "$id" >"$n" && sync "$n" || exit 125; '
    '"$@"; s=$?; echo "$id $s" >"$n"; sync "$n"; exit $s'
)


class UnrecordedError(HookError):
    """The record cannot be read or written, so nothing was done."""


class DrainOrder(NamedTuple):
    """An order for the scheduler: whether the node should be drained, for which findings, and why.

    `by` is the target of a drain: `command` (the site's own commands), `slurm`, or None. `run`: a
    run has the node out of service, or has left it so.
    """

    drain: bool
    ids: Sequence[str]
    text: str
    by: Optional[str]
    commands: Mapping[str, Sequence[str]]
    run: bool


# -- the record


def load(host: Host) -> Json:
    """Return the record; empty if it is missing or torn. Raises UnrecordedError if it cannot be read."""
    try:
        text = host.text(RECORD)
    except OSError as problem:
        raise UnrecordedError(f"{RECORD} cannot be read: {problem.strerror}; {REMEDY}") from None
    try:
        return as_map(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}


def record(host: Host, memory: Json) -> None:
    """Write the record unless it is unchanged, so that it survives a power loss. Raises UnrecordedError."""
    data = (by_lines(memory, ordered=True) + "\n").encode()
    try:
        if host.data(RECORD) == data:
            return  # a passive check of an unchanged node does not write to its disk
        host.write(RECORD, data)
        handle = os.open(host.located(os.path.dirname(RECORD)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as problem:
        raise UnrecordedError(f"{RECORD} cannot be written: {problem.strerror}; {REMEDY}") from None


# -- one effect


def settle(host: Host, memory: Json, before: Mapping[str, Any]) -> None:
    """Decide whether the effect of an intent that a check has left was carried out, and take the
    intent away.

    One of which that cannot be seen is tried again. A command that then finds the node drained
    already leaves it to a person, because another party may have drained it meanwhile.

    :param before: the state of the gate in this boot; empty without one. It has what the record may
        lack if the disk failed after the effect.
    """
    intent = memory.get("intent")
    if not isinstance(intent, dict):
        return
    drain = intent["drained"]
    if (drain or memory.get("drained") or {}).get("by") == "slurm":
        row = scheduler.own_node(host)
        ours = row is not None and row.drained and row.reason.startswith(OWN)
        done = (ours and row is not None and row.reason == intent["text"]) if drain else not ours
    else:
        status = _status(host, intent["id"])
        if status is None:
            told = before.get("told", memory.get("drained"))
            done = bool(told) and told["since"] == drain["since"] if drain else told is None
        else:
            done = status in (0, 3)
            if drain and status == 3:
                drain["ours"] = bool((memory.get("drained") or {}).get("ours"))
    if done:
        memory["drained"] = drain
    del memory["intent"]


def _status(host: Host, identity: str) -> Optional[int]:
    """Return the exit status of the command of an intent; -1 if it never began, None if it did not end."""
    try:
        words = (host.text(NOTE) or "").split()
    except OSError:
        return None
    if not words or words[0] != identity:
        return -1
    return int(words[1]) if len(words) == 2 and words[1].isdigit() else None


def carry_out(
    host: Host, memory: Json, text: str, drain: Optional[Json], effect: Callable[[str], bool]
) -> bool:
    """Record an intent, carry it out, and record its outcome. Return what the effect returned.

    :param drain: the drain that there is afterwards; None for a return.
    :param effect: called with the id of the intent. It returns whether the node is ours to return,
        or was returned.
    """
    identity = os.urandom(8).hex()
    memory["intent"] = {"id": identity, "text": text, "drained": drain}
    try:
        record(host, memory)
    except UnrecordedError:
        del memory["intent"]
        raise
    done = effect(identity)  # after a failure the next check settles the intent
    if drain is not None:
        drain["ours"] = done
    memory["drained"] = drain
    del memory["intent"]
    return done


def command(host: Host, identity: str, words: Sequence[str], text: str) -> bool:
    """Run a command of the site with the reason as its last argument. Return whether it did something.

    Exit status 0 means done, 3 that there was nothing to do (the node was drained already).
    """
    done = host.run(
        "/bin/sh",
        "-c",
        NOTING,
        "sh",
        host.located(NOTE),
        identity,
        *words,
        text,
        timeout=scheduler.CALL_TIME,
    )
    if done.rc == 125 and _status(host, identity) != 125:
        raise UnrecordedError(f"{NOTE} cannot be written, so {words[0]} was not run; {REMEDY}")
    if done.rc not in (0, 3):
        raise HookError(f"{words[0]} ended with {done.rc}: {' '.join(done.tail(2).split())}")
    return done.rc == 0


# -- drain and return


def apply(host: Host, memory: Json, order: DrainOrder) -> List[str]:
    """Drain or resume the node, unless that has been done already. Return messages. Raises HookError.

    `memory["drained"]` records the drain: {by, ours, ids, commands, since}. A node that was drained
    before the gate acted is not ours to resume. If a person resumes a bad node, the gate leaves it
    in service until there is a new reason.

    While a run has the node out of service, the gate resumes nothing, because the run may be about
    to reboot the node. In Slurm the gate replaces the reason of the run's drain, so that the run
    does not return a bad node. A command of the site is called only after the run.
    """
    before = memory.get("drained")
    if order.drain:
        if before and set(order.ids) <= set(before["ids"]):
            return []
        if order.run and order.by == "command":
            return [
                "gate: a goldnode run has the node out of service; the gate drains it when that run has ended"
            ]
        return _drain(host, memory, order)
    if not before:
        return []
    if not before["ours"]:
        memory["drained"] = None
        return ["gate: the node was drained by another party, and stays drained"]
    if order.run:
        return [
            "gate: a goldnode run has the node out of service; the gate resumes it when that run has ended"
        ]
    words = (order.commands or before["commands"]).get("resume") or []

    def resume(identity: str) -> bool:
        if before["by"] == "slurm":
            return resume_reason(host, OWN)
        return command(host, identity, words, order.text)

    if carry_out(host, memory, order.text, None, resume):
        return [f"gate: resumed ({before['by']})"]
    return ["gate: the reason for which the node is drained is not ours now; it stays so"]


def _drain(host: Host, memory: Json, order: DrainOrder) -> List[str]:
    before, by = memory.get("drained"), order.by
    row = scheduler.own_node(host) if by == "slurm" else None
    if by is None or (by == "slurm" and row is None):
        raise HookError(NO_TARGET)
    own = bool(before and before["ours"])
    drain: Dict[str, Any] = {
        "by": by,
        "ours": True,
        "ids": sorted(set(order.ids) | set(before["ids"] if before else ())),
        "commands": dict(order.commands),
        "since": before["since"] if before else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if row is not None and not _may_take(row, own):
        memory["drained"], drain["ours"] = drain, False  # nothing to do outside
    elif row is not None:
        seen = row

        def slurm(_: str) -> bool:
            scheduler.drain(host, seen, order.text)
            return True

        carry_out(host, memory, order.text, drain, slurm)
    else:
        carry_out(
            host,
            memory,
            order.text,
            drain,
            lambda identity: command(host, identity, order.commands["drain"], order.text) or own,
        )
    return [f"gate: {'drained' if drain['ours'] else 'was drained already'} ({by}): {order.text}"]


def _may_take(row: scheduler.SchedulerNode, own: bool) -> bool:
    """Return whether the node may be drained for our reason: it is in service, or drained by us or
    by a run.
    """
    return (
        not row.drained
        or (own and row.reason.startswith(OWN))
        or drained.mark(row.reason) is not None
    )


def resume_reason(host: Host, start: str) -> bool:
    """Resume the node if Slurm has drained it for a reason that begins like this. Return whether it was.

    :raises HookError: if Slurm does not answer.
    """
    row = scheduler.own_node(host)
    if row is None or not row.drained or not row.reason.startswith(start):
        return False
    scheduler.resume(host, row)
    return True


def renew(host: Host, memory: Json, text: str) -> None:
    """Write the present reason into Slurm where a drain of ours holds the node. Any other drain
    stays as it is.

    Only the text changes, so a check that is killed leaves nothing to undo.
    """
    drain = memory.get("drained")
    if not drain or not drain["ours"] or drain["by"] != "slurm":
        return
    row = scheduler.own_node(host)
    if row is not None and row.drained and row.reason.startswith(OWN) and row.reason != text:
        scheduler.explain(host, row, text)

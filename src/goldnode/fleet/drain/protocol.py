"""Drain and return of nodes through the site's scheduler. Runs on the controller, with the site's own
programs.

A node that its owner had already drained or cordoned stays so, with its reason. A run that is killed between
drain and return leaves a drain of its own, and the next run continues with it. The *current* state of the
scheduler decides, never memory alone:

* in service: nothing is left to return;
* out of service with the mark of a run as its reason (:mod:`goldnode.node.ground.drained`): it was in service
  before, so it is returned, unless that run is still working;
* out of service for any other reason: its owner returns it. That includes the gate on the node.

The site's own command shows no reason. Then the record on the node decides
(:mod:`goldnode.fleet.drain.record`), and an undecided node stays out of service.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from goldnode.core.errors import GoldnodeError, nearest
from goldnode.fleet.drain import record as drain_record
from goldnode.fleet.drain.record import DRAIN, RESUME, DrainRecord, DrainRecords
from goldnode.fleet.shared import identity
from goldnode.fleet.shared.identity import Actor
from goldnode.inventory.variables import DRAINS, JUDGED, check
from goldnode.node.gate import scheduler
from goldnode.node.ground.drained import FILE, LEASE, PREFIX, Mark, mark, reason

Run = Callable[[Sequence[str]], str]

GATE = "goldnode:"  # with which a reason of the gate on a node begins
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}  # states of a node in Slurm that still has jobs
TRIES = 5  # of a change that another one got in the way of


def run(argv: Sequence[str]) -> str:
    """Run a program of the site; its standard output. A failure is an error that shows what it said."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
            env={
                **os.environ,
                "SLURM_TIME_FORMAT": "standard",
            },  # scontrol writes it after each reason
        )
    except FileNotFoundError:
        raise GoldnodeError(
            f"{argv[0]}: not found on this machine",
            remedy="Install the scheduler's client, or set goldnode_drain: none",
        ) from None
    except subprocess.TimeoutExpired:
        raise GoldnodeError(
            f"{' '.join(argv)}: no answer within an hour",
            remedy="Look at the scheduler, then run again",
        ) from None
    if done.returncode != 0:
        raise GoldnodeError(
            f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}",
            remedy="Put that right, then run again",
        )
    return done.stdout


@dataclass(frozen=True)
class DrainCaller:
    """The run that drains nodes and returns them.

    `take_over`: treat drains by runs of other controllers as abandoned at once. `waits`: a drain waits until no
    work is left; otherwise it ends no work, and is repeated until its outcome is `empty`. `was`: the reason that the
    scheduler showed of the node in service, for a node whose own record is lost.
    """

    actor: Actor = field(default_factory=identity.actor)
    take_over: bool = False
    waits: bool = True
    was: str = ""
    clock: Callable[[], float] = time.time

    def now(self) -> str:
        """Return the time as a mark has it."""
        return datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def works(self, run: str, since: str, held: bool = True) -> bool:
        """Return whether the run that drained at this time has to be taken for one that still works.

        :param held: the scheduler shows its drain, or shows none at all.
        """
        if run == self.actor.run:
            return False
        if held and identity.is_rollout(run):
            return not self.take_over  # it has its end in its store, and not by time
        alive = identity.works(run)
        if alive is not None:
            return alive
        try:
            age = (
                self.clock()
                - datetime.strptime(since, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
            )
        except ValueError:
            age = LEASE + 1
        return not self.take_over and age < LEASE


@dataclass(frozen=True)
class DrainState:
    """State of a node in a scheduler: whether it gets work, the scheduler's name of the state, and the
    reason.
    """

    in_service: bool
    state: str
    reason: str
    version: str = ""  # of what was read, where the scheduler refuses a change of anything else

    @property
    def why(self) -> str:
        """Return the reason for which the node is out of service; the state where the scheduler has no reason."""
        return self.reason if self.in_service or self.reason else f"{self.state}, without a reason"

    @property
    def held(self) -> Mark | None:
        """Return the mark of the run that holds the node out of service, or None."""
        return None if self.in_service else mark(self.reason)


@dataclass(frozen=True)
class DrainOutcome:
    """Result of a drain or a return.

    `changed`: the scheduler's state was changed. `in_service`: the node was in service before. `ours`: a
    drain of a run holds it now. `left`: the run that had left it out of service. `note`: a sentence for a
    person. `record`: the record as it was written. `empty`: no work is left on the node.
    `again`: the drain has to be repeated, because the scheduler does not end it by itself.
    """

    changed: bool
    in_service: bool
    ours: bool = False
    left: str | None = None
    note: str | None = None
    record: DrainRecord | None = None
    empty: bool = True
    again: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the outcome for the record of the run, in which each drain has ended."""
        found = {**asdict(self), "record": asdict(self.record) if self.record else None}
        del found["empty"], found["again"]  # for the caller alone
        return found


class Drainer(Protocol):
    """A scheduler, or the site's commands, as a way to drain nodes.

    Both methods store a record of the drain in `records`, unless that is None. They raise GoldnodeError; its
    message has the state of the node.
    """

    def drain(
        self, node: str, why: str, caller: DrainCaller, records: DrainRecords | None = None
    ) -> DrainOutcome:
        """Take a node out of service and wait until no work is left on it, if the caller waits.

        A drain that an earlier run left is continued.
        """

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        """Return a node that a run has drained.

        A node that another user holds out of service stays so. The outcome names the holder and the way to
        return it.

        :param before: whether the node was in service before the caller's own drain, for a command without
            records.
        """

    def review(self, node: str, caller: DrainCaller, records: DrainRecords) -> DrainOutcome:
        """Review the drain that an earlier run has left, and forget it unless it still holds the node; `ours`
        reports that. Changes no state.
        """

    def marked(self) -> dict[str, str]:
        """Return all nodes that runs hold out of service, with their reasons, from one call.

        Empty if that cannot be listed.
        """


@dataclass
class NoDrainer:
    """No scheduler."""

    def drain(
        self, node: str, why: str, caller: DrainCaller, records: DrainRecords | None = None
    ) -> DrainOutcome:
        return DrainOutcome(changed=False, in_service=True)

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        found = records.read() if records else None
        if found is None or (found.node is None and found.damaged is None):
            return DrainOutcome(changed=False, in_service=True)
        if found.node is None:
            note = f"{FILE} on the node cannot be read ({found.damaged}): an earlier run may have left {node} out of service. See the scheduler"
            return DrainOutcome(
                changed=False, in_service=True, note=f"{note}, then delete the file."
            )
        return DrainOutcome(
            changed=False,
            in_service=True,
            left=found.node.about(),
            note=moved(found.node, "none", node),
        )

    def review(self, node: str, caller: DrainCaller, records: DrainRecords) -> DrainOutcome:
        return self.resume(node, caller, records)

    def marked(self) -> dict[str, str]:
        return {}


def by_hand(by: str, node: str) -> str:
    """Return the command with which a person returns a node."""
    return {
        "slurm": f"`scontrol update NodeName={node} State=RESUME`",
        "kubectl": f"`kubectl uncordon {node}`",
    }.get(by, f"your resume command for {node}")


def moved(record: DrainRecord, by: str, node: str) -> str:
    """Return a sentence about a drain by another scheduler, or under another name, than the inventory's."""
    now = (
        "goldnode_drain is now `none`" if by == "none" else f"the inventory says {node} by {by} now"
    )
    hand = by_hand(record.by, record.node)
    return (
        f"{record.by} has {record.node} drained since {record.about()}, and {now}: it stays drained. "
        f"Return it with {hand} where its reason is still “{record.reason}”, then delete {FILE} on the node."
    )


def busy(node: str, run: str, controller: str, since: str) -> GoldnodeError:
    """Return the error of a node that another run has."""
    if identity.is_rollout(run):
        return GoldnodeError(
            f"{node} was drained by a rollout ({run}, controller {controller}, {since}), which has not returned it",
            remedy="Let the rollout return it or release it there; where its store is lost, run again with -e goldnode_take_over=true",
        )
    return GoldnodeError(
        f"{node} was drained by run {run} of {controller}, {since}, which may still work on it",
        remedy="Wait for it to end; where it has died, run again with -e goldnode_take_over=true",
    )


def since(held: Mark) -> str:
    """Return which run has drained, for a person."""
    return f"run {held.run} of {held.controller}, {held.time}"


def own(found: drain_record.FoundRecords, by: str, node: str) -> DrainRecord | None:
    """Return the node's record if it is of this scheduler and name.

    Raises GoldnodeError for a record of another one, which must not be lost.
    """
    record = found.node
    if record is not None and (record.by, record.node) != (by, node):
        raise GoldnodeError(
            moved(record, by, node).rstrip("."), remedy="Then run again; nothing was changed"
        )
    return record


class SchedulerDrainer:
    """Common base of schedulers that show who holds a node."""

    name = ""
    drains_by_itself = False  # a drained node becomes empty without a further call

    def state_of(self, node: str) -> DrainState:
        """Return the scheduler's state of a node."""
        raise NotImplementedError

    def take(self, node: str, why: str, seen: DrainState) -> bool:
        """Take a node out of service for this reason. Return False if its state is no longer `seen`."""
        raise NotImplementedError

    def give(self, node: str, seen: DrainState, note: str) -> bool:
        """Return a node to service and restore the note that was its reason.

        Return False if its state is no longer `seen`.
        """
        raise NotImplementedError

    def finish(self, node: str) -> None:
        """Wait until no work is left on a node."""
        raise NotImplementedError

    def settle(self, node: str) -> bool:
        """Return whether no work is left on a drained node. Ends no work, and does not wait for any."""
        raise NotImplementedError

    def drain(
        self, node: str, why: str, caller: DrainCaller, records: DrainRecords | None = None
    ) -> DrainOutcome:
        """See :class:`Drainer`."""
        before = own(records.read(), self.name, node) if records else None
        text = reason(caller.actor.run, caller.actor.controller, caller.now(), why)
        record: DrainRecord | None = None
        left: str | None = None
        for _ in range(TRIES):
            seen = self.state_of(node)
            held = self._held(node, seen, before, caller)
            free = seen.in_service or held is not None
            if record is None:
                left = since(held) if held and held.run != caller.actor.run else None
                record = self._record(node, text, seen, before, caller)
                if records and record != before:
                    records.write(record)
            # A drain that is gone on with gets the mark of this run as well: by it others see that a run works here.
            if not free or record.reason == seen.reason or self.take(node, text, seen):
                break
        else:
            raise GoldnodeError(
                f"{node} changes while it is to be drained",
                remedy="See who else drains it, then run again",
            )
        empty = True
        if caller.waits:
            self.finish(node)
        elif free:
            empty = self.settle(node)
        if self.state_of(node).in_service:
            raise GoldnodeError(
                f"{node} was returned to service while it drained",
                remedy="Ask who did; run again when it may be drained. It was not changed",
            )
        note = None if free else f"{node} was out of service before ({self.shown(seen)})"
        again = not empty and not self.drains_by_itself
        return DrainOutcome(
            free,
            in_service=free,
            ours=free,
            left=left,
            note=note,
            record=record,
            empty=empty,
            again=again,
        )

    def review(self, node: str, caller: DrainCaller, records: DrainRecords) -> DrainOutcome:
        """See :class:`Drainer`."""
        return self._end(node, caller, records, returns=False)

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        """See :class:`Drainer`."""
        return self._end(node, caller, records, returns=True)

    def _end(
        self, node: str, caller: DrainCaller, records: DrainRecords | None, returns: bool
    ) -> DrainOutcome:
        found = records.read() if records else drain_record.FoundRecords()
        record = found.node
        if record is not None and (record.by, record.node) != (self.name, node):
            return DrainOutcome(
                changed=False,
                in_service=True,
                left=record.about(),
                note=moved(record, self.name, node),
            )
        left = record.about() if record and record.run != caller.actor.run else None
        for _ in range(TRIES):
            seen = self.state_of(node)
            try:
                held = self._held(node, seen, record, caller)
            except GoldnodeError as problem:
                return DrainOutcome(changed=False, in_service=True, left=left, note=str(problem))
            left = since(held) if held and held.run != caller.actor.run else left
            if held and not returns:
                return DrainOutcome(
                    changed=False, in_service=True, ours=True, left=left, record=record
                )
            # The note of a node in service, which a run that was killed has not given back with it, is given back as well.
            was = record.was if record and record.in_service and (held or seen.in_service) else ""
            if record is None and held:
                was = caller.was
            if not (held or (was and seen.in_service and not seen.reason)) or self.give(
                node, seen, was
            ):
                break
        else:
            raise GoldnodeError(
                f"{node} changes while it is to be returned",
                remedy="See who else works on it, then run again",
            )
        if records:
            records.clear()
        if held or seen.in_service:
            return DrainOutcome(changed=held is not None, in_service=True, left=left, record=record)
        gate = (
            " The gate on the node returns it by itself once its check is fine, or"
            if seen.reason.startswith(GATE)
            else ""
        )
        note = f"{node} is out of service ({self.shown(seen)}), not for a run, and stays so.{gate} {by_hand(self.name, node)} returns it."
        return DrainOutcome(changed=False, in_service=False, left=left, note=note, record=record)

    @staticmethod
    def _held(
        node: str, seen: DrainState, record: DrainRecord | None, caller: DrainCaller
    ) -> Mark | None:
        """Return the mark of the run that holds the node.

        Raises GoldnodeError if another run may still work on it.
        """
        held = seen.held
        if held and caller.works(held.run, held.time):
            raise busy(node, held.run, held.controller, held.time)
        # Of a node that another holds, or that is not drained yet, the record alone says that a run works on it.
        others = record is not None and record.run != caller.actor.run
        if record and others and not held:
            sure = identity.works(record.run) is True
            if sure or (not seen.in_service and caller.works(record.run, record.since, held=False)):
                raise busy(node, record.run, record.controller, record.since)
        return held

    def _record(
        self,
        node: str,
        text: str,
        seen: DrainState,
        before: DrainRecord | None,
        caller: DrainCaller,
    ) -> DrainRecord:
        """Return the record of a drain. A continued drain has the state and note that the first run found."""
        actor, state, was = caller.actor, seen.state, seen.reason
        if seen.held and before and before.run == actor.run and before.reason == seen.reason:
            return before  # this run's own drain, unchanged
        if seen.held:
            state, was = (
                (before.state, before.was) if before and before.in_service else ("", caller.was)
            )
        elif seen.in_service and not was and before and before.in_service:
            was = before.was  # that run was killed between the return and the note
        free = seen.in_service or seen.held is not None
        return DrainRecord(
            self.name,
            node=node,
            run=actor.run,
            controller=actor.controller,
            since=caller.now(),
            reason=text,
            in_service=free,
            state=state,
            was=was,
        )

    def shown(self, seen: DrainState) -> str:
        """Return the state for a person."""
        return f"{self.name}: {seen.state}, {seen.reason or 'no reason'}"


@dataclass
class SlurmDrainer(SchedulerDrainer):
    """Drain with scontrol: set state DRAIN, then wait until no job is left.

    Slurm shows a drained node with flags, such as IDLE+DRAIN.
    """

    run: Run = run
    wait: float = 86400.0
    pause: float = 15.0
    sleep: Callable[[float], None] = field(default=time.sleep)
    name = "slurm"
    drains_by_itself = True

    def state_of(self, node: str) -> DrainState:
        rows = slurm_rows(self.run(["scontrol", "show", "node", node, "--oneliner"]))
        if not rows:
            raise GoldnodeError(
                f"scontrol shows no state of node {node}",
                remedy="Check that the inventory name is the Slurm node name",
            )
        return rows[0][1]

    def take(self, node: str, why: str, seen: DrainState) -> bool:
        self._update(node, lambda now: mark(why) == now.held, "State=DRAIN", f"Reason={why}")
        return True

    def _update(self, node: str, done: Callable[[DrainState], bool], *words: str) -> None:
        """Change a node. scontrol can end with 1 after a change that Slurm has made (goldnode.node.gate.scheduler)."""
        try:
            self.run(["scontrol", "update", f"NodeName={node}", *words])
        except GoldnodeError:
            if not done(self.state_of(node)):
                raise

    def give(self, node: str, seen: DrainState, note: str) -> bool:
        if seen.held:
            self._update(
                node,
                lambda now: not scheduler.DRAIN_FLAGS & set(now.state.split("+")),
                "State=RESUME",
            )
        if note:
            self.run(["scontrol", "update", f"NodeName={node}", f"Reason={note}"])
        return True

    def finish(self, node: str) -> None:
        waited = 0.0
        while set(self.state_of(node).state.split("+")) & BUSY:
            if waited >= self.wait:
                raise GoldnodeError(
                    f"node {node} still has jobs after {self.wait:g} s of draining",
                    remedy="Wait for them and run again; it stays drained",
                )
            self.sleep(self.pause)
            waited += self.pause

    def settle(self, node: str) -> bool:
        return not set(self.state_of(node).state.split("+")) & BUSY

    def marked(self) -> dict[str, str]:
        rows = slurm_rows(self.run(["scontrol", "show", "node", "--oneliner"]))
        return {name: seen.reason for name, seen in rows if seen.held}


def slurm_rows(text: str) -> list[tuple[str, DrainState]]:
    """Return name and state of each node in the output of scontrol, which has one node per line."""
    return [(row.name, _state(row)) for row in scheduler.nodes(text)]


def _state(row: scheduler.SchedulerNode) -> DrainState:
    reason = row.reason
    # Of a node that is down and not drained, the reason is not the one of a drain.
    if not row.in_service and not row.drained and mark(reason):
        reason = f"down: {reason}"
    # Slurm 24.11 keeps the reason of a drain that has ended: it is no note of a person.
    if row.in_service and reason.startswith((PREFIX, GATE)):
        reason = ""
    return DrainState(row.in_service, "+".join(row.flags), reason)


@dataclass
class KubectlDrainer(SchedulerDrainer):
    """Drain with kubectl: cordon the node and set the annotation with the reason in one change, then drain.

    A cordon without the mark of a run belongs to another user.
    """

    run: Run = run
    name = "kubectl"

    ANNOTATION = "goldnode/drained-for"
    MANAGER = "goldnode"  # by this name the API server notes who set a field last

    def state_of(self, node: str) -> DrainState:
        return self.state_in(
            json.loads(
                self.run(["kubectl", "get", "node", node, "-o", "json", "--show-managed-fields"])
            )
        )

    def state_in(self, found: Mapping[str, Any]) -> DrainState:
        """Return the state of a node as the API server describes it."""
        metadata = found.get("metadata", {})
        version, why = (
            str(metadata.get("resourceVersion", "")),
            str((metadata.get("annotations") or {}).get(self.ANNOTATION, "")),
        )
        if not found.get("spec", {}).get("unschedulable", False):
            return DrainState(True, "schedulable", "", version)
        owners = [
            row.get("manager")
            for row in metadata.get("managedFields") or ()
            if "f:unschedulable" in ((row.get("fieldsV1") or {}).get("f:spec") or {})
        ]
        if mark(why) and owners and self.MANAGER not in owners:
            why = f"cordoned again by {owners[0]}"  # our annotation has outlived our cordon
        return DrainState(False, "cordoned", why, version)

    def take(self, node: str, why: str, seen: DrainState) -> bool:
        return self._patch(node, seen, why, True)

    def give(self, node: str, seen: DrainState, note: str) -> bool:
        return self._patch(node, seen, None, None)

    def _patch(
        self, node: str, seen: DrainState, why: str | None, unschedulable: bool | None
    ) -> bool:
        """Change reason and cordon together; False where the node has changed since it was seen."""
        metadata = {"resourceVersion": seen.version} if seen.version else {}
        patch = {
            "metadata": {**metadata, "annotations": {self.ANNOTATION: why}},
            "spec": {"unschedulable": unschedulable},
        }
        try:
            self.run(
                [
                    "kubectl",
                    "patch",
                    "node",
                    node,
                    "--type=merge",
                    f"--field-manager={self.MANAGER}",
                    "-p",
                    json.dumps(patch),
                ]
            )
        except GoldnodeError as problem:
            if "Conflict" in str(problem) or "object has been modified" in str(problem):
                return False
            raise
        return True

    def finish(self, node: str) -> None:
        self.run(
            [
                "kubectl",
                "drain",
                node,
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--timeout=3600s",
            ]
        )

    def settle(self, node: str) -> bool:
        owners = {pod.owner for pod in pods(self.run, node)} - OF_NODE
        if owners - REPLACED:
            return False  # work that would not be continued elsewhere
        evict = [
            "kubectl",
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=60s",
        ]
        try:
            if owners:
                self.run(evict)
        except GoldnodeError as problem:
            # A disruption budget: the drain is repeated.
            if "timed out" in str(problem) or "timeout" in str(problem):
                return False
            raise
        return True

    def marked(self) -> dict[str, str]:
        cordoned = [
            "kubectl",
            "get",
            "nodes",
            "--field-selector",
            "spec.unschedulable=true",
            "-o",
            "json",
            "--show-managed-fields",
        ]
        rows = [
            (str(row["metadata"]["name"]), self.state_in(row))
            for row in json.loads(self.run(cordoned))["items"]
        ]
        return {name: seen.reason for name, seen in rows if seen.held}


# Controllers of pods that start the same pod on another node: an eviction does not end their work.
REPLACED = {"ReplicaSet", "ReplicationController", "StatefulSet"}
OF_NODE = {"DaemonSet", "Node"}  # their pods stay on a drained node


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod that has not ended: its node, the kind of its controller, and the time at which it must end."""

    node: str
    owner: str
    end: float  # seconds since the epoch; infinite without a limit


def pods(run: Run, node: str | None = None) -> list[NodePod]:
    """Return the pods of a node, or of all nodes, that have not ended. One question, a line for each pod."""
    columns = (
        "NODE:.spec.nodeName",
        "START:.status.startTime",
        "LIMIT:.spec.activeDeadlineSeconds",
        "BY:.metadata.ownerReferences[?(@.controller==true)].kind",
    )
    chosen = f"spec.nodeName={node}," if node else ""
    text = run(
        [
            "kubectl",
            "get",
            "pods",
            "--all-namespaces",
            f"--field-selector={chosen}status.phase!=Succeeded,status.phase!=Failed",
            "--no-headers",
            "-o",
            f"custom-columns={','.join(columns)}",
        ]
    )
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 4 and words[0] != "<none>":
            found.append(NodePod(words[0], words[3], _end(words[1], words[2])))
    return found


def _end(start: str, limit: str) -> float:
    try:
        return datetime.fromisoformat(start).timestamp() + float(limit)
    except ValueError:
        return math.inf


# Notes the exit status of a command where it outlives the run that started it, which a signal to the run's process group must not end.
NOTING = 'f=$1; shift; "$@"; s=$?; echo $s >"$f.new" && mv "$f.new" "$f"; exit $s'


@dataclass
class CommandDrainer:
    """Drain with the site's own programs. Their arguments are the node's name and, for a drain, the reason.

    Exit status 0 is success. Exit status 3 of `drain_command` means that the node was out of service already;
    a line `reason: TEXT` on its output then has the reason, by which a drain of a run is recognised.
    """

    drain_command: Sequence[str]
    resume_command: Sequence[str]

    def drain(
        self, node: str, why: str, caller: DrainCaller, records: DrainRecords | None = None
    ) -> DrainOutcome:
        """See :class:`Drainer`."""
        found = records.read() if records else drain_record.FoundRecords()
        old = own(found, "command", node) or (found.local if found.damaged else None)
        if old and caller.works(old.run, old.since):
            raise busy(node, old.run, old.controller, old.since)
        known = self._known(old, found, records)
        actor = caller.actor
        text = reason(actor.run, actor.controller, caller.now(), why)
        record = DrainRecord(
            "command",
            node=node,
            run=actor.run,
            controller=actor.controller,
            since=caller.now(),
            reason=text,
            in_service=known or None,
        )
        if records:
            records.write(record)
        status, said = self._call(
            [*self.drain_command, node, text],
            records.status_file(actor.run, DRAIN) if records else None,
        )
        if status not in (0, 3):
            raise GoldnodeError(
                f"{' '.join(self.drain_command)} {node} failed: {said}",
                remedy="Put that right, then run again",
            )
        given = re.search(r"^reason: *(.*)$", said, re.MULTILINE) if status == 3 else None
        if given:
            held = mark(given[1].strip())
            if held and caller.works(held.run, held.time):
                raise busy(node, held.run, held.controller, held.time)
            known = held is not None
        in_service = status == 0 or bool(known)
        record = replace(record, in_service=in_service)
        if records:
            records.write(record)
        left = old.about() if old and status == 3 and in_service else None
        note = (
            None
            if in_service
            else f"{node} was out of service before, as {self.drain_command[0]} says"
        )
        if not in_service and old and known is None:
            note = f"{note}; {old.about()} was cut off as it drained the node, and it cannot be seen whose drain this is"
        elif not in_service and found.damaged:
            note = f"{note}; {FILE} on the node cannot be read ({found.damaged})"
        elif not in_service and found.local and not old:
            note = f"{note}; {found.local.about()} of this controller had drained it, and the node has no record of that any more"
        return DrainOutcome(
            changed=status == 0,
            in_service=in_service,
            ours=in_service,
            left=left,
            note=note,
            record=record,
        )

    def review(self, node: str, caller: DrainCaller, records: DrainRecords) -> DrainOutcome:
        """See :class:`Drainer`."""
        return self._end(node, caller, records, None, returns=False)

    def resume(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None = None,
        before: bool | None = None,
    ) -> DrainOutcome:
        """See :class:`Drainer`."""
        return self._end(node, caller, records, before, returns=True)

    def _end(
        self,
        node: str,
        caller: DrainCaller,
        records: DrainRecords | None,
        before: bool | None,
        returns: bool,
    ) -> DrainOutcome:
        found = records.read() if records else drain_record.FoundRecords()
        if found.node and (found.node.by, found.node.node) != ("command", node):
            return DrainOutcome(
                changed=False,
                in_service=True,
                left=found.node.about(),
                note=moved(found.node, "command", node),
            )
        record = found.node or (found.local if found.damaged else None)
        left = record.about() if record and record.run != caller.actor.run else None
        if record and caller.works(record.run, record.since):
            return DrainOutcome(
                changed=False,
                in_service=True,
                left=left,
                note=str(busy(node, record.run, record.controller, record.since)),
            )
        in_service = self._known(record, found, records) if record else before
        if in_service and records and record is None and identity.is_rollout(caller.actor.run):
            # The record went with a return of which the controller could not report. To return the node again could
            # undo a person's drain since.
            return DrainOutcome(changed=False, in_service=True)
        if in_service:
            # Done already by a run that was killed before it could forget the drain?
            done = bool(records and record and records.status(record.run, RESUME) == 0)
            if not done and not returns:
                return DrainOutcome(
                    changed=False, in_service=True, ours=True, left=left, record=record
                )
            if not done:
                noted = records.status_file(record.run, RESUME) if records and record else None
                status, said = self._call([*self.resume_command, node], noted)
                if status != 0:
                    raise GoldnodeError(
                        f"{' '.join(self.resume_command)} {node} failed: {said}",
                        remedy="Put that right, then run again",
                    )
            if records:
                records.clear()
            return DrainOutcome(changed=not done, in_service=True, left=left, record=record)
        note = f"{node} was out of service before, as {self.drain_command[0]} says, and stays so."
        if in_service is None:
            why = (
                f"{FILE} on the node cannot be read ({found.damaged})"
                if found.damaged
                else "the run was cut off as it drained it"
            )
            note = (
                f"It cannot be seen whether {node} was in service before: {why}. It stays as it is."
            )
        if records:
            records.clear()
        return DrainOutcome(
            False,
            False,
            left=left,
            note=f"{note} `{shlex.join([*self.resume_command, node])}` returns it.",
            record=record,
        )

    def marked(self) -> dict[str, str]:
        return {}

    @staticmethod
    def _known(
        record: DrainRecord | None, found: drain_record.FoundRecords, records: DrainRecords | None
    ) -> bool | None:
        """Return whether the node was in service before the recorded drain.

        None if the run was killed before it could record that.
        """
        if record is None or record.in_service is not None:
            return record.in_service if record else None
        if found.local and found.local.run == record.run and found.local.in_service is not None:
            return found.local.in_service
        return {0: True, 3: False}.get(
            -1
            if (status := records.status(record.run, DRAIN) if records else None) is None
            else status
        )

    @staticmethod
    def _call(argv: Sequence[str], noted: Path | None) -> tuple[int, str]:
        """Return exit status and output of a command.

        The command finishes, and its status is recorded, even if this run is killed meanwhile.
        """
        if shutil.which(argv[0]) is None:
            raise GoldnodeError(
                f"{argv[0]}: not found",
                remedy="Correct goldnode_drain_command and goldnode_resume_command",
            )
        words = ["/bin/sh", "-c", NOTING, "sh", str(noted), *argv] if noted else list(argv)
        # Files and no pipes, which would end it as well.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            status = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                check=False,
                start_new_session=True,
            ).returncode
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode("utf-8", "replace").strip())
        return status, said[0] if status in (0, 3) else said[1] or said[0]


def choose(
    name: str, drain_command: Sequence[str] = (), resume_command: Sequence[str] = ()
) -> Drainer:
    """The drain called `none`, `command`, `slurm` or `kubectl`."""
    if name == "none":
        return NoDrainer()
    if name == "slurm":
        return SlurmDrainer()
    if name == "kubectl":
        return KubectlDrainer()
    if name == "command" and drain_command and resume_command:
        return CommandDrainer(drain_command, resume_command)
    if name == "command":
        raise GoldnodeError(
            "goldnode_drain: command needs goldnode_drain_command and goldnode_resume_command",
            remedy="Set both to lists of words",
        )
    raise GoldnodeError(f"goldnode_drain: {name} is not known", remedy=nearest(name, DRAINS))


@dataclass(frozen=True)
class DrainSettings:
    """How one node is drained: the scheduler, its name of the node, and the commands of the site."""

    by: str = "none"
    node: str = ""
    drain_command: tuple[str, ...] = ()
    resume_command: tuple[str, ...] = ()

    def drainer(self) -> Drainer:
        """Return the way to drain the node."""
        return choose(self.by, self.drain_command, self.resume_command)


def drain_settings(host: str, values: Mapping[str, Any]) -> DrainSettings:
    """Return the drain settings of a host from its inventory variables. Raises InventoryError for a wrong value."""
    check(host, {name: values[name] for name in JUDGED if name in values})
    return DrainSettings(
        str(values.get("goldnode_drain") or "none"),
        str(values.get("goldnode_drain_name") or host),
        tuple(str(word) for word in values.get("goldnode_drain_command") or ()),
        tuple(str(word) for word in values.get("goldnode_resume_command") or ()),
    )


# Leftovers of earlier runs


def left(name: str, node: str, on_node: str, cache: Path, drain: Callable[[], Drainer]) -> str:
    """Return the earlier run that left a node out of service, as far as known without contacting it.

    Empty if there is none.

    :param on_node: text of the node's own record, from its plan.
    :param cache: directory of this run, so that the scheduler is asked once for all nodes.
    """
    if on_node:
        try:
            return drain_record.parse(on_node).about()
        except ValueError as problem:
            return f"a run of which the record cannot be read: {problem}"
    if name not in ("slurm", "kubectl"):
        return ""
    with (cache / f"goldnode-{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = cache / f"goldnode-{name}.json"
        if not answer.exists():
            new = answer.with_suffix(".new")
            try:
                new.write_text(json.dumps(drain().marked()))
            except (GoldnodeError, ValueError, KeyError) as problem:
                new.write_text("{}")
                new.replace(answer)
                raise GoldnodeError(
                    f"{name} cannot be asked for nodes that an earlier run has left out of service: {problem}",
                    remedy="Those that have a record of it are found all the same",
                ) from None
            new.replace(answer)
    held = mark(str(json.loads(answer.read_text()).get(node, "")))
    return since(held) if held else ""

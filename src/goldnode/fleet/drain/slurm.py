"""Slurm: drain with scontrol, and read the states, reasons and work of its nodes.

A rollout asks with `scontrol show node` and `squeue`, as text with one node or job per line: `scontrol` of Slurm
22.05 has no `--json`, and the form of `squeue --json` differs between versions. All nodes are listed, because
10,000 names do not fit on a command line, and because an unknown name would make the whole answer an error.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain.protocol import DrainState, Run, SchedulerDrainer, run
from goldnode.fleet.drain.questions import Ask, ScheduledNode, expected_end
from goldnode.node.ground import scheduler
from goldnode.node.ground.drained import GATE, PREFIX, mark
from goldnode.node.ground.text import shortened

_MOST_HOSTS = 100_000  # of one list; no cluster has as many nodes
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}  # states of a node that still has jobs


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
        """Change a node. scontrol can end with 1 after a change that Slurm has made (goldnode.node.ground.scheduler)."""
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
        # A drained node runs its jobs to their end, and Slurm starts none on it.
        waited = 0.0
        while _works(self.state_of(node)):
            if waited >= self.wait:
                raise GoldnodeError(
                    f"node {node} still has jobs after {self.wait:g} s of draining",
                    remedy="Wait for them and run again; it stays drained",
                )
            self.sleep(self.pause)
            waited += self.pause

    def settle(self, node: str) -> bool:
        return not _works(self.state_of(node))

    def marked(self) -> dict[str, str]:
        rows = slurm_rows(self.run(["scontrol", "show", "node", "--oneliner"]))
        return {name: seen.reason for name, seen in rows if seen.held}

    def nodes(
        self, ask: Ask, wanted: Collection[str], at: float, reservation: str | None = None
    ) -> dict[str, ScheduledNode]:
        """See :class:`SchedulerDrainer`. Nodes in a maintenance reservation of others are out of service."""
        rows = _slurm_states(ask, wanted)
        ends = slurm_ends(
            ask(
                [
                    "squeue",
                    "--all",
                    "--noheader",
                    "--states=RUNNING,SUSPENDED,COMPLETING",
                    "--format=%N|%e",
                ]
            )
        )
        if any(_works(row) and name not in ends for name, row in rows.items()):
            # A job has ended between the two questions, or is not shown.
            rows = _slurm_states(ask, wanted)
        foreign = {}
        if any("MAINTENANCE" in row.state.split("+") for row in rows.values()):
            foreign = maintained(
                ask(["scontrol", "--all", "show", "reservation", "--oneliner"]), reservation
            )
        nodes = {}
        for name, row in rows.items():
            end = ends.get(name)
            if end is None and _works(row):
                end = at if "COMPLETING" in row.state.split("+") else math.inf
            node = ScheduledNode(
                row.in_service, 0.0 if end is None else expected_end(end, at), row.why
            )
            if row.in_service and name in foreign:
                node = replace(
                    node, in_service=False, reason=f"maintenance reservation {foreign[name]}"
                )
            nodes[name] = node
        return nodes


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


def _slurm_states(ask: Ask, wanted: Collection[str]) -> dict[str, DrainState]:
    # --all: nodes of hidden partitions too.
    rows = slurm_rows(ask(["scontrol", "--all", "show", "node", "--oneliner"]))
    return {name: row for name, row in rows if name in wanted}


def _works(row: DrainState) -> bool:
    return bool(BUSY & set(row.state.split("+")))


def slurm_ends(text: str) -> dict[str, float]:
    """Return the end of the last job of each node, from lines `HOSTLIST|END`. Without a known end it is infinite."""
    ends: dict[str, float] = {}
    for line in text.splitlines():
        hosts, _, end = line.strip().rpartition("|")
        until = float(end) if end.isdecimal() else math.inf
        for name in expand(hosts):
            ends[name] = max(ends.get(name, 0.0), until)
    return ends


def maintained(text: str, own: str | None) -> dict[str, str]:
    """Return the nodes in active maintenance reservations other than `own`, with the name of the reservation."""
    reservations: dict[str, str] = {}
    for line in text.splitlines():
        fields: dict[str, str] = dict(
            re.findall(r"(?:^|\s)(ReservationName|Nodes|Flags|State)=(\S+)", line)
        )
        if (
            fields.get("State") == "ACTIVE"
            and "MAINT" in fields.get("Flags", "").split(",")
            and fields.get("ReservationName") != own
        ):
            for name in expand(fields.get("Nodes", "")):
                reservations[name] = fields.get("ReservationName", "")
    return reservations


def expand(hosts: str) -> Iterator[str]:
    """Yield the names of a Slurm host list such as `n[001-003,7],m1`. Raises GoldnodeError for another text."""
    left = _MOST_HOSTS
    for item in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", hosts):
        parts = [
            list(_numbers(part[1:-1], hosts)) if part.startswith("[") else [part]
            for part in re.split(r"(\[[^\]]*\])", item)
            if part
        ]
        left -= math.prod(map(len, parts))
        if left < 0:
            raise _no_host_list(hosts)
        if item != "(null)":
            yield from ("".join(words) for words in itertools.product(*parts))


def _numbers(ranges: str, hosts: str) -> Iterator[str]:
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if not dash:
            yield first
            continue
        # Eight digits: neither a long text nor a range that never ends.
        if not re.fullmatch("[0-9]{1,8}", first) or not re.fullmatch("[0-9]{1,8}", last):
            raise _no_host_list(hosts)
        if int(last) - int(first) >= _MOST_HOSTS:
            raise _no_host_list(hosts)
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _no_host_list(text: str) -> GoldnodeError:
    return GoldnodeError(
        f"Slurm names hosts as {shortened(text, 60)!r}, which is no list of at most {_MOST_HOSTS}",
        remedy="see `scontrol show hostnames` for this list",
    )

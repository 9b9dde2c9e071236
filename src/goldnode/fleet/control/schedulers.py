"""The schedulers of a class: a few questions for all of its nodes, whatever the number.

Slurm is asked with `scontrol show node` and `squeue`, as text with one node or job per line: `scontrol` of Slurm
22.05 has no `--json`, and the form of `squeue --json` differs between versions. All nodes are listed, because
10,000 names do not fit on a command line, and because an unknown name would make the whole answer an error.

Kubernetes is asked with `kubectl get nodes` and `kubectl get pods`.

A site's command shows no state, so it is not asked: what its worker reports counts.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.control.clock import behind
from goldnode.fleet.drain.choice import SCHEDULERS, DrainSettings
from goldnode.fleet.drain.kubectl import OF_NODE, REPLACED, KubectlDrainer, pods
from goldnode.fleet.drain.protocol import DrainState
from goldnode.fleet.drain.slurm import BUSY, slurm_rows
from goldnode.fleet.rollout.model import SchedulerObservation

Ask = Callable[[Sequence[str]], str]

TIMEOUT = 60.0  # seconds for one question
# Until the end of work without a known end; Slurm has the same for an unlimited job.
NO_END = 365 * 86400.0
OVERTIME = 600.0  # work that should have ended is expected to end at the next full ten minutes
MAINTENANCE = "MAINTENANCE"


def ask(argv: Sequence[str], timeout: float = TIMEOUT) -> str:
    """Run a question to a scheduler, with a timeout. Raises GoldnodeError with the scheduler's own message."""
    # Seconds since the epoch: no zone to guess.
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    remedy = f"run `{' '.join(argv[:3])}` as the user of the controller; until it works, nodes keep their last state"
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            env=environment,
        )
    except FileNotFoundError:
        raise GoldnodeError(
            f"{argv[0]}: not found on this machine",
            remedy="install the scheduler's client on each controller",
        ) from None
    except subprocess.TimeoutExpired:
        raise GoldnodeError(
            f"{' '.join(argv[:3])}: no answer within {timeout:g} s", remedy=remedy
        ) from None
    if done.returncode != 0:
        said = (
            done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        ).splitlines()
        raise GoldnodeError(f"{' '.join(argv[:3])} failed: {said[-1]}", remedy=remedy)
    return done.stdout


@dataclass(frozen=True, slots=True)
class ScheduledNode:
    """A node as its scheduler shows it. `free_at` is 0 without work, and later than the question with work."""

    in_service: bool
    free_at: float = 0.0
    reason: str = ""


class SiteSchedulers:
    """A SchedulerReader for nodes with the drain settings of an inventory."""

    def __init__(
        self,
        nodes: Mapping[str, DrainSettings],
        reservation: str | None = None,
        *,
        ask: Ask = ask,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare questions; ask nothing yet.

        :param nodes: inventory name -> drain settings (`goldnode.fleet.drain.choice.drain_settings`).
        :param reservation: the reservation that the site made for this rollout (`drain.reservation` of the
            document). Nodes in another maintenance reservation count as out of service.
        """
        self._nodes, self._reservation, self._ask, self._clock = nodes, reservation, ask, clock

    def asks(self, name: str) -> bool:
        """See SchedulerReader."""
        settings = self._nodes.get(name)
        return settings is not None and settings.by in SCHEDULERS

    def read(self, names: Iterable[str]) -> list[SchedulerObservation]:
        """See SchedulerReader."""
        wanted: dict[str, dict[str, str]] = {}
        for name in names:
            if self.asks(name):
                settings = self._nodes[name]
                wanted.setdefault(settings.by, {})[name] = settings.node or name
        observed = []
        for by, in_scheduler in wanted.items():
            at, late = self._clock(), behind(self._clock)
            machine = at - late
            asked = set(in_scheduler.values())
            seen = self._nodes_of(by, asked, machine)
            for name, node in in_scheduler.items():
                if (row := seen.get(node)) is not None:
                    free_at = _ahead(row.free_at, late)
                    observed.append(
                        SchedulerObservation(name, at, row.in_service, free_at, row.reason)
                    )
        return observed

    def _nodes_of(self, by: str, names: Collection[str], at: float) -> dict[str, ScheduledNode]:
        if by == "slurm":
            return slurm_nodes(self._ask, names, at, self._reservation)
        return kubectl_nodes(self._ask, names, at)


# Slurm


def slurm_nodes(
    ask: Ask, wanted: Collection[str], at: float, reservation: str | None = None
) -> dict[str, ScheduledNode]:
    """Return the nodes that Slurm knows."""
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
    if any(MAINTENANCE in row.state.split("+") for row in rows.values()):
        foreign = maintained(
            ask(["scontrol", "--all", "show", "reservation", "--oneliner"]), reservation
        )
    nodes = {}
    for name, row in rows.items():
        end = ends.get(name)
        if end is None and _works(row):
            end = at if "COMPLETING" in row.state.split("+") else math.inf
        node = ScheduledNode(row.in_service, 0.0 if end is None else expected_end(end, at), row.why)
        if row.in_service and name in foreign:
            node = replace(
                node, in_service=False, reason=f"maintenance reservation {foreign[name]}"
            )
        nodes[name] = node
    return nodes


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
    """Yield the names of a Slurm host list such as `n[001-003,7],m1`."""
    for item in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", hosts):
        parts = [
            list(_numbers(part[1:-1])) if part.startswith("[") else [part]
            for part in re.split(r"(\[[^\]]*\])", item)
            if part
        ]
        if item != "(null)":
            yield from ("".join(words) for words in itertools.product(*parts))


def _numbers(ranges: str) -> Iterator[str]:
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        if not last:
            yield first
            continue
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def expected_end(end: float, at: float) -> float:
    """Return when work will end: later than `at`, because it was there then."""
    if math.isinf(end):
        # Rounded, so that an unchanged node is no news at each reading.
        return (math.floor(at / 86400.0) * 86400.0) + NO_END
    return end if end > at else (math.floor(at / OVERTIME) + 1) * OVERTIME


def _ahead(free_at: float, ahead: float) -> float:
    """Return the end of work by a clock that is ahead of the scheduler's: a node that works must not count as idle.

    Rounded up, so that an unchanged node is no news at each reading.
    """
    return math.ceil((free_at + ahead) / OVERTIME) * OVERTIME if free_at and ahead else free_at


# Kubernetes


def kubectl_nodes(ask: Ask, wanted: Collection[str], at: float) -> dict[str, ScheduledNode]:
    """Return the nodes that the API server knows.

    A node in service has work if a pod runs there that nothing starts elsewhere, such as one of a
    Job. A cordoned node has work until the last pod has left that its drain evicts.
    """
    names = ask(
        ["kubectl", "get", "nodes", "--no-headers", "-o", "custom-columns=NAME:.metadata.name"]
    )
    # Whole nodes only of those that are cordoned: the JSON of one has 10 KB and more.
    cordoned = ["kubectl", "get", "nodes", "--field-selector=spec.unschedulable=true"]
    rows = json.loads(ask([*cordoned, "-o", "json", "--show-managed-fields"]))["items"]
    states = {name: DrainState(True, "schedulable", "") for name in names.split() if name in wanted}
    drainer = KubectlDrainer()
    for row in rows:
        if (name := str(row["metadata"]["name"])) in states:
            states[name] = drainer.state_in(row)
    ends: dict[str, float] = {}
    for pod in pods(ask):
        state = states.get(pod.node)
        if state is None or pod.owner in OF_NODE or (state.in_service and pod.owner in REPLACED):
            continue
        ends[pod.node] = max(ends.get(pod.node, 0.0), pod.end)
    return {
        name: ScheduledNode(
            state.in_service,
            expected_end(ends[name], at) if name in ends else 0.0,
            state.why,
        )
        for name, state in states.items()
    }

"""The two states of a rollout side by side: what may not be in one job, or in one cluster, while it runs.

A cohort that does not move whole has nodes of both states for hours. A job that starts on all of it
then runs on two drivers, two versions of NCCL, UCX or Open MPI.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from goldnode.compat import coexistence, rules_host
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, CompatHost, FindingSubject, Workload
from goldnode.fleet.rollout.model import FleetNode

BEFORE, AFTER = "nodes that have not moved", "nodes that have moved"


@dataclasses.dataclass(frozen=True)
class BothStates:
    """The nodes of a class before and after a rollout. `unknown` is why they are not known."""

    before: CompatHost | None = None
    after: CompatHost | None = None
    workloads: tuple[Workload, ...] = ()
    unknown: str | None = None


def in_one_job(states: BothStates) -> list[CompatFinding]:
    """Return what a job that has nodes of both states runs into."""
    if states.before is None or states.after is None:
        return []
    hosts = [dataclasses.replace(host, cohort="a cohort") for host in (states.before, states.after)]
    cluster = {item.message for item in in_one_cluster(states)}
    return [item for item in rules_host.check_cohorts(hosts) if item.message not in cluster]


def in_one_cluster(states: BothStates) -> list[CompatFinding]:
    """Return what holds for a cluster that has nodes of both states."""
    if states.before is None or states.after is None:
        return []
    subject = FindingSubject("the cluster")
    return list(coexistence.findings(subject, [states.before, states.after], ["cluster"]))


def of_one_state(states: BothStates) -> Iterator[tuple[str, CompatFinding]]:
    """Yield what blocks one state and not the other, with the state: an image that needs the new driver."""
    if states.before is None or states.after is None:
        return
    blocks: Mapping[str, dict[tuple[str, str | None], CompatFinding]] = {
        host.subject: {
            (item.rule, item.row): item
            for item in check(host, states.workloads)
            if item.fatal and item.severity == "block"
        }
        for host in (states.before, states.after)
    }
    for own, other in ((BEFORE, AFTER), (AFTER, BEFORE)):
        for key, item in blocks[own].items():
            # The old state is left because of its own findings; its jobs matter.
            of_workload = any(load.subject in item.subject for load in states.workloads)
            if key not in blocks[other] and (own == AFTER or of_workload):
                yield own, item


def split_cohorts(nodes: Sequence[FleetNode]) -> list[str]:
    """Return the cohorts of several nodes, which have both states while they move node by node."""
    sizes = Counter(node.cohort for node in nodes if node.cohort is not None)
    return sorted(name for name, size in sizes.items() if size > 1)

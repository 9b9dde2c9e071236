"""Both states of a rollout: what may not be in one job or cluster while a cohort moves node by node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.cache.test_cold_caches import state
from tests.unit.cache.test_cold_caches import written as between
from tests.unit.fleet.rollout.documents import written
from tests.unit.fleet.rollout.test_rollout_check import COHORT, NODES, WHOLE

from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.compat.model import CompatHost, Workload
from goldnode.core.site import Site
from goldnode.fleet.control.state_locks import read_states
from goldnode.fleet.rollout.both_states import AFTER, BEFORE, BothStates
from goldnode.fleet.rollout.check import KnownOfClass, RolloutFinding, check


def states(before: dict[str, str], after: dict[str, str], driver: str = "580.95.05") -> BothStates:
    """Return two states of a class with these parts; `driver` is that of the second."""
    hosts = [
        CompatHost(name, vendor="nvidia", branch="580", driver=version, stack="s", parts=parts)
        for name, version, parts in ((BEFORE, "580.95.05", before), (AFTER, driver, after))
    ]
    return BothStates(before=hosts[0], after=hosts[1])


def about(found: tuple[RolloutFinding, ...], *codes: str) -> list[RolloutFinding]:
    return [item for item in found if item.code in codes]


@pytest.mark.parametrize(
    ("before", "after", "severity", "says"),
    [
        ({"nccl": "2.27.5"}, {"nccl": "2.28.3"}, "error", "Mismatched NCCL version"),
        ({"openmpi": "5.0.5"}, {"openmpi": "5.0.7"}, "error", "exactly the same everywhere"),
        ({"ucx": "1.12.1"}, {"ucx": "1.18.1"}, "warning", "1.11 on"),
        ({"ucx": "1.15.0"}, {"ucx": "1.18.1"}, None, ""),
        ({"lustre": "2.15.7"}, {"lustre": "2.15.8"}, None, ""),
        ({"nccl": "2.27.5"}, {"nccl": "2.27.5"}, None, ""),
    ],
)
def test_cohort_that_moves_node_by_node_is_judged_with_both_versions(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], severity: str | None, says: str
) -> None:
    report = check(
        written(tmp_path), nodes=COHORT, known=KnownOfClass(states=states(before, after))
    )
    found = about(report.findings, "coexistence")
    assert [item.severity for item in found] == ([severity] if severity else [])
    assert all('cohort "train"' in item.message and says in item.message for item in found)
    assert all(item.line == 12 for item in found)


def test_remedy_of_a_split_cohort_removes_the_finding(tmp_path: Path) -> None:
    both = states({}, {}, driver="595.91.07")
    (finding,) = about(
        check(written(tmp_path), nodes=COHORT, known=KnownOfClass(states=both)).findings,
        "coexistence",
    )
    assert "cohort-driver" in finding.message
    assert "{per: {cohort: all-or-none}}" in finding.remedy
    whole = check(written(tmp_path, WHOLE), nodes=COHORT, known=KnownOfClass(states=both))
    assert about(whole.findings, "coexistence") == []


def test_nodes_without_a_cohort_may_differ(tmp_path: Path) -> None:
    both = states({"nccl": "2.27.5"}, {"nccl": "2.28.3"}, driver="595.91.07")
    assert (
        about(
            check(written(tmp_path), nodes=NODES, known=KnownOfClass(states=both)).findings,
            "coexistence",
        )
        == []
    )
    assert (
        about(check(written(tmp_path), known=KnownOfClass(states=both)).findings, "coexistence")
        == []
    )


def test_cluster_with_two_network_drivers_is_warned_of_once(tmp_path: Path) -> None:
    both = states({"doca": "3.1.0"}, {"doca": "3.3.0"})
    for changes in ((), (WHOLE,)):
        report = check(written(tmp_path, *changes), nodes=COHORT, known=KnownOfClass(states=both))
        (finding,) = about(report.findings, "coexistence")
        assert (finding.severity, "all nodes of a cluster" in finding.message) == ("warning", True)


def test_state_that_alone_is_blocked_is_reported_with_its_rule(tmp_path: Path) -> None:
    both = states({"kubernetes": "1.33.1"}, {"kubernetes": "1.36.0"})
    plane = {"kubernetes_control_plane": "1.35.0"}
    hosts = [
        CompatHost(**{**vars(host), "parts": {**host.parts, **plane}})
        for host in (both.before, both.after)
        if host is not None
    ]
    (finding,) = about(
        check(
            written(tmp_path),
            known=KnownOfClass(states=BothStates(before=hosts[0], after=hosts[1])),
        ).findings,
        "compat",
    )
    assert (finding.severity, "[part-kubernetes]" in finding.message) == ("error", True)
    assert finding.message.startswith(AFTER)


def test_image_that_only_the_new_driver_runs_is_warned_of(tmp_path: Path) -> None:
    image = Workload("image cuda:13.0", cuda="13.0", forward_compat=False)
    hosts = [
        CompatHost(name, vendor="nvidia", branch=version.split(".")[0], driver=version)
        for name, version in ((BEFORE, "535.309.01"), (AFTER, "580.178.04"))
    ]
    report = check(
        written(tmp_path), known=KnownOfClass(states=BothStates(hosts[0], hosts[1], (image,)))
    )
    (finding,) = about(report.findings, "compat")
    assert (finding.severity, finding.line) == ("warning", 4)
    assert finding.message.startswith(BEFORE)
    assert "[cuda-driver]" in finding.message


def test_states_are_read_by_the_locks_of_both_stacks(tmp_path: Path) -> None:
    file = between(tmp_path, state("debian12_r470"), state("debian12_r535"))
    both = read_states(file.document, load_catalog(), Site())
    assert both.unknown is None
    assert both.before is not None
    assert both.after is not None
    assert (both.before.branch, both.after.branch) == ("470", "535")
    assert (both.before.subject, both.after.name) == (BEFORE, "a100_sxm4_40gb")


def test_state_without_its_lock_is_unknown_and_printed(tmp_path: Path) -> None:
    file = between(tmp_path, state("debian12_r470"), ("debian12_r535", f"sha256:{'1' * 64}"))
    both = read_states(file.document, load_catalog(), Site())
    assert both.unknown is not None
    shown = CliRunner().invoke(
        main, ["rollout", "check", str(file.source.file), "--format", "json"]
    )
    assert json.loads(shown.stdout)["states_unknown"] == both.unknown

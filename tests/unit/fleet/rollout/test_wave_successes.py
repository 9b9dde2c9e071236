"""A wave passes on successes that were seen; `rollout check` says what each wave can detect.

Real stores with simulated nodes, and the simulator: the changes here break every node, or the first one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.fleet.control.controlled import ControlledRollout, controlled, violations
from tests.unit.fleet.rollout import documents

from goldnode.cli import main
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.model import RolloutPhase, StepPhase
from goldnode.fleet.rollout.simulate import Simulation, made_up
from goldnode.fleet.store import rollouts

CANARY_OF_ONE = ("nodes: 2, spread: leaf", "nodes: 1")
DEFAULT_LIMITS = ("limits: {planned: 4, failed: 8, total: 10}\n", "")
ONE_WAVE = """\
schema: goldnode.rollout/1
rollout: r1
class: l4
from: {lock: "sha256:%s"}
to: {lock: "sha256:%s"}
waves: [{name: all, percent: 100%%}]
limits: {planned: 1, failed: 1, total: 1}
require: [{boot: {}}]
""" % ("0" * 64, "1" * 64)  # noqa: UP031 - braces of YAML


def run(directory: Path, migrated: Path, **faults: str) -> ControlledRollout:
    directory.mkdir()
    where = str(shutil.copy(migrated, directory / "fleet.db"))
    found = controlled(directory, where, 12, CANARY_OF_ONE, **faults)
    found.run()
    assert not violations(found)
    return found


def waves(found: ControlledRollout) -> dict[int, list[str]]:
    """Return the nodes of each wave."""
    store = found.store()
    with store.read() as connection:
        state = rollouts.load(connection, found.settings).state
    store.close()
    names: dict[int, list[str]] = {}
    for name, wave in state.wave_of.items():
        names.setdefault(wave, []).append(name)
    return names


def test_wave_whose_only_node_fails_takes_further_nodes(tmp_path: Path, migrated: Path) -> None:
    """One failure stops no change, and proves nothing good: three further nodes do."""
    (canary,) = waves(run(tmp_path / "good", migrated))[0]
    found = run(tmp_path / "one", migrated, **{canary: "image"})
    _, history = found.history()
    assert history["phase"] is RolloutPhase.COMPLETED
    assert history["steps"][canary][0] is StepPhase.FAILED
    assert len(waves(found)[0]) == 4
    # Where the change breaks all, the second failure stops it.
    broken = run(tmp_path / "all", migrated, **dict.fromkeys(found.world.names, "image"))
    _, history = broken.history()
    assert history["phase"] is RolloutPhase.ROLLED_BACK
    assert len(history["steps"]) == 2
    assert {node.digest for node in broken.world.nodes.values()} == {documents.OLD}


def simulated(settings: RolloutSettings, count: int, fault: str) -> Simulation:
    found = Simulation(settings, made_up(count, settings.origin), parse((fault,)), seed=1)
    found.result = found.run()  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 9, 40])
@pytest.mark.parametrize("fault", ["image", "absent=100%"])
def test_change_that_breaks_every_node_is_never_completed(
    count: int, fault: str, tmp_path: Path
) -> None:
    """It is rolled back, or frozen for a named reason, however small the class is."""
    found = simulated(documents.settings(tmp_path, DEFAULT_LIMITS), count, fault)
    assert found.state.record.phase is RolloutPhase.ROLLED_BACK or found.state.freezes
    for freeze in found.state.freezes.values():
        assert "fail" in freeze.reason, freeze.reason
    assert found.result.touched <= 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_good_change_completes_in_a_small_class(count: int, tmp_path: Path) -> None:
    found = simulated(documents.settings(tmp_path, DEFAULT_LIMITS), count, "slow=0%")
    assert found.state.record.phase is RolloutPhase.COMPLETED


def test_one_wave_of_one_node_that_the_change_breaks_goes_back_with_the_cause(
    tmp_path: Path,
) -> None:
    found = simulated(documents.written(tmp_path, text=ONE_WAVE).settings, 1, "image")
    assert found.state.record.phase is RolloutPhase.ROLLED_BACK
    assert found.state.record.why == (
        "boot-check: no node has passed; no answer since the soak of wave all ended: boot: 0 of 1 nodes have passed, "
        "1 is needed; 1 has failed (boot-check)"
    )


def test_one_wave_of_one_node_that_does_not_return_ends_frozen_with_the_cause(
    tmp_path: Path,
) -> None:
    """That a node does not return may be the node: a person decides."""
    found = simulated(documents.written(tmp_path, text=ONE_WAVE).settings, 1, "absent=100%")
    (freeze,) = found.state.freezes.values()
    assert freeze.reason == (
        "no answer since the soak of wave all ended: boot: 0 of 1 nodes have passed, 1 is needed; "
        "1 has failed (did not report in time after the change was applied)"
    )


def test_nine_nodes_of_which_all_break_end_rolled_back(tmp_path: Path) -> None:
    """The first failure spends the limit: no second one can confirm it."""
    found = simulated(documents.settings(tmp_path, DEFAULT_LIMITS), 9, "image")
    assert found.state.record.phase is RolloutPhase.ROLLED_BACK
    assert found.result.touched == 1  # type: ignore[attr-defined]
    assert "no node has passed" in found.state.record.why


def checked(
    directory: Path, count: int, *changes: tuple[str, str], text: str = documents.TEXT
) -> dict[str, object]:
    documents.written(directory, *changes, text=text)
    words = [
        "rollout",
        "check",
        str(directory / "rollout.yml"),
        "--nodes",
        str(count),
        "--format",
        "json",
    ]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("count", "changes", "expected"),
    [
        (12, (CANARY_OF_ONE,), {"canary": None, "first": 0.52, "all": 0.44}),
        (500, (), {"canary": 0.975, "first": 0.47, "all": 0.02}),
        (1, (CANARY_OF_ONE,), {"canary": None}),
    ],
)
def test_check_has_the_share_that_each_wave_detects(
    count: int,
    changes: tuple[tuple[str, str], ...],
    expected: dict[str, float | None],
    tmp_path: Path,
) -> None:
    """With 95 % confidence, by two failures of one cause in the first two waves, and by the base rate in all."""
    found = {wave["name"]: wave for wave in checked(tmp_path, count, *changes)["waves"]}  # type: ignore[attr-defined]
    for name, share in expected.items():
        assert found[name]["detects"] == (
            None if share is None else pytest.approx(share, abs=0.011)
        ), found[name]


def test_check_warns_of_waves_that_cannot_stop(tmp_path: Path) -> None:
    found = checked(tmp_path, 1, text=ONE_WAVE)
    messages = [item["message"] for item in found["findings"] if item["code"] == "detects"]  # type: ignore[attr-defined]
    assert messages == [
        'wave "all" cannot stop the rollout: one node failing is within a base rate of 0.20%, and 2 failures are '
        "needed. It does not pass on failures either: without a further node to take, it ends after `on_unknown.after`"
    ]

"""A controller with a push whose Ansible runs are simulated: from the submission to the end, on a real store."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from tests.unit.fleet.control.controlled import ControlledRollout, World, controlled
from tests.unit.fleet.rollout import documents

from goldnode.fleet.control import push_job
from goldnode.fleet.control.controller import ControllerParts, ControllerSettings, RolloutController
from goldnode.fleet.control.push import Push, PushSettings
from goldnode.fleet.rollout import push_results
from goldnode.fleet.rollout.model import RolloutPhase
from goldnode.fleet.store.database import StoreDatabase
from goldnode.node.ground import drained


class SimulatedRun:
    """A run of Ansible that is over as soon as it has begun."""

    def __init__(self, world: World, directory: Path) -> None:
        variables = json.loads((directory / push_job.VARIABLES).read_text())
        (name,) = (directory / "limit").read_text().split()
        phase, node = variables["goldnode_phase"], world.nodes[name]
        line: dict[str, Any] = {"host": name, "task": phase, "what": push_results.OK}
        if phase == "drain":
            node.in_service = False
            node.reason = drained.reason(world.run, "c", "2026-11-02T08:00:00Z", "rollout r1")
            record = {"was": "", "reason": node.reason}
            line["result"] = {
                "drain": {"in_service": True, "note": None, "record": record},
                "empty": True,
            }
        elif phase == "return":
            node.in_service, node.reason = True, ""
            line["result"] = {
                "drain": {"in_service": True, "note": None, "record": {}},
                "empty": True,
            }
        elif phase == "apply" and world.faults.get(name) == "module":
            error = {
                "part": "gpu_driver",
                "kind": "module.build",
                "resource": "nvidia",
                "error": "no rule\nlog",
            }
            line.update(what=push_results.FAILED, result={"error": error})
        else:
            assert not node.in_service
            wanted = world.target if phase == "apply" else variables["goldnode_to"]
            if node.digest != wanted or node.boot_id == variables["goldnode_prior_boot"]:
                node.digest, node.boots = wanted, node.boots + 1
            seen = {
                "at": world.now,
                "boot_id": node.boot_id,
                "digest": node.digest,
                "verdict": "pass",
            }
            line["result"] = {"observation": {"node": name, **seen}}
        ended = {
            push_results.ENDED: "failed" if line["what"] == push_results.FAILED else "successful"
        }
        (directory / push_job.RESULTS).write_text(f"{json.dumps(line)}\n{json.dumps(ended)}\n")

    def poll(self) -> int | None:
        return 0

    def terminate(self) -> None:
        raise AssertionError("it is over")

    kill = terminate


@dataclasses.dataclass
class PushedRollout(ControlledRollout):
    """A rollout whose controllers push."""

    project: Path = Path()

    def controller(
        self, store: StoreDatabase, holder: str = "c/1", quiet: float = 0.0
    ) -> RolloutController:
        own = ControllerSettings(holder, quiet=quiet, clock=lambda: self.world.now)
        document = {"class": self.settings.class_, "lock": {"digest": self.settings.target}}
        settings = PushSettings(
            self.project,
            ("n00,",),
            self.settings.name,
            self.settings.target,
            document,
            clock=lambda: self.world.now,
        )
        worker = Push(settings, lambda directory: SimulatedRun(self.world, directory))
        return RolloutController(store, self.settings, ControllerParts(worker), own)


FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))


def pushed(directory: Path, migrated: Path, **faults: str) -> PushedRollout:
    shutil.copy(migrated, directory / "fleet.db")
    made = controlled(directory, str(directory / "fleet.db"), 12, *FAST, **faults)
    return PushedRollout(made.where, made.settings, made.world, project=directory)


def test_a_good_change_is_pushed_to_every_node(tmp_path: Path, migrated: Path) -> None:
    rollout = pushed(tmp_path, migrated)
    report, _ = rollout.run()
    assert report.phase is RolloutPhase.COMPLETED
    for node in rollout.world.nodes.values():
        assert (node.digest, node.in_service, node.boots) == (documents.NEW, True, 2)


def test_a_module_that_does_not_build_is_stopped_with_its_cause_and_rolled_back(
    tmp_path: Path, migrated: Path
) -> None:
    rollout = pushed(tmp_path, migrated, **{f"n{number:02}": "module" for number in range(12)})
    report, _ = rollout.run()
    assert report.phase is RolloutPhase.ROLLED_BACK
    lines, _ = rollout.history()
    cause = "gpu_driver: module.build nvidia: no rule"
    assert any(cause in line[-1] for line in lines[""] if line[0] == "ChangePhase")
    assert len([name for name in lines if name]) == 2, "the canary pool"
    for node in rollout.world.nodes.values():
        assert (node.digest, node.in_service) == (documents.OLD, True)

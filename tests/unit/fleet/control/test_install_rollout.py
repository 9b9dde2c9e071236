"""Rollouts that install their nodes again, end to end but for the machines, which are simulated."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.control.followed import LIMITS
from tests.unit.fleet.control.installed import (
    NEW,
    OLD,
    InstallSite,
    SimulatedReader,
    install_site,
)
from tests.unit.fleet.rollout import documents
from tests.unit.fleet.store.fleets import held

from goldnode.core.errors import GoldnodeError
from goldnode.disks import netboot
from goldnode.fleet.control import assembly
from goldnode.fleet.control.controller import (
    ControllerParts,
    ControllerReport,
    ControllerSettings,
    RolloutController,
)
from goldnode.fleet.control.follow import FollowWorker
from goldnode.fleet.control.install_rollout import AGAIN, InstallReader, InstallWorker
from goldnode.fleet.rollout.document import RolloutError, RolloutFile
from goldnode.fleet.rollout.model import (
    Direction,
    NodeObservation,
    Prior,
    RolloutPhase,
    StepPhase,
)
from goldnode.fleet.rollout.parts import NodeTask
from goldnode.fleet.store import controllers, nodes, observations
from goldnode.fleet.store.controllers import Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreUnavailableError
from goldnode.fleet.store.nodes import StoredNode

CHANGES = (
    (f'{{stack: debian12_r580, lock: "{documents.OLD}"}}', f"{{disk: '{OLD}'}}"),
    (f'{{stack: debian12_r580, lock: "{documents.NEW}"}}', f"{{disk: '{NEW}'}}\nreinstall: true"),
    ("soak: 4h", "soak: 0s"),
    ("- {name: first, nodes: 6, soak: 4h}\n", ""),
)
PRIOR = Prior(True, OLD, "boot-1")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallSite:
    monkeypatch.chdir(tmp_path)
    return install_site(tmp_path, 6)


@pytest.fixture
def store(tmp_path: Path, migrated: Path) -> StoreDatabase:
    return StoreDatabase(f"sqlite:///{shutil.copy(migrated, tmp_path / 'fleet.db')}")


def submitted(site: InstallSite, store: StoreDatabase, *changes: tuple[str, str]) -> RolloutFile:
    """Submit the rollout, which is not begun."""
    file = documents.written(site.folder, *CHANGES, *changes)
    text = (site.folder / "rollout.yml").read_text()
    given = Submission(
        "r1", node_class="l4", target=NEW, document=text, limits=LIMITS, author="alice@c"
    )
    stored = [
        StoredNode(name, "l4", f"r{place % 3}", f"l{place % 2}")
        for place, name in enumerate(site.machines)
    ]
    now = time.time()
    store.run(lambda c: nodes.put(c, stored, {"l4": LIMITS}, "test", now))
    store.run(lambda c: controllers.submit(c, given, now))
    return file


class Clock:
    """The time of the controller, which the test moves on."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def controller(
    site: InstallSite, store: StoreDatabase, file: RolloutFile, clock: Clock, holder: str = "c/1"
) -> RolloutController:
    reader: Any = SimulatedReader(site, clock)
    worker = InstallWorker(
        "r1",
        node_class="l4",
        target=NEW,
        channels=lambda: {build: name for name, build in netboot.heads(site.place, "l4").items()},
        installer=site.installer(),
        reader=reader,
        others=FollowWorker("r1", clock=clock),
        clock=clock,
    )
    own = ControllerSettings(holder, nodes=0.0, quiet=0.0, clock=clock)
    return RolloutController(store, file.settings, ControllerParts(worker, nodes=reader), own)


def run(own: RolloutController, clock: Clock, rounds: int | None = None) -> ControllerReport:
    """Run a controller for so many rounds, or until the rollout has ended, for a minute at most.

    Installations are threads: a round begins once they have done what they can at its time.
    """
    report, count, limit = own.tick(), 0, time.monotonic() + 60
    while not report.ended and (time.monotonic() < limit if rounds is None else count < rounds):
        settle(own)
        count += 1
        clock.now += 10.0
        report = own.tick()
    own.close()
    return report


def settle(own: RolloutController) -> None:
    """Wait for the installations and readings that run, half a minute at most."""
    worker: Any = own.parts.worker
    running = [item.running for item in (*worker._wanted.values(), *own._readings) if item.running]
    wait(running, timeout=30)


def builds(site: InstallSite) -> list[str]:
    return [machine.build for machine in site.machines.values()]


def test_good_image_is_installed_on_each_node_once(site: InstallSite, store: StoreDatabase) -> None:
    clock = Clock()
    file = submitted(site, store)
    report = run(controller(site, store, file, clock), clock)
    assert report.phase is RolloutPhase.COMPLETED, report
    assert builds(site) == [NEW] * 6
    assert [machine.installations for machine in site.machines.values()] == [1] * 6
    assert held(store) == {}


def test_bad_image_is_stopped_and_its_nodes_are_installed_with_the_earlier_one(
    site: InstallSite, store: StoreDatabase
) -> None:
    for machine in site.machines.values():
        machine.fault = "broken"
    clock = Clock()
    file = submitted(
        site, store, ("timeout: 1h", "timeout: 1h\non_fail: {do: rollback, what: wave}")
    )
    report = run(controller(site, store, file, clock), clock)
    assert report.phase is RolloutPhase.ROLLED_BACK, report
    assert builds(site) == [OLD] * 6
    touched = [machine.installations for machine in site.machines.values() if machine.boots > 1]
    assert touched == [2, 2], "the canaries, forward and back"
    assert held(store) == {}


def test_second_controller_does_not_install_a_node_again(
    site: InstallSite, store: StoreDatabase
) -> None:
    clock = Clock()
    file = submitted(site, store)
    run(controller(site, store, file, clock), clock, rounds=6)
    assert sum(machine.installations for machine in site.machines.values()) > 0
    clock.now += 120.0
    report = run(controller(site, store, file, clock, "c/2"), clock)
    assert report.phase is RolloutPhase.COMPLETED, report
    assert [machine.installations for machine in site.machines.values()] == [1] * 6


def test_installer_that_refuses_counts_against_the_change(
    site: InstallSite, store: StoreDatabase
) -> None:
    for machine in site.machines.values():
        machine.fault = "refuses"
    clock = Clock()
    file = submitted(site, store, ("timeout: 1h", "timeout: 1h\non_fail: {do: freeze}"))
    run(controller(site, store, file, clock), clock, rounds=30)
    with store.read() as connection:
        said = connection.exec_driver_sql("SELECT content FROM log").scalars().all()
    assert any("was not carried out" in str(text) for text in said)
    assert sum(machine.boots > 1 for machine in site.machines.values()) == 2


def test_node_that_has_the_build_since_before_its_step_is_installed(
    site: InstallSite, store: StoreDatabase
) -> None:
    """The plan believes no verdict of the boot from before the step."""
    machine, clock = site.machines["n0"], Clock()
    machine.build = NEW
    own = controller(site, store, submitted(site, store), clock).parts.worker
    own.work([NodeTask("n0", StepPhase.APPLYING, Direction.FORWARD, 1, PRIOR)])
    end = time.monotonic() + 30
    while not (seen := own.results()):
        assert time.monotonic() < end
        time.sleep(0.02)
    own.close()
    assert isinstance(seen[0], NodeObservation)
    assert (machine.installations, seen[0].boot_id) == (1, "boot-2")


@pytest.mark.parametrize(("fault", "cause"), [("", None), ("refuses", "was not carried out")])
def test_result_is_given_again_while_its_step_lasts(
    site: InstallSite, store: StoreDatabase, fault: str, cause: str | None
) -> None:
    """A controller whose store is away loses a result, and one of its step's own moment does not count."""
    machine, clock = site.machines["n0"], Clock()
    machine.fault = fault
    own = controller(site, store, submitted(site, store), clock)
    worker, task = own.parts.worker, NodeTask("n0", StepPhase.APPLYING, Direction.FORWARD, 1, PRIOR)
    for _ in range(2):
        worker.work([task])
        settle(own)
        (seen,) = worker.results()
        assert isinstance(seen, NodeObservation)
        assert (seen.at, seen.boot_id) == (clock.now, None if fault else "boot-2")
        assert cause is None or cause in (seen.not_applied or "")
        worker.work([task])
        settle(own)
        assert worker.results() == [], "not at each round"
        clock.now += AGAIN
    assert (machine.boots, machine.installations) == (2, 0 if fault else 1)
    own.close()


def test_result_waits_for_a_store_that_is_away(
    site: InstallSite, store: StoreDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    own = controller(site, store, submitted(site, store), clock)
    while not sum(machine.installations for machine in site.machines.values()):
        own.tick()
        settle(own)
        clock.now += 10.0
    worker: Any = own.parts.worker

    def away(*_: object) -> None:
        raise StoreUnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(observations, "after", away)
        assert own.tick().problem
    assert any(item.running for item in worker._wanted.values()), "its result is still to be read"
    own.close()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ((CHANGES[0], ("require:", "reinstall: true\nrequire:")), "installs a disk build"),
        ((*CHANGES[1:],), "have no way back to a lock"),
    ],
)
def test_document_that_cannot_install_is_refused(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], text: str
) -> None:
    with pytest.raises(GoldnodeError, match=text):
        documents.written(tmp_path, *changes)


def test_target_has_to_be_published_and_the_site_to_install(
    site: InstallSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = documents.written(site.folder, *CHANGES)
    monkeypatch.setenv("GOLDNODE_SITE", str(site.folder / "site.yml"))
    (site.folder / "site.yml").write_text("{}\n")
    with pytest.raises(RolloutError, match=r"no ladder\.install and ladder\.bmc"):
        assembly.check_target(file, None)
    ladder = {
        "bmc": {"protocol": "ipmi", "address": "{node}", "credentials": "bmc.txt"},
        "install": site.settings.model_dump(),
    }
    (site.folder / "site.yml").write_text(json.dumps({"ladder": ladder}))
    assembly.check_target(file, None)
    with pytest.raises(RolloutError, match="follow no channel"):
        assembly.check_target(file, site.folder)
    site.point("stable", "2" * 12)
    with pytest.raises(
        RolloutError, match=f"no channel of class l4 in place points to build {OLD}"
    ):
        assembly.check_target(file, None)


def test_reader_shows_the_build_that_a_node_runs(tmp_path: Path) -> None:
    """The script runs in a shell of this machine, with its own files for those of a node."""

    class Node:
        def run(self, *command: str, timeout: float) -> subprocess.CompletedProcess[bytes]:
            script = command[-1].replace("/usr/lib/goldnode/disk", str(tmp_path))
            return subprocess.run(["sh", "-c", script], capture_output=True, check=False)

    reader = InstallReader(lambda name: Node())  # type: ignore[arg-type,return-value]
    (none,) = reader.read(["n0"])
    assert none.digest is None
    (tmp_path / "image.json").write_text(json.dumps({"build_id": NEW}))
    (seen,) = reader.read(["n0"])
    assert (seen.digest, seen.boot_id is not None) == (NEW, True)

"""The ladder on a lab node over ssh, with a real slurmctld and slurmd, and a BMC that has the power of the node. The GPU is simulated.

A boot of the node is a restart of its systemd; `scontrol reboot` and the BMC restart it for real.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient
from tests import slurm
from tests.unit.fleet.conftest import migrated
from tests.unit.fleet.control.test_bmc import emulated, settings, sushy_tools
from tests.unit.fleet.rollout.ladder_world import verdict

from goldnode.commands.fleet.ladder import sentence
from goldnode.core.site import SiteLadder
from goldnode.fleet.control.bmc import PowerTimes
from goldnode.fleet.control.ladder import LadderController
from goldnode.fleet.control.ladder_nodes import LadderDrains, LadderNodes
from goldnode.fleet.control.rungs import RungTools
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.control.ticket_desk import StoreTicketDesk, plain_request
from goldnode.fleet.drain.choice import DrainSettings
from goldnode.fleet.nodes.reach import SshNode
from goldnode.fleet.rollout.ladder import CasePhase, LadderBounds, LadderMode, LadderPolicy
from goldnode.fleet.rollout.queue import QueuedWork, WorkNeed
from goldnode.fleet.store import grants, nodes, queue, repairs, tickets
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.fleet.store.queue import NodeAsk
from goldnode.node.ground.host import PROGRAM
from goldnode.testing.lab import images
from goldnode.testing.lab.nodes import Lab, LabNode, NodeSpec

__all__ = ["migrated", "sushy_tools"]  # fixtures

pytestmark = [pytest.mark.lab, pytest.mark.long]
NAME, CLASS = "lab1", "h100"
HANG = "/var/lib/simulated-hang"
# A simulated program of the node: a finding, until the boot that HANG names is over, or for ever.
CHECK = f"""#!/usr/bin/python3
import json, sys
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
here = boot + "/" + open("/proc/1/stat").read().rpartition(")")[2].split()[19]
try:
    finding, until = open("{HANG}").read().split()
except OSError:
    finding, until = "", "gone"
hung = until in ("always", here)
if sys.argv[1] == "hung":
    sys.exit(not hung)
if sys.argv[1] == "boot":
    sys.exit(print(here))
shown = json.load(open("/usr/local/lib/verdicts.json"))[finding if hung else ""]
shown["boot_identity"] = here
print(json.dumps(shown if sys.argv[1] == "check" else {{"simulated": True}}))
sys.exit(shown["exit_code"] if sys.argv[1] == "check" else 0)
"""
SMI = f"""#!/bin/sh
if {PROGRAM} hung; then echo "GPU Reset couldn't run because the driver hangs (simulated)"; exit 15; fi
"""
# A boot by software ends in the driver that hangs; slurmd has a boot of its own.
SYSTEMCTL = f"""#!/bin/sh
if [ "$1" = reboot ] && {PROGRAM} hung; then exit 0; fi
exec /usr/bin/systemctl "$@"
"""
UNIT = """[Unit]
Description=slurmd of this lab node
After=network.target
[Service]
ExecStartPre=/usr/local/sbin/lab-munged
ExecStart=/usr/sbin/slurmd -D -N {name} -f {directory}/slurm.conf
Restart=on-failure
[Install]
WantedBy=multi-user.target
"""
MUNGED = """#!/bin/sh -e
mkdir -p {directory}/munge {directory}/spool-{name} {directory}/state
cp /etc/lab-slurm/slurm.conf {directory}/
install -m 600 /etc/lab-slurm/key {directory}/munge/key
[ -S {directory}/munge/socket ] && exit 0
exec munged --force --socket={directory}/munge/socket --key-file={directory}/munge/key \\
  --pid-file={directory}/munge/pid --log-file={directory}/munge/log --seed-file={directory}/munge/seed
"""
# A driver of sushy-tools' emulator that has the power of a container: late and lossy like its fake driver.
DRIVER = """
import os, sys
import docker
from sushy_tools.emulator.resources.systems import fakedriver
node = docker.from_env().containers.get(os.environ["LAB_NODE"])
Fake = fakedriver.FakeDriver
class Container(Fake):
    def _update(self, system, **changes):
        super()._update(system, **changes)
        node.reload()
        if changes.get("power_state") == "On" and node.status != "running":
            node.start()
        if changes.get("power_state") == "Off" and node.status == "running":
            node.kill()
    def set_power_state(self, identity, state):
        # The node runs already when the emulator starts, and the fake system is off.
        Fake._update(self, self._get(identity), power_state=self.get_power_state(identity))
        super().set_power_state(identity, state)
    def get_power_state(self, identity):
        self._get(identity)
        node.reload()
        return "On" if node.status == "running" else "Off"
fakedriver.FakeDriver = Container
from sushy_tools.emulator import main
sys.exit(main.main())
"""


@dataclass
class Place:
    """A lab node, its cluster, and the controller of the ladder on a store of its own."""

    node: LabNode
    cluster: slurm.SlurmCluster
    controller: LadderController
    evidence: Path

    def hang(self, finding: str, until: str = "") -> None:
        """Let the simulated driver hang, until a boot or for ever."""
        boot = self.node.run(PROGRAM, "boot").output.strip()
        self.node.put({HANG: f"{finding} {until or boot}\n".encode()})

    def until(self, met: Callable[[], object], seconds: float = 300.0) -> None:
        """Tick until something holds."""
        end = time.monotonic() + seconds
        state = self.controller.state
        while not met():
            assert time.monotonic() < end, (state.cases, state.rungs, self.cluster.rows())
            self.controller.tick()
            time.sleep(0.5)

    def story(self) -> list[str]:
        """Return the transitions, and the state of the node in its scheduler."""
        lines = [f"{at:.0f} {sentence(action)}" for at, action in self.controller.record.lines]
        return [*lines[-4:], str(self.cluster.rows()[NAME])]

    def rungs(self) -> list[tuple[str, str]]:
        rows = self.controller.state.rungs
        return [(row.rung, row.outcome.partition(":")[0].partition(";")[0]) for row in rows]


@pytest.fixture(scope="module")
def lab(
    docker_client: DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LabNode, slurm.SlurmCluster]]:
    why = slurm.missing()
    if why:  # the programs of Slurm are not installed: the reason names which
        pytest.skip(why)
    made = Lab(f"ladder-{os.getpid()}", docker_client, state=tmp_path_factory.mktemp("ladder"))
    try:
        extra = ["munge", "slurm-client", "slurmd"]
        image = images.ensure(docker_client, "debian12", "bare", say=made.say, extra=extra)
        (node,) = made.up([NodeSpec(NAME, CLASS, image=image)])
        node.container.update(restart_policy={"Name": "always"})  # it comes back from a boot
        node.container.reload()
        (network,) = node.container.attrs["NetworkSettings"]["Networks"].values()
        with slurm.cluster(
            1, address=network["Gateway"], remote={NAME: network["IPAddress"]}
        ) as cluster:
            prepare(node, cluster)
            cluster.wait(lambda: cluster.rows()[NAME][0] == "IDLE", 120.0)
            yield node, cluster
    finally:
        made.down()


def prepare(node: LabNode, cluster: slurm.SlurmCluster) -> None:
    """Put slurmd, and the simulated GPU, on the node."""
    words = {"name": NAME, "directory": str(cluster.directory)}
    conf = (
        Path(cluster.conf)
        .read_text()
        .replace("RebootProgram=/bin/true", "RebootProgram=/usr/local/sbin/lab-reboot")
    )
    findings = {"": [], "gpu.recovery_action": ["gpu.recovery_action"], "gpu.lost": ["gpu.lost"]}
    shown = {name: verdict(given) for name, given in findings.items()}
    node.put(
        {
            "/etc/lab-slurm/slurm.conf": conf.encode(),
            "/etc/lab-slurm/key": (cluster.directory / "munge/key").read_bytes(),
            "/etc/systemd/system/lab-slurmd.service": UNIT.format(**words).encode(),
            "/usr/local/lib/verdicts.json": json.dumps(shown).encode(),
        }
    )
    node.put(
        {
            PROGRAM: CHECK.encode(),
            "/usr/local/bin/nvidia-smi": SMI.encode(),
            "/usr/local/bin/systemctl": SYSTEMCTL.encode(),
            "/usr/local/sbin/lab-munged": MUNGED.format(**words).encode(),
            "/usr/local/sbin/lab-reboot": b"#!/bin/sh\nexec /usr/bin/systemctl reboot\n",
        },
        mode=0o755,
    )
    node.shell("/usr/bin/systemctl daemon-reload; /usr/bin/systemctl enable --now lab-slurmd")


@pytest.fixture
def place(
    lab: tuple[LabNode, slurm.SlurmCluster],
    sushy_tools: Path,
    migrated: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    node, cluster = lab
    monkeypatch.setenv("SLURM_CONF", cluster.conf)
    monkeypatch.syspath_prepend(str(sushy_tools))
    node.shell(f"rm -f {HANG}")
    shutil.copy(migrated, tmp_path / "fleet.db")
    store = StoreDatabase(str(tmp_path / "fleet.db"))
    limits = {CLASS: FleetLimits("1", "1", "2")}
    stored = [StoredNode(NAME, CLASS), StoredNode("n1", CLASS)]
    store.run(lambda connection: nodes.put(connection, stored, limits, "test", time.time()))
    drains = {NAME: DrainSettings("slurm", NAME)}
    reached = SshNode(NAME, tuple(node.ssh()))
    with emulated(sushy_tools, tmp_path, DRIVER, LAB_NODE=str(node.container.name)) as bmc:
        seen = LadderNodes(
            lambda name: reached,
            SiteSchedulers(drains),
            LadderDrains("", drains),
            {NAME: {"class": CLASS}},
            tmp_path / "repairs",
            can=frozenset(("gpu-reset", "module-reload", "reboot", "power-cycle")),
        )
        address = {"address": bmc.address}
        site = SiteLadder(mode="run").model_copy(
            update={"bmc": settings(tmp_path).model_copy(update=address)}
        )
        seen.tools = RungTools(
            site,
            lambda name: reached,
            guard=seen.guard,
            resolve=lambda name: tmp_path / name,
            class_=lambda name: CLASS,
            slurm={NAME: NAME},
            times=PowerTimes(poll=0.5, again=20.0, settle=3.0, limit=120.0),
            boot_limit=45.0,
        )
        policy = LadderPolicy(LadderMode.RUN, bounds=LadderBounds(check=60.0))
        own = LadderController(
            store,
            {NAME: policy},
            seen,
            seen,
            desk=StoreTicketDesk(store, plain_request, time.time),
        )
        yield Place(node, cluster, own, tmp_path / "repairs" / NAME)
        own.close()
    store.close()


def test_node_that_ssh_does_not_reach_is_booted_by_its_scheduler(place: Place) -> None:
    """`scontrol reboot ASAP` boots it, its slurmd registers again, and it returns by itself."""
    before = place.node.run(PROGRAM, "boot").output
    place.hang("gpu.lost")
    place.until(lambda: place.evidence.is_dir() and list(place.evidence.glob("*/evidence.json")))
    place.node.shell("/usr/bin/systemctl stop ssh ssh.socket 2>/dev/null || :")
    place.until(lambda: place.controller.state.ended)
    assert place.rungs() == [("reboot", "booted")]
    assert place.controller.state.ended[0].phase is CasePhase.CURED, place.story()
    assert place.node.run(PROGRAM, "boot").output != before
    assert place.cluster.settled(NAME)[0] == "IDLE"


def test_hung_driver_climbs_to_the_power_cycle_and_a_driver_change_shares_its_drain(
    place: Place,
) -> None:
    store, own = place.controller.store, place.controller
    needs = (WorkNeed.DRAIN, WorkNeed.DRIVER)
    place.hang("gpu.recovery_action")
    place.until(lambda: NAME in own.state.cases)
    wanted = NodeAsk(QueuedWork.APPLY, "driver", "ann", "m/1", NAME, needs=needs, lease=3600.0)
    claim = store.run(lambda connection: queue.ask(connection, wanted, time.time()))
    place.until(lambda: own.state.ended)
    assert place.rungs() == [
        ("gpu-reset", "failed"),
        ("module-reload", "failed"),
        ("reboot", "failed"),
        ("power-cycle", "power cycled"),
    ]
    assert own.state.ended[0].phase is CasePhase.CURED, place.story()
    assert "the driver hangs (simulated)" in own.state.rungs[0].outcome
    stored = [path.parent.name.partition("-")[2] for path in place.evidence.glob("*/evidence.json")]
    assert {"gpu-reset", "module-reload", "reboot", "power-cycle"} <= set(stored)
    first = next(place.evidence.glob("*-gpu-reset"))
    assert json.loads((first / "verdict.json").read_text())["simulated"]
    assert "systemd" in (first / "processes.txt").read_text(), "by ssh, from the node"
    # The driver change has the same drain: the node has not been in service between.
    assert "DRAIN" in place.cluster.rows()[NAME][0]
    part = store.run(lambda connection: queue.begin(connection, claim, time.time()))
    assert part.run in {f"queue turn {row}" for row in range(1, 3)}
    done = queue.WorkOutcome(True, "installed")
    assert store.run(lambda connection: queue.finish(connection, claim, done, time.time())).returns
    place.cluster.reset()  # the return of site.yml


def test_driver_that_nothing_cures_ends_with_a_ticket_and_returns_after_its_release(
    place: Place,
) -> None:
    store, own = place.controller.store, place.controller
    place.hang("gpu.lost", "always")
    place.until(lambda: own.state.cases.get(NAME) and own.state.cases[NAME].phase.value == "ticket")
    assert place.rungs() == [("reboot", "failed"), ("power-cycle", "power cycled")]
    place.until(own.idle)
    with store.read() as connection:
        assert repairs.held(connection) == {NAME}
        (ticket,) = tickets.read(connection).tickets.values()
    assert (ticket.request.node, ticket.request.finding) == (NAME, "gpu.lost")
    assert "DRAIN" in place.cluster.rows()[NAME][0]
    # A person replaces the board, and releases the node: it returns by itself.
    place.node.shell(f"rm {HANG}")
    order = PersonsOrder("ann@host", time.time(), "the board was replaced")
    store.run(lambda connection: grants.release(connection, NAME, order))
    place.until(lambda: not own.state.cases)
    assert place.cluster.settled(NAME)[0] == "IDLE"

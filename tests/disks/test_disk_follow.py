"""A guest that follows a signed channel: real firmware, slots and units, a real lock service, controller, store and channel.

It boots a good image. From a broken one it falls back by itself, is overdue meanwhile, and keeps its slot until a person
releases it. The other nodes of the class are simulated, and go on.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.disks import slotdisk
from tests.disks.test_disk_slots import apply, document, tree
from tests.e2e.qemu.disk import run
from tests.unit.fleet.control.followed import FollowedRollout, SimulatedMachine, free_port, served
from tests.unit.fleet.control.test_rollout_channel import channel_keys
from tests.unit.images.registries import make_key

from goldnode.core.files import replace_file
from goldnode.fleet.control.channel import ChannelPublisher, ChannelRelease
from goldnode.fleet.control.controller import ControllerReport
from goldnode.fleet.nodes import disk_update as update
from goldnode.fleet.rollout import document as documents
from goldnode.fleet.rollout.model import RolloutPhase
from goldnode.fleet.store import controllers, grants, nodes, schema
from goldnode.fleet.store.controllers import Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.node.state.domains.program import document_digest

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("slots")]

CLASS, GUEST = "boot_test", "guest"
OTHERS = ("n1", "n2", "n3")
LIMITS = FleetLimits("4", "4", "4")
ALICE = PersonsOrder("alice@c", 0.0, "the image was broken")
TEXT = """\
schema: goldnode.rollout/1
rollout: {name}
class: boot_test
from: {{stack: boot_test, disk: {origin}}}
to: {{stack: boot_test, disk: {target}}}
waves:
- {{name: all, percent: 100%}}
limits: {{planned: 4, failed: 4, total: 4}}
require:
- boot: {{base_rate: 0.2%}}
timeout: {timeout}
"""
# What the guest does by itself is all in goldnode's units; this only shows it.
RUN = """\
say() { printf '\\nGUEST %s\\n' "$*"; }
slot=$(sed -n 's/.*root=PARTLABEL=root-\\([ab]\\).*/\\1/p' /proc/cmdline)
say "BOOT slot=$slot"
(sleep 100; say "FINDINGS $(grep -c could_not_read /run/goldnode/verdict.json)") &
(until p=$(systemctl show -p MainPID --value goldnode-follow.service) && n=$(readlink /proc/$p/ns/net) &&
    [ "$n" != "$(readlink /proc/1/ns/net)" ]; do sleep 0.5; done; say "NETWORK $n") &
journalctl -f -n 100 -o cat -u goldnode-follow.service -u goldnode-follow-fetch.service -u goldnode-good.service \\
    -u goldnode-sanity.service | sed -u 's/^/GUEST LOG /'
"""

assert tree  # the fixture


class Fleet:
    """The site: store, lock service, channel on a web server, and simulated nodes beside the guest."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.where = f"sqlite:///{directory / 'fleet.db'}"
        self.store = StoreDatabase(self.where)
        self.store.run(schema.migrate)
        stored = [StoredNode(name, CLASS, f"r-{name}") for name in (GUEST, *OTHERS)]
        self.store.run(lambda c: nodes.put(c, stored, {CLASS: LIMITS}, "test", time.time()))
        self.keys = channel_keys(directory)
        self.machines = {name: SimulatedMachine("aaa", kind="disk") for name in OTHERS}
        self.port, self.web = free_port(), free_port()
        self.rollout: FollowedRollout | None = None
        self.publish()

    @property
    def channel(self) -> Path:
        return self.directory / "channel"

    def publish(self, *images: update.UpdateImage) -> None:
        ChannelPublisher(self.store, self.channel, self.keys).publish(ChannelRelease(images))

    def submit(self, name: str, origin: str, target: str, timeout: str) -> None:
        text = TEXT.format(name=name, origin=origin, target=target, timeout=timeout)
        found = documents.loads(text)
        given = Submission(
            name, node_class=CLASS, target=target, document=text, limits=LIMITS, author="alice@c"
        )
        self.store.run(lambda c: controllers.submit(c, given, time.time()))
        self.publish()  # the states of the rollout
        self.rollout = FollowedRollout(
            self.directory, self.where, found.settings, self.machines, self.keys, self.port
        )

    def run(
        self,
        until: Callable[[ControllerReport], bool],
        limit: float,
        *,
        begun: Callable[[], bool] = lambda: True,
    ) -> ControllerReport:
        """Run the controller and the simulated nodes in real time until something is so.

        :param begun: the time of the rollout stands until this is so. On a busy machine a pass of the guest takes longer
            than the rollout waits, and then it is overdue before it has begun.
        """
        assert self.rollout is not None
        controller = self.rollout.controller(self.store)
        end, past, going = time.monotonic() + limit, 0.0, False
        try:
            while True:
                if not (going := going or begun()):
                    past = time.time() - self.rollout.now
                self.rollout.now = time.time() - past
                report = controller.tick()
                if until(report):
                    return report
                assert time.monotonic() < end, (report, self.holds(), self.rollout.said)
                self.rollout.passes()
                time.sleep(2)
        finally:
            controller.close()

    def wait_report(self, digest: str, limit: float) -> None:
        """Wait until the guest has reported, without a controller; the others report too."""
        assert self.rollout is not None
        end = time.monotonic() + limit
        while self.observed() != digest:
            assert time.monotonic() < end, "the guest does not report"
            time.sleep(2)
        self.rollout.now = time.time()
        self.rollout.passes()

    def holds(self) -> dict[str, tuple[str, str]]:
        with self.store.read() as connection:
            rows = connection.exec_driver_sql("SELECT node, kind, reason FROM hold").all()
        return {row[0]: (row[1], row[2]) for row in rows}

    def observed(self) -> str:
        with self.store.read() as connection:
            return str(
                connection.exec_driver_sql("SELECT digest FROM node WHERE name = 'guest'").scalar()
            )


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(found.channel))
    web = http.server.ThreadingHTTPServer(("127.0.0.1", found.web), handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield found
    web.shutdown()
    found.store.close()


def following(root: Path, fleet: Fleet) -> dict[str, Any]:
    """The class of the guest, whose nodes follow the channel. 10.0.2.2 is this machine, for a guest of QEMU."""
    made = document(root)
    made["follow"] = {
        "channel": f"http://10.0.2.2:{fleet.web}",
        "service": f"http://10.0.2.2:{fleet.port}",
        "every": 10,
        "accepted": [0, 1, 3],  # a guest in emulation cannot read all of itself
    }
    return {**made, "digest": document_digest(made)}


def image_of(
    build: str, kernel: str, image: Path, builder: Path, *words: str
) -> update.UpdateImage:
    """The root file system as a build that its builder has signed, with words on its command line."""
    options = " ".join(["root=PARTLABEL=root-a", slotdisk.OPTIONS, *words])
    about = {
        "name": f"{CLASS}-{build}",
        "class": CLASS,
        "build_id": build,
        "kernel": kernel,
        "options": options,
        "root": slotdisk.sent(image),
    }
    signature = slotdisk.signed(about, builder)
    head = update.first_line(about, 1, "made by a test", signature=signature)
    disk: Any = SimpleNamespace(build_id=build, class_=CLASS)
    return update.UpdateImage(disk, image, 0, head)


def started(tree: Path, fleet: Fleet, scratch: Path) -> tuple[Path, Path]:
    """The disk of the guest, which runs build aaa, and its payload. The channel has a good image and a broken one."""
    root = slotdisk.unpack(tree, scratch / "root")
    for unit in (
        "systemd-networkd.service",
        "systemd-networkd.socket",
    ):  # this guest needs the network
        (root / "etc/systemd/system" / unit).unlink()
    kernel = slotdisk.release(root)
    apply(root, following(root, fleet))
    replace_file(
        root / "etc/goldnode/follow/root.json",
        (fleet.channel / "metadata/1.root.json").read_bytes(),
    )
    builder, public = make_key(scratch, "builder")
    # The node demands the builder's signature, and carries the key over to each new slot.
    replace_file(root / "etc/goldnode/image-keys.pem", public.read_bytes())
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root / "etc/ssh/ssh_host_ed25519_key")
    assert (root / "etc/systemd/system/goldnode-follow.timer").is_file()
    image = slotdisk.root_image(root, scratch / "root.img")
    about = {
        "name": f"{CLASS}-aaa",
        "class": CLASS,
        "build_id": "aaa",
        "sequence": 1,
        "kernel": kernel,
    }
    made = slotdisk.disk(root, image, about, scratch / "disk.raw", scratch)
    shutil.rmtree(root)
    # The broken image starts no initramfs, and finds no root: the kernel panics.
    broken = image_of("ccc", kernel, image, builder, "rdinit=/nothing")
    fleet.publish(image_of("bbb", kernel, image, builder), broken)
    return made, slotdisk.payload({"run": RUN}, scratch / "payload.img", scratch, "16M")


def test_guest_follows_a_channel_to_a_good_image(tree: Path, fleet: Fleet, tmp_path: Path) -> None:
    made, more = started(tree, fleet, tmp_path)
    fleet.submit("good", "aaa", "bbb", "60m")
    assert fleet.rollout is not None
    with served(fleet.rollout), slotdisk.guest(made, more, tmp_path, port=free_port()) as machine:
        at = machine.wait("GUEST BOOT slot=a", 0, 1800)
        fleet.wait_report("aaa", 1800)
        report = fleet.run(lambda report: report.ended, 2400)
        assert report.phase is RolloutPhase.COMPLETED
        machine.wait("GUEST BOOT slot=b", at, 10)
        assert fleet.observed() == "bbb"
        assert {one.digest for one in fleet.machines.values()} == {"bbb"}
        assert fleet.holds() == {}
        machine.wait("its step has ended", at, 900)
        machine.wait("GUEST NETWORK net:", 0, 10)  # the unit that acts has none of the machine's


def test_guest_falls_back_from_a_broken_image_and_keeps_its_slot(
    tree: Path, fleet: Fleet, tmp_path: Path
) -> None:
    made, more = started(tree, fleet, tmp_path)
    # The guest takes longer for the way there and back than the rollout gives it.
    fleet.submit("bad", "aaa", "ccc", "90s")
    assert fleet.rollout is not None
    with served(fleet.rollout), slotdisk.guest(made, more, tmp_path, port=free_port()) as machine:
        at = machine.wait("GUEST BOOT slot=a", 0, 1800)
        fleet.wait_report("aaa", 1800)
        report = fleet.run(
            lambda report: report.ended,
            2400,
            begun=lambda: any("-ccc is written to" in line for line in list(machine.lines)),
        )
        assert fleet.holds()[GUEST][0] == "failed"
        assert "did not report in time" in fleet.holds()[GUEST][1]
        assert report.phase is RolloutPhase.COMPLETED, "the others went on"
        assert {one.digest for one in fleet.machines.values()} == {"ccc"}
        at = machine.wait("GUEST BOOT slot=a", at, 1800)
        at = machine.wait("fell back from ccc; keeps its slot", at, 900)
        assert fleet.holds()[GUEST][0] == "failed", "it has reported, and only a person releases it"
        assert fleet.observed() == "aaa"
        fleet.store.run(lambda c: grants.release(c, GUEST, ALICE))
        machine.wait("its step has ended", at, 900)

"""Nodes that follow a channel: a real store, channel, lock service over HTTP and controller, and simulated machines."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from tests.unit.fleet.control.test_rollout_channel import channel_keys
from tests.unit.fleet.rollout import documents

from goldnode.fleet.control.channel import ChannelKeys, ChannelPublisher, ChannelRelease
from goldnode.fleet.control.controller import (
    ControllerParts,
    ControllerReport,
    ControllerSettings,
    RolloutController,
)
from goldnode.fleet.control.follow import FollowReader, FollowWorker
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.service.app import LockService as Service
from goldnode.fleet.service.app import ServiceSettings
from goldnode.fleet.store import controllers, nodes
from goldnode.fleet.store.controllers import Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode
from goldnode.node.follow.channel import Wish
from goldnode.node.follow.lockservice import LockClient
from goldnode.node.follow.loop import Follower
from goldnode.node.follow.machine import NotAppliedError, Observation
from goldnode.node.follow.repository import ChannelSource
from goldnode.node.follow.settings import Settings
from goldnode.node.follow.trust import Verifier
from goldnode.node.ground.host import Host

LIMITS = FleetLimits("4", "8", "10")


@dataclass
class SimulatedMachine:
    """A machine with two states. `fault`: `refuses` (not applied), `broken` (falls back), `silent` (never comes back)."""

    digest: str = documents.OLD
    fault: str = ""
    boots: int = 1
    next: str | None = None
    up: bool = True
    busy: str | None = None
    gave_up: str | None = None
    applied: list[str] = field(default_factory=list)
    kind: str = "lock"
    why: str = "it is simulated"

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    def observe(self, wanted: Wish | None) -> Observation:
        back = self.gave_up if wanted and wanted.digest == self.gave_up else None
        return Observation(
            self.boot,
            digest=self.digest,
            verdict="pass",
            software=["slot.fallback"] if back else [],
            hardware=[],
            fell_back_from=back,
        )

    def in_use(self) -> str | None:
        return self.busy

    def stage(self, document: Any, wanted: Wish) -> str | None:
        return None

    def apply(self, document: Any, wanted: Wish, program: bytes | None) -> None:
        if self.fault == "refuses" and wanted.digest == documents.NEW:
            raise NotAppliedError("module nvidia does not build")
        self.applied.append(wanted.digest)
        self.next = wanted.digest

    def reboot(self) -> None:
        self.boots += 1
        if self.fault == "silent":
            self.up = False
        elif self.fault == "broken" and self.next == documents.NEW:
            self.gave_up, self.next = self.next, None
        elif self.next:
            self.digest, self.next = self.next, None


@dataclass
class FollowedRollout:
    """A rollout whose nodes follow its channel."""

    directory: Path
    where: str
    settings: RolloutSettings
    machines: dict[str, SimulatedMachine]
    keys: ChannelKeys
    port: int = 0
    now: float = field(default_factory=time.time)
    said: dict[str, list[str]] = field(default_factory=dict)

    @property
    def channel(self) -> Path:
        return self.directory / "channel"

    @property
    def first_root(self) -> bytes:
        path = self.channel / "metadata/1.root.json"
        return path.read_bytes() if path.exists() else b""

    def store(self) -> StoreDatabase:
        return StoreDatabase(self.where)

    def controller(self, store: StoreDatabase, holder: str = "c/1") -> RolloutController:
        own = ControllerSettings(holder, nodes=0.0, quiet=0.0, clock=lambda: self.now)
        parts = ControllerParts(
            FollowWorker(self.settings.name, clock=lambda: self.now),
            nodes=FollowReader(store, self.settings.class_, lambda: self.now),
            written=ChannelPublisher(store, self.channel, self.keys),
        )
        return RolloutController(store, self.settings, parts, own)

    def follower(
        self, name: str, service: str | None = None, channel: str | None = None
    ) -> Follower:
        root = self.directory / "nodes" / name
        root.mkdir(parents=True, exist_ok=True)
        host = Host(str(root), live=True)
        address = service or f"http://127.0.0.1:{self.port}"
        own = Settings(
            channel=channel or str(self.channel),
            service=address,
            node=name,
            node_class=self.settings.class_,
            lock=None,
            group=self.settings.class_,
            apply=("true",),
        )
        verifier = Verifier(host, ChannelSource(own.channel), "/seen", self.first_root, time.time())
        machine: Any = self.machines[name]
        return Follower(
            host,
            settings=own,
            verifier=verifier,
            service=LockClient(own),
            machine=machine,
            clock=lambda: self.now,
        )

    def passes(self, **given: Any) -> None:
        """Run a pass on each node that is up."""
        for name, machine in self.machines.items():
            if machine.up:
                outcome = self.follower(name, **given).run()
                self.said.setdefault(name, []).append(outcome.text)

    def run(
        self, store: StoreDatabase, rounds: int = 60, step: float = 20.0, to_end: bool = True
    ) -> ControllerReport:
        """Run controller and nodes for a number of rounds; at most until the rollout has ended."""
        controller = self.controller(store)
        report = controller.tick()
        for _ in range(rounds):
            self.passes()
            self.now += step
            for _ in range(3):  # a reading runs in a thread
                report = controller.tick()
                self.now += 0.5
                time.sleep(0.005)
            if report.ended and to_end:
                break
        controller.close()
        return report


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def served(rollout: FollowedRollout) -> Iterator[None]:
    """Run a lock service on a free port, with the clock of the rollout."""
    store = rollout.store()
    rollout.port = rollout.port or free_port()
    app = Service(store, ServiceSettings(clock=lambda: rollout.now, tick=0.2)).app()
    running = uvicorn.Server(
        uvicorn.Config(app, port=rollout.port, log_config=None, access_log=False)
    )
    thread = threading.Thread(target=running.run)
    thread.start()
    end = time.monotonic() + 30
    while not running.started and time.monotonic() < end:
        time.sleep(0.01)
    try:
        yield
    finally:
        running.should_exit = True
        thread.join()
        store.close()


def followed(
    directory: Path, where: str, *changes: tuple[str, str], **faults: str
) -> FollowedRollout:
    """Return a rollout of six nodes in two waves, submitted and not begun."""
    changes = (
        ("soak: 4h", "soak: 0s"),
        ("- {name: first, nodes: 6, soak: 4h}\n", ""),
        *changes,
    )
    found = documents.written(directory, *changes)
    names = [f"n{number}" for number in range(6)]
    text = (directory / "rollout.yml").read_text()
    given = Submission(
        "r1", node_class="l4", target=documents.NEW, document=text, limits=LIMITS, author="alice@c"
    )
    store = StoreDatabase(where)
    stored = [
        StoredNode(name, "l4", f"r{place % 3}", f"l{place % 2}") for place, name in enumerate(names)
    ]
    now = time.time()
    store.run(lambda c: nodes.put(c, stored, {"l4": LIMITS}, "test", now))
    store.run(lambda c: controllers.submit(c, given, now))
    keys = channel_keys(directory)
    machines = {
        name: SimulatedMachine(fault=faults.get(name, faults.get("every", ""))) for name in names
    }
    ChannelPublisher(store, directory / "channel", keys).publish(ChannelRelease())
    store.close()
    return FollowedRollout(directory, where, found.settings, machines, keys, now=now)

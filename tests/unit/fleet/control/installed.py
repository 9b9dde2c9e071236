"""Simulated machines that are installed from the network: real plan, keys, orders and decisions of the installer, no disk and no boot."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.unit.images.registries import make_key

from goldnode.core.site import SiteInstall
from goldnode.disks import netboot
from goldnode.evidence import signatures
from goldnode.fleet.control.bmc import PowerTimes
from goldnode.fleet.control.reinstall import Reinstaller
from goldnode.fleet.rollout.model import Answer, NodeObservation
from goldnode.node.ground.host import Host
from goldnode.node.install import orders, target

OLD, NEW = "0" * 12, "1" * 12
PLAN = """\
install: 1
address: http://10.0.0.1/disks
network: {interface: lo, range: [127.0.0.50, 127.0.0.150, 255.255.255.0]}
machines:
"""


@dataclass
class NetbootMachine:
    """A machine with a BMC: it duck-types SshNode and Bmc.

    `fault`: `refuses` (its installer writes nothing), `silent` (it does not come back), `broken` (the new build fails its check).
    """

    name: str
    mac: str
    folder: Path
    build: str = OLD
    fault: str = ""
    on: bool = True
    up: bool = True
    boots: int = 1
    network: bool = False
    installations: int = 0
    record: dict[str, Any] = field(default_factory=dict)
    ssh: tuple[str, ...] = ("ssh", "--", "n")

    def run(
        self, *command: str, stdin: bytes | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[bytes]:
        if not self.up:
            return subprocess.CompletedProcess(command, 255, b"", b"ssh: no route to host")
        sector = target.MAGIC + json.dumps(self.record).encode() if self.record else b""
        return subprocess.CompletedProcess(command, 0, sector.ljust(target.SECTOR, b"\0"), b"")

    def is_on(self) -> bool | None:
        return self.on

    def switch(self, on: bool) -> None:
        if on and not self.on:
            self.boot()
        self.on, self.up = on, on and self.fault != "silent"

    def boot_from_network(self) -> str:
        assert not self.on, "some BMCs forget the order when the power goes"
        self.network = True
        return "boot by Pxe, once"

    def boot(self) -> None:
        """Boot: from the network if that was ordered, as the installer decides, and then from the disk."""
        self.boots += 1
        if not self.network:
            return
        self.network = False
        host = Host(str(self.folder / "installer"), live=True)
        data = (self.folder / "place" / netboot.ORDERS).read_bytes()
        order = orders.of_machine(orders.read(host, data, time.time()), [self.mac])
        assert order is not None
        present = target.DiskContent(target.INSTALLED, self.record, "an installation")
        if self.fault != "refuses" and target.refusal(present, order.erase) is None:
            self.build = netboot.heads(self.folder / "place", order.node_class)[order.channel]
            self.installations += 1
            self.record = {
                "state": target.INSTALLED,
                "node": order.node,
                "image": f"{order.node_class}-{self.build}",
                "erase": order.erase,
            }


@dataclass
class InstallSite:
    """A published directory with two channels, a plan, and machines."""

    folder: Path
    machines: dict[str, NetbootMachine]
    settings: SiteInstall
    node_class: str = "l4"
    own: threading.local = field(default_factory=threading.local)

    @property
    def plan(self) -> netboot.InstallPlan:
        return netboot.load_plan(self.folder / "install.yml")

    @property
    def signer(self) -> signatures.EnvelopeSigner:
        return signatures.load_signer(self.folder / "key.pem")

    @property
    def place(self) -> Path:
        return self.folder / "place"

    def point(self, channel: str, build: str) -> None:
        path = self.place / self.node_class / "channels" / f"{channel}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"build_id": build}))

    def now(self) -> float:
        """Return the time of a thread: it passes only while that thread sleeps, so no limit depends on the machine."""
        return float(getattr(self.own, "now", 0.0))

    def sleep(self, seconds: float) -> None:
        self.own.now = self.now() + seconds
        time.sleep(0.001)

    def installer(self, **more: Any) -> Reinstaller:
        reach: Any = self.machines.__getitem__
        return Reinstaller(
            self.settings,
            lambda name: self.folder / name,
            bmc_of=reach,
            reach=reach,
            times=PowerTimes(poll=1.0, again=5.0, settle=3.0, limit=60.0),
            **{"sleep": self.sleep, "clock": self.now, **more},
        )

    def erase(self, name: str) -> int:
        """Return the number of the order of a machine."""
        return netboot.read_orders(self.place, self.signer)[name].erase


def install_site(folder: Path, count: int = 2) -> InstallSite:
    """Return a site whose machines n0 … are of class l4, and were installed by the orders as they stand."""
    make_key(folder)
    keys = folder / "installer" / orders.KEYS.lstrip("/")
    keys.parent.mkdir(parents=True)
    keys.write_bytes((folder / "key.pub").read_bytes())
    rows, machines = [], {}
    for number in range(count):
        name, mac = f"n{number}", f"52:54:00:00:00:{number:02x}"
        rows.append(f'  {name}: {{mac: "{mac}", class: l4, disk: {{serial: A{number}}}}}\n')
        machines[name] = NetbootMachine(name, mac, folder)
    (folder / "install.yml").write_text(PLAN + "".join(rows))
    site = InstallSite(folder, machines, SiteInstall(plan="install.yml", to="place", key="key.pem"))
    site.point("stable", OLD)
    site.point("candidate", NEW)
    (site.place / netboot.FOLDER).mkdir()
    signed = netboot.sign_orders(site.plan, site.signer, dt.datetime.now(dt.UTC))
    (site.place / netboot.ORDERS).write_bytes(signed)
    for machine in machines.values():
        machine.record = {
            "state": "installed",
            "node": machine.name,
            "image": f"l4-{OLD}",
            "erase": 0,
        }
    return site


@dataclass
class SimulatedReader:
    """Reports of the machines, without ssh."""

    site: InstallSite
    clock: Any = time.time

    def one(self, name: str) -> NodeObservation | None:
        machine = self.site.machines[name]
        if not machine.up:
            return None
        broken = machine.fault == "broken" and machine.build == NEW
        return NodeObservation(
            name,
            self.clock(),
            boot_id=f"boot-{machine.boots}",
            digest=machine.build,
            verdict=Answer.FAILS if broken else Answer.PASSES,
            software=("driver.loaded",) if broken else (),
        )

    def read(self, names: Any) -> list[NodeObservation]:
        return [seen for seen in map(self.one, names) if seen is not None]

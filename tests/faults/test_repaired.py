# ruff: noqa: E501
"""Remedies that a person carries out, done to the simulated node as their text says: the findings end with them, and not before.

All faults of a group are on one node. The check is asked twice with them, each remedy is carried out, and the check is asked again. A part
that a person swaps has another serial number then, so that the check may ask for an acknowledgement of the new one.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.faults import carried
from tests.faults.run import PERIOD, Bases, Node
from tests.faults.steps import (
    Step,
    blocked,
    board,
    bus,
    clock,
    edit,
    environment,
    file,
    log,
    memory,
    ring,
    several,
    until,
)
from tests.faults.table import FULL, IB, LINK, Row, nothing
from tests.simulators.apt_archive import elf
from tests.simulators.hardware import machine

from goldnode.node.state import remedy

Json = dict[str, Any]
# It changes the node; the second argument is the root of the healthy node that it is a copy of.
Work = Callable[[Node, Path], None]
DAY = 86400.0
XID = "NVRM: Xid (PCI:0000:28:00)"
HUNG = "INFO: task python3:900 blocked for more than 120 seconds."
FAILING = [f"{XID}: 31, pid={4000 + n}, name=program{n}, Ch 00000010, MMU Fault" for n in range(8)]
WATCHES = "goldnode-watch.timer"
FOLLOW: Json = {"channel": "https://channel.example.org/", "service": "https://lock.example.org/"}
MODULE: Json = {"name": "nvidia_fs", "package": None, "dkms": None, "before_driver": False, "load": True, "after": [], "version": None}  # fmt: skip
CPU, EDAC = "sys/devices/system/cpu", "sys/devices/system/edac/mc/mc0"
MOUNTS = ("proc/mounts", "proc/self/mounts", "proc/1/mounts")
INFO = ("proc/self/mountinfo", "proc/1/mountinfo")
DISK = ("sys/class/nvme/nvme1", "sys/class/block/nvme1n1", "sys/block/nvme1n1")
JOB = (
    "gpu*.memory.used=70000000000",
    "gpu*.processes=1:70000000000",
    "gpu*.clock.0=1980",
    "gpu*.temperature.0=68",
)


@dataclass(frozen=True)
class Repair:
    """One fault and what ends it.

    :param find: id and subject of the finding.
    :param words: the words of its remedy that are carried out.
    :param lasts: seconds for which the finding goes on after it, as the remedy says.
    :param counts: whether the fault is a counter that rises, until the remedy is carried out.
    """

    find: str
    fault: Step
    words: str
    work: Work
    lasts: float = 0.0
    counts: bool = False

    @property
    def key(self) -> tuple[str, str | None]:
        name, _, subject = self.find.partition(" ")
        return name, subject or None


def as_new(*names: str) -> Work:
    """Files as a healthy node has them: a part is in its place again, or is set as it should be."""

    def do(node: Node, base: Path) -> None:
        for name in names:
            if (base / name).is_symlink():
                place = (base / name).resolve()
                again = node.root / place.relative_to(base.resolve())
                if not again.exists():
                    shutil.copytree(place, again, symlinks=True)
                (node.root / name).symlink_to((base / name).readlink())
            else:
                machine.spoil(node.root, name, (base / name).read_bytes())

    return do


def done(*steps: Step) -> Work:
    """Steps of the scoreboard, as work."""
    return lambda node, _: several(*steps)(node, 1)


def works(*parts: Work) -> Work:
    """One after another."""

    def do(node: Node, base: Path) -> None:
        for part in parts:
            part(node, base)

    return do


def cured(gpu: int, *faults: str) -> Work:
    """A GPU without its faults; `faults` are what differs from the old one."""

    def do(node: Node, _: Path) -> None:
        assert node.boards is not None
        left = {
            key: value
            for key, value in node.boards.faults.items()
            if not key.startswith(f"gpu{gpu}.")
        }
        node.boards = replace(node.boards, faults=left)
        node.faulty([f"gpu{gpu}.{fault}" for fault in faults])

    return do


def swapped(gpu: int) -> Work:
    """Another GPU in the slot."""
    return cured(gpu, f"serial=165412300{gpu:04}", f"uuid=GPU-00000000-0000-4000-8000-{gpu:012}")


def ended(pid: int) -> Work:
    """A process that is gone."""
    return lambda node, _: shutil.rmtree(node.root / f"proc/{pid}")


def class_changed(change: Callable[[Json], object]) -> Work:
    """Another class, which site.yml brings to the node."""
    return lambda node, _: node.redocument(change)


def declares(change: Callable[[Json], object]) -> Step:
    """The class of a node asks for something else from the first turn on."""
    return lambda node, _: node.redocument(change)


def declared(document: Json) -> None:
    """What the class of the scoreboard leaves open."""
    document["baseline"]["network"]["eth0"]["numa_node"] = 0
    document["baseline"]["gpu"]["subsystem_ids"] = ["10de:2330"]


def moved_back(node: Node, _: Path) -> None:
    """Each card of the bus in its own slot."""
    node.on_bus.clear()
    node.faulty([])


def compressed(node: Node, _: int) -> None:
    """The initramfs as zstd compresses it."""
    (image,) = node.root.glob("boot/initrd.img-*")
    unpacked = gzip.decompress(image.read_bytes())
    done = subprocess.run(["zstd", "-c"], input=unpacked, capture_output=True, check=True)
    machine.spoil(node.root, str(image.relative_to(node.root)), done.stdout)


def module_on_disk(node: Node, _: int) -> None:
    """A further module of the class, built for its kernel."""
    release = node.document["kernel"]["release"]
    vermagic = f"{release} SMP preempt mod_unload"
    built = elf.module([("license", "GPL"), ("vermagic", vermagic), ("name", "nvidia_fs")])
    machine.spoil(node.root, f"lib/modules/{release}/updates/dkms/nvidia_fs.ko", built)
    subprocess.run(["/usr/sbin/depmod", "-b", str(node.root), release], check=True)


def converged(node: Node, _: Path) -> None:
    """What site.yml does to files, links and units of goldnode."""
    machine.converge(node.machine, node.document)


def unit_of_goldnode(name: str, **more: str) -> Step:
    """A unit of goldnode as systemd shows it, in place of one that the simulator has."""

    def do(node: Node, _: int) -> None:
        units = json.loads((node.root / machine.UNITS).read_text())
        place = f"/etc/systemd/system/{name}"
        units[name] = {**machine.unit("active"), "FragmentPath": place, **more}
        machine.spoil(node.root, machine.UNITS, json.dumps(units))

    return do


REPAIRED = (
    Repair("cpu.layout", file(f"{CPU}/cpu0/topology/package_cpus_list", "0-15\n"), "a socket is missing", as_new(f"{CPU}/cpu0/topology/package_cpus_list")),
    Repair("cpu.microcode", file(f"{CPU}/cpu3/microcode/version", "0x2b000571\n"), "Reboot the node, so that firmware and kernel load the microcode on all cores", as_new(f"{CPU}/cpu3/microcode/version")),
    Repair("memory.total", edit("proc/meminfo", r"^MemTotal: .*", "MemTotal:      1585446912 kB"), "missing or disabled DIMM", as_new("proc/meminfo")),
    Repair("memory.edac mc0", file(f"{EDAC}/ue_count", "2\n"), "drain the node and replace it, then acknowledge: `goldnode-node ack --id memory.edac --subject 'mc0' --by", as_new(f"{EDAC}/ue_count")),
    Repair("net.firmware mlx5_3", file("sys/class/infiniband/mlx5_3/fw_ver", "28.36.1010\n"), "update the firmware of mlx5_3", as_new("sys/class/infiniband/mlx5_3/fw_ver")),
    Repair("net.numa eth0", bus(nic0__numa_node="1"), "the card is in another slot", moved_back),
    Repair("storage.devices", several(*(file(name, None) for name in DISK)), "reseat or replace it", works(as_new(*DISK), done(file("sys/class/nvme/nvme1/serial", "NEW-1\n"), file("dev/nvme1", machine.smart(used=0))))),
    Repair("storage.health nvme0n1", file("dev/nvme0", machine.smart(warning=4)), "save the data and replace the disk", done(file("sys/class/nvme/nvme0/serial", "NEW-0\n"), file("dev/nvme0", machine.smart(used=0)))),
    Repair("gpu.serial 0000:20:00.0", board("gpu2.serial=1654123000009", "gpu4.serial=1654123000009"), "one InfoROM is wrong", swapped(4)),
    Repair("gpu.uuid_known 0000:38:00.0", board("gpu5.uuid=GPU-????????-????-????-????-????????????"), "reboot the node", cured(5)),
    Repair("gpu.board 0000:40:00.0", board("gpu6.pci.subsystem_id=1234abcd"), "this is another board variant", cured(6)),
    Repair("gpu.max_clocks 0000:48:00.0", board("gpu7.max_clock.1=1500"), "the board is a different one", swapped(7)),
    Repair("gpu.ecc.corrected 0000:18:00.0", board("gpu1.ecc_errors.0.1={90000}"), "plan its exchange .*`goldnode-node ack --id gpu.ecc.corrected --subject '0000:18:00.0' --by", swapped(1)),
    Repair("host.blocked", blocked(901, "python3", "os_acquire_rwlock_write"), "drain the node and reboot it", ended(901)),
)  # fmt: skip
RUNNING = (
    Repair("net.speed eth0", file(f"{LINK}/speed", "100000\n"), "the cable, the transceiver and the switch port", as_new(f"{LINK}/speed")),
    Repair("net.mtu eth0", file(f"{LINK}/mtu", "1500\n"), "`ip link set eth0 mtu", done(file(f"{LINK}/mtu", "9000\n"))),
    Repair("net.drops eth0", several(file(f"{LINK}/statistics/rx_dropped", "{1000000}\n"), file(f"{LINK}/statistics/rx_packets", "{10000000}\n")), "the ring sizes", lambda *_: None, counts=True),
    Repair("net.flaps mlx5_1/1", file("sys/class/infiniband/mlx5_1/ports/1/counters/link_downed", "{20}\n"), "`ibstat mlx5_1 1`.*the cable and transceiver", lambda *_: None, counts=True),
    Repair("ib.port mlx5_0", file(f"{IB}/rate", "200 Gb/sec (4X HDR)\n"), "the cable and transceiver", as_new(f"{IB}/rate")),
    Repair("storage.mount /scratch", several(*(edit(name, r"^/dev/nvme1n1 .*\n", "") for name in MOUNTS), *(edit(name, r"^.* /scratch .*\n", "") for name in INFO)), "mount it", as_new(*MOUNTS, *INFO)),
    Repair("host.pressure io", several(file("proc/pressure/io", "some avg10=80.00 avg60=80.00 avg300=80.00 total={280000000}\nfull avg10=75.00 avg60=75.00 avg300=75.00 total={260000000}\n"), blocked(900, "python3", "nfs_wait_bit_killable")), "names the waiting tasks and what they wait for", ended(900), counts=True),
    Repair("time.sync", clock(86400.0), "`timedatectl`.* A jump is reported for a day", done(clock(0.0)), DAY),
    Repair("runtime.cdi_paths /etc/cdi/nvidia.json", edit("etc/cdi/nvidia.json", r"libcuda\.so\.[0-9.]+", "libcuda.so.1.2.3"), "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.json`", as_new("etc/cdi/nvidia.json")),
    Repair("gpu.clock 0000:28:00.0", several(FULL, board(*JOB, "gpu3.clock.0=600", "gpu*.clocks_event_reasons=0")), "`nvidia-smi -i 0000:28:00.0 -rgc` unlocks them", cured(3, *(name.partition(".")[2] for name in JOB))),
)  # fmt: skip
# What the class asks for, and the node is not or has not.
CLASS = (
    Repair("policy.overrides", declares(lambda d: d["policy"].setdefault("overrides", []).append({"model": "H200-SXM5-141GB", "power_limit_watts": 600})), "Remove the override from the class", class_changed(lambda d: d["policy"].pop("overrides"))),
    Repair("gate.hook", declares(lambda d: d.update(gate="drain")), r"name commands in the site file: `gate: {drain: \[…\], resume: \[…\]}`, and run site.yml", class_changed(lambda d: d["site"].update(gate={"drain": ["/usr/local/sbin/drain"], "resume": ["/usr/local/sbin/resume"]}))),
    Repair("baseline.flux", declares(lambda d: d["baseline"].update(flux={})), "Run site.yml: it installs the program that this class is made for", class_changed(lambda d: d["baseline"].pop("flux"))),
    Repair("follow.timer", declares(lambda d: d.update(follow=FOLLOW)), "Run site.yml", converged),
    Repair("units.loaded", unit_of_goldnode(WATCHES, NeedDaemonReload="yes"), "Run site.yml when no GPU container runs: it reloads systemd", done(unit_of_goldnode(WATCHES))),
    Repair("modules.nvidia_fs.loaded", several(declares(lambda d: d.update(modules=[MODULE])), module_on_disk), "`modprobe nvidia_fs`", done(file("sys/module/nvidia_fs/initstate", "live\n"))),
    Repair("gpu.modes 0000:20:00.0", several(declares(lambda d: d["policy"].pop("ecc")), board("gpu2.ecc_pending=0")), "To keep ECC as it is, set it back: `nvidia-smi -i 0000:20:00.0 -e 1`", cured(2)),
    Repair("blacklist.initramfs", several(compressed, environment(PATH="/nonexistent")), r"Install the compressor it was made with \(zstd", done(environment(PATH=os.environ["PATH"]))),
)  # fmt: skip
LOGGED = (
    Repair("net.state eth0", several(file(f"{LINK}/operstate", "down\n"), file(f"{LINK}/carrier", "0\n")), "`ethtool eth0`.*the cable", as_new(f"{LINK}/operstate", f"{LINK}/carrier")),
    Repair("kernel.hung_task", several(log(HUNG, *FAILING), blocked(900, "python3", "nfs_wait_bit_killable")), "what it waits for with `goldnode-node diagnose`", ended(900)),
    Repair("xid.programs 0000:28:00.0", lambda *_: None, "Test the GPU with `dcgmi diag -r 3` when it is free; `goldnode-node ack --id xid.programs --subject '0000:28:00.0' --by", lambda *_: None),
)  # fmt: skip
REBOOTED = (
    Repair("kernel.running", file("proc/sys/kernel/osrelease", "6.12.90+deb13-amd64\n"), "Run site.yml with `-e goldnode_reboot=true`", as_new("proc/sys/kernel/osrelease")),
    Repair("boot.pending", lambda *_: None, "run site.yml with `-e goldnode_reboot=true`", lambda *_: None),
    Repair("driver.agree", board("driver_version=570.86.15"), "Reboot the node", lambda node, _: node.without("driver_version")),
)  # fmt: skip
RECORDS = (
    Repair("memory.state", until(1, memory('{"schema": "goldnode.memory/1", "boot')), "`goldnode-node ack --id memory.state --by … --reason …` takes the old file away", lambda *_: None),
    Repair("events.log", ring(first=50000), "For this boot: `goldnode-node ack --id events.log --by", lambda *_: None),
)  # fmt: skip
OTHER_RELEASE = (
    Repair("node.os", edit("etc/os-release", "^VERSION_ID=.*", 'VERSION_ID="12"'), "Reinstall the node, or move it to the class of its release", as_new("etc/os-release")),
)  # fmt: skip
TORN = (
    Repair("check", file("etc/goldnode/class.json", '{"schema": "goldnode.class/1", "class":'), "Run site.yml for this host", as_new("etc/goldnode/class.json")),
)  # fmt: skip
GROUPS = {
    "what the class asks for": (CLASS, lambda _: None, False),
    "links and logs": (LOGGED, lambda _: None, False),
    "another kernel and driver run": (REBOOTED, lambda _: None, True),
    "records of the check": (RECORDS, lambda _: None, False),
    "another release": (OTHER_RELEASE, lambda _: None, False),
    "a torn class document": (TORN, lambda _: None, False),
    "parts, with the power off": (REPAIRED, declared, True),
    "a running node": (RUNNING, lambda _: None, False),
}


def findings_of(node: Node) -> dict[tuple[str, str | None], Json]:
    """The findings of a check that speak against the node."""
    return {(row["id"], row["subject"]): row for row in carried.bad(node.check())}


@contextlib.contextmanager
def together(node: Node) -> Iterator[None]:
    """Faults of boards and bus are written once, at its end."""
    waiting: list[str] = []
    with mock.patch.object(node, "faulty", waiting.extend):
        yield
    node.faulty(waiting)


@pytest.mark.parametrize("name", GROUPS)
def test_remedies_for_a_person_end_their_findings(name: str, bases: Bases) -> None:
    rows, change, boots = GROUPS[name]
    node = bases.node("board_h100")
    node.redocument(change)
    node.wait(PERIOD)
    assert findings_of(node) == {}
    for turn in (1, 2):
        node.wait(PERIOD)
        with together(node):
            for row in rows:
                if turn == 1 or row.counts:
                    row.fault(node, turn)
        reported = findings_of(node)
    for row in rows:
        assert row.key in reported, row.find
        assert re.search(row.words, reported[row.key]["remedy"]), reported[row.key]["remedy"]
    with together(node):
        for row in rows:
            row.work(node, bases.base("board_h100"))
    if boots:
        carried.boot(node, Row(name, "", nothing))
    node.wait(PERIOD)
    for finding in findings_of(node).values():
        if remedy.ACKNOWLEDGE in finding["steps"]:
            assert carried.take(remedy.ACKNOWLEDGE, node, Row(name, "", nothing), finding) is None
    node.wait(PERIOD)
    lasting = [row for row in rows if row.lasts]
    left = findings_of(node)
    assert set(left) == {row.key for row in lasting}, [row["got"] for row in left.values()]
    if lasting:
        node.wait(max(row.lasts for row in lasting))
        assert findings_of(node) == {}

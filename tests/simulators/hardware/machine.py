"""A complete simulated node: a root directory that matches its class, with every file a check reads, and ways
to inject faults.

`write` creates the node: PCI tree and driver files (tree.py), procfs, sysfs, devices as plain files, kernel
log, dpkg status, modules, boot loader, and the files that goldnode installs. :class:`Machine` is the Host
that reads it. The root has no programs, so a table provides the output of systemctl and ldconfig. The real
program queries GPUs in a separate process, which loads the simulated libnvidia-ml.so.1. `copied` copies a
node for one test, and `reboot` simulates a boot.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from tests.simulators.apt_archive import elf
from tests.simulators.hardware import scenario as scenarios
from tests.simulators.hardware import tree
from tests.simulators.hardware.library import SONAME
from tests.simulators.hardware.scenario import LABEL, MIB, Scenario

import goldnode
from goldnode.core import program_file as nodefile
from goldnode.node.ground import boot
from goldnode.node.ground.host import Host, Result
from goldnode.node.state.domains import kernel as kernel_domain
from goldnode.node.state.domains.driver import module_files
from goldnode.node.state.engine import difference, observed
from goldnode.node.state.model import Observed
from goldnode.node.state.observe import HISTORY, INDEX, RECORD

PLACE = "opt/goldnode-simulator"
UPTIME = 3600.0  # seconds; uptime of a node created by `write`
BOOT_ID = "5b8e2f1e-8f2a-4a44-9a52-000000000001"
TAINT = 12288  # of the kernel at boot: modules that are out of tree and unsigned (bits O and E)
MACHINE_ID = "0123456789abcdef0123456789abcdef"
EPOCH = 1795341600  # clock of the node at creation: 2026-11-22 10:00 UTC
# State of the units in systemd. A unit not listed here does not exist, except goldnode's units.
UNITS = "run/goldnode-simulated-units.json"
LIBRARY = "/usr/lib/x86_64-linux-gnu"
RATE = {"eth0": 400000}
NIC_FIRMWARE, BOARD = "28.39.1002", "MT_0000000838"
# Counters of a busy healthy node: none of these numbers is a fault in itself.
STATISTICS = {
    "rx_dropped": 10, "rx_errors": 0, "rx_missed_errors": 0, "rx_crc_errors": 0, "tx_dropped": 0, "tx_errors": 0, "rx_packets": 1000000,
    "tx_packets": 1000000, "rx_bytes": 1500000000, "tx_bytes": 1500000000,
}  # fmt: skip
IB_COUNTERS = (
    "link_downed", "symbol_error", "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
    "port_rcv_errors", "port_xmit_discards", "port_rcv_data", "port_xmit_data",
)  # fmt: skip
HW_COUNTERS = ("out_of_sequence", "roce_adp_retrans", "packet_seq_err", "local_ack_timeout_err")


class Machine(Host):
    """A directory that acts as a live node.

    :param library: folder of the simulated libnvidia-ml.so.1; None if the node has no such library.
    """

    def __init__(self, root: Path, library: Path | None) -> None:
        super().__init__(str(root), live=True)
        self.program = str(root / "goldnode-node")
        self.place = root / PLACE
        self.library = library

    @contextlib.contextmanager
    def environment(self) -> Any:
        """Set the environment so that child processes load the simulated GPUs of this node."""
        stored = {name: os.environ.get(name) for name in ("LD_LIBRARY_PATH", "GOLDNODE_SIMULATOR")}
        os.environ["GOLDNODE_SIMULATOR"] = str(self.place)
        os.environ["LD_LIBRARY_PATH"] = str(self.library or self.place / "nothing")
        try:
            yield
        finally:
            for name, value in stored.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        """Return the output of a program, if the node has it."""
        self.commands.append(argv)
        name = argv[0].rpartition("/")[2]
        if name == "ldconfig":
            found = sorted(Path(self.root, LIBRARY.lstrip("/")).glob("*.so.[0-9]"))
            return Result(
                argv,
                0,
                "".join(f"\t{one.name} (libc6,x86-64) => {LIBRARY}/{one.name}\n" for one in found),
                "",
            )
        if name == "systemctl" and "show" in argv:
            return Result(argv, 0, self._shown(argv), "")
        return Result(argv, 127, "", f"{argv[0]}: not found")

    def _shown(self, argv: tuple[str, ...]) -> str:
        units = json.loads((Path(self.root) / UNITS).read_text())
        keys: list[str] = []
        names: list[str] = []
        words = iter(argv[argv.index("show") + 1 :])
        for word in words:
            if word in ("-p", "--property"):
                keys += next(words).split(",")
            elif word.startswith(("-p", "--property=")):
                keys += word.removeprefix("--property=").removeprefix("-p").split(",")
            elif not word.startswith("-"):
                names.append(word)
        blocks = []
        for name in names:
            own = (
                name.startswith("goldnode-")
                and (Path(self.root) / f"etc/systemd/system/{name}").exists()
            )
            state = {
                **(unit("active" if own else "inactive", "loaded" if own else "not-found")),
                "Id": name,
                **units.get(name, {}),
            }
            blocks.append("".join(f"{key}={state.get(key, '')}\n" for key in (keys or state)))
        return "\n".join(blocks)


def unit(active: str, load: str = "loaded") -> dict[str, str]:
    """Return what systemd shows of a unit."""
    running = {"active": "running", "failed": "failed"}.get(active, "dead")
    return {
        "LoadState": load, "ActiveState": active, "SubState": running, "Result": "success" if active != "failed" else "exit-code",
        "UnitFileState": "enabled", "NeedDaemonReload": "no", "FragmentPath": "", "DropInPaths": "", "TriggeredBy": "", "NRestarts": "0",
        "ActiveEnterTimestampMonotonic": "20000000", "ExecMainStartTimestampMonotonic": "20000000", "MainPID": "0", "Job": "",
    }  # fmt: skip


# -- creating a node


def scenario(document: Any, faults: Iterable[str] = ()) -> Scenario | None:
    """Return the boards of a class, set to its policy, as after a boot; None for a class without GPUs."""
    if not document.get("gpu"):
        return None
    made = Scenario.of(document)
    policy = document.get("policy") or {}
    nvidia = made.vendor == "nvidia"
    settings: dict[str, str] = {}
    if nvidia and "persistence_mode" in policy:
        settings["persistence_mode"] = "1" if policy["persistence_mode"] else "0"
    if "power_limit_watts" in policy:
        settings["power_limit"] = str(policy["power_limit_watts"] * 1000)
    if nvidia and "ecc" in policy:
        settings.update(
            dict.fromkeys(("ecc_current", "ecc_pending"), "1" if policy["ecc"] else "0")
        )
    if "mig" in policy and "mig_current" in made.gpus[0]:
        settings.update(
            dict.fromkeys(("mig_current", "mig_pending"), "1" if policy["mig"]["enabled"] else "0")
        )
    for name, number in (("graphics_mhz", "0"), ("memory_mhz", "2")):
        if name in policy.get("clocks", {}):
            settings[f"application_clock.{number}"] = str(policy["clocks"][name])
    half = max(1, (len(made.gpus) + 1) // 2)
    gpus = tuple(
        {**gpu, **settings, "numa_node": str(index // half)} for index, gpu in enumerate(made.gpus)
    )
    return replace(made, gpus=gpus).with_faults(faults)


def layout(
    document: Any,
    *,
    cpus: int = 16,
    faults: Mapping[str, str] | None = None,
    others: int = 0,
) -> tree.Layout:
    """Return the other devices of a server of the class.

    Eight GPUs are in pairs below switches, with one network function each.
    """
    gpus = int((document.get("gpu") or {}).get("count", 0))
    switch = bool((document.get("platform") or {}).get("nvswitch"))
    return tree.Layout(
        per_switch=2 if gpus >= 8 else 0, nics=8 if gpus >= 8 else 1, nvmes=2, nvswitches=4 if switch else 0, bridges=True,
        others=others, nodes=2 if gpus >= 8 else 1, cpus=cpus, faults=faults or {},
    )  # fmt: skip


def write(
    boards: Scenario | None, root: Path, document: Any, *, cpus: int = 16, layout_faults: Mapping[str, str] | None = None,
    others: int = 0, library: Path | None = None, program: bytes | None = None,
) -> Path:  # fmt: skip
    """Write a node of `document`'s class with these boards below `root`; return `root`.

    :param cpus: threads of the node.
    :param others: further functions on its bus.
    :param program: content of goldnode-node; by default, a launcher for the sources under test.
    :param library: folder of the simulated library, which is queried once while the node is created.
    """
    shown = layout(document, cpus=cpus, faults=layout_faults, others=others)
    files = _Files(root)
    _bus(boards, root, shown)
    _flavour(root, document)
    (root / PLACE / "run").mkdir(parents=True, exist_ok=True)
    for name in (
        "run/systemd/system",
        "run/lock",
        "tmp",
        "var/tmp",
        "var/lib/goldnode",
        "dev/shm",
        "dev/pts",
        "proc/1",
        "proc/self",
    ):
        (root / name).mkdir(parents=True, exist_ok=True)
    files.link("run/goldnode-simulator", f"{PLACE}/run")
    if boards is not None:
        scenarios.write(boards, root / PLACE)
    _proc(files, cpus)
    _cpu(files, cpus)
    _network(files, boards, shown)
    _disks(files, boards, shown)
    _etc(files, document)
    _boot(files, document)
    _packages(files, document)
    devices(root, boards, shown)
    files.put("goldnode-node", program or launcher(), 0o755)
    files.json(UNITS, {name: unit("active") for name in services(document)})
    _records(files)
    converge(Machine(root, library), document)
    return root


def _bus(boards: Scenario | None, root: Path, shown: tree.Layout) -> None:
    """Write the PCI tree. On a node without GPUs, it has only the other devices."""
    if boards is not None:
        tree.write(boards, root, layout=shown)
        for name, place in tree.places(boards, shown).items():
            if name.startswith("gpu") and boards.vendor == "amd":
                board = boards.gpus[int(name[3:])]
                device, vendor = (
                    board["pci.device_id"][:4].upper(),
                    board["pci.device_id"][4:].upper(),
                )
                reported = {
                    "DRIVER": "amdgpu",
                    "PCI_ID": f"{vendor}:{device}",
                    "PCI_SLOT_NAME": board["pci.address"],
                }
                _Files(root).put(
                    f"{place}/uevent",
                    "".join(f"{key}={value}\n" for key, value in reported.items()),
                )
        return
    none = Scenario("none", "none", "0000:0000", (), {"count": "0"}, ())
    for vendor in ("DRIVERS", "CLASSES"):
        getattr(tree, vendor).setdefault("none", "none")
    tree.write(none, root, layout=shown)
    shutil.rmtree(root / "sys/module/none")


def _flavour(root: Path, document: Any) -> None:
    """Mark the modules as open ones: /proc names them NVIDIA UNIX Open Kernel Module
    (open-gpu-kernel-modules).
    """
    place = root / "proc/driver/nvidia/version"
    if (document.get("driver") or {}).get("flavour") == "open" and place.exists():
        text = place.read_text().replace("NVIDIA UNIX x86_64", "NVIDIA UNIX Open x86_64")
        _Files(root).put("proc/driver/nvidia/version", text)


def services(document: Any) -> list[str]:
    """Return the units that run on a healthy node of the class."""
    found = ["systemd-timesyncd.service", "ssh.service"]
    if (document.get("driver") or {}).get("vendor") == "nvidia":
        found.append("nvidia-persistenced.service")
        if document["platform"]["nvswitch"]:
            found.append("nvidia-fabricmanager.service")
    return found + list((document.get("baseline") or {}).get("services", ()))


def copied(base: Path, target: Path) -> Path:
    """Copy a node; what there is of an earlier copy is used, and becomes as the node is. The copy shares the
    files of `base` through hard links.

    To change a file, replace it instead of writing into it, as all functions here do.
    """
    _share(base, target)
    shutil.rmtree(
        target / PLACE
    )  # the simulated library writes into these files, so they must not be shared
    shutil.copytree(base / PLACE, target / PLACE, symlinks=True)
    return target


def _share(base: Path, target: Path) -> None:
    """Link all files of a folder that `target` does not share already, and remove what is not in `base`."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copymode(base, target)
    wanted = {one.name: one for one in os.scandir(base)}
    for one in list(os.scandir(target)):
        like, folder = wanted.get(one.name), one.is_dir(follow_symlinks=False)
        if like and like.inode() == one.inode():
            del wanted[one.name]
        elif not folder:
            Path(one).unlink()
        elif not (like and like.is_dir(follow_symlinks=False)):
            shutil.rmtree(one)
    for name, one in wanted.items():
        if one.is_dir(follow_symlinks=False):
            _share(Path(one), target / name)
        else:
            os.link(one, target / name, follow_symlinks=False)


@cache
def launcher() -> bytes:
    """Return a launcher for the sources under test, which benefits from Python's bytecode cache. As on a node, it
    starts without the module `site`.
    """
    sources, binding = (
        Path(goldnode.__file__).parents[1],
        Path(str((find_spec("pynvml") or _absent()).origin)).parent,
    )
    text = (
        f"#!{sys.executable} -IS\nimport sys\nsys.path[:0] = [{str(sources)!r}]\n"
        f"sys.path.append({str(binding)!r})\n"
    )
    return (text + "from goldnode.node.program.start import main\nsys.exit(main())\n").encode()


def _absent() -> Any:
    raise FileNotFoundError("pynvml")


class _Files:
    """Writer of files below a root. It replaces every file, so that copies sharing the old one do
    not change.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, content: str | bytes, mode: int = 0o644) -> None:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
        place.chmod(mode)

    def puts(self, folder: str, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.put(f"{folder}/{name}", f"{value}\n")

    def json(self, name: str, value: Any) -> None:
        self.put(name, json.dumps(value, indent=1))

    def link(self, name: str, target: str) -> None:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(os.path.relpath(self.root / target, place.parent))


def _proc(files: _Files, cpus: int) -> None:
    release = "6.12.94+deb13-amd64"
    files.put("proc/version", f"Linux version {release} (builder@example) (gcc) #1 SMP\n")
    files.put("proc/sys/kernel/osrelease", f"{release}\n")
    files.puts(
        "proc/sys/kernel",
        {
            "hostname": "node1",
            "tainted": TAINT,
            "numa_balancing": 0,
            "random/boot_id": BOOT_ID,
            "ostype": "Linux",
        },
    )
    files.puts("proc/sys/vm", {"nr_hugepages": 0, "swappiness": 60})
    files.put("proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{release} root=/dev/nvme0n1p2 ro quiet\n")
    files.put("proc/uptime", f"{UPTIME:.2f} {UPTIME * cpus * 0.9:.2f}\n")
    rows = [f"cpu  1000 0 1000 {int(UPTIME * 100 * cpus)} 100 0 10 0 0 0"]
    rows += [f"cpu{n} 60 0 60 {int(UPTIME * 100)} 6 0 1 0 0 0" for n in range(cpus)]
    files.put(
        "proc/stat",
        "\n".join(
            [*rows, "intr 0", "ctxt 1000", f"btime {EPOCH - int(UPTIME)}", "processes 900", ""]
        ),
    )
    total = 2113929216
    memory = {
        "MemTotal": total, "MemFree": total - 50000000, "MemAvailable": total - 40000000, "Buffers": 10000, "Cached": 9000000,
        "SwapTotal": 0, "SwapFree": 0, "Shmem": 1000, "Hugetlb": 0,
    }  # fmt: skip
    pages = {"HugePages_Total": 0, "HugePages_Free": 0, "HugePages_Rsvd": 0, "HugePages_Surp": 0}
    lines = [f"{key}: {value:>15} kB" for key, value in memory.items()] + [
        f"{key}: {value:>7}" for key, value in pages.items()
    ]
    files.put("proc/meminfo", "\n".join([*lines, "Hugepagesize:       2048 kB", ""]))
    files.put("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
    mounts = ("/dev/nvme0n1p2 / ext4 rw,relatime 0 "
    "0", "proc /proc proc rw 0 0", "sysfs /sys sysfs rw 0 0", "tmpfs /run tmpfs rw,nosuid 0 0",
              "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0", "/dev/nvme0n1p1 /boot ext4 rw,relatime 0 0", "/dev/nvme1n1 /scratch xfs rw,noatime 0 0")  # fmt: skip
    for name in ("proc/mounts", "proc/1/mounts", "proc/self/mounts"):
        files.put(name, "\n".join([*mounts, ""]))
    info = [
        f"{20 + n} 1 259:{n} / {row.split()[1]} {row.split()[3]} shared:{n} - {row.split()[2]} "
        f"{row.split()[0]} {row.split()[3]}"
        for n, row in enumerate(mounts)
    ]
    for name in ("proc/1/mountinfo", "proc/self/mountinfo"):
        files.put(name, "\n".join([*info, ""]))
    (files.root / "scratch").mkdir(exist_ok=True)
    for name in ("io", "memory", "cpu"):
        both = "".join(
            f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={count}\n"
            for kind, count in (("some", 1000000), ("full", 500000))
        )
        files.put(f"proc/pressure/{name}", both)
    files.put(
        "proc/diskstats",
        " 259       0 nvme0n1 1000 0 80000 500 1000 0 80000 500 0 1000 1000 0 0 0 0 0 0\n",
    )
    files.put("proc/mdstat", "Personalities : \nunused devices: <none>\n")
    files.put("proc/modules", _modules(files))
    files.put(
        "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n259 blkext\n"
    )
    task(files.root, 1, "systemd", "S")
    files.put("proc/1/cmdline", b"/sbin/init\0")
    files.put("proc/1/environ", b"")
    files.put("proc/1/limits", "Limit                     Soft Limit           Hard Limit           Units\n"
              "Max open files            1048576              1048576              files\n"
              "Max locked memory         unlimited            unlimited            bytes\n")  # fmt: skip
    shutil.copy2(files.root / "proc/1/limits", files.root / "proc/self/limits")
    task(files.root, 2, "kthreadd", "S")
    task(files.root, 700, "nvidia-persiste", "S", b"/usr/bin/nvidia-persistenced\0--user\0nvpd\0")
    kmsg(files.root)


def _modules(files: _Files) -> str:
    place = files.root / "sys/module"
    names = sorted(one.name for one in place.iterdir()) if place.exists() else []
    return "".join(f"{name} 1000000 0 - Live 0x0000000000000000 (OE)\n" for name in names)


def task(
    root: Path, pid: int, name: str, state: str, command: bytes = b"", wait: str = "0"
) -> None:
    """Write a process of the node; `state` D is uninterruptible sleep in the kernel function `wait`."""
    files = _Files(root)
    start = " ".join(str(n) for n in range(23, 53))
    files.put(
        f"proc/{pid}/stat",
        f"{pid} ({name}) {state} 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 {20 + pid} {start}\n",
    )
    files.put(f"proc/{pid}/comm", f"{name}\n")
    files.put(f"proc/{pid}/cmdline", command)
    files.put(f"proc/{pid}/wchan", wait)
    files.put(
        f"proc/{pid}/status",
        f"Name:\t{name}\nState:\t{state}\nPid:\t{pid}\nCapBnd:\t000001ffffffffff\n",
    )
    files.put(f"proc/{pid}/cgroup", "0::/system.slice\n")
    (root / f"proc/{pid}/fd").mkdir(parents=True, exist_ok=True)


def kmsg(root: Path, *lines: str, first: int = 0, at: float = 10.0) -> None:
    """Write the kernel log of this boot in the format of /dev/kmsg: the usual start, then one record per
    line.
    """
    usual = ["Linux version 6.12.94+deb13-amd64", "Command line: root=/dev/nvme0n1p2", "x86/fpu: Supporting XSAVE feature 0x001",
             "pci 0000:10:00.0: [10de:2330] type 00 class 0x030200 PCIe "
             "Endpoint", "nvidia: loading out-of-tree module taints kernel.",
             "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", "EXT4-fs (nvme0n1p2): mounted filesystem"]  # fmt: skip
    rows = [f"6,{first + n},{n * 100000 + 1000},-;{text}" for n, text in enumerate(usual)]
    rows += [
        f"4,{first + len(usual) + n},{int((at + n) * 1e6)},-;{text}" for n, text in enumerate(lines)
    ]
    _Files(root).put("dev/kmsg", "".join(f"{row}\n" for row in rows))


def _cpu(files: _Files, cpus: int) -> None:
    base = "sys/devices/system/cpu"
    files.puts(
        base,
        {
            "online": f"0-{cpus - 1}",
            "present": f"0-{cpus - 1}",
            "possible": f"0-{cpus - 1}",
            "smt/active": 0,
            "smt/control": "off",
        },
    )
    for n in range(cpus):
        half = n * 2 // cpus
        package = f"{half * cpus // 2}-{(half + 1) * cpus // 2 - 1}"
        topology = {
            "physical_package_id": half,
            "core_id": n,
            "thread_siblings_list": n,
            "core_cpus_list": n,
            "package_cpus_list": package,
        }
        files.puts(f"{base}/cpu{n}/topology", {**topology, "core_siblings_list": package})
        values = {
            "scaling_governor": "performance",
            "scaling_available_governors": "performance powersave",
            "scaling_driver": "intel_pstate",
        }
        files.puts(
            f"{base}/cpufreq/policy{n}",
            {
                **values,
                "scaling_cur_freq": 3000000,
                "cpuinfo_max_freq": 3800000,
                "affected_cpus": n,
            },
        )
        files.link(f"{base}/cpu{n}/cpufreq", f"{base}/cpufreq/policy{n}")
        files.puts(f"{base}/cpu{n}/microcode", {"version": "0x2b0005c0"})
    rows = (
        "processor\t: {n}", "vendor_id\t: GenuineIntel", f"model name\t: {LABEL} "
        "processor", "microcode\t: 0x2b0005c0", "physical id\t: {h}",
        "core id\t\t: {n}", "siblings\t: {s}", "cpu cores\t: {s}", "cpu MHz\t\t: 3000.000", "flags\t\t: fpu", "", "",
    )  # fmt: skip
    block = "\n".join(rows)
    files.put(
        "proc/cpuinfo",
        "".join(block.format(n=n, h=n * 2 // cpus, s=max(1, cpus // 2)) for n in range(cpus)),
    )
    files.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    files.puts("sys/kernel/mm/hugepages/hugepages-2048kB", {"nr_hugepages": 0, "free_hugepages": 0})
    files.puts("sys/devices/system/edac/mc/mc0", {"ce_count": 0, "ue_count": 0, "mc_name": LABEL})
    product = {"sys_vendor": LABEL, "product_name": f"{LABEL} server", "board_name": LABEL, "bios_version": "1.2", "bios_date": "01/01/2026",
               "product_serial": LABEL, "board_vendor": LABEL, "chassis_serial": LABEL}  # fmt: skip
    files.puts("sys/class/dmi/id", product)


def _places(boards: Scenario | None, shown: tree.Layout) -> dict[str, str]:
    return tree.places(
        boards or Scenario("none", "none", "0000:0000", (), {"count": "0"}, ()), shown
    )


def _network(files: _Files, boards: Scenario | None, shown: tree.Layout) -> None:
    """Write the network devices: eth0 is the first network function, the others are InfiniBand."""
    loopback = {"mtu": 65536, "operstate": "unknown", "carrier": 1, "carrier_changes": 0, "address": "00:00:00:00:00:00", "type": 772,
                "flags": "0x9", "addr_assign_type": 0, "dev_id": "0x0", "ifindex": 1, "iflink": 1}  # fmt: skip
    files.puts("sys/devices/virtual/net/lo", loopback)
    files.puts("sys/devices/virtual/net/lo/statistics", dict.fromkeys(STATISTICS, 0))
    files.link("sys/class/net/lo", "sys/devices/virtual/net/lo")
    rows = ["lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"]
    for number, place in enumerate(
        place for name, place in _places(boards, shown).items() if name.startswith("nic")
    ):
        mac = f"b8:ce:f6:00:00:{number:02x}"
        if number == 0:
            here = f"{place}/net/eth0"
            values = {"mtu": 9000, "speed": RATE["eth0"], "duplex": "full", "operstate": "up", "carrier": 1, "carrier_changes": 2,
                      "carrier_up_count": 1, "carrier_down_count": 1, "address": mac, "type": 1, "flags": "0x1003", "ifindex": 2, "iflink": 2}  # fmt: skip
            files.puts(here, values)
            files.puts(f"{here}/statistics", STATISTICS)
            files.link(f"{here}/device", place)
            files.link("sys/class/net/eth0", here)
            rows.append("eth0: 1500000000 1000000 0 10 0 0 0 0 1500000000 1000000 0 0 0 0 0 0")
            continue
        device = f"mlx5_{number - 1}"
        here = f"{place}/infiniband/{device}"
        guid = f"b8ce:f603:0000:{number:04x}"
        files.puts(
            here,
            {
                "fw_ver": NIC_FIRMWARE,
                "hca_type": "MT4129",
                "board_id": BOARD,
                "node_guid": guid,
                "node_desc": f"node1 {device}",
            },
        )
        values = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
        }
        files.puts(f"{here}/ports/1", values)
        files.puts(f"{here}/ports/1/counters", dict.fromkeys(IB_COUNTERS, 0))
        files.puts(f"{here}/ports/1/hw_counters", dict.fromkeys(HW_COUNTERS, 0))
        files.link(f"{here}/device", place)
        files.link(f"sys/class/infiniband/{device}", here)
    words = ("bytes", "packets", "errs", "drop", "fifo")
    receive, send = (
        " ".join([*words, "frame", "compressed", "multicast"]),
        " ".join([*words, "colls", "carrier", "compressed"]),
    )
    head = f"Inter-|   Receive   |  Transmit\n face |{receive}|{send}\n"
    files.put("proc/net/dev", head + "".join(f"{row}\n" for row in rows))
    files.put("proc/1/net/dev", head + "".join(f"{row}\n" for row in rows))


def _disks(files: _Files, boards: Scenario | None, shown: tree.Layout) -> None:
    number = 0
    for name, place in _places(boards, shown).items():
        if not name.startswith("nvme"):
            continue
        controller = f"{place}/nvme/nvme{number}"
        values = {"model": f"{LABEL} SSD", "serial": f"{LABEL}-{number}", "firmware_rev": "GDC5", "state": "live", "address": place.rpartition("/")[2],
                  "transport": "pcie", "numa_node": 0}  # fmt: skip
        files.puts(controller, values)
        files.link(f"{controller}/device", place)
        files.link(f"sys/class/nvme/nvme{number}", controller)
        disk = f"{controller}/nvme{number}n1"
        files.puts(
            disk,
            {
                "size": 7501476528,
                "ro": 0,
                "removable": 0,
                "stat": "1000 0 80000 500 1000 0 80000 500 0 1000 1000",
                "dev": f"259:{number * 8}",
            },
        )
        files.puts(
            f"{disk}/queue",
            {"rotational": 0, "scheduler": "[none] mq-deadline", "logical_block_size": 512},
        )
        files.link(f"{disk}/device", controller)
        files.link(f"sys/class/block/nvme{number}n1", disk)
        files.link(f"sys/block/nvme{number}n1", disk)
        for part in (1, 2) if number == 0 else ():
            files.puts(
                f"{disk}/nvme0n1p{part}",
                {"size": 1000000, "partition": part, "ro": 0, "dev": f"259:{part}"},
            )
            files.link(f"sys/class/block/nvme0n1p{part}", f"{disk}/nvme0n1p{part}")
        files.put(f"dev/nvme{number}", smart())
        files.put(f"dev/nvme{number}n1", "")
        number += 1
    for part in (1, 2):
        files.put(f"dev/nvme0n1p{part}", "")


def smart(
    warning: int = 0, spare: int = 100, used: int = 3, errors: int = 0, celsius: int = 35
) -> bytes:
    """Return the health log of an NVMe disk (log page 2 of the NVMe specification)."""
    page = bytearray(512)
    page[0], page[1:3], page[3], page[4], page[5] = (
        warning,
        (celsius + 273).to_bytes(2, "little"),
        spare,
        10,
        used,
    )
    page[160:176] = errors.to_bytes(16, "little")
    return bytes(page)


def devices(root: Path, boards: Scenario | None, shown: tree.Layout) -> None:
    """Write the device nodes that programs open, as plain files."""
    files = _Files(root)
    for name in ("null", "zero"):
        files.put(f"dev/{name}", "", 0o666)
    if boards is None:
        return
    if boards.vendor == "nvidia":
        minors = [boards.gpus[index]["minor_number"] for index in boards.visible()]
        names = [f"nvidia{minor}" for minor in minors] + [
            "nvidiactl",
            "nvidia-uvm",
            "nvidia-uvm-tools",
            "nvidia-modeset",
        ]
        names += ["nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"]
        if shown.nvswitches:
            names += [f"nvidia-nvswitch{n}" for n in range(shown.nvswitches)] + [
                "nvidia-nvswitchctl"
            ]
            for n in range(shown.nvswitches):
                (root / f"proc/driver/nvidia-nvswitch/devices/{n}").mkdir(
                    parents=True, exist_ok=True
                )
        for module in ("nvidia_uvm", "nvidia_modeset"):
            files.puts(
                f"sys/module/{module}",
                {"initstate": "live", "refcnt": 0, "version": boards.system["driver_version"]},
            )
        files.put("proc/modules", _modules(files))
    else:
        names = [
            "kfd",
            *(
                f"dri/{kind}{n}"
                for index in boards.visible()
                for kind, n in (("card", index), ("renderD", 128 + index))
            ),
        ]
    for name in names:
        files.put(f"dev/{name}", "", 0o666)


def _etc(files: _Files, document: Any) -> None:
    wanted = document["os"]
    release = {
        "ID": wanted["id"],
        "VERSION_ID": wanted["version"],
        "VERSION_CODENAME": wanted["codename"],
    }
    files.put("etc/os-release", "".join(f'{key}="{value}"\n' for key, value in release.items()))
    files.put("etc/machine-id", f"{MACHINE_ID}\n")
    files.put("etc/hostname", "node1\n")
    files.put("etc/fstab", "/dev/nvme0n1p2 / ext4 defaults 0 1\n")
    files.put("etc/group", "render:x:104:\nvideo:x:44:\n")
    files.put("run/systemd/timesync/synchronized", "")
    driver = document.get("driver") or {}
    files.put("usr/lib/x86_64-linux-gnu/libc.so.6", "")
    if driver.get("library"):
        for stem in ("libnvidia-ml", "libcuda", "libnvidia-ptxjitcompiler"):
            files.put(f"{LIBRARY[1:]}/{stem}.so.{driver['version']}", "")
            files.link(f"{LIBRARY[1:]}/{stem}.so.1", f"{LIBRARY[1:]}/{stem}.so.{driver['version']}")
        files.put(
            "usr/lib/systemd/system/nvidia-persistenced.service",
            "[Service]\nExecStart=/usr/bin/nvidia-persistenced --user nvpd\n",
        )
        files.put("usr/bin/nvidia-persistenced", "", 0o755)
        files.put("usr/bin/nvidia-smi", "", 0o755)
        cdi(files.root, document)


def cdi(root: Path, document: Any) -> None:
    """Write the CDI spec that the toolkit would generate; every path in it exists."""
    paths = [
        f"{LIBRARY}/libcuda.so.{document['driver']['version']}",
        f"{LIBRARY}/libnvidia-ml.so.{document['driver']['version']}",
    ]
    devices = [
        {"name": str(n), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{n}"}]}}
        for n in range(document["gpu"]["count"])
    ]
    edits = {
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        "mounts": [{"hostPath": path, "containerPath": path} for path in paths],
    }
    _Files(root).json(
        "etc/cdi/nvidia.json",
        {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": devices,
            "containerEdits": edits,
        },
    )


def _boot(files: _Files, document: Any) -> None:
    """Write the kernel, its modules, its initramfs and the boot menu."""
    release, driver = document["kernel"]["release"], document.get("driver") or {}
    files.put(f"boot/vmlinuz-{release}", "a simulated kernel\n")
    files.put(f"lib/modules/{release}/modules.dep", "kernel/drivers/net/ethernet/mlx5_core.ko:\n")
    files.put(f"boot/config-{release}", "CONFIG_SMP=y\n")
    inside = {
        file.path.lstrip("/"): file.content.encode()
        for file in module_files(document, "gpu_driver")
    }
    files.put(f"boot/initrd.img-{release}", initramfs(inside))
    identity = "gnulinux-advanced-0001"
    entry = f"gnulinux-{release}-advanced-0001"
    files.put("boot/grub/grub.cfg", (
        f'set default="{identity}>{entry}"\n'
        f"submenu 'Advanced options' $menuentry_id_option '{identity}' {{\n"
        f"\tmenuentry 'Debian, with Linux {release}' --class debian $menuentry_id_option '{entry}' {{\n"
        f"\t\tlinux\t/boot/vmlinuz-{release} root=/dev/nvme0n1p2 ro quiet\n"
        f"\t\tinitrd\t/boot/initrd.img-{release}\n\t}}\n}}\n"
    ))  # fmt: skip
    files.put("boot/grub/grubenv", "# GRUB Environment Block\n".ljust(1024, "#"))
    files.put("etc/default/grub", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n')
    modules = {
        "kernel/drivers/net/ethernet/mlx5_core.ko": [
            ("license", "Dual BSD/GPL"),
            ("vermagic", f"{release} SMP preempt mod_unload"),
        ]
    }
    if driver and not driver["in_tree"]:
        for name in (driver["module"], "nvidia-uvm", "nvidia-modeset"):
            info = [
                ("version", driver["version"]),
                ("license", "Dual MIT/GPL" if driver["flavour"] == "open" else "NVIDIA"),
            ]
            info += [
                ("vermagic", f"{release} SMP preempt mod_unload"),
                ("name", name.replace("-", "_")),
                ("srcversion", "A"),
            ]
            modules[f"updates/dkms/{name}.ko"] = info
    for name, info in modules.items():
        files.put(f"lib/modules/{release}/{name}", elf.module(info))
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        files.put(f"lib/modules/{release}/{name}", "")
    subprocess.run(
        ["/usr/sbin/depmod", "-b", str(files.root), release], check=True, capture_output=True
    )


def initramfs(inside: Mapping[str, bytes]) -> bytes:
    """Return an initramfs with these files: a cpio archive in "newc" format, compressed with gzip."""
    out = io.BytesIO()

    def entry(name: str, data: bytes, mode: int) -> None:
        fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))

    entry("etc", b"", 0o040755)
    for name, data in inside.items():
        entry(name, data, 0o100644)
    entry("TRAILER!!!", b"", 0)
    return gzip.compress(out.getvalue(), mtime=0)


def _packages(files: _Files, document: Any) -> None:
    rows = [
        ("dpkg", "1.22.22", "install"),
        ("libc6", "2.41-12", "install"),
        ("systemd", "257.8-1", "install"),
    ]
    rows += [(row["name"], row["version"], "hold") for row in document["packages"]]
    text = "".join(
        f"Package: {name}\nStatus: {want} ok installed\nArchitecture: amd64\nVersion: {version}\n"
        f"Maintainer: nobody\nDescription: {LABEL}\n\n"
        for name, version, want in rows
    )
    files.put("var/lib/dpkg/status", text)
    files.put("var/lib/dpkg/arch", "amd64\n")
    for folder in ("info", "updates", "triggers"):
        (files.root / "var/lib/dpkg" / folder).mkdir(parents=True, exist_ok=True)
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    for archive in document.get("site", {}).get("archives", ()):
        if keyring.exists() and not (files.root / archive["signed_by"].lstrip("/")).exists():
            files.put(archive["signed_by"].lstrip("/"), keyring.read_bytes())


def _records(files: _Files) -> None:
    """Write the records that a first run leaves, without a row."""
    files.json(RECORD.lstrip("/"), {})
    files.json(INDEX.lstrip("/"), {})
    (files.root / HISTORY.lstrip("/")).mkdir(parents=True, exist_ok=True)


def converge(host: Machine, document: Any) -> None:
    """Install goldnode's own files and links by applying the plan until it is empty."""
    files = _Files(Path(host.root))
    files.put("usr/lib/goldnode/goldnode-node", (host.path("/goldnode-node")).read_bytes(), 0o755)
    with host.environment():
        # A few rounds, because one file can make another necessary.
        for _ in range(3):
            seen: Observed = observed(host, document)
            actions = difference(document, seen, {})[0]
            for action in actions:
                if action.kind == "file.write" and "content" in action.data:
                    files.put(
                        action.target.lstrip("/"), action.data["content"], action.data["mode"]
                    )
                elif action.kind == "link":
                    place = host.path(action.target)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.unlink(missing_ok=True)
                    place.symlink_to(action.data["to"])
                elif action.kind == "boot.entry":
                    files.put(
                        kernel_domain.DROP_IN.lstrip("/"),
                        kernel_domain.drop_in(str(seen.boot["entry"])),
                    )
    for name in ("run/goldnode",):
        shutil.rmtree(files.root / name, ignore_errors=True)


# -- changing a node


def reboot(host: Machine, boards: Scenario | None = None) -> None:
    """Simulate a boot: new boot id, empty kernel log, cleared /run and volatile counters, and pending modes
    made current.

    `boards` is the scenario with the faults after the boot; None keeps the present ones. Faults belong to the
    hardware, so a boot does not clear them.
    """
    root = Path(host.root)
    files = _Files(root)
    files.put("proc/sys/kernel/random/boot_id", f"{uuid.uuid4()}\n")
    files.put("proc/sys/kernel/tainted", f"{TAINT}\n")
    uptime(root, 120.0)
    kmsg(root)
    for name in ("state", "calls"):
        (host.place / "run" / name).unlink(missing_ok=True)
    shutil.rmtree(root / "run/goldnode", ignore_errors=True)
    if boards is not None:
        scenarios.write(boards, host.place)


HANGS = 20  # seconds until a driver counts as hung
# Call the simulated library like a program on the node would; NVML itself has no function for a reset.
RESET = (
    f"import ctypes, sys; nvml = ctypes.CDLL('{SONAME}'); nvml.nvmlInit_v2(); "
    "sys.exit(nvml.simulatedGpuReset(int(sys.argv[1])))"
)


def reset(host: Machine, gpu: int) -> int:
    """Simulate `nvidia-smi --gpu-reset -i GPU`. Return NVML's code: 19 if the GPU is in use."""
    with host.environment():
        try:
            return subprocess.run(
                [sys.executable, "-c", RESET, str(gpu)], check=False, timeout=HANGS
            ).returncode
        except subprocess.TimeoutExpired:
            return 10  # NVML_ERROR_TIMEOUT


def drift(host: Machine, changes: Mapping[str, str]) -> None:
    """Change the state of boards like a manual `nvidia-smi` call: `gpu3.ecc_pending` -> 0.

    Settings that a board retains over a boot are retained.
    """
    with host.environment():
        subprocess.run(
            [sys.executable, "-c", f"import ctypes; ctypes.CDLL('{SONAME}').nvmlInit_v2()"],
            check=True,
            timeout=HANGS,
        )  # makes the simulator register the boot first
    for name in ("state", "run/state"):
        place = host.place / name
        mine = {
            key: value
            for key, value in changes.items()
            if key.partition(".")[2].startswith(("ecc_", "mig_")) is (name == "state")
        }
        if mine:
            rows = (
                dict(line.split("=", 1) for line in place.read_text().splitlines())
                if place.exists()
                else {}
            )
            place.with_suffix(".new").write_text(
                "".join(f"{key}={value}\n" for key, value in sorted({**rows, **mine}.items()))
            )
            place.with_suffix(".new").replace(place)


def uptime(root: Path, seconds: float) -> None:
    """Set the uptime of the node, and with it its clock."""
    _Files(root).put("proc/uptime", f"{seconds:.2f} {seconds * 8:.2f}\n")


def later(root: Path, seconds: float) -> None:
    """Let time pass on the node."""
    now = boot.uptime((root / "proc/uptime").read_text()) or 0.0
    uptime(root, now + seconds)


def spoil(root: Path, name: str, content: str | bytes | None, mode: int = 0o644) -> None:
    """Replace the content of a file of the node, or delete the file if `content` is None.

    `name` is a path below the root; a `*` in it applies to every match.
    """
    found = sorted(root.glob(name)) if "*" in name else [root / name]
    if content is None:
        found = [place for place in found if os.path.lexists(place)]
    for place in found:
        real = place.resolve() if place.parent.exists() else place
        if content is None:
            if place.is_symlink():
                place.unlink()
            if real.is_file():
                real.unlink()
            else:
                shutil.rmtree(real, ignore_errors=True)
        else:
            _Files(root).put(str(real.relative_to(root.resolve())), content, mode)


def fault(
    host: Machine,
    boards: Scenario,
    document: Any,
    *faults: str,
    layout_faults: Mapping[str, str] | None = None,
) -> Scenario:
    """Inject faults of boards (`Scenario.parse`) and other devices (`tree.Layout.faults`) into the library
    and the bus.
    """
    spoiled = boards.with_faults(faults)
    scenarios.write(spoiled, host.place)
    root = Path(host.root)
    with _fresh(root):
        _bus(spoiled, root, layout(document, faults=layout_faults))
        _flavour(root, document)
    for index in range(len(spoiled.gpus)):
        if index not in spoiled.visible() and spoiled.vendor == "nvidia":
            (root / f"dev/nvidia{spoiled.gpus[index]['minor_number']}").unlink(missing_ok=True)
    return spoiled


@contextlib.contextmanager
def _fresh(root: Path) -> Any:
    """Make tree.py write only changed files, each as a new file, because copies of a node share files.

    Afterwards, remove the devices that are no longer on the bus.
    """
    shown: set[str] = set()
    write, link_new = tree._Tree.file, tree._Tree.link

    # Of thousands of files hardly one has changed: paths as text and bare reads take half of the time of pathlib.
    base = str(root)

    def file(self: Any, name: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(f"{base}/{name}", os.O_RDONLY)
            try:
                if os.read(handle, len(data) + 1) == data:
                    return
            finally:
                os.close(handle)
            os.unlink(f"{base}/{name}")  # noqa: PTH108 - see above
        write(self, name, data)

    def link(self: Any, name: str, target: str) -> None:
        shown.add(name)
        with contextlib.suppress(OSError):  # there is none, or something else is there
            if os.readlink(f"{base}/{name}") == tree.relative(target, name):  # noqa: PTH115
                return
        link_new(self, name, target)

    with mock.patch.object(tree._Tree, "file", file), mock.patch.object(tree._Tree, "link", link):
        yield
    for place in sorted((root / "sys/bus/pci/devices").iterdir()):
        if f"sys/bus/pci/devices/{place.name}" not in shown:
            place.unlink()
            shutil.rmtree(root / "proc/driver/nvidia/gpus" / place.name, ignore_errors=True)


def program_file() -> bytes:
    """Return the program as it is shipped."""
    return nodefile.build()


__all__ = [
    "MIB",
    "SONAME",
    "Machine",
    "copied",
    "fault",
    "kmsg",
    "later",
    "layout",
    "reboot",
    "scenario",
    "spoil",
    "task",
    "uptime",
    "write",
]

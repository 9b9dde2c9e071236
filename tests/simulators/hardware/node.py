"""Simulated hardware on a node of a lab, and on any directory: putting it there, injecting faults, looking at it."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.simulators.hardware import library, tree
from tests.simulators.hardware.scenario import LABEL, Scenario, ScenarioError, fault_text, files

from goldnode.testing.lab.nodes import Node

PLACE = "/opt/goldnode-simulator"
VOLATILE = "/run/goldnode-simulator"
# "000": ldconfig keeps the directories in the order in which ld.so.conf names them, its own files sorted, and /usr/lib last.
LOADER = "/etc/ld.so.conf.d/000-goldnode-simulator.conf"
# No name of goldnode's own units: those that no class declares are taken away.
UNIT = "simulated-hardware.service"
UNIT_TEXT = f"""\
[Unit]
Description={LABEL} hardware of goldnode's tests: its PCI bus and the driver's /proc
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target
ConditionVirtualization=container

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={PLACE}/show
ExecStop={PLACE}/show --hide

[Install]
WantedBy=sysinit.target
"""
# Over the bus and /proc/driver of the machine below, which are there in any container. Of AMD's files the folders exist only on a machine
# with a GPU, so these are shown only there. Each is mounted once; what it shows may change at any time.
SHOW = f"""\
#!/bin/sh
# Mounts the {LABEL} sysfs and procfs of {PLACE}/tree over the machine's.
for place in /sys/bus/pci /proc/driver /sys/class/drm /sys/class/kfd; do
    [ -d {PLACE}/tree$place ] && [ -d $place ] || continue
    if [ "$1" = --hide ]; then
        ! mountpoint -q $place || umount $place
    else
        mountpoint -q $place || mount --bind {PLACE}/tree$place $place
    fi
done
"""


def install(node: Node, scenario: Scenario) -> None:
    """Give `node` the hardware of `scenario`: every process on it that opens libnvidia-ml.so.1 gets the simulated one.

    The file of the real package stays what it is, and so does the simulator's state; a second call changes what is declared.
    Raises BuildError, LabError.
    """
    put = {f"{PLACE}/{name}": text.encode() for name, text in files(scenario).items()}
    if scenario.vendor == "nvidia":
        with tempfile.TemporaryDirectory() as scratch:
            put[f"{PLACE}/lib/{library.SONAME}"] = library.build(Path(scratch)).read_bytes()
        put[LOADER] = f"# {LABEL} hardware of goldnode's tests\n{PLACE}/lib\n".encode()
    node.put({**put, f"/etc/systemd/system/{UNIT}": UNIT_TEXT.encode()})
    node.put({f"{PLACE}/show": SHOW.encode()}, 0o755)
    _put_tree(node, scenario)
    node.shell(f"ldconfig; systemctl daemon-reload; systemctl enable -q --now {UNIT}")


def pack(scenario: Scenario, out: Path) -> None:
    """The same as files of a root, in a tar archive, for a virtual machine: its unit is not enabled yet, and ldconfig is to be run.

    The bus is shown when udev has seen the machine's own. Raises BuildError.
    """
    unit = UNIT_TEXT.replace("ConditionVirtualization=container", "ConditionVirtualization=vm")
    unit = unit.replace("After=local-fs.target\n", "After=local-fs.target systemd-udev-trigger.service\n")
    put = {f"{PLACE}/{name}": (text.encode(), 0o644) for name, text in files(scenario).items()}
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(out, "w") as archive:
        if scenario.vendor == "nvidia":
            put[f"{PLACE}/lib/{library.SONAME}"] = (library.build(Path(scratch) / "lib").read_bytes(), 0o644)
            put[LOADER] = (f"# {LABEL} hardware of goldnode's tests\n{PLACE}/lib\n".encode(), 0o644)
        put[f"/etc/systemd/system/{UNIT}"] = (unit.encode(), 0o644)
        put[f"{PLACE}/show"] = (SHOW.encode(), 0o755)
        for path, (content, mode) in sorted(put.items()):
            member = _of_root(tarfile.TarInfo(path.lstrip("/")))
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
        root = tree.write(scenario, Path(scratch) / "tree", devices=tree.DEVICES_OF_A_MOUNT)
        archive.add(root, f"{PLACE}/tree".lstrip("/"), filter=_of_root)


def remove(node: Node) -> None:
    """Take the simulated hardware away again."""
    node.shell(
        f"systemctl disable -q --now {UNIT}; rm -rf {PLACE} {VOLATILE} {LOADER} /etc/systemd/system/{UNIT}; systemctl daemon-reload; ldconfig"
    )


def _put_tree(node: Node, scenario: Scenario) -> None:
    """The folders that are mounted stay, and get new content."""
    with tempfile.TemporaryDirectory() as scratch:
        root = tree.write(scenario, Path(scratch) / "tree", devices=tree.DEVICES_OF_A_MOUNT)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(root, "tree", filter=_of_root)
    kept = " ".join(
        f"{PLACE}/tree{place}"
        for place in ("/sys/bus/pci", "/proc/driver", "/sys/class/drm", "/sys/class/kfd")
    )
    node.shell(f"for place in {kept}; do [ ! -d $place ] || find $place -mindepth 1 -delete; done")
    node.container.put_archive(PLACE, packed.getvalue())


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def installed(node: Node) -> Scenario:
    """The scenario of a node. Raises ScenarioError where nothing is simulated."""
    done = node.run("cat", f"{PLACE}/scenario.json", check=False)
    if done.rc != 0:
        raise ScenarioError(f"node {node.name} has no simulated hardware", remedy="install it first")
    return Scenario.read(done.output)


def inject(node: Node, faults: Iterable[str]) -> Scenario:
    """Add faults (`Scenario.parse` says how they are written) to a running node; processes see them at their next nvmlInit."""
    scenario = installed(node).with_faults(faults)
    _rewrite(node, scenario)
    return scenario


def clear(node: Node) -> Scenario:
    """Take all faults away."""
    scenario = Scenario(**{**installed(node).__dict__, "faults": {}})
    _rewrite(node, scenario)
    return scenario


def drift(node: Node, changes: Iterable[str]) -> None:
    """Change the state as somebody else on the node could have by nvidia-smi: ``gpu3.power_limit=300000``; setters can mend it.

    What belongs to the board (ECC, MIG mode) is changed there, everything else in the volatile state.
    """
    found = installed(node).parse(changes)
    for path, chosen in (
        (
            f"{PLACE}/state",
            {k: v for k, v in found.items() if k.partition(".")[2].startswith(("ecc_", "mig_"))},
        ),
        (
            f"{VOLATILE}/state",
            {k: v for k, v in found.items() if not k.partition(".")[2].startswith(("ecc_", "mig_"))},
        ),
    ):
        if chosen:
            node.run("python3", "-c", _MERGE, path, json.dumps(chosen))


# Merges keys into a file of key=value lines under the simulator's own lock. The library comes first: after a boot it is the one to begin.
_MERGE = f"""
import ctypes, fcntl, json, os, sys
ctypes.CDLL("{library.SONAME}").nvmlInit_v2()
path, changes = sys.argv[1], json.loads(sys.argv[2])
with open("{PLACE}/lock", "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    rows = dict(line.rstrip("\\n").split("=", 1) for line in open(path))
    rows.update(changes)
    with open(path + ".new", "w") as out:
        out.writelines(f"{{key}}={{value}}\\n" for key, value in sorted(rows.items()))
    os.replace(path + ".new", path)
"""


def reload(node: Node) -> None:
    """What a reload of the driver does, without a boot: the volatile state is gone, and what was pending becomes current."""
    node.run("rm", "-f", f"{VOLATILE}/state")


def state(node: Node) -> dict[str, str]:
    """What setters have left, volatile and persistent; of locked clocks this is the only place that knows."""
    text = node.shell(f"cat {PLACE}/state {VOLATILE}/state 2>/dev/null || true").output
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def calls(node: Node) -> list[str]:
    """The setters called since boot, oldest first: ``gpu0 nvmlDeviceSetEccMode 1 rc=0 pid=4242``."""
    return node.shell(f"cat {VOLATILE}/calls 2>/dev/null || true").output.splitlines()


def _rewrite(node: Node, scenario: Scenario) -> None:
    node.put(
        {
            f"{PLACE}/scenario.json": scenario.text().encode(),
            f"{PLACE}/faults": fault_text(scenario.faults).encode(),
        }
    )
    _put_tree(node, scenario)

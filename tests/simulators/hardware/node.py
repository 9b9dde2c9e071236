"""Simulated hardware on a lab node or in an archive: install it, inject faults, inspect its state."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.simulators.hardware import library, tree
from tests.simulators.hardware.scenario import LABEL, Scenario, ScenarioError, fault_text, files

from goldnode.testing.lab.nodes import LabNode

PLACE = "/opt/goldnode-simulator"
VOLATILE = "/run/goldnode-simulator"
# "000": ldconfig processes these files in sorted order, and /usr/lib last; the first match wins.
LOADER = "/etc/ld.so.conf.d/000-goldnode-simulator.conf"
# goldnode removes units with its own name prefix that no class declares, so this unit has another name.
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
# Mounted over the bus and /proc/driver of the underlying machine, which exist in any container. AMD's folders
# exist only on a machine with a GPU, so the simulated ones are visible only there. Each mount is made once;
# its content may change at any time.
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


def install(node: LabNode, scenario: Scenario) -> None:
    """Install the hardware of `scenario` on `node`: every process that opens libnvidia-ml.so.1 gets the
    simulated one.

    The library of the real package and the simulator's state remain unchanged. A second call replaces the
    scenario. Raise BuildError, LabError.
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
    """Write the same files to a tar archive, for the root of a virtual machine.

    The unit is not enabled yet, and ldconfig must be run. The unit shows the bus after udev has processed the
    machine's own. Raise BuildError.
    """
    unit = UNIT_TEXT.replace("ConditionVirtualization=container", "ConditionVirtualization=vm")
    unit = unit.replace(
        "After=local-fs.target\n", "After=local-fs.target systemd-udev-trigger.service\n"
    )
    put = {f"{PLACE}/{name}": (text.encode(), 0o644) for name, text in files(scenario).items()}
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(out, "w") as archive:
        if scenario.vendor == "nvidia":
            put[f"{PLACE}/lib/{library.SONAME}"] = (
                library.build(Path(scratch) / "lib").read_bytes(),
                0o644,
            )
            put[LOADER] = (f"# {LABEL} hardware of goldnode's tests\n{PLACE}/lib\n".encode(), 0o644)
        put[f"/etc/systemd/system/{UNIT}"] = (unit.encode(), 0o644)
        put[f"{PLACE}/show"] = (SHOW.encode(), 0o755)
        for path, (content, mode) in sorted(put.items()):
            member = _of_root(tarfile.TarInfo(path.lstrip("/")))
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
        root = tree.write(scenario, Path(scratch) / "tree", devices=tree.DEVICES_OF_A_MOUNT)
        archive.add(root, f"{PLACE}/tree".lstrip("/"), filter=_of_root)


def remove(node: LabNode) -> None:
    """Remove the simulated hardware."""
    node.shell(
        f"systemctl disable -q --now {UNIT}; rm -rf {PLACE} {VOLATILE} {LOADER} "
        f"/etc/systemd/system/{UNIT}; systemctl daemon-reload; ldconfig"
    )


def _put_tree(node: LabNode, scenario: Scenario) -> None:
    """Replace the content of the mounted folders; the folders themselves must stay."""
    with tempfile.TemporaryDirectory() as scratch:
        root = tree.write(scenario, Path(scratch) / "tree", devices=tree.DEVICES_OF_A_MOUNT)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(root, "tree", filter=_of_root)
    stored = " ".join(
        f"{PLACE}/tree{place}"
        for place in ("/sys/bus/pci", "/proc/driver", "/sys/class/drm", "/sys/class/kfd")
    )
    node.shell(
        f"for place in {stored}; do [ ! -d $place ] || find $place -mindepth 1 -delete; done"
    )
    node.container.put_archive(PLACE, packed.getvalue())


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def installed(node: LabNode) -> Scenario:
    """Return the scenario of a node. Raise ScenarioError if it has no simulated hardware."""
    done = node.run("cat", f"{PLACE}/scenario.json", check=False)
    if done.rc != 0:
        raise ScenarioError(
            f"node {node.name} has no simulated hardware", remedy="install it first"
        )
    return Scenario.read(done.output)


def inject(node: LabNode, faults: Iterable[str]) -> Scenario:
    """Add faults (syntax: `Scenario.parse`) to a running node; processes see them at their next nvmlInit."""
    scenario = installed(node).with_faults(faults)
    _rewrite(node, scenario)
    return scenario


def clear(node: LabNode) -> Scenario:
    """Remove all faults."""
    scenario = Scenario(**{**installed(node).__dict__, "faults": {}})
    _rewrite(node, scenario)
    return scenario


def drift(node: LabNode, changes: Iterable[str]) -> None:
    """Change the state like a manual `nvidia-smi` call: ``gpu3.power_limit=300000``; setters can fix it.

    Modes stored on the board (ECC, MIG) are changed there, everything else in the volatile state.
    """
    found = installed(node).parse(changes)
    for path, chosen in (
        (
            f"{PLACE}/state",
            {k: v for k, v in found.items() if k.partition(".")[2].startswith(("ecc_", "mig_"))},
        ),
        (
            f"{VOLATILE}/state",
            {
                k: v
                for k, v in found.items()
                if not k.partition(".")[2].startswith(("ecc_", "mig_"))
            },
        ),
    ):
        if chosen:
            node.run("python3", "-c", _MERGE, path, json.dumps(chosen))


# Merge keys into a file of key=value lines under the simulator's lock. Call the library first: it must
# register a boot before the state changes.
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


def reload(node: LabNode) -> None:
    """Simulate a reload of the driver without a boot: volatile state is lost, and pending modes become
    current.
    """
    node.run("rm", "-f", f"{VOLATILE}/state")


def state(node: LabNode) -> dict[str, str]:
    """Return the volatile and persistent state that setters left. Locked clocks are visible only here."""
    text = node.shell(f"cat {PLACE}/state {VOLATILE}/state 2>/dev/null || true").output
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def calls(node: LabNode) -> list[str]:
    """Return the setters called since boot, oldest first: ``gpu0 nvmlDeviceSetEccMode 1 rc=0 pid=4242``."""
    return node.shell(f"cat {VOLATILE}/calls 2>/dev/null || true").output.splitlines()


def _rewrite(node: LabNode, scenario: Scenario) -> None:
    node.put(
        {
            f"{PLACE}/scenario.json": scenario.text().encode(),
            f"{PLACE}/faults": fault_text(scenario.faults).encode(),
        }
    )
    _put_tree(node, scenario)

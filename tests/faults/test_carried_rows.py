"""Which rows of the table of findings have their remedy carried out, and why the others do not. UNCARRIED only gets shorter."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.e2e.drift import table as drift
from tests.faults import carried
from tests.faults.test_log_remedies import FAULTS as LOGS
from tests.faults.test_log_remedies import OTHERS, ROWS, bad, capture_of
from tests.faults.test_remedies import FAULTS
from tests.faults.test_repaired import GROUPS
from tests.simulators.hardware import Scenario, tree
from tests.simulators.hardware.tree import HGX
from tests.unit.node.captures import class_document, healthy
from tests.unit.node.state.test_cases import bare, document

from goldnode.classdoc.compile import declared_part
from goldnode.node.ground.host import Host
from goldnode.node.probe import Context, numa, pci
from goldnode.node.state.domains import parts
from goldnode.node.state.finding import MATCH
from goldnode.node.state.kinds import KINDS
from goldnode.node.state.remedy import REBOOT
from goldnode.node.verdict import table

NOTE = "a note, which asks for nothing"
SELF = "the check, its document or its records; tests/unit/node/program and tests/e2e/test_resident.py break and repair them"
BOOT = "needs a machine that boots: tests/disks and tests/e2e with QEMU (docs/proof.md)"
ADVICE = "advice: an upgrade of the driver, which needs another release"
PART = (
    "a person replaces or connects a part, which no simulator has; the rules' tests have the fault"
)
SITE = "a person decides, configures or waits; the rules' tests have the fault"
UNCARRIED = {
    **dict.fromkeys(("events.acknowledged", "gate", "gpu.program_fault", "net.link_down", "pcie.limited"), NOTE),
    **dict.fromkeys(("check", "memory.state", "baseline", "baseline.*", "capture.*", "events.log", "events.unknown"), SELF),
    **dict.fromkeys(
        ("node.os", "kernel.running", "boot.next", "boot.pending", "boot.trial", "boot.copies", "boot.disk", "slot.fallback", "driver.agree",
         "modules.*.loaded"), BOOT
    ),
    **dict.fromkeys(("driver.support", "driver.security", "driver.known_bad"), ADVICE),
    **dict.fromkeys(
        ("gpu.repeated_faults", "net.state"), PART
    ),
    **dict.fromkeys(
        ("policy.overrides", "gate.hook", "gpu.modes", "gpu.processes", "fabric.manager", "storage.path", "kernel.hung_task", "xid.programs",
         "blacklist.initramfs", "units.loaded", "follow.timer", "runtime.cdi"), SITE
    ),
}  # fmt: skip


def in_scoreboard() -> set[str]:
    """Rows whose remedy the faults of simulated boards carry out."""
    finds = [row.find for row in FAULTS if row.name not in carried.SOFTWARE]
    patterns = [find.replace("\\", "") for find in finds]
    return {
        name
        for name in KINDS
        if any(re.fullmatch(find, name.replace("*", "1")) for find in finds)
        or any(fnmatchcase(find, name) for find in patterns)
    }


def in_drift() -> set[str]:
    """Rows whose remedy the table of drift carries out on a node in a container."""
    names = {name for row in drift.rows() for name in row.check}
    return {kind for kind in KINDS if any(fnmatchcase(name, kind) for name in names)}


def in_logs() -> set[str]:
    """Rows whose remedy ends faults of a kernel log."""
    names = {finding.id for case in LOGS for finding in bad(capture_of(case["lines"], case), {})}
    names |= {row.finding for row in ROWS} | set(OTHERS)
    return {kind for kind in KINDS if any(fnmatchcase(name, kind) for name in names)}


def in_repairs() -> set[str]:
    """Rows whose remedy a person carries out on a simulated node."""
    return {row.key[0] for rows, *_ in GROUPS.values() for row in rows}


def test_every_row_without_a_remedy_that_is_carried_out_has_its_reason() -> None:
    done = in_scoreboard() | in_drift() | in_logs() | in_repairs() | {"net.irq", "parts.*"}
    assert set(KINDS) - done == set(UNCARRIED)
    assert len(UNCARRIED) <= 39


def test_command_of_moved_interrupts_moves_them_back(tmp_path: Path) -> None:
    scenario = Scenario.of(
        {
            "class": "a",
            "gpu": {"model": "H100-SXM5-80GB", "count": 8},
            "driver": {"version": "535.1"},
        }
    )
    tree.write(scenario, tmp_path, layout=replace(HGX, faults={"nic1.irqs": "48-95"}))
    (finding,) = _interrupts(tmp_path)
    assert finding.outcome != MATCH
    command = str(finding.remedy).split("`")[1].replace("/sys/", f"{tmp_path}/sys/")
    command = command.replace("/proc/", f"{tmp_path}/proc/")
    subprocess.run(["sh", "-c", command], check=True)
    assert [row.outcome for row in _interrupts(tmp_path)] == [MATCH]


def _interrupts(root: Path) -> list[Any]:
    """The findings about interrupts, for a machine whose adapters are all fast and up."""
    context = Context(Host(str(root), live=True))
    context.captured.update(pci.read(context))
    section = numa.read(context)["numa"]
    row = healthy()["network"]["eth0"]
    names = section["interrupts"]["devices"]
    network = {f"eth{at}": {**row, "address": address} for at, address in enumerate(names)}
    capture = {**healthy(), "numa": section, "network": network, "infiniband": {}}
    return [row for row in table.judge(class_document(), capture) if row.id == "net.irq"]


def test_remedies_of_a_declared_part_are_carried_out_by_installing_it_and_by_a_reboot(
    tmp_path: Path,
) -> None:
    declared: Any = {**document(), "parts": [declared_part("nvidia_fs", "2.28.2")]}
    loaded = tmp_path / "sys/module/nvidia_fs"
    loaded.mkdir(parents=True)
    (loaded / "initstate").write_text("live")
    (loaded / "version").write_text("2.27.3")
    seen = bare(declared)
    seen.packages["nvidia-fs-dkms"] = {"version": "2.27.3-1", "state": "installed"}

    def judged() -> Any:
        parts.observe(Host(str(tmp_path), live=True), declared, seen)
        (finding,) = parts.findings(declared, seen)
        return finding

    wanted = re.search(r"Install nvidia-fs (\S+),", str(judged().remedy))
    assert wanted is not None
    seen.packages["nvidia-fs-dkms"]["version"] = f"{wanted[1]}-1"
    assert judged().steps == (REBOOT,)
    (loaded / "version").write_text(wanted[1])
    assert judged().outcome == MATCH

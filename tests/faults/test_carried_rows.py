"""Which rows of the table of findings have their remedy carried out, and why the others have not."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
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

REPOSITORY = Path(__file__).parents[2]
NOTE = "a note, which asks for nothing"
# Rows whose remedy a test of its own carries out until the finding, or its cause in the plan, has gone.
ALONE = {
    "gpu.repeated_faults": "tests/faults/test_remedies_over_boots.py::test_acknowledged_exchange_of_a_gpu_ends_its_repeated_faults_alone",
    "gpu.processes": "tests/faults/test_remedies_over_boots.py::test_process_that_was_ended_is_not_reported_at_the_next_boot",
    "fabric.manager": "tests/faults/test_remedies_over_boots.py::test_fabric_manager_that_is_installed_and_started_ends_the_finding",
    "storage.path": "tests/faults/test_remedies_over_boots.py::test_server_that_answers_in_time_again_ends_the_finding_of_a_slow_path",
    "capture.*": "tests/faults/test_remedies_over_boots.py::test_reader_that_works_again_ends_the_finding_of_its_section",
    "events.unknown": "tests/faults/test_remedies_over_boots.py::test_event_of_another_version_is_left_to_the_program_that_read_it",
    "driver.support": "tests/unit/node/verdict/test_driver_support.py::test_advice_to_move_is_followed_and_ends_its_findings",
    "driver.security": "tests/unit/node/verdict/test_driver_support.py::test_update_of_the_driver_ends_the_finding_of_its_security",
    "driver.known_bad": "tests/unit/node/verdict/test_driver_support.py::test_fix_of_a_known_bad_combination_ends_it",
    "boot.next": "tests/e2e/test_boot_entry.py::test_the_class_decides_which_kernel_boots_and_how_it_is_tuned",
    "boot.copies": "tests/unit/node/slots/test_slots.py::test_the_esp_follows_the_kernel_of_the_slot_that_runs",
    "boot.disk": "tests/unit/node/slots/test_slots.py::test_the_remedy_ends_the_finding",
    "slot.fallback": "tests/unit/node/slots/test_slots.py::test_written_image_ends_the_report_of_a_fallback",
    "runtime.cdi": "tests/e2e/test_runtime.py::test_debian_13s_docker_gives_gpus_by_cdi",
    "net.irq": "tests/faults/test_carried_rows.py::test_command_of_moved_interrupts_moves_them_back",
    "scratch.mount": "tests/e2e/test_scratch.py::test_scratch_is_made_filled_judged_and_removed",
    "scratch.space": "tests/e2e/test_scratch.py::test_scratch_is_made_filled_judged_and_removed",
    "parts.*": "tests/faults/test_carried_rows.py::test_remedies_of_a_declared_part_are_carried_out_by_installing_it_and_by_a_reboot",
}  # fmt: skip
# Rows whose remedy no test carries out, with the reason.
UNCARRIED = {
    **dict.fromkeys(("events.acknowledged", "gate", "gpu.program_fault", "net.link_down", "pcie.limited"), NOTE),
    "boot.trial": "a second trial is one more emulated boot; tests/e2e/test_power_cut.py boots a trial that fails, and on a copy a good one",
    "boot.secure": "its remedy is in the firmware's menu; tests/disks/test_secure_boot.py enrols in setup mode, and no check runs there",
    "baseline": "it reports that an image does not run, and has no remedy",
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
    names = {row.key[0] for rows, *_ in GROUPS.values() for row in rows}
    return {kind for kind in KINDS if any(fnmatchcase(name, kind) for name in names)}


def test_every_row_is_carried_out_or_has_its_reason() -> None:
    done = in_scoreboard() | in_drift() | in_logs() | in_repairs()
    # A row of its own test needs no other one.
    assert set(KINDS) - done - set(ALONE) == set(UNCARRIED)
    assert set(ALONE) <= set(KINDS)
    page = (REPOSITORY / "docs/adding.md").read_text(encoding="utf-8")
    numbers = f"Of the {len(KINDS)} rows, {len(KINDS) - len(UNCARRIED)} are carried out"
    assert numbers in " ".join(page.split()), numbers


@pytest.mark.parametrize("name", ALONE)
def test_test_of_a_row_exists(name: str) -> None:
    place, _, test = ALONE[name].partition("::")
    assert f"\ndef {test}(" in (REPOSITORY / place).read_text(encoding="utf-8")


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

"""`scripts/prove-gpu` as a user starts it, against the simulators; as root, since only root sets anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.faults import classes
from tests.simulators.hardware import machine
from tests.unit.prove.conftest import SCRIPT, Make, Place, Run

from goldnode.prove import SCHEMA

pytestmark = [
    pytest.mark.xdist_group("prove"),
    pytest.mark.skipif(os.geteuid() != 0, reason="settings are changed by root alone"),
]
PAST = {"leftovers": "skipped", "nvidia-smi": "skipped"}
# A driver whose first answer is waited for one second instead of ninety.
IMPATIENT = "from goldnode.node.device import child, stream\nchild.ask.__defaults__ = (1.0,)\nstream.Pending.finish.__defaults__ = (1.0, 1.0)"


def test_whole_run_passes_and_labels_each_document_as_simulated(whole: tuple[Place, Run]) -> None:
    _, run = whole
    assert run.code == 0, run.reported
    record = run.json("record.json")
    assert record["schema"] == SCHEMA
    assert record["simulated"] is True
    names = (
        "versions",
        "capture",
        "check",
        "policy",
        "latency",
        "timing",
        "load",
        "smoke",
        "change",
        "settings",
    )
    assert run.statuses() == {**PAST, **dict.fromkeys(names, "passed")}
    page = (run.out / "summary.md").read_text()
    assert page.startswith(
        "# prove-gpu: 8 x NVIDIA H100-SXM5-80GB (10de:2330)\n\n> **SIMULATED HARDWARE.**"
    )
    assert "(SIMULATED)" in run.reported.splitlines()[-1]
    assert sorted(path.name for path in run.out.iterdir()) == record["files"]
    unlabelled = [
        path.name
        for path in run.out.glob("*.json")
        if run.json(path.name)["hardware"] != "SIMULATED"
    ]
    assert unlabelled == [], "each document may be read without the others"


def test_the_class_is_the_one_of_the_catalog_that_fits(whole: tuple[Place, Run]) -> None:
    _, run = whole
    assert run.json("record.json")["class"]["name"] == "h100_sxm5_80gb"
    verdict = run.json("verdict.json")
    assert (verdict["status"], verdict["simulated"]) == ("healthy", True)
    judged = {row["id"] for row in verdict["findings"]}
    assert {"gpu.visible", "gpu.memory", "pcie.width", "nvlink.active"} <= judged
    assert not judged & {"stack.lock", "node.os", "kernel.running", "node.files"}, (
        "nobody has declared these"
    )
    assert run.step("check")["figures"]["findings that differ from the capture's"] == []


def test_every_figure_has_its_count(whole: tuple[Place, Run]) -> None:
    _, run = whole
    figures = run.json("latency.json")
    assert figures["gpus"] == 8
    assert all(
        row["count"] >= 8 and row["min"] <= row["p50"] <= row["p95"] <= row["max"]
        for row in figures["calls"].values()
    )
    runs = run.json("timing.json")["runs"]
    assert runs["floor: python3 -I -S -c pass"]["to_floor"] == 1
    assert {
        "check, first start of a fresh copy",
        "check, warm",
        "check --cached, the answer alone",
    } <= set(runs)
    assert [row["wrong"] for row in run.json("load.json")["gpus"]] == [False] * 8
    assert run.json("smoke.json")["tiers"]["gpu"]["state"] == "passed"


def test_everything_is_set_read_back_and_put_back(whole: tuple[Place, Run]) -> None:
    place, run = whole
    calls = place.calls()
    for wanted in (
        "PowerManagementLimit 695000",
        "PowerManagementLimit 700000",
        "ComputeMode 3",
        "ComputeMode 0",
    ):
        assert f"gpu7 nvmlDeviceSet{wanted} rc=0" in calls
    assert "gpu0 nvmlDeviceSetGpuLockedClocks 1965,1965 rc=0" in calls
    assert "gpu0 nvmlDeviceResetGpuLockedClocks - rc=0" in calls
    assert not [line for line in calls if "Ecc" in line or "Mig" in line or "GpuReset" in line]
    state = place.state_of()
    assert (
        state["gpu3.power_limit"],
        state["gpu3.compute_mode"],
        state["gpu3.application_clock.0"],
    ) == (
        "700000",
        "0",
        "1980",
    )
    assert not place.state.parent.exists()
    assert run.step("change")["figures"]["not read back"] == []


def test_no_name_of_the_machine_is_in_the_directory(whole: tuple[Place, Run]) -> None:
    place, run = whole
    boards = machine.scenario(classes.document("board_h100"))
    assert boards is not None
    secrets = [
        value for gpu in boards.gpus for value in (gpu["uuid"], gpu["uuid"][4:], gpu["serial"])
    ]
    secrets += [
        machine.MACHINE_ID,
        machine.BOOT_ID,
        "b8:ce:f6:00:00:00",
        str(place.root),
        str(place.carry),
    ]
    for path in run.out.iterdir():
        text = path.read_text().lower()
        assert not [secret for secret in secrets if secret.lower() in text], path.name
    capture = run.json("capture.json")
    assert [gpu["address"] for gpu in capture["gpus"]] == [
        f"0000:{0x10 + 8 * index:02x}:00.0" for index in range(8)
    ]
    assert len({gpu["uuid"] for gpu in capture["gpus"]}) == 8
    other = run.json("capture-load.json")
    assert [gpu["uuid"] for gpu in capture["gpus"]] == [gpu["uuid"] for gpu in other["gpus"]], (
        "equal values have one placeholder in all files"
    )


def test_without_change_nothing_is_set(make: Make, tmp_path: Path) -> None:
    place = make()
    run = place.run(tmp_path / "out")
    assert (run.code, run.statuses()["change"]) == (0, "skipped")
    assert not (place.root / machine.PLACE / "run/calls").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_settings_are_changed_puts_them_back(
    make: Make, tmp_path: Path, number: signal.Signals
) -> None:
    place = make(faults=("gpu0.set.compute_mode=hang:2",))
    process = place.start(tmp_path / "out", "--change")
    await_file(place.state, process)
    await_call(place, "PowerManagementLimit")
    process.send_signal(number)
    reported, err = process.communicate(timeout=60)
    run = Run(process.returncode, tmp_path / "out", reported)
    assert run.code == 3, err
    assert (
        run.step("change")["reason"] == f"interrupted by {number.name}; all settings are as found"
    )
    assert place.state_of()["gpu0.power_limit"] == "72000"
    assert not place.state.exists()
    assert f"interrupted by {number.name}" in (run.out / "summary.md").read_text()


def test_next_run_restores_settings_of_a_killed_run(make: Make, tmp_path: Path) -> None:
    place = make(faults=("gpu0.set.compute_mode=hang:2",))
    process = place.start(tmp_path / "first", "--change")
    await_file(place.state, process)
    await_call(place, "PowerManagementLimit")
    process.kill()
    process.communicate(timeout=60)
    assert place.state_of()["gpu0.power_limit"] == "67000"
    place.state.with_name("note").touch()  # a directory of the user's own stays
    run = place.run(tmp_path / "second")
    assert run.step("leftovers")["status"] == "passed", run.reported
    assert place.state_of()["gpu0.power_limit"] == "72000"
    assert run.statuses()["settings"] == "passed"
    assert not place.state.exists()
    assert place.state.parent.exists()


def test_ignored_setter_fails_the_change_step(make: Make, tmp_path: Path) -> None:
    run = make(faults=("gpu0.set.power_limit=ignored",)).run(tmp_path / "out", "--change")
    assert (run.code, run.step("change")["status"]) == (2, "failed")
    assert (
        "was set and is not read back: power_limit_watts 67, read 72; everything is as found again"
        in run.step("change")["reason"]
    )


def test_gpus_in_use_are_left_alone(make: Make, tmp_path: Path) -> None:
    place = make(faults=(f"gpu0.processes={os.getpid()}:1048576",))
    run = place.run(tmp_path / "out", "--change")
    assert run.step("change") | {"status": "could not check"} == run.step("change")
    assert f"in use by process {os.getpid()}" in run.step("change")["reason"]
    assert not (place.root / machine.PLACE / "run/calls").exists()


def test_without_a_gpu_everything_else_is_reported(make: Make, tmp_path: Path) -> None:
    run = make("board_cpu").run(tmp_path / "out", "--change")
    assert run.code == 3
    assert "there is no NVIDIA GPU here" in run.step("capture")["reason"]
    assert set(run.statuses().values()) == {"skipped", "passed", "could not check"}
    assert [name for name, status in run.statuses().items() if status == "passed"] == ["versions"]
    assert "# prove-gpu: no GPU" in (run.out / "summary.md").read_text()


def test_a_driver_that_hangs_is_called_once(make: Make, tmp_path: Path) -> None:
    run = make(faults=("init=hang",), more=IMPATIENT).run(tmp_path / "out", "--change")
    assert run.code == 2
    assert "did not answer within" in run.step("capture")["reason"]
    later = {
        name: row
        for name, row in run.statuses().items()
        if name in ("nvidia-smi", "check", "policy", "latency", "load", "smoke", "change")
    }
    assert set(later.values()) == {"could not check"}
    assert "it would call the driver, which hangs" in run.step("smoke")["reason"]


def test_a_gpu_that_fails_is_a_failed_step_and_the_others_run(make: Make, tmp_path: Path) -> None:
    run = make(faults=("gpu0.pcie.width=8",), cuda="wrong=product").run(tmp_path / "out")
    assert run.code == 2
    statuses = run.statuses()
    assert [name for name, status in statuses.items() if status == "failed"] == [
        "check",
        "load",
        "smoke",
    ]
    assert "pcie.width 0000:10:00.0: x8" in run.step("check")["reason"]
    assert "## Findings" in (run.out / "summary.md").read_text()
    assert statuses["settings"] == "passed"


def test_a_load_that_cannot_be_made_keeps_nothing_else_back(make: Make, tmp_path: Path) -> None:
    run = make(cuda="error=cuMemAlloc_v2:2").run(tmp_path / "out")
    assert (run.step("load")["status"], run.statuses()["settings"]) == ("could not check", "passed")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in run.step("load")["reason"]


def test_nvidia_smi_is_compared_and_redacted(make: Make, tmp_path: Path) -> None:
    place = make()
    programs = tmp_path / "programs"
    programs.mkdir()
    fixture = Path(__file__).parents[1] / "node/fixtures/smi/t4_595.xml"
    text = fixture.read_text().replace("</serial>", "1650123456789</serial>", 1)
    (tmp_path / "smi.xml").write_text(text)
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\nexec cat {tmp_path}/smi.xml\n")
    (programs / "nvidia-smi").chmod(0o755)
    run = place.run(tmp_path / "out", PATH=f"{programs}:{os.environ['PATH']}")
    step = run.step("nvidia-smi")
    assert step["status"] == "could not check", "it lists another GPU than the one of the node"
    assert "no GPU of the capture is in its output" in step["reason"]
    written = (run.out / "nvidia-smi.xml").read_text()
    assert "<serial>SERIAL-" in written
    assert "1650123456789" not in written
    assert "nvidia-smi -q -x" in run.json("timing.json")["runs"]


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--minutes", "11"], "--minutes is more than 0 and at most 10"),
        (["--locked-clocks"], "--locked-clocks goes with --change"),
        (["--colour"], "unrecognized arguments: --colour"),
        (["import"], "the following arguments are required: folder"),
        (
            ["--carry", "nowhere", "--out", "{full}"],
            "is there already. Name another directory with --out.",
        ),
    ],
)
def test_a_wrong_use_is_reported_and_ends_with_3(
    tmp_path: Path, words: list[str], reported: str
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    done = subprocess.run(
        [SCRIPT, *(word.format(full=full) for word in words)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, reported in done.stderr, "Traceback" in done.stderr) == (
        3,
        True,
        False,
    ), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_record_becomes_a_case_of_the_tests(whole: tuple[Place, Run], tmp_path: Path) -> None:
    from goldnode.prove import records

    target = records.take(whole[1].out, tmp_path)
    assert target.name == "simulated_h100_sxm5_80gb_x8_580.95.05"
    assert {"record.json", "capture.json", "class.json", "verdict.json"} <= {
        path.name for path in target.iterdir()
    }
    with pytest.raises(records.RecordError, match="is there already"):
        records.take(whole[1].out, tmp_path)
    with pytest.raises(records.RecordError, match="no directory of a run"):
        records.take(tmp_path, tmp_path)


def await_file(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a run has written a file."""
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def await_call(place: Place, name: str) -> None:
    """Wait until a setter was called."""
    calls = place.root / machine.PLACE / "run/calls"
    for _ in range(2000):
        if calls.exists() and name in calls.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(
        f"{name} was not called: {json.dumps(place.calls() if calls.exists() else [])}"
    )

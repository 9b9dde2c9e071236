"""The process that calls the GPU library: whatever becomes of it, there is an answer, and none of the bad ones is a pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from goldnode.core import program_file as nodefile
from goldnode.node.device import amd, child, nvidia
from goldnode.node.ground import process
from goldnode.node.ground.host import Host

REQUEST = {"do": "read", "vendor": "nvidia", "root": "/"}
ANSWER = json.dumps({"schema": child.SCHEMA, "vendor": "nvidia", "gpus": {}})


def host(tmp_path: Path, body: str) -> Host:
    """A host whose on-node program is this Python script."""
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, signal, subprocess, sys, time\n{body}\n"
    )
    program.chmod(0o755)
    found = Host()
    found.program = str(program)
    return found


def test_answer_of_the_device_process_is_returned(tmp_path: Path) -> None:
    body = f"request = json.load(sys.stdin)\nassert sys.argv[1:] == ['device'] and request['do'] == 'read'\nprint({ANSWER!r})"
    assert child.ask(host(tmp_path, body), REQUEST) == json.loads(ANSWER)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("time.sleep(600)", "did not answer within 0.5 s; the process that asked was killed"),
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
            "did not answer within 0.5 s",
        ),
        # What it started holds its output open; the whole group has to go.
        (
            "subprocess.Popen(['sleep', '600']); time.sleep(600)",
            "the process that asked was killed",
        ),
    ],
)
def test_a_driver_that_hangs(tmp_path: Path, body: str, error: str) -> None:
    assert error in child.ask(host(tmp_path, body), REQUEST, limit=0.5)["error"]


def test_a_process_that_cannot_be_killed_is_left_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the kernel makes such a process, so the signal is kept from it here."""
    stored: list[int] = []
    monkeypatch.setattr(process, "GRACE", 0.2)
    monkeypatch.setattr(os, "killpg", lambda group, _: stored.append(group))
    found = child.ask(host(tmp_path, "time.sleep(600)"), REQUEST, limit=0.3)
    monkeypatch.undo()
    os.killpg(stored[0], 9)
    assert (
        f"the GPU driver hangs: process {stored[0]} did not answer within 0.3 s and cannot be killed"
        == found["error"]
    )


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11"),
        ("sys.exit('the driver is gone')", "ended with status 1: the driver is gone"),
        ("print('{')", "not of schema goldnode.device/1"),
        ("print('[]')", "not of schema"),
        ('print(\'{"schema": "goldnode.device/2"}\')', "not of schema"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe')", "not of schema"),
        ("", "not of schema"),
    ],
)
def test_a_crash_and_a_garbled_answer(tmp_path: Path, body: str, error: str) -> None:
    found = child.ask(host(tmp_path, body), REQUEST)
    assert set(found) == {"error"}
    assert error in found["error"]


def test_a_node_without_the_program(tmp_path: Path) -> None:
    missing = Host()
    missing.program = str(tmp_path / "none")
    assert "is not on the node yet" in child.ask(missing, REQUEST)["error"]


def test_the_shipped_file_answers_where_there_is_no_library(tmp_path: Path) -> None:
    """The real program. A machine with an NVIDIA driver answers as well, with its GPUs."""
    program = tmp_path / "goldnode-node"
    program.write_bytes(nodefile.build())
    program.chmod(0o755)
    real = Host()
    real.program = str(program)
    found = child.ask(real, REQUEST)
    assert found["schema"] == child.SCHEMA
    assert "gpus" in found or "return code" in found["error"]
    wrong = subprocess.run(
        [str(program), "device", "--colour"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 3, "only goldnode itself asks that way"


def test_clocks_are_compressed_into_runs() -> None:
    assert nvidia.runs([1410, 1395, 1380, 210]) == [[210, 1380, 1170], [1395, 1410, 15]]
    assert nvidia.runs(list(range(210, 1411, 15))) == [[210, 1410, 15]]
    assert nvidia.runs([1215]) == [[1215, 1215, 0]]
    assert nvidia.runs([]) == []


# -- AMD


def card(root: Path, number: int, address: str, **files: str) -> Path:
    """One card that amdgpu drives, as its sysfs shows it."""
    device = root / f"sys/class/drm/card{number}/device"
    sensor = device / "hwmon/hwmon3"
    sensor.mkdir(parents=True)
    (device / "uevent").write_text(f"DRIVER=amdgpu\nPCI_ID=1002:74A1\nPCI_SLOT_NAME={address}\n")
    values = {
        "unique_id": f"00aa{number}\n",
        "product_name": "AMD Instinct MI300X\n",
        "power_dpm_force_performance_level": "auto\n",
    }
    for name, text in {**values, **files}.items():
        (device / name).write_text(text)
    for name, micro in (("cap", 750), ("cap_default", 750), ("cap_min", 0), ("cap_max", 750)):
        (sensor / f"power1_{name}").write_text(f"{micro * 1000000}\n")
    return device


def test_amds_cards_are_read_from_sysfs_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    card(tmp_path, 1, "0000:26:00.0")
    card(tmp_path, 2, "0000:05:00.0")
    (tmp_path / "sys/class/drm/card0/device").mkdir(parents=True)
    (tmp_path / "sys/class/drm/card0/device/uevent").write_text("DRIVER=ast\n")
    found = amd.read(str(tmp_path))["gpus"]
    assert [(gpu["uuid"], gpu["address"]) for gpu in found.values()] == [
        ("00aa2", "0000:05:00.0"),
        ("00aa1", "0000:26:00.0"),
    ]
    assert found["0"]["power"] == {"limit": 750, "default": 750, "min": 0, "max": 750}
    assert (found["0"]["pci_id"], found["0"]["performance_level"]) == ("1002:74a1", "auto")


def test_amds_settings_are_written_and_read_back(tmp_path: Path) -> None:
    device = card(tmp_path, 0, "0000:05:00.0")
    settings: list[dict[str, Any]] = [
        {"uuid": "00aa0", "field": "performance_level", "value": "high"},
        {"uuid": "00aa0", "field": "power_limit_watts", "value": 700},
        {"uuid": "00aa9", "field": "power_limit_watts", "value": 700},
    ]
    results = amd.change(str(tmp_path), settings)["results"]
    assert [result["rc"] for result in results] == [0, 0, 6]
    assert (device / "hwmon/hwmon3/power1_cap").read_text() == "700000000"
    gpu = amd.read(str(tmp_path))["gpus"]["0"]
    assert (gpu["performance_level"], gpu["power"]["limit"]) == ("high", 700)


def test_absent_amd_file_gives_rc_3_and_invalid_text_rc_999(tmp_path: Path) -> None:
    device = card(tmp_path, 0, "0000:05:00.0")
    (device / "power_dpm_force_performance_level").unlink()
    (device / "hwmon/hwmon3/power1_cap").write_text("what\n")
    gpu = amd.read(str(tmp_path))["gpus"]["0"]
    assert gpu["performance_level"] == {
        "rc": 3,
        "text": "no power_dpm_force_performance_level in sysfs",
    }
    assert gpu["power"]["limit"]["rc"] == 999

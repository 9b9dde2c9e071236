"""A node without a class is judged by the facts of its GPUs, by any user, and nothing is written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests import documents
from tests.unit.node.captures import healthy, spoiled

from goldnode.node.ground import known
from goldnode.node.ground.host import Host
from goldnode.node.probe import command
from goldnode.node.program.main import main, managed
from goldnode.node.verdict import undeclared
from goldnode.node.verdict.report import verdict_table

SMI = Path(__file__).parents[1] / "fixtures/smi"
NOW = 1795341600.0
DENIED = {"fault": "unread", "text": "/dev/kmsg: Permission denied", "rc": 13}


def judged(capture: dict[str, Any]) -> dict[str, Any]:
    verdict = undeclared.examine(Host("/nonexistent"), known.facts(), captured=capture, now=NOW)
    found: dict[str, Any] = documents.valid(json.dumps(verdict))
    return found


def wrong(verdict: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in verdict["findings"] if finding["outcome"] == "mismatch"}


def test_a_healthy_node_is_healthy_and_what_no_class_declares_is_listed() -> None:
    verdict = judged(healthy())
    assert (verdict["exit_code"], wrong(verdict), verdict["class"]) == (0, set(), None)
    items = {row["item"]: row["found"] for row in verdict["undeclared"]}
    assert items["gpu.count"] == 8
    assert items["policy.persistence_mode"] == "on"
    assert {row["outcome"] for row in verdict["driver"]} <= {"match", "mismatch"}
    settings = {
        row["id"]: row["outcome"] for row in verdict["findings"] if row["id"].startswith("policy.")
    }
    assert set(settings.values()) == {"match"}
    assert {"policy.persistence_mode", "policy.power_limit_watts", "policy.ecc"} <= settings.keys()


@pytest.mark.parametrize(
    ("change", "found", "code"),
    [
        (("gpus.3.ecc.volatile.uncorrected", 2), "gpu.ecc.uncorrected", 2),
        (("gpus.3.remapped_rows.failure", True), "gpu.remap.failure", 2),
        (("gpus.3.lost", True), "gpu.lost", 2),
        (("gpus.3.memory.total_mib", 40000), "gpu.memory", 1),
        (("gpus.3.pcie.width.current", 4), "pcie.width", 1),
        (("gpus.3.ecc.pending", False), "gpu.modes", 1),
    ],
)
def test_undeclared_node_is_judged_by_its_hardware_and_the_facts(
    change: tuple[str, Any], found: str, code: int
) -> None:
    capture = spoiled(healthy(), *change)
    if found == "pcie.width":
        for row in capture["pci"].values():
            if row.get("kind") == "gpu":
                row.get("link", {})["width"] = 4
    verdict = judged(capture)
    assert found in wrong(verdict), verdict["findings"]
    assert verdict["exit_code"] == code


def test_no_gpu_is_nothing_to_judge_and_never_healthy() -> None:
    capture = {**healthy(), "gpus": [], "pci": {}}
    verdict = judged(capture)
    assert verdict["exit_code"] == 3
    assert "no GPU on the PCI bus" in verdict_table(verdict)


def test_models_of_one_node_are_judged_each_by_its_own_facts() -> None:
    capture = healthy()
    l4 = "10de:27b8"
    capture["gpus"][7]["pci_id"] = l4
    for row in capture["pci"].values():
        if row.get("kind") == "gpu" and row["pci_id"] != l4:
            capture["pci"][capture["gpus"][7]["address"]]["pci_id"] = l4
    verdict = judged(capture)
    about = [finding for finding in verdict["findings"] if finding["id"] == "gpu.memory"]
    assert [finding["subject"] for finding in about] == [capture["gpus"][7]["address"]]
    assert about[0]["expected"] != "81559"


def test_an_unknown_model_is_judged_by_what_it_reports() -> None:
    capture = spoiled(healthy(), "gpus.*.pci_id", "10de:ffff", "gpus.3.ecc.volatile.uncorrected", 1)
    for row in capture["pci"].values():
        if row.get("kind") == "gpu":
            row["pci_id"] = "10de:ffff"
    verdict = judged(capture)
    assert wrong(verdict) == {"gpu.ecc.uncorrected"}
    assert any("not in the facts" in text for text in verdict["advice"])


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("535.86.05", "reached its end of life"),
        ("580.65.06", "lacks security fixes"),
        ("999.1", "its branch is not in the facts"),
    ],
)
def test_the_driver_is_compared_with_the_facts_as_advice(version: str, text: str) -> None:
    everywhere = dict.fromkeys(("loaded", "library", "proc", "reported"), version)
    capture = healthy()
    verdict = judged(
        {**capture, "driver": {**capture["driver"], **everywhere, "nvml": f"13.{version}"}}
    )
    assert any(text in line for line in verdict["advice"]), verdict["advice"]
    assert verdict["exit_code"] == 0


def test_item_without_permission_is_named_and_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = {**healthy(), "events": {"rows": [], "error": DENIED}}
    monkeypatch.setattr("goldnode.node.probe.capture", lambda *args: capture)

    def check(uid: int) -> dict[str, Any]:
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        verdict = undeclared.examine(Host("/nonexistent"), known.facts(), now=NOW)
        found: dict[str, Any] = documents.valid(json.dumps(verdict))
        return found

    for verdict in (check(1000), check(0)):
        assert ([row["id"] for row in verdict["unjudged"]], verdict["exit_code"]) == (
            ["events.log"],
            0,
        )
        assert "no permission; root reads it (`sudo goldnode-node check`)" in verdict_table(verdict)
        assert verdict["unread"] == [
            {"why": "permission", "got": DENIED["text"], "items": ["events.log"]}
        ]


@pytest.mark.parametrize("file", sorted(SMI.glob("*.xml")), ids=lambda file: file.stem)
def test_every_output_of_nvidia_smi_ends_in_a_verdict(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["check", "--from", str(file), "--format", "json"])
    verdict = documents.valid(capsys.readouterr().out)
    assert code == verdict["exit_code"]
    assert code in (0, 1, 2, 3)
    assert {row["item"] for row in verdict["undeclared"]} >= {"driver", "gpu.count"}
    row = command.load(str(file))["gpus"][0]
    listed = {item["item"]: item["found"] for item in verdict["undeclared"]}
    if isinstance(row.get("persistence_mode"), bool):
        assert str(listed["policy.persistence_mode"]).startswith(
            "on" if row["persistence_mode"] else "off"
        )


@pytest.mark.parametrize("left", ["/etc/goldnode", "/usr/lib/goldnode"])
def test_a_managed_node_that_lost_its_class_is_not_a_node_without_one(
    monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Else the gate of such a node would open."""
    host = Host("/")
    monkeypatch.setattr(host, "exists", lambda path: path == left)
    assert managed(host)
    monkeypatch.setattr(host, "exists", lambda path: False)
    assert not managed(host)
    assert managed(Host("/nonexistent")), "an image is judged by its class alone"


def test_an_ordinary_user_gets_a_verdict_and_nothing_is_written(tmp_path: Path) -> None:
    import subprocess

    from goldnode.core import program_file

    program = tmp_path / "goldnode-node"
    program.write_bytes(program_file.build())
    program.chmod(0o755)
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path != Path("/tmp") and path.owner() == "root":
            path.chmod(path.stat().st_mode | 0o055)
    before = {path for path in ("/run/goldnode", "/var/lib/goldnode") if Path(path).exists()}
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "env",
            "-i",
            "PATH=/usr/bin:/bin",
            program,
            "check",
        ],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert "no class" in done.stdout
    assert {
        path for path in ("/run/goldnode", "/var/lib/goldnode") if Path(path).exists()
    } == before


def test_a_pci_function_that_cannot_be_read_is_named_and_not_left_out(tmp_path: Path) -> None:
    bus = tmp_path / "sys/bus/pci/devices"
    for address in ("0000:10:00.0", "0000:11:00.0"):
        (bus / address).mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        (bus / "0000:10:00.0" / name).write_text(f"{text}\n")
    (bus / "0000:12:00.0").symlink_to("../../../devices/gone")
    verdict = undeclared.examine(Host(str(tmp_path)), known.facts(), now=NOW)
    about = [row for row in verdict["findings"] if "PCI id" in row["expected"]]
    assert [(row["outcome"], row["subject"]) for row in about] == [
        ("could_not_read", "0000:11:00.0")
    ]
    assert "dmesg for 0000:11:00.0" in about[0]["remedy"]
    assert verdict["exit_code"] != 0

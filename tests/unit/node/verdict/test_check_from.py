"""check(): the whole of it, from a recorded capture at a desk, and on a simulated node; and how a verdict is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node import captures
from tests.unit.node.captures import healthy, idle, spoiled
from tests.unit.node.state.test_cases import document as case_document

from goldnode.facts import health
from goldnode.node.ground.host import Host
from goldnode.node.program.main import main
from goldnode.node.state.finding import ELSEWHERE, MATCH
from goldnode.node.verdict import check
from goldnode.node.verdict.report import verdict_table

G3 = "0000:5d:00.0"


def document(**patch: Any) -> Any:
    """A class document as a whole, of the node of captures.py."""
    wanted = {
        **case_document(),
        **captures.class_document(),
        "policy": {"persistence_mode": True, "ecc": True},
        **patch,
    }
    wanted["os"] = {**wanted["os"], "id": "debian", "version": "13"}
    wanted["kernel"] = {**wanted["kernel"], "release": "6.12.1-amd64"}
    wanted["driver"] = {**case_document()["driver"], "version": "580.95.05"}
    return wanted


SETTINGS = {
    "uuid": "GPU-1",
    "pci_id": "10de:2330",
    "persistence_mode": True,
    "ecc": {"current": True, "pending": True},
}


def record() -> dict[str, Any]:
    return spoiled(healthy(), "gpus.*.settings", SETTINGS)


def judged(capture: dict[str, Any], **patch: Any) -> dict[str, Any]:
    verdict = check.check(
        Host("/nonexistent"), document(**patch), now=1795341600.0, captured=capture
    )
    found: dict[str, Any] = json.loads(json.dumps(verdict))
    return found


def outcomes(verdict: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["outcome"] for finding in verdict["findings"]}


def test_record_of_one_of_two_gpus_shows_their_settings_and_number() -> None:
    one = spoiled(
        record(), "source", "nvidia-smi-xml", "gpu_count", 2, "gpus", [record()["gpus"][0]]
    )
    one["gpus"][0]["index"] = None
    verdict = judged(one, gpu={**document()["gpu"], "count": 2})
    found = {item["id"]: item for item in verdict["findings"]}
    assert {found[name]["outcome"] for name in ("policy.ecc", "policy.persistence_mode")} == {
        "match"
    }
    assert found["gpu.visible"]["got"] == "the record lists 1 of 2 attached GPUs"


@pytest.mark.parametrize("capture", [record(), idle(record())])
def test_a_good_record_shows_nothing_wrong_and_does_not_show_all(capture: dict[str, Any]) -> None:
    verdict = judged(capture)
    found = outcomes(verdict)
    assert {name for name, outcome in found.items() if outcome == ELSEWHERE} == {"node.files"}
    assert not [
        name
        for name, outcome in found.items()
        if outcome in ("mismatch", "could_not_read", "not_exposed")
    ], found
    assert (
        found["policy.ecc"]
        == found["stack.lock"]
        == found["boot.next"]
        == found["gpu.ids"]
        == MATCH
    )
    assert verdict["exit_code"] == 3
    assert sum(verdict["counts"].values()) == len(verdict["findings"])


@pytest.mark.parametrize(
    ("changes", "name", "code"),
    [
        (("gpus.3.pci_id", "10de:2331"), "gpu.ids", 4),
        (("os.version", "12"), "node.os", 4),
        (("gpus.3.driver", "vfio-pci"), "gpu.bound", 2),
        (("gpus", record()["gpus"][:7]), "gpu.count", 2),
        (("gpus.3.pcie.width.current", 8), "pcie.width", 2),
        (("os.kernel.running", "6.1.0"), "kernel.running", 2),
        (("os.kernel.next_boot", "6.1.0"), "boot.next", 2),
        (("driver.loaded", "570.1"), "driver.loaded", 2),
        (("packages.drift", [{"name": "a", "have": "1", "want": "2"}]), "stack.lock", 2),
        (("gpus.3.settings.ecc", {"current": False, "pending": False}), "policy.ecc", 2),
        (("gpu_error", {"fault": "unread", "text": "hangs"}), "gpu.library", 3),
        (("packages", None, "os", {}), None, 3),
    ],
)
def test_a_record_is_judged_like_a_node(
    changes: tuple[Any, ...], name: str | None, code: int
) -> None:
    verdict = judged(spoiled(record(), *changes))
    assert verdict["exit_code"] == code
    if name is not None:
        assert outcomes(verdict)[name] in ("mismatch", "could_not_read")


@pytest.mark.parametrize(
    ("running", "pages", "outcome", "remedy"),
    [
        (None, 64, "match", None),
        (None, 4, "mismatch", "page size"),
        ("6.17.0-1-nvidia", 4, "mismatch", "goldnode_reboot=true"),
        (None, None, "could_not_read", None),
    ],
)
def test_pages_of_the_running_kernel_are_judged_where_the_stack_declares_them(
    running: str | None, pages: int | None, outcome: str, remedy: str | None
) -> None:
    declared = document()
    declared["kernel"]["page_kib"] = 64
    capture = record()
    capture["memory"]["page_kib"] = pages
    if running is not None:
        capture["os"]["kernel"]["running"] = running
    found = next(item for item in check.of_record(declared, capture) if item.id == "kernel.running")
    assert found.outcome == outcome
    assert str(found.expected).endswith(", pages of 64 KiB")
    assert remedy is None or remedy in str(found.remedy)


def test_items_absent_from_a_record_are_not_verified() -> None:
    capture = {
        key: value for key, value in record().items() if key in ("schema", "time", "gpus", "driver")
    }
    capture["source"] = "nvidia-smi-xml"
    for gpu in capture["gpus"]:
        gpu.pop("driver")
        gpu.pop("settings")
    verdict = judged(capture)
    found = outcomes(verdict)
    assert {
        found[name]
        for name in ("node.os", "kernel.running", "gpu.bound", "stack.lock", "node.files")
    } == {ELSEWHERE}
    judged_here = (
        "gpu.ids",
        "gpu.count",
        "driver.loaded",
        "pcie.width",
        "gpu.ecc.uncorrected",
        "policy.ecc",
    )
    assert {found[name] for name in judged_here} == {MATCH}
    assert verdict["exit_code"] == 3


def test_the_command_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, capture = tmp_path / "class.json", tmp_path / "node.json"
    wanted.write_text(json.dumps(document()))
    capture.write_text(json.dumps(spoiled(record(), "gpus.3.remapped_rows.pending", True)))
    before = sorted(tmp_path.rglob("*"))
    arguments = ["check", "--from", str(capture), "--class", str(wanted), "--root", str(tmp_path)]
    assert main(arguments) == 2
    out = capsys.readouterr().out
    assert (
        "a record of node1, made at 2026-11-22T10:00:00Z (live); nothing of this machine was read"
        in out
    )
    assert f"gpu.remap.pending {G3}" in out
    assert main([*arguments, "--quiet"]) == 2
    assert capsys.readouterr().out.startswith("verdict: drain (exit code 2): ")
    assert main([*arguments, "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["recorded"]["hostname"] == "node1"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "<xml>", '{"schema": "goldnode.capture/9"}', "\x00\xff"]
)
def test_a_file_that_is_no_record_reads_as_could_not_check(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, capture = tmp_path / "class.json", tmp_path / "node.json"
    wanted.write_text(json.dumps(document()))
    capture.write_text(content)
    assert main(["check", "--from", str(capture), "--class", str(wanted)]) == 3
    assert main(["check", "--from", str(tmp_path / "none"), "--class", str(wanted)]) == 3


def test_suppressions_of_the_class_hold_and_end(tmp_path: Path) -> None:
    row = {
        "id": "gpu.vbios",
        "owner": "ann",
        "reason": "an update is planned",
        "expires": "2026-11-30",
        "severity": "degraded",
    }
    capture = spoiled(record(), "gpus.3.vbios", "96.00.74.00.01")
    held = judged(capture, suppressions=[row])
    assert outcomes(held)["gpu.vbios"] == "suppressed"
    assert "accepted by ann until 2026-11-30: an update is planned" in verdict_table(held)
    past = judged(capture, suppressions=[{**row, "expires": "2026-11-01"}])
    assert outcomes(past)["gpu.vbios"] == "mismatch"


# -- how it is told


def test_table_lists_mismatches_first_and_merges_equal_rows() -> None:
    capture = spoiled(
        record(),
        "gpus.*.pcie.gen",
        {"current": 4, "max": 4, "device_max": 5},
        "gpus.3.vbios",
        "x",
        "simulated",
        True,
    )
    text = verdict_table(judged(capture)).splitlines()
    assert text[0].startswith("SIMULATED HARDWARE")
    rows = [line for line in text if line.startswith("pcie.gen ")]
    assert len(rows) == 1
    assert "0000:18:00.0 and 7 more" in rows[0]
    places = [
        next(i for i, line in enumerate(text) if line.startswith(name))
        for name in ("pcie.gen", "gpu.vbios", "node.files", "ok (")
    ]
    assert places == sorted(places)
    assert any("[also affects: hardware]" in line for line in text)
    assert text[-1].startswith("verdict: drain (exit code 2): ")
    assert max(len(line) for line in text if line.startswith("ok")) < 160


def test_a_healthy_node_is_reported_in_a_few_lines() -> None:
    verdict = judged(record())
    verdict["findings"] = [
        finding for finding in verdict["findings"] if finding["outcome"] == MATCH
    ]
    assert len(verdict_table(verdict).splitlines()) < 14


def test_a_verdict_of_an_older_goldnode_is_still_reported() -> None:
    verdict = judged(record())
    verdict.pop("recorded")
    for finding in verdict["findings"]:
        for key in ("subject", "evidence", "blast"):
            finding.pop(key)
    assert "verdict: " in verdict_table(verdict)


# -- the exit code


@pytest.mark.parametrize(
    ("outcome", "expected", "got", "code"),
    [
        ("not_exposed", "on", "not exposed by this driver", 3),
        ("not_exposed", "1410 MHz", "GPU 0, 1: set at 2026-11-21T10:00:00Z", 0),
        ("not_exposed", None, "hidden while MIG is on", 0),
        ("deferred", "generation 5", "generation 1", 0),
        ("suppressed", "9000", "1500", 0),
        ("something new", "a", "b", 3),
    ],
)
def test_exit_code_follows_from_the_outcome(
    outcome: str, expected: str | None, got: str, code: int
) -> None:
    from goldnode.node.state.finding import Finding

    assert check.exit_code([Finding("a", outcome, expected, got, severity="drain")]) == code


def test_every_limit_that_a_rule_asks_for_is_in_the_facts() -> None:
    import re

    source = "".join(path.read_text() for path in Path(check.__file__).parent.glob("*.py"))
    asked = set(re.findall(r'\.limit\("([a-z_]+)"', source)) | {
        "nvlink_errors_minute",
        "nvlink_crc_minute",
        "clock_of_peers",
        "clock_of_max",
    }
    assert asked <= set(health.limits()), asked - set(health.limits())

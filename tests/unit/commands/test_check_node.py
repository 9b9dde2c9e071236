"""`goldnode check-node`: a record at a desk, by the facts alone, by a class without a lock, and by a class document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests import documents
from tests.unit.node.captures import healthy, spoiled
from tests.unit.node.verdict.test_check_from import document

from goldnode.cli import main

SMI = Path(__file__).parents[1] / "node/fixtures"
H100 = SMI / "smi/h100_580.xml"


def run(*words: object, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["check-node", *map(str, words)], input=text)


def verdict(*words: object) -> dict[str, Any]:
    result = run(*words, "--format", "json")
    found: dict[str, Any] = documents.valid(result.stdout)
    assert result.exit_code == found["exit_code"]
    return found


def outcomes(found: dict[str, Any]) -> dict[str, str]:
    return {row["id"]: row["outcome"] for row in found["findings"]}


def test_without_a_class_every_value_of_the_file_is_judged() -> None:
    found = verdict(H100)
    assert (found["class"], found["exit_code"]) == (None, 0)
    judged = set(outcomes(found)) | {row["id"] for row in found["driver"]}
    assert judged >= {
        "policy.persistence_mode",
        "policy.compute_mode",
        "policy.power_limit_watts",
        "policy.ecc",
        "policy.mig",
        "gpu.bar1",
        "gpu.max_clocks",
        "gpu.memory",
        "gpu.ecc.uncorrected",
        "gpu.remap.pending",
        "gpu.throttle",
        "gpu.temperature",
        "gpu.power.enforced",
        "pcie.width",
        "pcie.gen",
        "fabric.state",
        "driver.support",
        "driver.security",
        "driver.known_bad",
    }
    assert found["unread"] == [
        {"why": "source", "got": "not in this capture", "items": ["nvlink.active"]}
    ]
    assert found["detected"]["gpus"] == ["2 x H100-SXM5-80GB"]


def test_a_class_without_a_lock_adds_its_declaration() -> None:
    found = verdict(H100, "--class", "h100_sxm5_80gb")
    own = outcomes(found)
    assert found["class"] == "h100_sxm5_80gb"
    # The file has two GPUs of the eight; the settings of the other six are not known.
    assert own["gpu.count"] == "mismatch"
    assert own["gpu.ids"] == "match"
    assert own["policy.persistence_mode"] == "could_not_read"
    assert own["node.os"] == own["gpu.bound"] == "not_verified_here"
    assert not {"stack.lock", "kernel.running", "driver.loaded"} & own.keys()
    assert "policy.persistence_mode" not in {row["item"] for row in found["undeclared"]}
    assert any("has no lock" in text for text in found["advice"])


def test_another_class_is_not_this_class() -> None:
    assert verdict(H100, "--class", "l4")["exit_code"] == 4


def test_a_class_document_is_judged_as_a_whole(tmp_path: Path) -> None:
    wanted, capture = tmp_path / "class.json", tmp_path / "node.json"
    wanted.write_text(json.dumps(document()))
    capture.write_text(json.dumps(spoiled(healthy(), "driver.loaded", "570.1")))
    result = run(capture, "--class", wanted, "--format", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 2
    assert outcomes(found)["driver.loaded"] == "mismatch"
    assert "undeclared" not in found


def test_the_text_of_nvidia_smi_and_standard_input_do_as_well() -> None:
    text = (SMI / "smi-text/h100_580.txt").read_text()
    result = run("-", text=text)
    assert result.exit_code == 2
    assert "gpu.ecc.uncorrected 0000:53:00.0" in result.stdout
    assert run("-", "--quiet", text=text).stdout.startswith("verdict: drain (exit code 2): ")


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("nowhere.xml",), "nowhere.xml: cannot be read (No such file or directory)."),
        ((H100, "--class", "h100_sxm"), 'class "h100_sxm" is not in the catalog. Use "'),
        (
            (H100, "--class", "none.json"),
            "none.json: No such file or directory. Write it with `goldnode class export",
        ),
        ((H100, "--class", str(H100)), "not JSON"),
        ((), "Missing argument 'FILE'"),
        ((H100, "--what"), "No such option"),
    ],
)
def test_any_failure_is_could_not_check(words: tuple[Any, ...], reported: str) -> None:
    result = run(*words)
    assert result.exit_code == 3
    assert reported in result.stderr
    assert "Traceback" not in result.stderr


def test_a_class_document_of_wrong_types_is_an_error(tmp_path: Path) -> None:
    wanted = tmp_path / "class.json"
    for content in ("[]", "{}", json.dumps({**document(), "policy": []})):
        wanted.write_text(content)
        result = run(H100, "--class", wanted)
        assert (result.exit_code, "not a class document" in result.stderr) == (3, True)

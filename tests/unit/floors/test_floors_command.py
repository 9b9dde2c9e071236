"""The commands of `goldnode floors`: exit statuses, documents, signatures and mistakes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests import documents as validated
from tests.unit.floors.populations import DIGEST, TIGHT, USUAL, document, documents, names, write

from goldnode.cli import main

AFTER = replace(USUAL, started="2026-11-21T08:00:00Z", digest=f"sha256:{'b' * 64}")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["floors", *map(str, words)], catch_exceptions=False)


def data(*words: str | Path) -> dict[str, Any]:
    found = run(*words, "--format", "json")
    content: dict[str, Any] = json.loads(found.stdout)
    return content


@pytest.fixture
def class_results(tmp_path: Path) -> Path:
    return write(tmp_path / "class", documents(TIGHT, np.random.default_rng(1), 20))


@pytest.fixture
def baseline(tmp_path: Path, class_results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run("learn", class_results, "--out", "h200.json").exit_code == 0
    return tmp_path / "h200.json"


def node(directory: Path, speed: float, runs: int = 20) -> Path:
    """Write a result of a node at a share of the speed of its class."""
    values = TIGHT.runs(np.random.default_rng(2), np.array(600 * speed), runs)
    return write(
        directory / f"node-{speed}-{runs}", [document("gpu900", {"gemm_fp16": list(values)})]
    )


def test_learn_writes_a_document_of_its_schema_and_shows_it(baseline: Path) -> None:
    written = validated.valid(baseline.read_text())
    shown = data("show", baseline)
    assert shown["baseline"] == written
    assert shown["schema"] == "goldnode.floors-baseline/1"
    text = run("show", baseline).stdout
    assert "simulated baseline of class h200 on NVIDIA H200 x 1: 20 nodes" in text
    assert (
        "dead board only (the floor of goldnode-smoke, a share of the data sheet's peak): fp16 below 445.1"
        in text
    )
    assert "signature: not verified" in text


@pytest.mark.parametrize(
    ("speed", "runs", "status", "answer"),
    [
        (1.0, 20, 0, "passes"),
        (0.75, 20, 1, "fails"),
        (1.0, 8, 3, "inconclusive"),
        (0.5, 8, 3, "inconclusive"),
    ],
)
def test_check_of_a_node_has_an_exit_status_for_each_answer(
    tmp_path: Path, baseline: Path, speed: float, runs: int, status: int, answer: str
) -> None:
    """3 is the status of too few runs, and of nothing else but results that do not count."""
    found = run("check", node(tmp_path, speed, runs), "--baseline", baseline)
    assert found.exit_code == status
    assert found.stdout.endswith(f"answer: {answer}\n")
    content = data("check", node(tmp_path, speed, runs), "--baseline", baseline)
    assert (content["schema"], content["answer"]) == ("goldnode.floors-check/1", answer)


def test_command_to_repeat_a_verdict_repeats_it(tmp_path: Path, baseline: Path) -> None:
    first = data("check", node(tmp_path, 0.75), "--baseline", baseline)["verdicts"][0]
    words = first["repeat"].split()
    assert words[:2] == ["goldnode", "floors"]
    assert data(*words[2:])["verdicts"] == [first]


def change(directory: Path, loss: float, nodes: int = 8) -> tuple[Path, Path]:
    """Write results of changed nodes and as many others, before and after."""
    random = np.random.default_rng(3)
    speeds = TIGHT.speeds(random, 2 * nodes)
    found: list[Path] = []
    for time in range(2):
        group = []
        for place, name in enumerate(names(2 * nodes)):
            changed = place < nodes
            runs = TIGHT.runs(
                random, speeds[place] * (1 - loss * (time and changed)) * np.ones(1), 5
            )[0]
            given = replace(AFTER, digest=AFTER.digest if changed else DIGEST) if time else USUAL
            group.append(document(name, {"gemm_fp16": list(runs)}, given))
        found.append(write(directory / ("after" if time else "before"), group))
    return found[0], found[1]


@pytest.mark.parametrize(("loss", "nodes", "status"), [(0.0, 8, 0), (0.1, 8, 1), (0.1, 5, 3)])
def test_check_of_a_change(tmp_path: Path, loss: float, nodes: int, status: int) -> None:
    before, after = change(tmp_path, loss, nodes)
    found = run("check", after, "--before", before)
    assert found.exit_code == status
    verdict = data("check", after, "--before", before)["verdicts"][0]
    words = verdict["repeat"].split()[2:]
    assert data(*words)["verdicts"] == [verdict]


def test_signature_is_required_with_a_key_and_shown(
    tmp_path: Path, class_results: Path, baseline: Path
) -> None:
    secret, public = tmp_path / "site.pem", tmp_path / "site.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", secret], check=True)
    secret.chmod(0o600)
    subprocess.run(["openssl", "pkey", "-in", secret, "-pubout", "-out", public], check=True)
    refused = run("check", node(tmp_path, 1.0), "--baseline", baseline, "--trust", public)
    assert refused.exit_code == 2
    assert (
        "the baseline is not signed, and a public key is named. Learn it again with --key."
        in refused.stderr
    )
    # The site file names both keys.
    (tmp_path / "goldnode-site.yml").write_text(
        "fleet: {signing_key: site.pem, public_key: site.pub}\n"
    )
    assert run("check", node(tmp_path, 1.0), "--baseline", baseline).exit_code == 2
    found = run("learn", class_results, "--out", baseline)
    assert "wrote" in found.stdout
    assert "(signed)" in found.stdout
    assert "signature: by key " in run("show", baseline).stdout
    assert run("check", node(tmp_path, 1.0), "--baseline", baseline).exit_code == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("check", "RESULT"), "name either --baseline or --before"),
        (
            ("check", "RESULT", "--baseline", "BASE", "--before", "RESULT"),
            "name either --baseline or --before",
        ),
        (("check", "RESULT", "--baseline", "RESULT"), "cannot be read|is a directory"),
        (("check", "RESULT", "--before", "RESULT", "--margin", "2"), '"2" is no percentage'),
        (("check", "RESULT", "--before", "RESULT"), "no node changed"),
        (
            ("check", "RESULT", "--baseline", "BASE", "--metric", "gemm_fp61"),
            'there is no metric "gemm_fp61"',
        ),
        (
            ("check", "RESULT", "--baseline", "BASE", "--node", "gpu9"),
            'there is no result of node "gpu9"',
        ),
        (("learn", "RESULT", "--out", "x.json", "--margin", "a=b"), '"b" is no percentage'),
        (("show", "site.yml"), "no JSON"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    tmp_path: Path, baseline: Path, words: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "site.yml").write_text("fleet: {}\n")
    places = {"RESULT": node(tmp_path, 1.0), "BASE": baseline}
    found = run(*(places.get(word, word) for word in words))
    assert found.exit_code == 2
    assert any(part in found.stderr for part in expected.split("|")), found.stderr


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, baseline: Path) -> None:
    monkeypatch.setattr("goldnode.core.extras.is_installed", lambda module: module != "scipy")
    found = run("show", baseline)
    assert found.exit_code == 2
    assert "goldnode[floors]" in found.stderr

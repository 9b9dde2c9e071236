"""The requirement `dual`: a report of the two states answers, and anything else is unknown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import documents as schemas
from tests.unit.fleet.rollout import documents
from tests.unit.images.registries import make_key

from goldnode.dual import signing
from goldnode.evidence import signed_file
from goldnode.fleet.control.requirements import RequirementEvaluator, RequirementSources
from goldnode.fleet.rollout import check as checking
from goldnode.fleet.rollout.model import Answer, RequirementResult

NOW = 1_795_680_000.0  # 2026-11-26T08:00:00Z
Json = dict[str, Any]


def side(name: str, state: str | None) -> Json:
    return {
        "name": name,
        "record": documents.OLD,
        "started": "2026-11-26T07:00:00Z",
        "simulated": False,
        "how": "ssh",
        "host": "n1",
        "image": None,
        "state": state,
        "stack": "torch 2.11, cuda: NVIDIA H200",
        "precision": "native",
        "repeatable": True,
        "hooks_change_output": False,
    }


def report(answer: str = "pass") -> Json:
    found = {
        "schema": "goldnode.dual/1",
        "answer": answer,
        "reasons": ["1 output is within its tolerance"],
        "compared": "2026-11-26T07:30:00Z",
        "simulated": False,
        "a": side("before", documents.OLD),
        "b": side("after", documents.NEW),
        "differences": [],
        "first_difference": None,
        "first_divergence": None,
        "arrays": [],
        "samples": [],
        "latency": [],
    }
    schemas.valid(found)
    return found


def answer(
    directory: Path,
    name: str = "report.json",
    options: str = "",
    now: float = NOW,
    sources: RequirementSources | None = None,
) -> RequirementResult:
    own = ("require:\n", f'require:\n- dual: {{report: "{directory}/{name}"{options}}}\n')
    reader = RequirementEvaluator(
        documents.settings(directory, own), sources or RequirementSources(), clock=lambda: now
    )
    return reader.read("dual", 0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("pass", Answer.PASSES), ("fail", Answer.FAILS), ("unknown", Answer.UNKNOWN)],
)
def test_the_answer_of_the_report_counts(given: str, expected: Answer, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report(given)))
    found = answer(tmp_path)
    assert found.answer is expected
    unsigned = "its signature is not verified (no fleet.public_key); "
    assert found.reason == f"{unsigned}before and after: 1 output is within its tolerance"


def test_with_a_public_key_the_report_must_be_signed(
    tmp_path: Path, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret, public = keys
    file, data = tmp_path / "report.json", json.dumps(report()).encode()
    other = tmp_path_factory.mktemp("other")
    known = RequirementSources(keys=(public,))

    def reason() -> str:
        found = answer(tmp_path, sources=known)
        assert found.answer is Answer.UNKNOWN
        return found.reason

    file.write_bytes(data)
    assert "report.json is not signed" in reason()
    signed_file.write(file, data, secret, signing.REPORT)
    found = answer(tmp_path, sources=known)
    assert (found.answer, found.reason) == (
        Answer.PASSES,
        "before and after: 1 output is within its tolerance",
    )
    file.write_bytes(data.replace(b'"fail"', b'"pass"') + b" ")
    assert "the report differs from what was signed" in reason()
    signed_file.write(file, data, secret, signing.RECORD)
    assert "is no report" in reason()
    signed_file.write(file, data, make_key(other)[0], signing.REPORT)
    assert "the signature is wrong" in reason()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda found: found["a"].update(state=None),
            "side a of the report was recorded in no known state",
        ),
        (
            lambda found: found["a"].update(state=documents.NEW),
            "side a of the report was recorded in sha256:1",
        ),
        (
            lambda found: found["b"].update(state=documents.OLD),
            "side b of the report was recorded in sha256:0",
        ),
        (lambda found: found.update(simulated=True), "simulated hardware"),
        (lambda found: found["b"].update(started="2026-10-01T00:00:00Z"), "longer ago than 30d"),
        (lambda found: found["b"].update(started="2026-11-26T09:00:00Z"), "in the future"),
        (lambda found: found["b"].update(started="2026-13-26T09:00:00Z"), "is no time"),
        (lambda found: found.update(answer="good"), "is no report"),
        (lambda found: found.pop("reasons"), "is no report"),
    ],
)
def test_a_report_of_something_else_is_unknown(
    change: Callable[[Json], object], words: str, tmp_path: Path
) -> None:
    found = report()
    change(found)
    (tmp_path / "report.json").write_text(json.dumps(found))
    result = answer(tmp_path)
    assert result.answer is Answer.UNKNOWN
    assert words in result.reason


def test_no_file_and_no_report_are_unknown(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in answer(tmp_path).reason
    (tmp_path / "report.json").write_bytes(b"{")
    assert answer(tmp_path).answer is Answer.UNKNOWN
    (tmp_path / "report.json").unlink()
    os.mkfifo(tmp_path / "report.json")
    assert "no regular file" in answer(tmp_path).reason


def test_the_wave_is_part_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "canary.json").write_text(json.dumps(report()))
    assert answer(tmp_path, "{wave}.json").answer is Answer.PASSES


def test_the_age_is_declared(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report()))
    assert answer(tmp_path, options=", max_age: 2h").answer is Answer.PASSES
    assert answer(tmp_path, options=", max_age: 2h", now=NOW + 7200).answer is Answer.UNKNOWN


def test_check_warns_of_a_relative_name(tmp_path: Path) -> None:
    own = ("require:\n", "require:\n- dual: {report: report.json}\n")
    found = checking.check(documents.written(tmp_path, own))
    assert [(one.severity, one.line) for one in found.findings if "report.json" in one.message] == [
        ("warning", 14)
    ]

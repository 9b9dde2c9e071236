"""Every record of a run that was imported (tests/cases/recorded): what this goldnode makes of that machine is what it was then.

A rule that judges a recorded machine otherwise is looked at by a person: import the record again, or correct the rule.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from goldnode.node.probe import command
from goldnode.prove import SCHEMA, classes, records
from goldnode.prove.redact import Redactor

CASES = sorted(path for path in records.PLACE.iterdir() if path.is_dir())


def read(case: Path, name: str) -> Any:
    return json.loads((case / name).read_text())


def test_recorded_cases_are_not_empty() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(
    ("capture", "verdict"),
    [("capture.json", "verdict.json"), ("capture-load.json", "verdict-load.json")],
)
def test_the_machine_is_judged_as_it_was(case: Path, capture: str, verdict: str) -> None:
    if not (case / capture).is_file():
        pytest.skip("this run made no load")
    found = classes.judge(read(case, "class.json"), command.load(str(case / capture)))
    recorded, today = classes.outcomes(read(case, verdict)), classes.outcomes(found)
    assert [row for row in today if row in recorded] == recorded
    # Rules of later versions may judge more of the record, and find nothing in it.
    assert {row[2] for row in today if row not in recorded} <= {"match"}
    assert found["status"] == read(case, verdict)["status"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_record_is_marked_when_simulated_and_identifies_nothing(case: Path) -> None:
    record = read(case, "record.json")
    assert record["schema"] == SCHEMA
    assert (
        case.name.startswith("simulated_")
        == record["simulated"]
        == read(case, "capture.json")["simulated"]
    )
    for path in case.iterdir():
        redactor = Redactor()
        if path.suffix == ".json":
            redactor.learn(read(case, path.name))
        else:
            redactor.learn_text(path.read_text())
        assert redactor.report() == {}, path.name

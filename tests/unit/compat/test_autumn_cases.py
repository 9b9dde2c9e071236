"""Combinations of autumn 2026 in tests/cases/compat/autumn.yml: each is judged as its source has it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.compat import vendor_rows

from goldnode.compat import workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatHost, Workload

# Versions are text: YAML would make a number of 580.142.
TABLE: dict[str, Any] = yaml.load(
    (Path(__file__).parents[2] / "cases/compat/autumn.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
CASES: list[dict[str, Any]] = TABLE["cases"]
_ABOUT = ("judge", "source", "was", "by")
_FILE = ("file", "text")
# The floor of the toolkit depends on the day, as those of the driver do.
IGNORED = (*vendor_rows.IGNORED, "toolkit-floor")


def combination(case: dict[str, Any], folder: Path) -> tuple[CompatHost, list[Workload]]:
    """Return the host and the workloads of a case."""
    row = {key: value for key, value in case.items() if key not in (*_ABOUT, *_FILE)}
    if "forward_compat" in row:
        row["forward_compat"] = row["forward_compat"] == "true"
    if "file" not in case:
        return vendor_rows.host(row), vendor_rows.loads(row, folder)
    python = row.pop("python", None)
    file = folder / case["file"]
    file.write_text(case["text"], encoding="utf-8")
    return vendor_rows.host(row), workloads.of_file(file, python=python)


def judged(case: dict[str, Any], folder: Path) -> tuple[str, list[str]]:
    """Return the judgement of a case, and what was found."""
    # An image for CUDA without a GPU that is stated is no fault of the row.
    ignored = IGNORED if "gpu" in case else (*IGNORED, "image-backend")
    findings = [item for item in check(*combination(case, folder)) if item.rule not in ignored]
    shown = [f"{item.rule}: {item.severity}: {item.message}" for item in findings]
    return vendor_rows.judgement(findings), shown


def name(case: dict[str, Any]) -> str:
    """Return the id of a case: its values."""
    return vendor_rows.name({key: value for key, value in case.items() if key not in _ABOUT})


def test_cases_are_unique_and_have_their_source() -> None:
    assert len(CASES) >= 60
    assert len({name(case) for case in CASES}) == len(CASES)
    assert {case["source"] for case in CASES} == set(TABLE["sources"])
    # What was wrong when the table was first run: see its head.
    wrong = Counter((case["judge"], case["was"]) for case in CASES if "was" in case)
    assert sum(wrong.values()) == 17
    assert (
        sum(count for (judge, was), count in wrong.items() if judge == "blocked" and was == "fits")
        == 3
    )


@pytest.mark.parametrize("case", CASES, ids=name)
def test_combination_of_autumn(case: dict[str, Any], tmp_path: Path) -> None:
    judgement, shown = judged(case, tmp_path)
    assert judgement == case["judge"], shown

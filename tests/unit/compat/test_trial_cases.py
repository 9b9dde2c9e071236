"""Combinations that an independent trial spelled out, in tests/cases/compat/trial.yml: each has the verdict of its public source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.compat import test_autumn_cases, vendor_rows

from goldnode.compat.check import check
from goldnode.core.errors import FactsError
from goldnode.facts import host as facts

TABLE: dict[str, Any] = yaml.load(
    (Path(__file__).parents[2] / "cases/compat/trial.yml").read_text(encoding="utf-8"),
    Loader=yaml.BaseLoader,  # noqa: S506 - builds texts only
)
CASES: list[dict[str, Any]] = TABLE["cases"]
_ABOUT = ("id", "judge", "has", "never", "blocks", "source")


def row(case: dict[str, Any]) -> dict[str, Any]:
    """Return the combination of a case, without its number and answer."""
    return {key: value for key, value in case.items() if key not in _ABOUT}


def test_cases_are_unique_and_have_their_source() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert {case["source"] for case in CASES} == set(TABLE["sources"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_combination_of_the_trial(case: dict[str, Any], tmp_path: Path) -> None:
    host, loads = test_autumn_cases.combination(row(case), tmp_path)
    ignored = {*test_autumn_cases.IGNORED, *(() if "gpu" in case else ("image-backend",))}
    found = [item for item in check(host, loads) if item.rule not in ignored]
    words = "\n".join(f"{item.severity}: {item.message} -> {item.remedy}" for item in found)
    right = case["judge"] if isinstance(case["judge"], list) else [case["judge"]]
    assert vendor_rows.judgement(found) in right, words
    assert [text for text in case.get("has", ()) if text not in words] == [], words
    assert [text for text in case.get("never", ()) if text in words] == [], words
    blocks = sum(item.severity == "block" for item in found)
    assert blocks == int(case.get("blocks", blocks)), words


def test_boards_that_could_not_be_declared_can_be() -> None:
    assert [facts.gpu(name).sku for name in TABLE["declared"]] == TABLE["declared"]
    for name in TABLE["absent"]:
        with pytest.raises(FactsError, match="Jetson"):
            facts.gpu(name)

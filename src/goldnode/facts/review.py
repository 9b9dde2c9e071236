"""Review of the facts: what is stale, contradictory, in doubt or from a single source, file by file.

`audit` finds rows that are wrong. The rows here may be right: they are those to read again first.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.core import yamlsource
from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.facts import site
from goldnode.node.ground.json_lines import as_dict

STALE_AFTER = 90  # days


@dataclass(frozen=True)
class ListAge:
    """The day up to which one list of a publisher was read, and the days since: later rows are missing."""

    file: str
    lists: str
    complete_until: dt.date
    age_days: int


def ages(on: dt.date) -> list[ListAge]:
    """Return the ages of all lists of the facts in force on day `on`, the oldest first. Raises FactsError."""
    rows = []
    for path in sorted(facts.FACTS.glob("*.yml")):
        listed = facts.load(path.name)["meta"].get("complete_until", {})
        for lists, text in listed.items():
            until = dt.date.fromisoformat(str(text))
            rows.append(ListAge(path.name, lists, until, (on - until).days))
    return sorted(rows, key=lambda row: (row.complete_until, row.file, row.lists))


@dataclass(frozen=True)
class ReviewedRow:
    """A row to read again: its line in the file, its name, and why."""

    line: int
    name: str
    why: str


@dataclass
class ReviewedFile:
    """The review of one facts file. `single` counts the rows that rest on one source, of `sourced` in all."""

    name: str
    compiled: dt.date
    age_days: int
    stale: bool
    sourced: int = 0
    single: int = 0
    contradictory: list[ReviewedRow] = field(default_factory=list)
    in_doubt: list[ReviewedRow] = field(default_factory=list)


def review(
    on: dt.date, *, stale_after: int = STALE_AFTER, directory: Path = facts.FACTS
) -> list[ReviewedFile]:
    """Return the review of every facts file in `directory` on day `on`, by name. Raises FactsError."""
    files = []
    for path in sorted(directory.glob("*.yml")):
        source = yamlsource.read(path, error=FactsError)
        compiled = dt.date.fromisoformat(str(source.data["meta"]["compiled"]))
        age = (on - compiled).days
        file = ReviewedFile(path.name, compiled, age, age > stale_after)
        for where, row in _rows(source.data):
            _add(file, source, where, row)
        files.append(file)
    return files


def _rows(
    value: Any, path: yamlsource.KeyPath = ()
) -> Iterator[tuple[yamlsource.KeyPath, dict[str, Any]]]:
    """Yield every mapping below `value` with its path, except `meta` and the table of sources."""
    items: Any = as_dict(value).items()
    if isinstance(value, list):
        items = enumerate(value)
    if isinstance(value, dict) and path:
        yield path, value
    for key, inner in items:
        if path or key not in ("meta", "sources"):
            yield from _rows(inner, (*path, key))


def _add(
    file: ReviewedFile,
    source: yamlsource.YamlSource,
    where: yamlsource.KeyPath,
    row: dict[str, Any],
) -> None:
    keys = row.get("source")
    if keys is not None and where[-1] != "source":
        file.sourced += 1
        file.single += len(set(site.leaves(keys))) == 1
    line = source.line(where) or 0
    if row.get("conflict"):
        file.contradictory.append(ReviewedRow(line, _name(where, row), str(row["conflict"])))
    elif row.get("confidence") and not str(row["confidence"]).startswith("high"):
        file.in_doubt.append(
            ReviewedRow(line, _name(where, row), f"confidence {row['confidence']}")
        )


def _name(where: yamlsource.KeyPath, row: dict[str, Any]) -> str:
    named = next(
        (
            str(row[key])
            for key in ("id", "sku", "version", "branch", "kernel", "name", "release")
            if key in row
        ),
        "",
    )
    return " ".join([str(where[0]), named]).strip()

"""Changes between the runs of `goldnode modules matrix --packages`: one file with the last run and those before.

A nightly run builds the pairs of driver and kernel that the archives have come to serve. The file has the outcomes of the
last run, against which the next is compared, and what each run has changed. It is replaced in one step.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from goldnode.core.errors import ModulesError
from goldnode.core.files import replace_file

# A year of nightly runs, of which most change nothing and are not listed.
_RUNS = 366
_SCHEMA: Final = "goldnode.module-changes/1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PairResult(_Part):
    """A pair with its outcome. `why` is the first error line, or why the kernel is excluded; `was` the outcome before."""

    package: str
    version: str
    kernel: str
    outcome: str
    why: str = ""
    was: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the pair without its outcome."""
        return self.package, self.version, self.kernel


class PairRunChanges(_Part):
    """The changes of one run: new pairs, pairs with another outcome, and pairs that the archives serve no more."""

    date: str
    new: tuple[PairResult, ...] = ()
    changed: tuple[PairResult, ...] = ()
    gone: tuple[PairResult, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)


class PairHistory(_Part):
    """The file. `selection` are the options of the runs; only runs with the same options can be compared."""

    document: Literal["goldnode.module-changes/1"] = _SCHEMA
    selection: tuple[str, ...]
    last: tuple[PairResult, ...] = ()
    runs: tuple[PairRunChanges, ...] = ()


def history(file: Path, selection: Sequence[str]) -> PairHistory:
    """Return the history in a file, an empty one if there is none.

    Raises ModulesError for a file that cannot be read, or of runs with other options.
    """
    if not file.exists():
        return PairHistory(selection=tuple(selection))
    try:
        known = PairHistory.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as problem:
        raise ModulesError(
            f"the changes of earlier runs cannot be read: {str(problem).splitlines()[0]}",
            file=file,
            remedy="remove it: the next run begins a new history",
        ) from problem
    if list(known.selection) != list(selection):
        raise ModulesError(
            f"its runs have other options: {' '.join(known.selection) or 'none'}",
            file=file,
            remedy="use these options, or name another file",
        )
    return known


def compared(
    known: PairHistory, rows: Sequence[Mapping[str, str]], *, today: dt.date
) -> tuple[PairHistory, PairRunChanges]:
    """Return the history with a run of today, and what that run has changed.

    `rows` are those of `pairbuild.report`. A pair without a result stays as it was: a run that is stopped is no change.
    """
    before = {pair.key: pair for pair in known.last}
    served: dict[tuple[str, str, str], PairResult] = {}
    new, changed = [], []
    for row in rows:
        now = PairResult(
            **{name: row[name] for name in ("package", "version", "kernel", "outcome", "why")}
        )
        was = before.get(now.key)
        if now.outcome in ("no result", "not measured"):
            if was is not None:
                served[now.key] = was
            continue
        served[now.key] = now
        if was is None:
            new.append(now)
        elif was.outcome != now.outcome:
            changed.append(now.model_copy(update={"was": was.outcome}))
    gone = [pair for key, pair in before.items() if key not in _all(rows)]
    run = PairRunChanges(
        date=today.isoformat(), new=tuple(new), changed=tuple(changed), gone=tuple(gone)
    )
    runs = (run, *known.runs)[:_RUNS] if run else known.runs
    return known.model_copy(update={"last": tuple(served.values()), "runs": runs}), run


def _all(rows: Sequence[Mapping[str, str]]) -> set[tuple[str, str, str]]:
    return {(row["package"], row["version"], row["kernel"]) for row in rows}


def write(file: Path, known: PairHistory) -> None:
    """Replace the file of a history."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, (known.model_dump_json(indent=1) + "\n").encode())


def run_lines(run: PairRunChanges) -> list[str]:
    """Return the changes of a run as lines, failures first."""
    if not run:
        return ["nothing has changed since the last run"]
    lines = [f"changed: {_text(pair)}, it was {pair.was}" for pair in _worst(run.changed)]
    lines += [f"new: {_text(pair)}" for pair in _worst(run.new)]
    lines += [f"gone: {pair.package} {pair.version} on {pair.kernel}" for pair in run.gone]
    return lines


def markdown(known: PairHistory) -> str:
    """Return all runs with a change as a section in Markdown, the newest first."""
    lines = ["## Changes", ""]
    for run in known.runs:
        lines += [f"### {run.date}", "", *(f"- {line}" for line in run_lines(run)), ""]
    return "\n".join(lines if known.runs else [*lines, "None yet.", ""])


def _worst(pairs: Sequence[PairResult]) -> list[PairResult]:
    rank = {"fails": 0, "excluded": 1}
    return sorted(pairs, key=lambda pair: (rank.get(pair.outcome, 2), pair.key))


def _text(pair: PairResult) -> str:
    why = f" ({pair.why})" if pair.why else ""
    return f"{pair.package} {pair.version} on {pair.kernel} {pair.outcome}{why}"

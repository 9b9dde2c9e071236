"""Public reports of people who run GPU nodes: one YAML file for each, and the totals over them.

A file `tests/reports/AREA/ID.yml` has the keys of :class:`Report`. Larger inputs are files in a directory
`AREA/ID/`, which are added to `inputs` by their path there (`etc/default/grub` is `/etc/default/grub`);
one that is named `input` is the input itself. docs/adding.md has the recipe.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml

ROOT = Path(__file__).parent
# Reports that the product still answers wrongly, by their ids, each with the reason.
OPEN = ROOT / "open.yml"
TRIAL, TREE = "24c6d23d", "b8494301"  # the commits that `first` and `before` are about

# The commit at which the reports of each blind round were answered first: `first` of those is about it.
ROUNDS = {
    1: "0ad26185",
    2: "723befc0",
    3: "698474d6",
    4: "b216bdc1",
    5: "d8c6d37a",
    6: "16cdb55c",
    7: "715d311b",
    8: "edfb457f",
    9: "cbe080e0",
    10: "f0697c3a",
    11: "67f78854",
    12: "a02fe2a8",
    13: "f6df7361",
}

Judgement = Literal["right", "partly", "wrong", "cannot"]
OneOf = Annotated[list[str], pydantic.Field(min_length=2)]


class Model(pydantic.BaseModel):
    """A part of a file. Unknown keys are mistakes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Source(Model):
    """The origin of a report: `tracker` github has a `thread` OWNER/REPO#NUMBER; of others it is an address or a number."""

    tracker: str
    thread: str
    read: dt.date | None = (
        None  # None: the thread itself could not be read again, `seen` says what was
    )
    seen: str | None = None

    @property
    def group(self) -> str:
        """Return the repository, or the tracker, that the report is counted under."""
        return self.thread.partition("#")[0] if self.tracker == "github" else self.tracker


class Expectation(Model):
    """The right answer. `names` must be in it; of a list inside, one word. White space is compared as one space."""

    exit: int | list[int]
    names: list[str | OneOf] = []
    absent: list[str] = pydantic.Field(default=[], alias="not")
    times: dict[str, int] = {}  # how often a word is in the answer, exactly


class Report(Model):
    """One report. `first` is how the product answered before any fix, at the commit TREE.

    For the reports of the trial (`trial: true`) `first` is about the commit TRIAL, and `before` about TREE.
    Both are written after the expectation was committed.

    A report that could not be rebuilt has `not_rebuilt` with the reason in place of input and expectation.
    """

    id: str
    source: Source | list[Source]
    report: str
    input: str = ""
    inputs: dict[str, str] = {}
    ask: str = ""
    options: dict[str, Any] = pydantic.Field(default={}, alias="with")
    expect: Expectation | None = None
    trial: bool = False
    round: int | None = None  # of the blind rounds (ROUNDS), the one that it is from
    first: Judgement | None = None
    first_got: str = ""
    before: Judgement | None = None
    before_got: str | None = None
    changed: str | None = None  # why `expect` is not as it was written at first
    not_rebuilt: str | None = None

    @pydantic.model_validator(mode="after")
    def _is_whole(self) -> Report:
        rebuilt = bool(self.expect and self.ask)
        if rebuilt == bool(self.not_rebuilt):
            raise ValueError("it has either `ask` and `expect`, or `not_rebuilt`")
        if self.before and not self.trial:
            raise ValueError("only a report of the trial has `before`")
        return self

    @property
    def sources(self) -> list[Source]:
        """Return its sources; the first is the one that it is counted under."""
        return self.source if isinstance(self.source, list) else [self.source]


def files() -> Iterator[Path]:
    """Return the files of reports, in the order of their areas and ids."""
    return iter(sorted(ROOT.glob("*/*.yml")))


@cache
def load(file: Path) -> Report:
    """Return the report of a file. Raise ValueError with the name of the file."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except yaml.YAMLError as problem:
        raise ValueError(f"{file.relative_to(ROOT)}: {problem}") from problem
    folder = file.with_suffix("")
    beside = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    if "input" in beside:
        content["input"] = beside.pop("input")
    content.setdefault("inputs", {}).update(beside)
    try:
        return Report.model_validate({"id": f"{file.parent.name}/{file.stem}", **content})
    except pydantic.ValidationError as problem:
        raise ValueError(f"{file.relative_to(ROOT)}: {problem}") from problem


def reports() -> list[Report]:
    """Return all reports."""
    return [load(file) for file in files()]


def open_reports() -> dict[str, str]:
    """Return the ids of the reports that are still answered wrongly, with the reasons."""
    return yaml.safe_load(OPEN.read_text(encoding="utf-8")) or {}

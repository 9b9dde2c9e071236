"""The report of what carries vulnerabilities: by vulnerability, state and kind of carrier.

A fleet has more rows than fit in memory at once, so that entries are made one by one, in the order of the document.
Vulnerabilities that every component answers in the same way, as those of one security update, share their rows.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from goldnode.cve.feeds import Feed
from goldnode.cve.match import (
    OPEN,
    ORDER,
    CveVerdict,
    Inventory,
    KernelFleet,
    Matcher,
    shown_package,
)
from goldnode.cve.nodes import NodeFacts
from goldnode.documents.cve import CveDocument, CveFeed, NotJudged
from goldnode.evidence.vulnerabilities import LEVELS, level

_ROW = 30  # the text of a row is as long as that of some thirty names
_CACHED = 4_000_000  # names in rows that wait for a further vulnerability, some 60 MB
KINDS = ("lock", "disk", "image", "derived", "channel", "node")


@dataclass(frozen=True)
class CveQuestion:
    """Vulnerabilities that are asked about, or all that are open somewhere (None), at a time."""

    wanted: tuple[str, ...] | None
    at: dt.datetime


class CarrierRow(NamedTuple):
    """Carriers of one kind in the same state, and why. Its fields are those of a row of the document."""

    state: str
    kind: str
    names: list[str]
    package: str
    version: str
    fixed: str | None
    word: str
    feed: str
    why: str


@dataclass(frozen=True)
class CarrierRows:
    """Rows that vulnerabilities with the same answers share, the worst first. `counts`: kind -> state -> carriers."""

    rows: list[CarrierRow]
    counts: dict[str, dict[str, int]]

    @cached_property
    def open(self) -> list[CarrierRow]:
        """Return the rows of carriers that have the vulnerability, or of which it is not known."""
        return [row for row in self.rows if row.state in OPEN or row.state == "unknown"]

    @cached_property
    def text(self) -> str:
        """Return the rows as JSON."""
        return _json([row._asdict() for row in self.rows])

    @property
    def size(self) -> int:
        """Return about how many names its text is as long as."""
        return sum(len(row.names) + _ROW for row in self.rows)


class CveSummary(NamedTuple):
    """One vulnerability with its rows."""

    id: str
    severity: str
    summary: str
    note: str
    judged: CarrierRows

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Return kind -> state -> number of carriers."""
        return self.judged.counts

    @property
    def rows(self) -> list[CarrierRow]:
        """Return the rows, the worst first."""
        return self.judged.rows

    @property
    def open_rows(self) -> list[CarrierRow]:
        """Return the rows of carriers that have the vulnerability, or of which it is not known."""
        return self.judged.open

    def text(self) -> str:
        """Return it as an entry of the document: JSON on one line with sorted keys."""
        head = _json({"counts": self.counts, "id": self.id, "note": self.note})
        tail = _json({"severity": self.severity, "summary": self.summary})
        return f'{head[:-1]}, "rows": {self.judged.text}, {tail[1:]}'


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A verdict with its component's text and groups of its carriers by kind."""

    verdict: CveVerdict
    package: str
    version: str
    carriers: Mapping[str, Sequence[list[str]]]


@dataclass(slots=True)
class _Found:
    """One vulnerability: the verdicts on components, and the running kernels with their texts."""

    placed: list[_Placed] = field(default_factory=list)
    kernels: list[tuple[KernelFleet, tuple[str, str]]] = field(default_factory=list)


@dataclass(frozen=True)
class CveReport:
    """The report: the document without its entries, and what these are made of."""

    head: CveDocument
    _order: list[tuple[str, str, str]]  # name, severity, note
    _found: Mapping[str, _Found]
    _fleets: Sequence[KernelFleet]
    _open_only: bool

    def entries(self) -> Iterator[CveSummary]:
        """Yield the vulnerabilities in order; without a question, only those that are open somewhere."""
        rows = _Rows(self._fleets)
        seen = [self._found.get(name) or _Found() for name, *_ in self._order]
        answers = [
            rows.answers(name, known) for (name, *_), known in zip(self._order, seen, strict=True)
        ]
        left = Counter(answers)
        for (name, severity, note), known, key in zip(self._order, seen, answers, strict=True):
            left[key] -= 1
            judged = rows.judged(name, known, key, again=left[key] > 0)
            if judged.open or not self._open_only:
                yield CveSummary(name, severity, _summary(name, known), note, judged=judged)


def build(
    question: CveQuestion, listed: Inventory, matcher: Matcher, nodes: Sequence[NodeFacts]
) -> CveReport:
    """Return the report."""
    by_cve: dict[str, _Found] = {}
    for component, carriers in listed.components.items():
        texts: tuple[str, str] | None = None
        for verdict in matcher.verdicts(component):
            texts = texts or shown_package(component)
            placed = _Placed(verdict, *texts, carriers)
            by_cve.setdefault(verdict.cve, _Found()).placed.append(placed)
    fleets = list(matcher.kernels(listed))
    for fleet in fleets:
        texts = shown_package(fleet.kernel)
        for cve in fleet.answers:
            by_cve.setdefault(cve, _Found()).kernels.append((fleet, texts))
    notes = {name: _note(name, matcher.feeds) for name in question.wanted or ()}
    names = question.wanted if question.wanted is not None else sorted(by_cve)
    order = [
        (name, _worst_severity(name, by_cve.get(name) or _Found()), notes.get(name) or "")
        for name in names
        if name in by_cve or notes.get(name) is not None
    ]
    if question.wanted is None:
        order.sort(key=lambda one: (-_rank(one[1]), one[0]))
    today = question.at.date()
    head = CveDocument(
        schema="goldnode.cve/1",
        at=question.at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        feeds=[_feed(feed, today) for feed in matcher.feeds],
        vulnerabilities=[],
        no_record=[name for name in names if name not in by_cve and notes.get(name) is None],
        not_judged=_not_judged(listed, matcher.feeds),
        nodes={
            "captured": len(nodes),
            "simulated": len([node for node in nodes if node.simulated]),
        },
    )
    return CveReport(head, order, by_cve, fleets, _open_only=question.wanted is None)


def _note(name: str, feeds: Sequence[Feed]) -> str | None:
    """Return what the data state about a vulnerability as a whole; None if none has a record."""
    notes = [note for feed in feeds if (note := feed.source.knows(name)) is not None]
    # Another source still has it: a withdrawn record then is not the last word.
    return min(notes) if notes else None


class _Rows:
    """Makes the rows of vulnerabilities, and merges and counts groups of carriers: each distinct set once."""

    def __init__(self, fleets: Iterable[KernelFleet]) -> None:
        # By the identities of the groups, which the inventory and the kernels hold as long as this.
        self._merged: dict[tuple[int, ...], list[str]] = {}
        self._counted: dict[tuple[tuple[str, str, int], ...], dict[str, dict[str, int]]] = {}
        tables = {id(table): table for fleet in fleets for table in fleet.tables()}
        self._tables = list(tables.values())
        self._cached: dict[Hashable, CarrierRows] = {}
        self._size = 0

    def answers(self, name: str, known: _Found) -> Hashable:
        """Return a key of all that the rows of a vulnerability depend on. Equal answers on kernels are one object."""
        placed = tuple(
            (id(row.carriers), *_key(row.verdict, "", row.package, row.version))
            for row in known.placed
        )
        kernels = tuple(id(table[name][1]) if name in table else 0 for table in self._tables)
        return placed, kernels

    def judged(self, name: str, known: _Found, key: Hashable, *, again: bool) -> CarrierRows:
        """Return the rows of a vulnerability. `again`: another one with the same key comes."""
        judged = self._cached.pop(key, None)
        if judged is None:
            judged = self._judged(name, known)
        else:
            self._size -= judged.size
        if again and self._size + judged.size <= _CACHED:
            self._cached[key] = judged
            self._size += judged.size
        return judged

    def _judged(self, name: str, known: _Found) -> CarrierRows:
        grouped: dict[tuple[str, ...], list[list[str]]] = {}
        for row in known.placed:
            for kind, groups in row.carriers.items():
                key = _key(row.verdict, kind, row.package, row.version)
                grouped.setdefault(key, []).extend(groups)
        for fleet, texts in known.kernels:
            answer, runs = fleet.answers[name][1], fleet.runs(name)
            shared = ("node", *texts, answer.fixed or "", answer.word, fleet.feed)
            for state, note, names in fleet.states(name):
                grouped.setdefault((state, *shared, runs + note), []).append(names)
        listed = [
            CarrierRow._make(
                (state, kind, self._names(groups), package, version, fixed or None, *rest)
            )
            for (state, kind, package, version, fixed, *rest), groups in grouped.items()
        ]
        listed.sort(key=_order)
        return CarrierRows(listed, self._counts(listed))

    def _names(self, groups: Sequence[list[str]]) -> list[str]:
        """Return the names of groups, sorted. Each group is sorted by itself."""
        if len(groups) == 1:
            return groups[0]
        key = tuple(map(id, groups))
        if key not in self._merged:
            self._merged[key] = sorted(set().union(*groups))
        return self._merged[key]

    def _counts(self, rows: Sequence[CarrierRow]) -> dict[str, dict[str, int]]:
        """Return kind -> state -> number of carriers. A carrier counts in the worst of its states: the first."""
        key = tuple((row.kind, row.state, id(row.names)) for row in rows)
        if key not in self._counted:
            self._counted[key] = _counted(rows)
        return self._counted[key]


def _key(verdict: CveVerdict, kind: str, package: str, version: str) -> tuple[str, ...]:
    return (
        verdict.state.value,
        kind,
        package,
        version,
        verdict.fixed or "",
        verdict.word,
        verdict.feed,
        verdict.why,
    )


def _summary(name: str, known: _Found) -> str:
    texts = [row.verdict.summary for row in known.placed]
    texts += [fleet.answers[name][0].summary for fleet, _ in known.kernels]
    return next((text for text in texts if text), "")


def _order(row: CarrierRow) -> tuple[int, int, str, str, str]:
    return ORDER[row.state], KINDS.index(row.kind), row.package, row.version, row.why


def _counted(rows: Iterable[CarrierRow]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    seen: dict[str, set[str]] = {}
    for row in rows:
        known = seen.setdefault(row.kind, set())
        before = len(known)
        known.update(row.names)
        if len(known) > before:
            states = counts.setdefault(row.kind, {})
            states[row.state] = states.get(row.state, 0) + len(known) - before
    return counts


def _worst_severity(name: str, known: _Found) -> str:
    named = {row.verdict.severity for row in known.placed}
    named |= {fleet.answers[name][0].severity for fleet, _ in known.kernels}
    return max(named, key=lambda one: (_rank(one), one), default="not stated")


def _rank(severity: str) -> int:
    known = level(severity)
    return LEVELS.index(known) if known in LEVELS else -1


def _feed(feed: Feed, today: dt.date) -> CveFeed:
    age = feed.age(today)
    return CveFeed.model_validate(
        {
            "kind": feed.kind,
            "name": feed.name,
            "sha256": feed.sha256,
            "date": feed.date if age is not None else None,
            "date_from": feed.date_from,
            "age_days": age,
            "note": feed.note,
        }
    )


def _not_judged(listed: Inventory, feeds: Sequence[Feed]) -> list[NotJudged]:
    """Return carriers that were not read, and those of a release that no data of a distribution cover."""
    reasons = dict(listed.unread)
    of_releases = [feed for feed in feeds if feed.kind in ("debian", "osv", "oval")]
    for system, carriers in listed.systems.items():
        if not any(feed.source.covers(system) for feed in of_releases):
            reasons[f"no data cover the packages of {system.id} {system.version}"] = carriers
    rows = []
    for why, carriers in sorted(reasons.items()):
        for kind in KINDS:
            names = sorted(set(carriers.get(kind, ())))
            if names:
                rows.append(NotJudged.model_validate({"why": why, "kind": kind, "names": names}))
    return rows

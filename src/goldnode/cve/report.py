"""The report of what carries vulnerabilities: by vulnerability, state and kind of carrier.

A fleet has more rows than fit in memory at once, so that entries are made one by one, in the order of the document.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class CveSummary(NamedTuple):
    """One vulnerability with its rows, the worst first. Its fields are those of an entry of the document."""

    id: str
    severity: str
    summary: str
    note: str
    counts: dict[str, dict[str, int]]
    rows: list[CarrierRow]

    def content(self) -> dict[str, Any]:
        """Return it as an entry of the document."""
        return {**self._asdict(), "rows": [row._asdict() for row in self.rows]}

    @property
    def open_rows(self) -> list[CarrierRow]:
        """Return the rows of carriers that have the vulnerability, or of which it is not known."""
        return [row for row in self.rows if row.state in OPEN or row.state == "unknown"]


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
    _open_only: bool

    def entries(self) -> Iterator[CveSummary]:
        """Yield the vulnerabilities in order; without a question, only those that are open somewhere."""
        rows = _Rows()
        for name, severity, note in self._order:
            entry = rows.entry(name, severity, note, self._found.get(name) or _Found())
            if entry.open_rows or not self._open_only:
                yield entry


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
    for fleet in matcher.kernels(listed):
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
    return CveReport(head, order, by_cve, question.wanted is None)


def _note(name: str, feeds: Sequence[Feed]) -> str | None:
    """Return what the data state about a vulnerability as a whole; None if none has a record."""
    notes = [note for feed in feeds if (note := feed.source.knows(name)) is not None]
    # Another source still has it: a withdrawn record then is not the last word.
    return min(notes) if notes else None


class _Rows:
    """Makes the rows of vulnerabilities, and merges and counts each set of groups of carriers once."""

    def __init__(self) -> None:
        # By the identities of the groups, which the inventory and the kernels hold as long as this.
        self._merged: dict[tuple[int, ...], list[str]] = {}
        self._counted: dict[tuple[tuple[str, str, int], ...], dict[str, dict[str, int]]] = {}

    def entry(self, name: str, severity: str, note: str, known: _Found) -> CveSummary:
        """Return the entry of a vulnerability."""
        grouped: dict[tuple[str, ...], list[list[str]]] = {}
        for row in known.placed:
            for kind, groups in row.carriers.items():
                key = _key(row.verdict, kind, row.package, row.version)
                grouped.setdefault(key, []).extend(groups)
        for fleet, texts in known.kernels:
            for verdict, names in fleet.verdicts(name):
                grouped.setdefault(_key(verdict, "node", *texts), []).append(names)
        listed = [
            CarrierRow(
                key[0],
                kind=key[1],
                names=self._names(groups),
                package=key[2],
                version=key[3],
                fixed=key[4] or None,
                word=key[5],
                feed=key[6],
                why=key[7],
            )
            for key, groups in grouped.items()
        ]
        listed.sort(key=_order)
        return CveSummary(
            name,
            severity,
            summary=_summary(name, known),
            note=note,
            counts=self._counts(listed),
            rows=listed,
        )

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

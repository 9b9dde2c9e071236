"""The report of what carries vulnerabilities: by vulnerability, state and kind of carrier."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from goldnode.cve.feeds import Feed
from goldnode.cve.match import (
    OPEN,
    ORDER,
    Carrier,
    CarrierState,
    CveVerdict,
    Inventory,
    Matcher,
    shown_package,
)
from goldnode.cve.nodes import NodeFacts
from goldnode.documents.cve import CveDocument, CveEntry, CveFeed, CveRow, NotJudged
from goldnode.evidence.vulnerabilities import LEVELS, level

KINDS = ("lock", "disk", "image", "derived", "node")


@dataclass(frozen=True)
class CveQuestion:
    """Vulnerabilities that are asked about, or all that are open somewhere (None), at a time."""

    wanted: tuple[str, ...] | None
    at: dt.datetime


@dataclass(frozen=True, slots=True)
class _Placed:
    """A verdict with its component's text and its carriers."""

    verdict: CveVerdict
    package: str
    version: str
    carriers: Mapping[str, list[str]]


def build(
    question: CveQuestion, listed: Inventory, matcher: Matcher, nodes: Sequence[NodeFacts]
) -> CveDocument:
    """Return the document."""
    by_cve: dict[str, list[_Placed]] = {}
    for component, carriers in listed.components.items():
        texts: tuple[str, str] | None = None
        for verdict in matcher.verdicts(component):
            texts = texts or shown_package(component)
            by_cve.setdefault(verdict.cve, []).append(_Placed(verdict, *texts, carriers))
    notes = {name: _note(name, matcher.feeds) for name in question.wanted or ()}
    names = [
        name
        for name in (question.wanted if question.wanted is not None else sorted(by_cve))
        if question.wanted is not None or _matters(by_cve[name])
    ]
    entries = [
        _entry(name, by_cve.get(name, []), notes.get(name) or "")
        for name in names
        if name in by_cve or notes.get(name) is not None
    ]
    if question.wanted is None:
        entries.sort(key=_severity)
    today = question.at.date()
    return CveDocument(
        schema="goldnode.cve/1",
        at=question.at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        feeds=[_feed(feed, today) for feed in matcher.feeds],
        vulnerabilities=entries,
        no_record=[name for name in names if name not in by_cve and notes.get(name) is None],
        not_judged=_not_judged(listed, matcher.feeds),
        nodes={
            "captured": len(nodes),
            "simulated": len([node for node in nodes if node.simulated]),
        },
    )


def open_rows(entry: CveEntry) -> list[CveRow]:
    """Return the rows of carriers that have the vulnerability, or of which it is not known."""
    return [row for row in entry.rows if CarrierState(row.state) in OPEN or row.state == "unknown"]


def _matters(rows: Iterable[_Placed]) -> bool:
    return any(
        row.verdict.state in OPEN or row.verdict.state is CarrierState.UNKNOWN for row in rows
    )


def _note(name: str, feeds: Sequence[Feed]) -> str | None:
    """Return what the data state about a vulnerability as a whole; None if none has a record."""
    notes = [note for feed in feeds if (note := feed.source.knows(name)) is not None]
    # Another source still has it: a withdrawn record then is not the last word.
    return min(notes) if notes else None


def _entry(name: str, rows: Sequence[_Placed], note: str) -> CveEntry:
    grouped: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        verdict = row.verdict
        for kind, names in row.carriers.items():
            key = (
                verdict.state,
                kind,
                row.package,
                row.version,
                verdict.fixed or "",
                verdict.word,
                verdict.feed,
                verdict.why,
            )
            grouped.setdefault(key, []).append(names)
    listed = [
        CveRow.model_construct(
            state=str(key[0]),
            kind=key[1],
            names=names[0] if len(names) == 1 else sorted({one for rows in names for one in rows}),
            package=key[2],
            version=key[3],
            fixed=key[4] or None,
            word=key[5],
            feed=key[6],
            why=key[7],
        )
        for key, names in grouped.items()
    ]
    listed.sort(key=_order)
    return CveEntry.model_construct(
        id=name,
        severity=_worst_severity(rows),
        summary=next((row.verdict.summary for row in rows if row.verdict.summary), ""),
        note=note,
        counts=_counts(listed),
        rows=listed,
    )


def _order(row: CveRow) -> tuple[int, int, str, str, str]:
    state = ORDER[CarrierState(row.state)]
    return state, KINDS.index(row.kind), row.package, row.version, row.why


def _counts(rows: Iterable[CveRow]) -> dict[str, dict[str, int]]:
    """Return kind -> state -> number of carriers. A carrier counts in the worst of its states: the first."""
    counts: dict[str, dict[str, int]] = {}
    seen: dict[str, set[str]] = {}
    for row in rows:
        known = seen.setdefault(row.kind, set())
        before = len(known)
        known.update(row.names)
        if len(known) > before:
            states = counts.setdefault(row.kind, {})
            state = str(row.state)
            states[state] = states.get(state, 0) + len(known) - before
    return counts


def _worst_severity(rows: Iterable[_Placed]) -> str:
    named = {row.verdict.severity for row in rows}
    return max(named, key=lambda one: (_rank(one), one), default="not stated")


def _rank(severity: str) -> int:
    known = level(severity)
    return LEVELS.index(known) if known in LEVELS else -1


def _severity(entry: CveEntry) -> tuple[int, str]:
    return -_rank(entry.severity), entry.id


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
    reasons: Mapping[str, list[Carrier]] = dict(listed.unread)
    of_releases = [feed for feed in feeds if feed.kind in ("debian", "osv")]
    for system, carriers in listed.systems.items():
        if not any(feed.source.covers(system) for feed in of_releases):
            why = f"no data cover the packages of {system.id} {system.version}"
            reasons = {**reasons, why: carriers}
    rows = []
    for why, carriers in sorted(reasons.items()):
        for kind in KINDS:
            names = sorted({name for one, name in carriers if one == kind})
            if names:
                rows.append(NotJudged.model_validate({"why": why, "kind": kind, "names": names}))
    return rows

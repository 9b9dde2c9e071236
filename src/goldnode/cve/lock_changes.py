"""Vulnerabilities of two locks of one stack: those that the newer fixes, and those that it still has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from goldnode.cve.claims import OsRelease
from goldnode.cve.feeds import Feed
from goldnode.cve.match import (
    OPEN,
    ORDER,
    CarrierState,
    CveVerdict,
    Matcher,
    inventory,
    shown_package,
)
from goldnode.cve.subjects import Carriers, of_lock
from goldnode.lock.model import Lock


@dataclass(frozen=True)
class LockVulnerability:
    """A vulnerability of a lock, by the feed that gives the worst answer, with its package."""

    cve: str
    severity: str
    package: str
    version: str
    feed: str
    why: str
    fixed: str | None


@dataclass(frozen=True)
class LockVulnerabilities:
    """Vulnerabilities by identifier. `new`: the older lock does not have them; `unknown`: the newer may have them."""

    fixed: tuple[LockVulnerability, ...] = ()
    new: tuple[LockVulnerability, ...] = ()
    open: tuple[LockVulnerability, ...] = ()
    unknown: tuple[LockVulnerability, ...] = ()


def vulnerability_changes(
    old: Lock, new: Lock, system: OsRelease, feeds: Sequence[Feed]
) -> LockVulnerabilities:
    """Return the vulnerabilities that two locks have, by the feeds. A package without a claim gives none."""
    before, after = _states(old, system, feeds), _states(new, system, feeds)
    rows: dict[str, list[LockVulnerability]] = {"fixed": [], "new": [], "open": [], "unknown": []}
    for cve in sorted(before.keys() | after.keys()):
        was, now = before.get(cve), after.get(cve)
        affected = was is not None and was[0] in OPEN
        if now is not None and now[0] in OPEN:
            rows["open" if affected else "new"].append(now[1])
        elif now is not None and now[0] is CarrierState.UNKNOWN:
            rows["unknown"].append(now[1])
        elif affected and was is not None:
            rows["fixed"].append(was[1])
    return LockVulnerabilities(**{name: tuple(listed) for name, listed in rows.items()})


def _states(
    lock: Lock, system: OsRelease, feeds: Sequence[Feed]
) -> dict[str, tuple[CarrierState, LockVulnerability]]:
    """Return the worst state of each vulnerability of a lock."""
    carriers = Carriers()
    carriers.add(of_lock(lock, system))
    matcher = Matcher(feeds)
    states: dict[str, tuple[CarrierState, LockVulnerability]] = {}
    for component in inventory(carriers, []).components:
        package, version = shown_package(component)
        for verdict in matcher.verdicts(component):
            known = states.get(verdict.cve)
            if known is None or ORDER[verdict.state] < ORDER[known[0]]:
                states[verdict.cve] = (verdict.state, _row(verdict, package, version))
    return states


def _row(verdict: CveVerdict, package: str, version: str) -> LockVulnerability:
    return LockVulnerability(
        verdict.cve,
        severity=verdict.severity,
        package=package,
        version=version,
        feed=verdict.feed,
        why=verdict.why,
        fixed=verdict.fixed,
    )

"""Accepted compatibility findings, by rule, owner, reason and last day: those of a class, and exceptions of the site file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from pathlib import Path

from goldnode.catalog import models
from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.tiers import TIERS
from goldnode.compat.model import Acceptance, CompatFinding
from goldnode.core import yamlsource
from goldnode.core.dataclass import dataclass
from goldnode.core.errors import SiteError, nearest
from goldnode.core.site import Site, SiteException, acceptance


@dataclass(frozen=True)
class TierDecisions:
    """A class with its stack and the site: where decisions about its findings are written."""

    entry: CatalogEntry[models.NodeClass]
    stack: CatalogEntry[models.Stack]
    site: Site


def in_force(site: Site, node_class: str | None, stack: str, on: dt.date) -> list[SiteException]:
    """Return the exceptions for a class with its stack (None: the stack alone) that hold on day `on`."""
    return [row for row in site.exceptions if row.concerns(node_class, stack) and row.expires >= on]


def acceptances(rows: Iterable[models.Accepted | SiteException]) -> tuple[Acceptance, ...]:
    """Return what a class or the site accepts in the form of the compatibility check."""
    return tuple(
        Acceptance(row.rule, row.reason, row.owner, row.expires, row.subject) for row in rows
    )


def check_accepted(entry: CatalogEntry[models.NodeClass], stack: Path, on: dt.date) -> None:
    """Refuse invalid acceptances of a class. Raises CatalogError.

    An acceptance is invalid if its rule does not exist, or if it expired before day `on`. A class
    cannot accept an end of life: the site file does, or the stack (file `stack`) waives it.
    """
    if not entry.item.compat.accept:
        return
    from goldnode.compat.check import registry  # loads all rules; few classes need it

    known = registry()
    for index, item in enumerate(entry.item.compat.accept):
        where = ("compat", "accept", index)
        if item.rule not in known:
            raise entry.error(
                f'there is no rule "{item.rule}" whose findings could be accepted',
                *where,
                "rule",
                remedy=nearest(item.rule, known),
            )
        if item.rule == "end-of-life":
            raise entry.error(
                "an end of life is not accepted by a class, but by the site, or waived by the stack for all that use it",
                *where,
                "rule",
                remedy=(
                    f"{acceptance('end-of-life', f'class {entry.name}')}, or record a waiver with reason, owner and "
                    f"expiry in {stack}"
                ),
            )
        if item.expires < on:
            raise entry.error(
                f'the acceptance of rule "{item.rule}" by {item.owner} ({item.reason}) expired on {item.expires}',
                *where,
                "expires",
                remedy=f"fix its cause, or have {item.owner} renew it",
            )


def check_tier(decisions: TierDecisions, on: dt.date) -> None:
    """Refuse decisions that the tier of a class does not allow.

    Raises CatalogError, and SiteError for an exception of the site.
    """
    entry = decisions.entry
    tier = entry.item.tier
    rules = None if tier is None else TIERS[tier]
    if rules is None:
        return
    if entry.item.compat.unknown not in rules.unknown:
        raise entry.error(
            f"a class of tier {tier} cannot accept facts without a source",
            "compat",
            "unknown",
            remedy=f"use {' or '.join(sorted(rules.unknown))}, and accept single findings",
        )
    if rules.waiver_days is None:
        return
    last = on + dt.timedelta(days=rules.waiver_days)
    remedy = f"let it end on {last} or earlier, and renew it with its reason"
    for index, item in enumerate(entry.item.compat.accept):
        if item.rule == "driver-branch":
            raise entry.error(
                f"the branch of the driver is not accepted by a class of tier {tier}, but by the site",
                *("compat", "accept", index, "rule"),
                remedy=acceptance("driver-branch", f"class {entry.name}"),
            )
        if item.expires > last:
            raise entry.error(
                f'the acceptance of rule "{item.rule}" ends on {item.expires}; tier {tier} allows {rules.waiver_days} days',
                *("compat", "accept", index, "expires"),
                remedy=remedy,
            )
    waiver = decisions.stack.item.waiver
    concerned = waiver is not None and (not waiver.classes or entry.name in waiver.classes)
    if waiver is not None and concerned and waiver.expires > last:
        raise decisions.stack.error(
            f'the waiver ends on {waiver.expires}; class "{entry.name}" is of tier {tier}, which allows {rules.waiver_days} days',
            "waiver",
            "expires",
            remedy=remedy,
        )
    for index, row in enumerate(decisions.site.exceptions):
        if row.concerns(entry.name, decisions.stack.name) and row.expires > last:
            raise _error(
                decisions.site,
                index,
                "expires",
                f'the exception for rule "{row.rule}" ends on {row.expires}; class "{entry.name}" is of tier {tier}, which allows '
                f"{rules.waiver_days} days",
                remedy=remedy,
            )


def check_exceptions(site: Site, node_class: str | None, stack: str, on: dt.date) -> None:
    """Refuse an exception for this class or stack whose rule does not exist, or that has expired. Raises SiteError."""
    for index, row in enumerate(site.exceptions):
        if row.concerns(node_class, stack):
            _check(site, index, row, on)


def _check(site: Site, index: int, row: SiteException, on: dt.date) -> None:
    from goldnode.compat.check import registry  # loads all rules; few sites need it

    known = registry()
    if row.rule not in known:
        raise _error(
            site,
            index,
            "rule",
            f'there is no rule "{row.rule}" whose findings could be accepted',
            nearest(row.rule, known) or "see `goldnode check --list-rules`",
        )
    if row.expires < on:
        raise _error(
            site,
            index,
            "expires",
            f'the exception of {row.owner} for rule "{row.rule}" ({row.reason}) expired on {row.expires}',
            f"fix what it was for, or have {row.owner} renew it",
        )


def exception_faults(site: Site, catalog: Catalog, on: dt.date) -> Iterator[SiteError]:
    """Yield the errors of all exceptions: unknown rules, classes and stacks, and those that have expired."""
    for index, row in enumerate(site.exceptions):
        for kind, name, known in (
            ("class", row.class_, catalog.class_names()),
            ("stack", row.stack, list(catalog.stacks)),
        ):
            if name is not None and name not in known and (kind, name) not in catalog.broken:
                yield _error(
                    site,
                    index,
                    kind,
                    f'{kind} "{name}" of an exception is not in the catalog',
                    nearest(name, known),
                )
        try:
            _check(site, index, row, on)
        except SiteError as error:
            yield error


def unmatched(
    site: Site, found: Iterable[tuple[str, str, CompatFinding]], on: dt.date
) -> Iterator[str]:
    """Yield a sentence for each exception in force that no finding matches.

    :param found: the findings about all classes, as (class, stack, finding).
    """
    rows = list(found)
    for index, row in enumerate(site.exceptions):
        matches = any(
            row.rule == finding.rule
            and row.concerns(name, stack)
            and (
                row.subject is None or row.subject in (finding.subject, *finding.subject.split(" "))
            )
            for name, stack, finding in rows
        )
        if not matches and row.expires >= on:
            error = _error(
                site,
                index,
                "rule",
                f'the exception for rule "{row.rule}" matches no finding',
                "take it out",
            )
            yield str(error)


def _error(site: Site, index: int, key: str, message: str, remedy: str) -> SiteError:
    line = None
    if site.file is not None:
        line = yamlsource.read(site.file, error=SiteError).line(("exceptions", index, key))
    return SiteError(message, file=site.file, line=line, remedy=remedy)

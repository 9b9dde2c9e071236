"""Checks of a class that is about to be used: its acceptances, the support of its stack, its compatibility.

A class is checked once for each view (`view.ClassView`); the compiler of documents checks none of
this again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from goldnode.catalog import models
from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.classdoc import exceptions
from goldnode.classdoc.view import ClassView, read_class
from goldnode.compat import rules
from goldnode.compat.model import CompatFinding, Workload
from goldnode.core.site import Site, acceptance
from goldnode.lock.model import Lock


def check_decisions(view: ClassView) -> None:
    """Refuse an acceptance, of the class or of the site for it, whose rule does not exist or that has expired.

    Raises CatalogError, and SiteError for one of the site.
    """
    stack, on = view.stack, view.stack.on
    exceptions.check_accepted(view.entry, stack.entry.file, on)
    exceptions.check_exceptions(view.site, view.entry.name, stack.entry.name, on)
    decisions = exceptions.TierDecisions(view.entry, stack.entry, view.site)
    exceptions.check_tier(decisions, on)


def check_support(view: ClassView) -> None:
    """Refuse a class whose stack is past its end of life without a valid waiver. Raises CatalogError.

    Simulated classes need no waiver: they demonstrate goldnode, and no workload depends on their
    stack. An exception of the site lets a class use its stack too.
    """
    name, stack, on = view.entry.name, view.stack.entry.item, view.stack.on
    support = rules.support(
        stack.stack,
        ended=stack.end_of_life.date,
        source=stack.end_of_life.source,
        waiver=view.host.waiver,
        node_class=name,
        on=on,
    )
    if support is None or support.state == "waived" or view.entry.item.simulated:
        return
    if any(row.rule == "end-of-life" for row in view.exceptions):
        return
    remedy = f"{support.remedy}, or {acceptance('end-of-life', f'class {name}')}"
    if support.state == "expired":
        raise view.stack.entry.error(
            f'{support.message}; class "{name}" uses it', "waiver", "expires", remedy=remedy
        )
    raise view.entry.error(support.message, "stack", remedy=remedy)


def check_use(view: ClassView) -> None:
    """Refuse a class that must not be used on the day of its view. Raises as the two checks of which this consists."""
    check_decisions(view)
    check_support(view)


def findings_of(view: ClassView) -> list[CompatFinding]:
    """Return the findings about a class with its images and requirements; see `compat.check.check`.

    Raises as `check_decisions`, and WorkloadError for an unreadable image or file.
    """
    from goldnode.compat.check import check  # loads all rules: a class document alone needs none

    check_decisions(view)
    return check(view.host, workloads_of_class(view.entry, view.host.architecture))


def findings_of_class(
    name: str, catalog: Catalog, site: Site, lock: Lock | None = None, *, on: dt.date | None = None
) -> list[CompatFinding]:
    """Return the findings about class `name`; see `findings_of`."""
    return findings_of(read_class(name, catalog, site, lock, on=on))


def findings_of_cohort(
    cohort: str, classes: Sequence[str], catalog: Catalog, site: Site
) -> list[CompatFinding]:
    """Return the findings about nodes of these classes in one cohort; see `rules_host.check_cohorts`.

    Raises GoldnodeError.
    """
    from goldnode.compat import rules_host
    from goldnode.compat.check import settle

    views = [read_class(name, catalog, site) for name in classes]
    loads = {
        view.host.subject: workloads_of_class(view.entry, view.host.architecture) for view in views
    }
    hosts = [dataclasses.replace(view.host, cohort=cohort) for view in views]
    return settle(rules_host.check_cohorts(hosts, loads), None)


def workloads_of_class(entry: CatalogEntry[models.NodeClass], architecture: str) -> list[Workload]:
    """Return the workloads that the class declares, on `architecture`. Raises WorkloadError."""
    if not entry.item.images and not entry.item.requirements:
        return []
    from goldnode.compat import workloads  # reads requirements and image metadata; few classes do

    return workloads.of_class(entry, architecture)

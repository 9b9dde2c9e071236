"""Options and facts that the steps of a vulnerability share."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.cve import sources as given
from goldnode.commands.cve.sources import CveSources
from goldnode.core.errors import GoldnodeError

if TYPE_CHECKING:
    from goldnode.catalog.load import Catalog
    from goldnode.core.site import Site
    from goldnode.cve.lane import LaneFacts
    from goldnode.cve.match import Matcher

WRITE = click.option(
    "--write", is_flag=True, help="Do it. Without it, only show what would be done."
)
CVE_NAME = click.argument("name", metavar="CVE")
CLASSES = click.option(
    "-c", "--class", "classes", multiple=True, metavar="CLASS", help="Class. Repeatable."
)
INVENTORY = click.option(
    "-i",
    "--inventory",
    metavar="PATH",
    help="Inventory whose variable goldnode_owner names the owners of nodes.",
)
PUBLISHED = click.option(
    "--published",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"]),
    metavar="TIME",
    help="When the vulnerability was published (UTC): it is recorded, and hours run from it.",
)


@dataclass(frozen=True)
class JudgedVulnerability:
    """State of one vulnerability, and its sources."""

    facts: LaneFacts
    catalog: Catalog
    site: Site
    matcher: Matcher


def judged(
    name: str, sources: CveSources, data: Path | None, inventory: str | None = None
) -> JudgedVulnerability:
    """Return the state of a vulnerability. Raises GoldnodeError."""
    from goldnode.classdoc import mitigations
    from goldnode.classdoc.cache import ClassDocuments
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.cve.lane import LaneFacts
    from goldnode.cve.match import Matcher
    from goldnode.cve.match import inventory as listed
    from goldnode.cve.prepare import PrepareRequest, missing
    from goldnode.cve.record import CveRecord
    from goldnode.cve.report import CveQuestion, build

    name = checked(name)
    now = dt.datetime.now(dt.UTC)
    site = load_site()
    catalog = load_catalog()
    row = next((row for row in mitigations.load(site) if row.cve == name), None)
    modules = given.kernel_names([*sources.modules, *(row.modules if row is not None else ())])
    carriers = given.carriers_of(site)
    nodes = [] if sources.no_nodes else given.nodes_of_fleet(data or site.fleet_data(), now)
    feeds = given.feeds_of(sources, carriers, nodes, now.date())
    matcher = Matcher(feeds, {name}, modules)
    report = build(CveQuestion((name,), now), listed(carriers, nodes, modules), matcher, nodes)
    facts = LaneFacts(
        name,
        entry=next(report.entries(), None),
        report=report,
        nodes=nodes,
        stacks={one: entry.item.stack for one, entry in catalog.classes.items()},
        mitigation=row,
        record=CveRecord(site, name),
        digest=lambda class_: str(ClassDocuments().document(class_).get("digest", "")),
        missing=lambda class_: missing(
            PrepareRequest(name, class_, catalog, site, matcher=matcher, at=now)
        ),
        at=now,
        owners=owners(inventory),
        modules=tuple(sorted(modules)),
    )
    return JudgedVulnerability(facts, catalog, site, matcher)


def checked(name: str) -> str:
    """Return the name of a CVE in capitals. Raises click.UsageError for anything else: it names a folder."""
    from goldnode.cve.claims import CVE

    if not CVE.fullmatch(name.upper()):
        raise click.UsageError(f'"{name}" is no CVE; write it as CVE-2026-31431')
    return name.upper()


def owners(inventory: str | None) -> dict[str, str]:
    """Return node -> owner by the variables of an inventory. Raises GoldnodeError."""
    if inventory is None:
        return {}
    from goldnode.inventory.listing import listed
    from goldnode.inventory.selection import check_inventory
    from goldnode.inventory.variables import OWNER

    check_inventory(inventory)
    variables = listed(inventory).get("_meta", {}).get("hostvars", {})
    return {host: str(row[OWNER]) for host, row in variables.items() if row.get(OWNER)}


def require_classes(read: JudgedVulnerability, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the classes that are named. Raises GoldnodeError for an unknown one or none."""
    if not classes:
        raise click.UsageError("name a class with --class")
    for name in classes:
        read.catalog.node_class(name)
    return classes


def record_published(read: JudgedVulnerability, published: dt.datetime | None, by: str) -> None:
    """Record when the vulnerability was published."""
    from goldnode.cve.record import event, moment

    if published is None:
        return
    at = published.replace(tzinfo=dt.UTC)
    if at > read.facts.at:
        raise GoldnodeError(
            f"{moment(at)} is in the future", remedy="correct --published, which is in UTC"
        )
    read.facts.record.add(event(read.facts.at, by, "published", "proved", moment(at)))

"""Data that the commands of `goldnode cve` judge by: options, feeds, carriers and nodes."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.options import grouped
from goldnode.core import extras
from goldnode.core.errors import GoldnodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from goldnode.core.site import Site
    from goldnode.cve.feeds import Feed
    from goldnode.cve.nodes import NodeFacts
    from goldnode.cve.subjects import Carriers


@dataclass(frozen=True)
class CveSources:
    """Options about the data of a judgement."""

    feeds: tuple[str, ...]
    fetch: bool
    max_age: int | None
    modules: tuple[str, ...]
    no_nodes: bool


SOURCES = grouped(
    "sources",
    CveSources,
    click.option(
        "--feed",
        "feeds",
        multiple=True,
        metavar="KIND=FILE|URL[@DATE]",
        help="Vulnerability data, with their date: KIND is debian (the security tracker's JSON), osv, oval or csaf. "
        "Repeatable.",
    ),
    click.option(
        "--fetch",
        is_flag=True,
        help="Fetch the URLs. Without it, what was fetched last is used.",
    ),
    click.option(
        "--max-age",
        type=click.IntRange(min=0),
        metavar="DAYS",
        help="Refuse data of --feed that are older.",
    ),
    click.option(
        "--module",
        "modules",
        multiple=True,
        metavar="NAME",
        help="Kernel module with the vulnerable code: nodes that have not loaded it are named. Only for one CVE. "
        "Repeatable.",
    ),
    click.option("--no-nodes", is_flag=True, help="Read no captures of the fleet."),
)


def feeds_of(
    sources: CveSources, carriers: Carriers, nodes: Sequence[NodeFacts], today: dt.date
) -> list[Feed]:
    """Return the data that are named, and the facts. Raises GoldnodeError for data that are too old."""
    from goldnode.cve.feeds import FeedRequest, load_feeds

    systems = {subject.system for subject in carriers.subjects} | {node.system for node in nodes}
    request = FeedRequest({system for system in systems if system is not None}, fetch=sources.fetch)
    feeds = load_feeds(sources.feeds, request)
    for feed in feeds[:-1]:
        age = feed.age(today)
        if sources.max_age is not None and (age is None or age > sources.max_age):
            raise GoldnodeError(
                f"{feed.line(today)}; --max-age permits {sources.max_age}",
                remedy="get newer data; for a URL, add --fetch",
            )
    return feeds


def kernel_names(modules: Sequence[str]) -> frozenset[str]:
    """Return modules as the kernel names them, with underscores: modprobe takes both."""
    return frozenset(name.replace("-", "_") for name in modules)


def carriers_of(site: Site) -> Carriers:
    """Return the locks, disks and images of a site, and the derived images and channels of its stores."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.cve import subjects
    from goldnode.disks.model import builds, store_directory
    from goldnode.disks.places import ChannelStore
    from goldnode.images.matrix import load_matrix
    from goldnode.images.store import DEFAULT, VARIABLE, open_store

    catalog = load_catalog()
    carriers = subjects.Carriers()
    for subject in subjects.stacks(catalog, site):
        carriers.add(subject)
    for subject in subjects.disks(catalog, builds(store_directory())):
        carriers.add(subject)
    # Opening a store creates it.
    store = open_store() if DEFAULT.is_dir() or os.environ.get(VARIABLE) else None
    matrix = load_matrix()
    for subject in subjects.images(matrix, store):
        carriers.add(subject)
    for subject in subjects.disk_channels(catalog, ChannelStore(store_directory()), carriers):
        carriers.add(subject)
    for subject in subjects.image_channels(matrix, store) if store is not None else ():
        carriers.add(subject)
    return carriers


def nodes_of_fleet(directory: Path, now: dt.datetime) -> list[NodeFacts]:
    if not directory.is_dir():
        click.echo(f"no captures in {directory}: nodes are not judged", err=True)
        return []
    extras.require("report")
    from goldnode.cve.nodes import nodes_of

    return nodes_of(directory, now)

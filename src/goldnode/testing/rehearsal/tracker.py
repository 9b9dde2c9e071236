"""Data in the format of the security tracker of Debian, made from the changelogs of packages and labelled so."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from goldnode.catalog.load import Catalog
from goldnode.commands.lock_notes import ArchiveFiles
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site
from goldnode.evidence.changelogs import ChangelogEntry, SourceChange, notes_of
from goldnode.evidence.sources import source_of_path
from goldnode.lock.model import load_lock

URGENCY = "high"  # a changelog has none for each vulnerability


def tracker(releases: Iterable[tuple[str, str, Iterable[ChangelogEntry]]]) -> str:
    """Return JSON from changelogs: (codename, source package, entries), the newest entry first.

    Each vulnerability is fixed in the first version that names it. The tracker has not judged it, and each
    description states that.
    """
    sources: dict[str, dict[str, Any]] = {}
    for codename, source, entries in releases:
        newest = ""
        for entry in entries:
            newest = newest or entry.version
            for cve in entry.cves:
                label = f"made from the changelog of {source} {newest}, not by the tracker"
                row = sources.setdefault(source, {}).setdefault(
                    cve, {"description": label, "scope": "local", "releases": {}}
                )
                fixed = {"status": "resolved", "fixed_version": entry.version, "urgency": URGENCY}
                # From the newest to the oldest: the version that fixed it first is written last.
                row["releases"][codename] = fixed
    return json.dumps(sources)


def kernel_changelog(path: Path, catalog: Catalog, site: Site) -> tuple[ChangelogEntry, ...]:
    """Return the changelog of the kernel of a lock, from the smallest package of its source. Raises GoldnodeError."""
    lock = load_lock(path)
    rows = [
        row
        for row in lock.packages
        if source_of_path(row.path, row.name, row.version)[0].startswith("linux")
        and "kbuild" in row.name
    ]
    if not rows:
        raise GoldnodeError("this lock has no package with the kernel's changelog", file=path)
    package = rows[0]
    deb = ArchiveFiles(catalog, site).file(lock, package)
    if isinstance(deb, str):
        raise GoldnodeError(f"{package.name} cannot be fetched: {deb}", file=path)
    # Every entry is above version 0.
    change = SourceChange("linux", (), "0", package.version, back=False, files=(package,))
    notes = notes_of(change, deb)
    if notes is None:
        raise GoldnodeError(f"{package.name} has no changelog", file=deb)
    return notes.entries

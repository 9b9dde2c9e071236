"""Updates of the compatibility facts: publish them, and install one that was verified.

`channels.updates` signs and verifies. This module knows what a set of facts is: all files of facts/, which the
models of this version accept. An installed update is a directory beside the site file::

    facts-update/
      update.json     the update in force (facts.host.InstalledUpdate)
      7/              its facts files
      metadata/       the newest metadata that was seen, so that nothing older is accepted
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from goldnode.channels import updates
from goldnode.channels.keys import RepositoryKeys, signers
from goldnode.channels.updates import TARGETS
from goldnode.core.errors import FactsError
from goldnode.core.extras import require
from goldnode.core.files import replace_file
from goldnode.core.site import Site, file_to_edit
from goldnode.facts import audit, host
from goldnode.facts.host import FACTS, UPDATE, InstalledUpdate
from goldnode.facts.models import FILES
from goldnode.node.ground.text import and_more


@dataclass(frozen=True)
class Installed:
    """Result of an update: what is in force now, where, and whether that changed."""

    update: InstalledUpdate
    directory: Path
    changed: bool


ROTATE = "goldnode facts rotate"  # the command that replaces the root of a repository


def publish(
    repository: Path,
    keys: RepositoryKeys,
    *,
    directory: Path | None = None,
    days: int = updates.DAYS,
    release_days: int = updates.RELEASE_DAYS,
    bundle: Path | None = None,
) -> tuple[int, updates.RootState]:
    """Publish facts as the next release; without keys of targets, sign the present one again.

    :param directory: the facts; None: those of this version.
    :param days: until the signatures of a refresh expire, `release_days` until those of a release do.
    :param bundle: the zip archive to write as well.

    Return the version of the release and the newest root.
    Raises FactsError for facts with a fault, and UpdateError, also for a root that has expired.
    """
    require("updates")
    keys.create(repository)
    root = updates.root_state(repository, f"{ROTATE} {repository}")
    if keys.targets:
        files = _wanted(directory or FACTS)
        release = updates.next_release(repository, days=release_days)
        release.signed.targets.clear()
        for name, data in files.items():
            updates.add_file(repository, release.signed, name, data)
        updates.accept(repository, TARGETS, updates.sign(release, signers(keys.targets)))
    elif directory is not None:
        raise updates.UpdateError(
            "facts are released with the keys of targets, and none is given",
            file=repository,
            remedy="give --targets-key, or leave --facts out to refresh what is published",
        )
    updates.refresh(repository, signers(keys.online), days)
    if bundle is not None:
        updates.bundle(repository, bundle)
    present = updates.newest(repository, TARGETS)
    return present.signed.version if present else 0, root


def _wanted(directory: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in sorted(directory.glob("*.yml"))}
    if not files:
        raise FactsError(
            f"{directory} has no facts files", remedy="name a directory with facts files"
        )
    _valid(files)
    return files


def install(source: str | None = None, site: Site | None = None) -> Installed:
    """Fetch, verify and install the newest facts. Raises UpdateError or FactsError; nothing has changed then.

    :param source: the repository; None for that of the site file.
    """
    site = site if site is not None else Site.load()
    if site.facts is None:
        raise updates.UpdateError(
            "the site file does not say whose facts to trust",
            file=file_to_edit(),
            remedy="add `facts: {source: ADDRESS, root: FILE}`; FILE is the publisher's root document",
        )
    origin = source or site.facts.source
    if origin is None:
        raise updates.UpdateError(
            "no repository of updates is named",
            file=site.file,
            remedy="give --from, or write `facts.source`",
        )
    if source is None and not origin.startswith(("http://", "https://")):
        origin = str(site.resolve(origin.removeprefix("file://")))
    directory = site.resolve(site.facts.directory)
    release = updates.fetch(
        origin, site.resolve(site.facts.root), directory / "metadata", sorted(FILES)
    )
    _valid(release.files)
    compiled = max(str(yaml.safe_load(data)["meta"]["compiled"]) for data in release.files.values())
    if compiled < str(host.built_in()):
        raise updates.UpdateError(
            f"the newest facts of {origin} are of {compiled}, and this version of goldnode has those of {host.built_in()}",
            remedy="the built-in facts stay in force; ask the publisher for newer ones",
        )
    folder = f"{release.version}"
    update = InstalledUpdate(
        version=release.version,
        source=origin,
        compiled=compiled,
        fetched=dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        expires=release.expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        folder=folder,
    )
    place, known = directory / folder, _present(directory)
    same = known is not None and known.version == update.version and _files(place) == release.files
    if not same:
        shutil.rmtree(place, ignore_errors=True)
        for name, data in release.files.items():
            replace_file(place / name, data)
    # Last: readers follow this file, so they see the earlier facts or the new ones, and no mixture.
    replace_file(directory / UPDATE, (json.dumps(asdict(update), indent=1) + "\n").encode())
    for old in directory.iterdir():
        if old.is_dir() and old.name.isdigit() and old.name != folder:
            shutil.rmtree(old, ignore_errors=True)
    return Installed(update, directory, not same)


def _present(directory: Path) -> InstalledUpdate | None:
    try:
        return InstalledUpdate(**json.loads((directory / UPDATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.yml")}


def _valid(files: Mapping[str, bytes]) -> None:
    """Raise FactsError unless this version can use the facts: forms, and the rules between files."""
    with tempfile.TemporaryDirectory(prefix="goldnode-facts-") as name:
        # An update may have some of the files; the rules between files need the others too.
        for path in FACTS.glob("*.yml"):
            shutil.copy(path, name)
        for file, data in files.items():
            Path(name, file).write_bytes(data)
        faults = audit.faults(Path(name))
    if faults:
        first = faults[0]
        more = and_more(len(faults) - 1, " ({} more)")
        raise FactsError(
            f"these facts cannot be used by this version of goldnode: {first.message}{more}",
            file=Path(first.file),
            line=first.line or None,
            remedy="use the version of goldnode that they are for, or correct them",
        )

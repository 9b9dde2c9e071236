"""Loader for catalogs: goldnode's own directory and those that a user names form one namespace.

A catalog directory holds `archives.yml` and the folders `stacks`, `platforms` and `classes` with one file per
name. Every error has a file and line. A name defined in two files is refused; the error names both.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from goldnode.catalog import models
from goldnode.core import yamlsource
from goldnode.core.data import data
from goldnode.core.errors import CatalogError, GoldnodeError, nearest
from goldnode.core.site import load_site
from goldnode.core.yamlsource import YamlSource

Item = TypeVar("Item", bound=models.Strict)

LOCK_SUFFIX = ".lock.yml"
MODULES_SUFFIX = ".modules.yml"
FOLDERS = ("stacks", "platforms", "classes")


@dataclass(frozen=True)
class CatalogEntry(Generic[Item]):
    """One named item of the catalog, with its file and the lines of its keys."""

    name: str
    item: Item
    source: YamlSource

    @property
    def file(self) -> Path:
        """The file that defines the item."""
        return self.source.file

    def error(self, message: str, *path: str | int, remedy: str | None = None) -> CatalogError:
        """Return an error about the value at `path` of this file."""
        return CatalogError(message, file=self.file, line=self.source.line(path), remedy=remedy)


@dataclass
class Catalog:
    """All stacks, platforms, classes and archives, by name."""

    directories: tuple[Path, ...]
    archives: dict[str, CatalogEntry[models.Archive]] = field(default_factory=dict)
    stacks: dict[str, CatalogEntry[models.Stack]] = field(default_factory=dict)
    platforms: dict[str, CatalogEntry[models.Platform]] = field(default_factory=dict)
    classes: dict[str, CatalogEntry[models.NodeClass]] = field(default_factory=dict)

    def stack(self, name: str) -> CatalogEntry[models.Stack]:
        """Return a stack. Raises CatalogError with the nearest valid spelling."""
        return _named("stack", name, self.stacks)

    def node_class(self, name: str) -> CatalogEntry[models.NodeClass]:
        """Return a node class. Raises CatalogError with the nearest valid spelling."""
        return _named("class", name, self.classes)


def builtin_catalog() -> Path:
    """Return goldnode's own catalog directory."""
    return data("catalog")


def catalog_directories() -> list[Path]:
    """Return goldnode's own catalog and those of $GOLDNODE_CATALOG.

    Raises CatalogError for a missing directory.
    """
    own = builtin_catalog()
    found = [own] if own.is_dir() else []
    for part in os.environ.get("GOLDNODE_CATALOG", "").split(os.pathsep):
        path = Path(part).expanduser()
        if not part or path.resolve() in [item.resolve() for item in found]:
            continue
        if not path.is_dir():
            raise CatalogError(
                f"GOLDNODE_CATALOG names {path}, which is not a directory", remedy="correct the variable"
            )
        _check_folders(path, "GOLDNODE_CATALOG")
        found.append(path)
    if not found:
        raise CatalogError(
            f"there is no catalog: {own} is missing", remedy="install goldnode again, or set GOLDNODE_CATALOG"
        )
    return found


def site_catalog(known: Sequence[Path]) -> list[Path]:
    """Return the catalog directory that the site file names, unless it is one of `known`.

    Raises CatalogError for a directory that is no catalog, and SiteError for the site file.
    """
    site = load_site()
    path = site.catalog_directory()
    if path is None or path.resolve() in [item.resolve() for item in known]:
        return []
    _check_folders(path, f"`catalog` in {site.file}")
    return [path]


def _check_folders(path: Path, named_by: str) -> None:
    """Refuse a directory that is not a catalog or has a misspelt folder.

    It would be read as an empty catalog.
    """
    there = [item.name for item in path.iterdir() if item.is_dir()]
    for name in there:
        close = difflib.get_close_matches(name.casefold(), FOLDERS, n=1, cutoff=0.8)
        if name not in FOLDERS and close and close[0] not in there:
            raise CatalogError(
                f"{path / name} of a catalog of {named_by} is read by nobody",
                remedy=f'call it "{close[0]}"',
            )
    if not set(there) & set(FOLDERS) and not (path / "archives.yml").is_file():
        raise CatalogError(
            f"{named_by} names {path}, which has none of {', '.join(f'{name}/' for name in FOLDERS)}",
            remedy="name the directory that holds them, or make them",
        )


def read_catalog(directories: Sequence[Path] | None, faults: Faults) -> Catalog:
    """Read the catalog in `directories`, or the one that environment and site file name, without judging it.

    Date-dependent checks (end of life, waivers) run when a class is used: see `checks.check_use`. Raises
    CatalogError for the first fault. If `faults` is given, the first fault of each file is appended to it
    instead, and the returned catalog lacks the items with faults.
    """
    if directories is None:
        directories = catalog_directories()
        with faults.of(("site", None)):
            directories += site_catalog(directories)
    places = tuple(directories)
    catalog = Catalog(places)
    for place in places:
        with faults.of(("archives", None)):
            _read_archives(place, catalog.archives)
        _read_folder(place / "stacks", models.Stack, "stack", catalog.stacks, faults)
        _read_folder(place / "platforms", models.Platform, "platform", catalog.platforms, faults)
        _read_folder(place / "classes", models.NodeClass, "class", catalog.classes, faults)
    return catalog


class Faults:
    """Fault handler: raise errors, or collect them and drop the item with the fault from the catalog."""

    def __init__(self, faults: list[GoldnodeError] | None) -> None:
        self.faults = faults
        self.broken: set[tuple[str, str | None]] = set()

    @contextmanager
    def of(
        self, what: tuple[str, str | None], where: dict[str, CatalogEntry[Item]] | None = None
    ) -> Iterator[None]:
        """Collect errors of the item `what` (kind, name), which is in `where`."""
        try:
            yield
        except GoldnodeError as error:
            if self.faults is None:
                raise
            self.faults.append(error)
            self.broken.add(what)
            if where is not None:
                where.pop(str(what[1]), None)


def _read_archives(place: Path, into: dict[str, CatalogEntry[models.Archive]]) -> None:
    path = place / "archives.yml"
    if not path.is_file():
        return
    source = yamlsource.read(path)
    for name, archive in yamlsource.validate(models.Archives, source).archives.items():
        if name in into:
            other = into[name]
            raise CatalogError(
                f'archive "{name}" is defined twice, also in '
                f"{other.file}:{other.source.line(('archives', name))}",
                file=path,
                line=source.line(("archives", name)),
                remedy="rename or remove one of them",
            )
        into[name] = CatalogEntry(name, archive, source)


def _read_folder(
    folder: Path, model: type[Item], key: str, into: dict[str, CatalogEntry[Item]], keep: Faults
) -> None:
    for path in _files(folder):
        with keep.of((key, path.stem)):
            _read_one(path, model, key, into)


def _read_one(path: Path, model: type[Item], key: str, into: dict[str, CatalogEntry[Item]]) -> None:
    source = yamlsource.read(path)
    item = yamlsource.validate(model, source)
    name = source.data[key]
    entry = CatalogEntry(name, item, source)
    if name in into:
        other = into[name]
        raise entry.error(
            f'{key} "{name}" is defined twice, also in {other.file}:{other.source.line((key,))}',
            key,
            remedy="rename or remove one of them",
        )
    if path.stem != name:
        raise entry.error(
            f'the file is called {path.name} but defines {key} "{name}"',
            key,
            remedy=f"call it {name}.yml or write `{key}: {path.stem}`",
        )
    into[name] = entry


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            # Locks and records of modules are stored next to their stacks.
            if path.suffix in (".yml", ".yaml") and not path.name.endswith((LOCK_SUFFIX, MODULES_SUFFIX)):
                yield path


def _named(kind: str, name: str, known: dict[str, CatalogEntry[Item]]) -> CatalogEntry[Item]:
    if name not in known:
        raise CatalogError(f'{kind} "{name}" is not in the catalog', remedy=nearest(name, known))
    return known[name]

"""Loader for catalogs: goldnode's own directory and those that a user names form one namespace.

A catalog directory holds `archives.yml` and the folders `stacks`, `platforms` and `classes` with
one file per name. Every error has a file and line. A name defined in two files is refused; the
error names both.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, TypeVar

from goldnode.catalog import models
from goldnode.core import parsed_files, yamlsource
from goldnode.core.data import data
from goldnode.core.dataclass import dataclass
from goldnode.core.errors import CatalogError, GoldnodeError, nearest
from goldnode.core.site import load_site
from goldnode.core.yamlsource import YamlSource
from goldnode.node.ground.optional import group

Item = TypeVar("Item", bound=models.Strict)

LOCK_SUFFIX = ".lock.yml"
MODULES_SUFFIX = ".modules.yml"
FOLDERS = ("stacks", "platforms", "classes", "facts")

# A kind and a name; the archives of all catalogs together have no name.
Key = tuple[str, str | None]


@dataclass(frozen=True)
class CatalogEntry(Generic[Item]):
    """One named item of the catalog, with its file and the lines of its keys."""

    name: str
    item: Item
    source: YamlSource

    @property
    def file(self) -> Path:
        """Return the file that defines the item."""
        return self.source.file

    def lines(self, paths: Mapping[str, tuple[str | int, ...]]) -> dict[str, int]:
        """Return the line of each of these paths that the file states, by the name of the path."""
        known = self.source.key_lines
        return {name: known[path] for name, path in paths.items() if path in known}

    def error(self, message: str, *path: str | int, remedy: str | None = None) -> CatalogError:
        """Return an error about the value at `path` of this file."""
        return CatalogError(message, file=self.file, line=self.source.line(path), remedy=remedy)


@dataclasses.dataclass
class Catalog:
    """All stacks, platforms, classes and archives, by name.

    `broken` has the error of each item that cannot be used, which is in none of the tables.
    """

    directories: tuple[Path, ...]
    archives: dict[str, CatalogEntry[models.Archive]] = field(default_factory=dict)
    stacks: dict[str, CatalogEntry[models.Stack]] = field(default_factory=dict)
    platforms: dict[str, CatalogEntry[models.Platform]] = field(default_factory=dict)
    classes: dict[str, CatalogEntry[models.NodeClass]] = field(default_factory=dict)
    broken: dict[Key, GoldnodeError] = field(default_factory=dict)

    def stack(self, name: str) -> CatalogEntry[models.Stack]:
        """Return a stack. Raises its own error if it is broken, or CatalogError with the nearest spelling."""
        return self._named("stack", name, self.stacks)

    def node_class(self, name: str) -> CatalogEntry[models.NodeClass]:
        """Return a node class. Raises its own error if it is broken, or CatalogError with the nearest spelling."""
        return self._named("class", name, self.classes)

    def class_names(self) -> list[str]:
        """Return the names of all classes, of the broken ones too: their hosts are not without a class."""
        return sorted(
            {*self.classes, *(str(name) for kind, name in self.broken if kind == "class")}
        )

    def classes_of_site(self) -> list[str]:
        """Return the names of the classes that a site declares, broken ones too: all but those in goldnode's own catalog."""
        files = {name: entry.file for name, entry in self.classes.items()}
        for (kind, name), fault in self.broken.items():
            if kind == "class" and fault.file:
                files[str(name)] = Path(fault.file)
        return sorted(
            name for name, file in files.items() if not file.is_relative_to(builtin_catalog())
        )

    def whole(self) -> Catalog:
        """Return the catalog. Raises the error of a broken item, for work that must not miss one (`gc`)."""
        for error in self.broken.values():
            raise error
        return self

    def remove(self, what: Key, error: GoldnodeError) -> None:
        """Take a broken item out of its table and record its error."""
        self.broken.setdefault(what, error)
        self.tables().get(what[0], {}).pop(str(what[1]), None)

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables of the items that have a file each, by kind."""
        return {"stack": self.stacks, "platform": self.platforms, "class": self.classes}

    def _named(
        self, kind: str, name: str, known: dict[str, CatalogEntry[Item]]
    ) -> CatalogEntry[Item]:
        if (kind, name) in self.broken:
            raise self.broken[kind, name]
        if name not in known:
            folder = {"stack": "stacks", "platform": "platforms", "class": "classes"}[kind]
            raise CatalogError(
                f'{kind} "{name}" is not in the catalog',
                remedy=(
                    nearest(name, known) or f"declare it in {folder}/{name}.yml of your catalog"
                ),
            )
        return known[name]


def builtin_catalog() -> Path:
    """Return goldnode's own catalog directory."""
    return data("catalog")


def catalog_directories() -> list[Path]:
    """Return goldnode's own catalog and those of $GOLDNODE_CATALOG.

    Raises CatalogError for a missing directory.
    """
    own = builtin_catalog()
    directories = [own] if own.is_dir() else []
    for part in os.environ.get("GOLDNODE_CATALOG", "").split(os.pathsep):
        path = Path(part).expanduser()
        # A directory that is read twice would define each of its names twice.
        if not part or path.resolve() in [item.resolve() for item in directories]:
            continue
        if not path.is_dir():
            raise CatalogError(
                f"GOLDNODE_CATALOG names {path}, which is not a directory",
                remedy="correct the variable",
            )
        _check_folders(path, "GOLDNODE_CATALOG")
        directories.append(path)
    if not directories:
        raise CatalogError(
            f"there is no catalog: {own} is missing",
            remedy="install goldnode again, or set GOLDNODE_CATALOG",
        )
    return directories


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
                f"{path / name} of a catalog of {named_by} is never read",
                remedy=f'call it "{close[0]}"',
            )
    if not set(there) & set(FOLDERS) and not (path / "archives.yml").is_file():
        raise CatalogError(
            f"{named_by} names {path}, which has none of {', '.join(f'{name}/' for name in FOLDERS)}",
            remedy="name the directory that holds them, or make them",
        )


def read_catalog(directories: Sequence[Path] | None, faults: list[GoldnodeError] | None) -> Catalog:
    """Read the catalog in `directories`, or the one that environment and site file name, without judging it.

    Date-dependent checks (end of life, waivers) run when a class is used: see `findings.check_use`.
    Raises CatalogError for the first fault. If `faults` is given, the first fault of each file is
    appended to it instead, and the catalog has the items with faults in `broken`.
    """
    catalog = Catalog(tuple(directories if directories is not None else catalog_directories()))
    if directories is None:
        with collected(catalog, ("site", None), faults):
            catalog.directories += tuple(site_catalog(catalog.directories))
    for place in catalog.directories:
        with collected(catalog, ("archives", None), faults):
            _read_archives(place, catalog.archives)
        _read_folder(place / "stacks", models.Stack, "stack", catalog.stacks, (catalog, faults))
        _read_folder(
            place / "platforms", models.Platform, "platform", catalog.platforms, (catalog, faults)
        )
        _read_folder(
            place / "classes", models.NodeClass, "class", catalog.classes, (catalog, faults)
        )
    parsed_files.save()
    for what, fault in list(catalog.broken.items()):
        catalog.remove(
            what, fault
        )  # also the first of two definitions: which one counts is not known
    for (kind, _), fault in list(catalog.broken.items()):
        # Who asks for the name in the file is to get the fault of the file, not the name of another
        # item.
        name = _defined_name(kind, fault)
        if name is not None and name not in catalog.tables()[kind]:
            catalog.broken.setdefault((kind, name), fault)
    return catalog


def _defined_name(kind: str, fault: GoldnodeError) -> str | None:
    """Return the name that a broken file gives to its item, whatever the file is called; None if it has none."""
    if kind not in Catalog(()).tables() or fault.file is None:
        return None
    try:
        text = Path(fault.file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The file may be no YAML at all: search for the key as text.
    return group(re.search(rf"(?m)^{kind}:[ \t]*[\"']?([\w.-]+)", text))


@contextmanager
def collected(catalog: Catalog, what: Key, faults: list[GoldnodeError] | None) -> Iterator[None]:
    """Append the error of the item `what` to `faults` and remove the item; raise it if `faults` is None."""
    try:
        yield
    except GoldnodeError as error:
        if faults is None:
            raise
        faults.append(error)
        catalog.remove(what, error)


def _read_archives(place: Path, into: dict[str, CatalogEntry[models.Archive]]) -> None:
    path = place / "archives.yml"
    if not path.is_file():
        return
    archives, source = yamlsource.load(models.Archives, path)
    for name, archive in archives.archives.items():
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
    folder: Path,
    model: type[Item],
    key: str,
    into: dict[str, CatalogEntry[Item]],
    keep: tuple[Catalog, list[GoldnodeError] | None],
) -> None:
    for path in _files(folder):
        with collected(keep[0], (key, path.stem), keep[1]):
            _read_one(path, model, key, into)


def _read_one(path: Path, model: type[Item], key: str, into: dict[str, CatalogEntry[Item]]) -> None:
    item, source = yamlsource.load(model, path)
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
            if path.suffix in (".yml", ".yaml") and not path.name.endswith(
                (LOCK_SUFFIX, MODULES_SUFFIX)
            ):
                yield path

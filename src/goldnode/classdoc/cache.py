"""Cache of class documents for Ansible runs, valid while all inputs are unchanged.

Compiling a class and checking that it is compatible costs a run half a second, nearly all of it
imports. Usually nothing has changed since the last run. A cached result records the state (size,
mtime, inode, or absence) of every file that it can depend on. These are the catalogs, the facts,
goldnode's own sources, the site file with its keys and locks, this machine's apt sources, and the
inventory. Any difference invalidates the result. So does another day, because ends of life and
waivers have dates. Each environment has its own cache file. Errors are never cached.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.core.data import PACKAGE, data
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import cache_directory
from goldnode.core.program_file import binding_file, payload

if TYPE_CHECKING:
    from goldnode.catalog.load import Catalog
    from goldnode.classdoc.view import ClassView
    from goldnode.compat.model import CompatFinding
    from goldnode.core.site import Site

# Read by `goldnode.site`, in addition to the site file: the addresses in this machine's apt
# sources.
MACHINE = ("/etc/os-release", "/etc/apt", "/var/lib/apt/lists")
FILES = 20  # cached results: one file per environment

Json = dict[str, Any]


def directory() -> Path:
    """Return the cache directory."""
    return cache_directory() / "classes"


def today() -> str:
    """Return the current date, local and in UTC: different checks use either."""
    return f"{dt.datetime.now().astimezone().date()} {dt.datetime.now(dt.UTC).date()}"


def state(places: Iterable[str]) -> str:
    """Return a digest of the mode, size, mtime and inode of every file at or below `places`, in order.

    A missing path counts as missing. Hidden directories are skipped: neither a catalog nor an
    inventory is read from one.
    """
    rows: list[tuple[str, ...]] = []
    for place in places:
        rows.append(_row(place))
        for where, folders, files in os.walk(place):
            folders[:] = sorted(
                name for name in folders if not name.startswith((".", "__pycache__"))
            )
            rows += [_row(f"{where}/{name}") for name in (*folders, *sorted(files))]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def _row(path: str) -> tuple[str, ...]:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for several hundred files in each run
    except OSError as problem:
        return (path, str(problem.errno))
    return (
        path,
        str(status.st_mode),
        str(status.st_size),
        str(status.st_mtime_ns),
        # A file that is replaced within one tick of the clock, with the same size, differs in this.
        str(status.st_ino),
    )


def controller(site: Site) -> Json:
    """Return ``{deny_list, fleet_data, program}``: where the deny list and the data of the fleet are, each empty
    without one, and the digest of the program for nodes. It takes longer to pack than the rest of a run.
    """
    place = site.deny_list()
    return {
        "deny_list": asdict(place) if place is not None else {},
        "fleet_data": str(site.declared_fleet_data() or ""),
        "program": payload(content=False)["sha256"],
    }


class ClassDocuments:
    """The class documents of one run, from the cache where it is valid. `compiler` creates the others."""

    def __init__(self, compiler: Callable[[], Compiler] | None = None) -> None:
        self._make = compiler or Compiler
        self._compiler: Compiler | None = None
        self._checked: set[str] = set()
        self._unusable: dict[str, Json] = {}
        self._first = [
            str(PACKAGE),
            str(data("catalog")),
            *MACHINE,
            "goldnode-site.yml",
            "/etc/goldnode/site.yml",
        ]
        self._first += [
            part
            for name in ("GOLDNODE_CATALOG", "GOLDNODE_SITE", "GOLDNODE_LOCKS")
            for part in _parts(name)
        ]
        environment = {
            name: value for name, value in os.environ.items() if name.startswith("GOLDNODE_")
        }
        # Results differ between environments, so each environment has its own cache file.
        self._circumstances = [sys.version, str(Path.cwd()), sorted(environment.items())]
        key = hashlib.sha256(repr(self._circumstances).encode()).hexdigest()
        self._file = directory() / f"{key}.json"
        self._day = today()
        # Taken before anything is read: the next run detects a change that happens in between.
        self._before = state(self._first)
        self._cached = self._read()

    def check(self, inventories: Iterable[str]) -> None:
        """Refuse a host in two classes in these inventory sources.

        Raises GoldnodeError. Each source is checked once.
        """
        for source in inventories:
            if source in self._checked or not Path(source).exists():
                continue
            self._checked.add(source)
            seen = state([source])
            if self._cached["inventories"].get(source) != seen:
                self._compiled().check(source)
                self._keep("inventories", source, seen)

    def names(self) -> list[str]:
        """Return the names of all classes, also of those whose files have errors. Raises GoldnodeError."""
        return list(self._of_catalog("classes"))

    def faults(self) -> list[str]:
        """Return the errors of the catalog's files, one line each. What depends on them has no document.

        Raises GoldnodeError.
        """
        return list(self._of_catalog("faults"))

    def controller(self) -> Json:
        """Return what a run needs of this machine, without a class: see :func:`controller`. Raises GoldnodeError.

        A removal asks too, and its class may have left the catalog. So without a valid cache, the
        catalog is not read.
        """
        if "made_from" in self._cached:
            return dict(self._cached["controller"])
        from goldnode.core.site import load_site

        return controller(load_site())

    def return_tests(self, name: str, cause: str) -> list[str]:
        """Return the jobs that a class wants passed before a node returns after `cause`. Raises GoldnodeError.

        Those after a rollout are no part of the class document: their change changes no node, and
        no digest.
        """
        return list(self._of_catalog("return_tests").get(name, {}).get(f"after_{cause}", ()))

    def part_lines(self, name: str) -> dict[str, str]:
        """Return FILE:LINE of each part that a class or its stack declares, by `parts.NAME`. Raises GoldnodeError.

        A line is no part of the class document: a comment above it would change the digest of every node.
        """
        lines: dict[str, str] = self._of_catalog("part_lines").get(name, {})
        return lines

    def _of_catalog(self, part: str) -> Any:
        """Return a part of the cache that concerns the catalog as a whole, and not one class."""
        if "made_from" not in self._cached:
            self._compiled()
        return self._cached[part]

    def document(self, name: str) -> Json:
        """Return the class document of a class, or ``{class, error}`` if its lock is unusable.

        Raises GoldnodeError.
        """
        if name not in self._cached["documents"]:
            if name not in self._unusable:
                document = self._compiled().document(name)
                if "error" not in document:
                    # `_keep` writes the whole cache: store the messages first, so that one write
                    # covers both.
                    self._cached["messages"][name] = self._compiled().remarks(name)
                    self._keep("documents", name, document)
                    return document
                self._unusable[name] = document
            return self._unusable[name]
        cached: Json = self._cached["documents"][name]
        return cached

    def remarks(self, name: str) -> list[str]:
        """Return the compatibility findings of a class that do not block it, one line each.

        Raises GoldnodeError.
        """
        self.document(name)
        if name not in self._unusable:
            messages: list[str] = self._cached["messages"].get(name, [])
        else:
            messages = self._compiled().remarks(name)
        return messages

    def cohort(self, name: str, classes: Sequence[str]) -> Json:
        """Return the findings about nodes of these classes that train together.

        Raises GoldnodeError. The result is ``{refusals, messages}``, with entries in the form of a
        single class.
        """
        key = json.dumps([name, *classes])
        if key not in self._cached["cohorts"]:
            self._keep("cohorts", key, self._compiled().cohort(name, classes))
        verdict: Json = self._cached["cohorts"][key]
        return verdict

    def _compiled(self) -> Compiler:
        if self._compiler is None:
            self._compiler = self._make()
            if "made_from" not in self._cached:
                also = self._compiler.places()
                self._cached.update(
                    classes=self._compiler.classes(),
                    faults=self._compiler.faults(),
                    controller=self._compiler.controller(),
                    return_tests=self._compiler.return_tests(),
                    part_lines=self._compiler.part_lines(),
                    also=also,
                    made_from=[self._day, self._before, state(also)],
                )
        return self._compiler

    def _read(self) -> Json:
        empty: Json = {
            "classes": [],
            "faults": [],
            "documents": {},
            "messages": {},
            "cohorts": {},
            "inventories": {},
        }
        try:
            with self._file.open("rb") as opened:
                owner = os.fstat(opened.fileno())
                # Do not trust a cache file that another user owns or can write.
                if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
                    return empty
                cached: Json = json.load(opened)
            holds = cached["made_from"] == [self._day, self._before, state(cached["also"])]
        except (OSError, ValueError, KeyError, TypeError):
            return empty
        return cached if holds else empty

    def _keep(self, part: str, name: str, value: object) -> None:
        self._cached[part][name] = value
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self._file.parent, delete=False, encoding="utf-8"
            ) as out:
                json.dump(self._cached, out)
            # Another run reads the old file or the new one, never a half.
            Path(out.name).replace(self._file)
            for old in sorted(self._file.parent.iterdir(), key=lambda path: path.stat().st_mtime)[
                :-FILES
            ]:
                old.unlink(missing_ok=True)
        except OSError:
            return  # no cache: the next run compiles again


def _parts(name: str) -> list[str]:
    return [
        str(Path(part).expanduser()) for part in os.environ.get(name, "").split(os.pathsep) if part
    ]


class Compiler:
    """Compiler of class documents from the current catalog and site file.

    The imports take most of the time, so it is created only on a cache miss.
    """

    def __init__(self, read_inventory: Callable[[Path, Catalog], object] | None = None) -> None:
        from goldnode.classdoc.load import load_catalog
        from goldnode.core.site import load_site

        self._read_inventory = read_inventory
        self._faults: list[GoldnodeError] = []
        self.catalog, self.site = load_catalog(faults=self._faults), load_site()
        self._views: dict[str, tuple[ClassView, list[CompatFinding]]] = {}

    def classes(self) -> list[str]:
        """Return the names of all classes, also of those whose files have errors."""
        return self.catalog.class_names()

    def faults(self) -> list[str]:
        """Return the errors of the catalog's files, one line each."""
        return [str(fault) for fault in self._faults]

    def controller(self) -> Json:
        """Return what a run needs of this machine, without a class."""
        return controller(self.site)

    def return_tests(self) -> Json:
        """Return the jobs of each class that names tests before a return, by cause."""
        return {
            name: entry.item.return_tests.model_dump()
            for name, entry in self.catalog.classes.items()
            if entry.item.return_tests is not None
        }

    def part_lines(self) -> Json:
        """Return FILE:LINE of the declared parts of each class that has some: its own over those of its stack."""
        lines: Json = {}
        for name, entry in self.catalog.classes.items():
            for declared in (self.catalog.stacks[entry.item.stack], entry):
                stated = {
                    f"parts.{key}": ("parts", key) for key in declared.item.parts.model_fields_set
                }
                for key, line in declared.lines(stated).items():
                    lines.setdefault(name, {})[key] = f"{declared.file}:{line}"
        return lines

    def places(self) -> list[str]:
        """Return the files that the site file and the classes name, and the part of the program outside goldnode.

        These are keys, lock directories, the publication records of the mirror, image metadata and
        requirements files.
        """
        keys = [
            self.site.resolve(archive.key) for archive in self.site.archives.values() if archive.key
        ]
        if self.site.mirror is not None and self.site.mirror.url is not None:
            from goldnode.lock.publication import PUBLIC_KEY, RECORD, publications

            mirror = self.site.resolve(self.site.mirror.directory)
            public = self.site.mirror.key
            keys.append(self.site.resolve(public) if public else mirror / PUBLIC_KEY)
            keys += [place / RECORD for place in publications(mirror)]
        for entry in self.catalog.classes.values():
            named = (*entry.item.requirements, *(image.metadata for image in entry.item.images))
            # `uv.lock[gpu]` is the file uv.lock.
            keys += [
                entry.file.parent / name.partition("[")[0] for name in named if name is not None
            ]
        from goldnode.classdoc import mitigations  # start-up time: a valid cache needs no models

        own = self.site.lock_places(data("catalog/stacks"), "stacks")[:-1]
        if self.site.catalog is not None:
            keys.append(self.site.resolve(self.site.catalog))
        keys.append(mitigations.directory(self.site))
        return [
            str(path)
            for path in (binding_file(), *keys, *self.site.lock_directories(to_write=True), *own)
        ]

    def check(self, inventory: str) -> None:
        """Refuse a host in two classes. Raises GoldnodeError."""
        assert self._read_inventory is not None  # noqa: S101 - only the vars plugin checks inventories
        self._read_inventory(Path(inventory), self.catalog)

    def document(self, name: str) -> Json:
        """Return the class document.

        If this class alone has none, return ``{class, error}``, with `refusals` if its check blocks
        it, so that other hosts continue. Raises GoldnodeError.
        """
        from goldnode.classdoc.compile import compile_class
        from goldnode.classdoc.findings import check_support
        from goldnode.compat.report import brief, refusal
        from goldnode.core.errors import CatalogError, FactsError, LockError, WorkloadError

        try:
            view, findings = self._checked(name)
            fatal = [finding for finding in findings if finding.fatal]
            if fatal:
                return {
                    "class": name,
                    "error": "; ".join(map(brief, fatal)),
                    "refusals": [refusal(finding) for finding in fatal],
                }
            check_support(view)
            return compile_class(view)
        except (LockError, CatalogError, FactsError, WorkloadError) as problem:
            return {"class": name, "error": str(problem)}

    def remarks(self, name: str) -> list[str]:
        """Return the compatibility findings of a class that do not block it, one line each.

        Raises GoldnodeError.
        """
        from goldnode.compat.report import brief, mark

        try:
            return [
                f"{mark(finding)}: {brief(finding)}"
                for finding in self._checked(name)[1]
                if not finding.fatal
            ]
        except GoldnodeError:
            return []  # `document` reports this error

    def cohort(self, name: str, classes: Sequence[str]) -> Json:
        """Judge a cohort; see :meth:`ClassDocuments.cohort`.

        A class that cannot be used is reported where it is used.
        """
        from goldnode.classdoc.findings import findings_of_cohort
        from goldnode.compat.report import brief, mark, refusal

        verdict = findings_of_cohort(name, classes, self.catalog, self.site)
        return {
            "refusals": [refusal(finding) for finding in verdict if finding.fatal],
            "messages": [
                f"{mark(finding)}: {brief(finding)}" for finding in verdict if not finding.fatal
            ],
        }

    def _checked(self, name: str) -> tuple[ClassView, list[CompatFinding]]:
        """Return the view of a class and the findings about it. It is read and checked once."""
        from goldnode.classdoc.findings import findings_of
        from goldnode.classdoc.view import read_class

        if name not in self._views:
            view = read_class(name, self.catalog, self.site)
            self._views[name] = view, findings_of(view)
        return self._views[name]

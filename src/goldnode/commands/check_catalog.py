"""Implementation of `goldnode check-catalog`: check everything that is declared, and report every fault
instead of the first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from goldnode.catalog.load import Catalog
from goldnode.classdoc import checks
from goldnode.classdoc.load import load_catalog
from goldnode.core import yamlsource
from goldnode.core.errors import GoldnodeError, LockError, SiteError, nearest
from goldnode.core.site import Site, check_archives, load_site


@dataclass
class Found:
    """Faults, remarks, and the classes (with their stacks) that cannot be applied because a lock is missing."""

    catalog: Catalog
    wrong: list[GoldnodeError] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    unlocked: list[tuple[str, str, str]] = field(default_factory=list)

    def attempt(self, call: Callable[[], object]) -> bool:
        """Whether `call` ends well; its error is kept."""
        try:
            call()
        except GoldnodeError as problem:
            if str(problem) not in map(str, self.wrong):
                self.wrong.append(problem)
            return False
        return True


def check() -> Found:
    """Look at the catalog, the site file, the facts, every class and every stack's lock. Raises GoldnodeError where there is no catalog at all."""
    from goldnode.classdoc.hosts import findings_of_class, host_of_class
    from goldnode.compat.report import error, refusal
    from goldnode.facts import audit
    from goldnode.lock.model import find_lock

    faults: list[GoldnodeError] = []
    catalog = load_catalog(faults=faults)
    found = Found(catalog, faults)
    site = Site()

    def read_site() -> None:
        nonlocal site
        site = load_site()

    found.attempt(read_site)
    found.attempt(lambda: check_archives(site, catalog.archives))
    for name in sorted(site.archives):
        found.attempt(lambda name=name: site.key_bytes(name))  # type: ignore[misc]
    found.wrong += site_faults(site)
    found.told += [f"not checked: {sentence}" for sentence in absent_secrets(site)]
    found.wrong += [fault.error() for fault in audit.faults()]
    if not faults:  # of what could not be read nothing else can be said
        found.wrong += audit.catalog_faults(catalog)
    for stack in catalog.stacks.values():
        found.attempt(lambda stack=stack: checks.check_waiver(stack, catalog))  # type: ignore[misc]
    if not found.attempt(site.lock_directories):
        return found
    for name, entry in sorted(catalog.classes.items()):
        try:
            for finding in findings_of_class(name, catalog, site):
                if finding.fatal:
                    found.wrong.append(error(finding))
                elif finding.accepted is None:
                    told = refusal(finding)
                    found.told.append(
                        f"{finding.severity}: class {name}: {told['message']} {told['remedy']}".rstrip()
                    )
            unlocked = host_of_class(name, catalog, site).unlocked
            if unlocked is not None:
                found.unlocked.append((name, entry.item.stack, unlocked))
        except GoldnodeError as problem:
            found.wrong.append(problem)
        found.told += [f"not checked: class {name}: {sentence}" for sentence in checks.not_checked(entry)]
        found.told += [f"warn: class {name}: {sentence}" for sentence in checks.past_suppressions(entry)]
    for _, stack in sorted(catalog.stacks.items()):
        try:
            find_lock(stack, site)
        except LockError as problem:
            # A stack that was never resolved against its real archives is declared as such; a stale lock is a fault.
            if "has no lock" in problem.message and stack.item.exercised != "debian-archive":
                found.told.append(f"not checked: {problem}")
            else:
                found.wrong.append(problem)
    return found


def site_faults(site: Site) -> Iterator[SiteError]:
    """Return the faults of files that the site file names and that do not exist. Commands that need one of
    them refuse by themselves; others run without.
    """
    if site.file is None:
        return
    from goldnode.evidence.vulnerabilities import KINDS

    source = yamlsource.read(site.file, error=SiteError)

    def fault(message: str, *path: str | int, remedy: str) -> SiteError:
        return SiteError(message, file=site.file, line=source.line(path), remedy=remedy)

    files: list[tuple[tuple[str, str], str | None]] = [(("images", "public_key"), site.images.public_key)]
    if site.module_signing is not None:
        files.append((("module_signing", "certificate"), site.module_signing.certificate))
    if site.mirror is not None:
        files.append((("mirror", "key"), site.mirror.key))
        place = site.resolve(site.mirror.directory)
        if not place.is_dir() and (place.exists() or not place.parent.is_dir()):
            what = (
                f"{place} is no directory"
                if place.exists()
                else f"there is no {place.parent} to make {place.name} in"
            )
            yield fault(
                f'"mirror.directory": {what}',
                "mirror",
                "directory",
                remedy="correct the path, or make the directory",
            )
    for path, name in files:
        if name is not None and not site.resolve(name).is_file():
            where = ".".join(str(part) for part in path)
            yield fault(
                f'"{where}" names {site.resolve(name)}, which is not a file',
                *path,
                remedy="put it there, or correct the path",
            )
    for index, text in enumerate(site.images.vulnerabilities):
        place_of = ("images", "vulnerabilities", index)
        kind, _, rest = text.partition("=")
        if kind not in KINDS or not rest:
            remedy = nearest(kind, KINDS) if kind not in KINDS else "add the file"
            yield fault(
                f'"{text}" names no vulnerability database, expected KIND=FILE[@YYYY-MM-DD]',
                *place_of,
                remedy=remedy,
            )
        elif not site.resolve(re.sub(r"@\d{4}-\d\d-\d\d$", "", rest)).exists():
            yield fault(
                f"the vulnerability database {rest} is not there",
                *place_of,
                remedy="fetch it, or correct its name",
            )
    if site.indexes:
        from goldnode.images.matrix import load_matrix

        try:
            known = {row.index for row in load_matrix().images.values() if row.index is not None}
        except GoldnodeError as problem:  # of another file
            yield SiteError(problem.message, file=problem.file, line=problem.line, remedy=problem.remedy)
            return
        for name in site.indexes:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                remedy = (
                    f'use "{close[0]}"'
                    if close
                    else "take it out, or name it as `index` of a component of the matrix"
                )
                yield fault(
                    f'no image of the matrix comes from index "{name}"', "indexes", name, remedy=remedy
                )


def absent_secrets(site: Site) -> Iterator[str]:
    """The secret keys that the site file names and this machine has not: no fault, since those who only check a catalog must not have them."""
    named = [("images.signing_key", site.images.signing_key)]
    if site.module_signing is not None:
        named.append(("module_signing.key", site.module_signing.key))
    # The fingerprint of a key of the user's keyring, or a file.
    if site.mirror is not None and not re.fullmatch(r"(0x)?[0-9A-Fa-f]{8,40}", site.mirror.signing_key or ""):
        named.append(("mirror.signing_key", site.mirror.signing_key))
    for key, name in named:
        if name is not None and not site.resolve(name).is_file():
            yield f'"{key}" names {site.resolve(name)}, which this machine has not: what signs with it does not run here'

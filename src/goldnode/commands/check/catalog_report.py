"""Implementation of `goldnode check-catalog`: check all declarations and report all faults in one run."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from goldnode.catalog.load import Catalog
from goldnode.classdoc import checks, exceptions
from goldnode.classdoc.load import load_catalog
from goldnode.compat.model import CompatFinding
from goldnode.core import yamlsource
from goldnode.core.errors import GoldnodeError, LockError, SiteError, candidates, nearest
from goldnode.core.site import Site, check_archives, load_site


@dataclass
class CatalogReport:
    """Result of the check: errors, other messages, and classes without a lock.

    `unlocked` lists classes that cannot be applied yet, as (class, stack, the lock's error).
    """

    catalog: Catalog
    wrong: list[GoldnodeError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unlocked: list[tuple[str, str, str]] = field(default_factory=list)

    def attempt(self, call: Callable[[], object]) -> bool:
        """Run `call` and return whether it succeeds.

        A GoldnodeError is recorded once, even if several calls raise it.
        """
        try:
            call()
        except GoldnodeError as problem:
            # As text: each reading of a broken file raises an exception of its own.
            if str(problem) not in map(str, self.wrong):
                self.wrong.append(problem)
            return False
        return True


def check() -> CatalogReport:
    """Check the catalog, the site file, the facts, every class and every stack's lock.

    Raises GoldnodeError if there is no catalog.
    """
    from goldnode.classdoc.findings import findings_of
    from goldnode.classdoc.view import read_class
    from goldnode.compat.report import error, refusal
    from goldnode.facts import audit
    from goldnode.lock.model import find_lock

    own = [fault.error() for fault in audit.faults()]
    if own:  # The checks of everything else look up rows of the facts, and rely on their form.
        note = "not checked: the catalog, the site file and the locks, because goldnode's own facts have errors"
        return CatalogReport(Catalog(()), list(own), [note])
    faults: list[GoldnodeError] = []
    catalog = load_catalog(faults=faults)
    faults.sort(key=lambda fault: isinstance(fault, SiteError))  # the site file follows the catalog
    report = CatalogReport(catalog, faults)
    site = Site()

    # `attempt` returns no value, so that the site comes out through the closure.
    def read_site() -> None:
        nonlocal site
        site = load_site()

    report.attempt(read_site)
    report.attempt(lambda: check_archives(site, catalog.archives))
    for name in sorted(site.archives):
        report.attempt(lambda name=name: site.key_bytes(name))  # type: ignore[misc]
    report.wrong += site_faults(site)
    report.notes += [f"not checked: {sentence}" for sentence in absent_secrets(site)]
    report.wrong += [fault.error() for fault in audit.site_faults()]
    if not faults:  # Cross-checks would only repeat the faults of files that could not be read.
        report.wrong += audit.catalog_faults(catalog)
    for stack in catalog.stacks.values():
        report.attempt(lambda stack=stack: checks.check_waiver(stack, catalog))  # type: ignore[misc]
    # Everything below needs the locks and would repeat this error.
    if not report.attempt(site.lock_directories):
        return report
    today = dt.datetime.now(tz=dt.UTC).date()
    judged: list[tuple[str, str, CompatFinding]] = []
    report.wrong += list(exceptions.exception_faults(site, catalog, today))
    for name, entry in sorted(catalog.classes.items()):
        try:
            view = read_class(name, catalog, site)
            for finding in findings_of(view):
                if finding.rule == "lock-integrity":
                    continue  # the locks are checked below, once for each stack
                # Of all findings: an exception that matches none of them is out of date.
                judged.append((name, entry.item.stack, finding))
                if finding.fatal:
                    report.wrong.append(error(finding))
                elif finding.accepted is None:
                    reason = refusal(finding)
                    report.notes.append(
                        f"{finding.severity}: class {name}: {reason['message']} {reason['remedy']}".rstrip()
                    )
            unlocked = view.host.unlocked
            if unlocked is not None:
                report.unlocked.append((name, entry.item.stack, unlocked))
        except GoldnodeError as problem:
            if str(problem) not in map(str, report.wrong):
                report.wrong.append(problem)
        report.notes += [
            f"not checked: class {name}: {sentence}" for sentence in checks.not_checked(entry)
        ]
        report.notes += [
            f"warn: class {name}: {sentence}" for sentence in checks.past_suppressions(entry)
        ]
    report.notes += [f"warn: {sentence}" for sentence in exceptions.unmatched(site, judged, today)]
    for _, stack in sorted(catalog.stacks.items()):
        try:
            find_lock(stack, site)
        except LockError as problem:
            # Stacks that were never resolved against their real archives are declared as such. A stale lock
            # is always an error.
            if "has no lock" in problem.message and stack.item.exercised != "debian-archive":
                report.notes.append(f"not checked: {problem}")
            else:
                report.wrong.append(problem)
    return report


def site_faults(site: Site) -> Iterator[SiteError]:
    """Yield an error for each missing file and invalid reference of the site file.

    Commands that need one of these files raise their own error. Other commands do not need them.
    """
    if site.file is None:
        return
    from goldnode.evidence.vulnerabilities import KINDS

    source = yamlsource.read(site.file, error=SiteError)

    def fault(message: str, *path: str | int, remedy: str) -> SiteError:
        return SiteError(message, file=site.file, line=source.line(path), remedy=remedy)

    # Public files only: `absent_secrets` has the secret ones, which need not be here.
    files: list[tuple[tuple[str, str], str | None]] = [
        (("images", "public_key"), site.images.public_key)
    ]
    if site.module_signing is not None:
        files.append((("module_signing", "certificate"), site.module_signing.certificate))
    if site.mirror is not None:
        files.append((("mirror", "key"), site.mirror.key))
        place = site.resolve(site.mirror.directory)
        # The first `goldnode mirror` makes the directory, and not its parents.
        if not place.is_dir() and (place.exists() or not place.parent.is_dir()):
            if place.exists():
                what = f"{place} is no directory"
            else:
                what = f"there is no {place.parent} to make {place.name} in"
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
        # A directory or an archive of records is fine too.
        elif not site.resolve(re.sub(r"@\d{4}-\d\d-\d\d$", "", rest)).exists():
            yield fault(
                f"the vulnerability database {rest} is not there",
                *place_of,
                remedy="fetch it, or correct its name",
            )
    if site.indexes:
        # Only sites with indexes of their own pay for loading the matrix.
        from goldnode.images.matrix import load_matrix

        try:
            known = {row.index for row in load_matrix().images.values() if row.index is not None}
        except GoldnodeError as problem:  # an error in the matrix, not in the site file
            yield SiteError(
                problem.message, file=problem.file, line=problem.line, remedy=problem.remedy
            )
            return
        for name in site.indexes:
            if name not in known:
                close = candidates(name, known, cutoff=0.5)
                remedy = "take it out, or name it as `index` of a component of the matrix"
                if close:
                    remedy = f'use "{close[0]}"'
                yield fault(
                    f'no image of the matrix comes from index "{name}"',
                    "indexes",
                    name,
                    remedy=remedy,
                )


def absent_secrets(site: Site) -> Iterator[str]:
    """Yield a sentence for each secret key that the site file names and this machine does not have.

    This is not an error: machines that only check a catalog must not have the secret keys.
    """
    named = [("images.signing_key", site.images.signing_key)]
    if site.module_signing is not None:
        named.append(("module_signing.key", site.module_signing.key))
    # `mirror.signing_key` is a file, or the fingerprint of a key in the user's keyring.
    if site.mirror is not None and not re.fullmatch(
        r"(0x)?[0-9A-Fa-f]{8,40}", site.mirror.signing_key or ""
    ):
        named.append(("mirror.signing_key", site.mirror.signing_key))
    for key, name in named:
        if name is not None and not site.resolve(name).is_file():
            yield (
                f'"{key}" names {site.resolve(name)}, which this machine has not: what signs with it does '
                "not run here"
            )

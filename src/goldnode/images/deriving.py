"""From a declaration to a recipe: find the base, follow it when it moved, and lock packages and wheels.

The lock is beside the declaration, so it belongs to the team's code. It has the digest of the base,
so an unchanged lock gives an unchanged image whatever a channel points to.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from goldnode.core.errors import ImageError, UnsolvableError
from goldnode.core.files import replace_file
from goldnode.evidence.verify import verify
from goldnode.evidence.write import examine
from goldnode.images.declaration import Declaration
from goldnode.images.derived import (
    DerivedBuilder,
    DerivedRecipe,
    changes,
    check_user,
    locked_changes,
)
from goldnode.images.derived_base import DerivedBase
from goldnode.images.imagelock import DerivedLock, LockedBase, dump_derived_lock, load_derived_lock
from goldnode.images.matrix import MatrixRow, load_matrix
from goldnode.images.names import find
from goldnode.images.resolve import AddedPackages, NoWheelError, Resolver, environment, fetch_all
from goldnode.images.store import ImageStore
from goldnode.images.team_files import team_files
from goldnode.lock.fetch import FetchProgress
from goldnode.lock.locked_files import LockedWheel
from goldnode.lock.model import digest_of
from goldnode.oci import engines
from goldnode.oci.model import LABELS, ImageSpec

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

# Fetch an image of a registry into the store and return its digest.
Pull = Callable[[str], str]


@dataclass(frozen=True)
class DeriveOptions:
    """How to derive. `locked`: use the lock as it is, and follow no channel. `trust`: keys of the base.

    `engine` finds the engine of this machine; it is asked only for an image with packages.
    """

    locked: bool = False
    upgrade: bool = False
    offline: bool = False
    trust: Sequence[SSlibKey] = ()
    today: dt.date | None = None
    engine: Callable[[], engines.Engine] = engines.choose


@dataclass(frozen=True)
class PreparedImage:
    """A recipe that can be built, and what was done to get it. `locked`: the lock was written.

    `engine` installs its packages; None without packages.
    """

    recipe: DerivedRecipe
    lock_file: Path
    locked: bool
    notes: tuple[str, ...]
    engine: engines.Engine | None = None


def lock_file_of(declared: Declaration) -> Path:
    """Return the file of the declaration's lock: `derive.lock.yml` beside `derive.yml`."""
    return declared.file.with_suffix(".lock.yml")


def prepare(
    declared: Declaration,
    store: ImageStore,
    options: DeriveOptions,
    pull: Pull,
    progress: FetchProgress | None = None,
) -> PreparedImage:
    """Find the base, lock the image, and fetch its packages and wheels. Raises ImageError."""
    file = lock_file_of(declared)
    old = load_derived_lock(file) if file.is_file() else None
    base = open_base(declared, store, _base_digest(declared, store, options, old, pull))
    check_user(declared, base)
    notes = [_verified(store, base, options)]
    before = _base_before(declared, store, old, base)
    if before is not None:
        said = changes(before, base) or "the same packages"
        notes.append(f"the base moved from {before.identity.ref} to {base.identity.ref}: {said}")
    elif old is not None and old.base.digest != base.image.digest:
        notes.append(
            f"the base moved from {old.base.ref} to {base.identity.ref}; the earlier one is not in this store, so "
            "their packages could not be compared"
        )
    row = _row(declared, base)
    lock = _lock(declared, base=base, before=before, old=old, row=row, options=options)
    if lock is not old:
        if old is not None and (moved := locked_changes(old.debs, lock.debs)):
            notes.append(f"packages: {moved}")
        if old is not None and (moved := locked_changes(old.wheels, lock.wheels)):
            notes.append(f"wheels: {moved}")
        replace_file(file, dump_derived_lock(lock).encode())
    if not options.offline:
        fetch_all([(row, lock)], store.pool, progress, verify=False)
    twofold = sorted({item.name for item in lock.wheels} & {str(name) for name in _unpacked(base)})
    if twofold:
        notes.append(
            f"{', '.join(twofold)}: the base has these libraries for programs, the image has them again for Python"
        )
    idle = sorted(set(declared.data.packages) & base.installed.keys())
    if idle:
        notes.append(f"{', '.join(idle)}: the base has it already")
    engine = options.engine() if lock.debs else None
    tool = f"{engine.name} {engine.version}" if engine is not None else ""
    team = team_files(declared, base)
    notes += team.notes
    recipe = DerivedRecipe(declared, base, lock, team.files, engine=tool)
    recipe = replace(recipe, libraries=DerivedBuilder(store).has_libraries(recipe))
    given = tuple(note for note in notes if note)
    return PreparedImage(recipe, file, lock is not old, given, engine)


# The base


def _base_digest(
    declared: Declaration,
    store: ImageStore,
    options: DeriveOptions,
    old: DerivedLock | None,
    pull: Pull,
) -> str:
    if options.locked:
        if old is None:
            raise declared.error(
                "there is no lock",
                "name",
                remedy=f"run `goldnode images derive {declared.directory}`",
            )
        if not store.layout.has(old.base.digest):
            raise declared.error(
                f"the locked base {old.base.ref} ({old.base.digest}) is not in {store.root}",
                "base",
                remedy="pull it by its digest: goldnode images pull HOST/NAME@DIGEST",
            )
        return old.base.digest
    text = declared.data.base
    first = text.partition("/")[0]
    if "/" in text and ("." in first or ":" in first or first == "localhost"):
        if options.offline:
            refs = store.layout.refs()
            if text in refs:  # the store's copy of a channel of that registry
                return refs[text].digest
            if old is not None and store.layout.has(old.base.digest):
                return old.base.digest
            raise declared.error(
                f"{text} is in a registry", "base", remedy="run it once without --offline"
            )
        return pull(text)
    try:
        return find(store.layout, text, store.built().values())
    except ImageError as problem:
        remedy = problem.remedy or (
            "name an image of the matrix (`goldnode images list`), of the store, or of a registry that has one, as "
            "HOST/NAME:TAG; an image of another origin is no base"
        )
        raise declared.error(problem.message, "base", remedy=remedy) from None


def open_base(declared: Declaration, store: ImageStore, digest: str) -> DerivedBase:
    """Return the base with this digest. Raises ImageError if nothing can be derived from it."""
    image, contents = examine(store.layout, digest, cache=store.cache / "evidence")
    base = DerivedBase(image, contents)
    if not base.identity.named:
        raise declared.error(
            f"{declared.data.base} is {base.identity.text()}",
            "base",
            remedy="name an image of the matrix or a derived image; a Dockerfile can begin with any other",
        )
    missing = [row.digest for row in image.layers if not store.layout.has(row.digest)]
    if missing:
        raise declared.error(
            f"layer {missing[0]} of {base.identity.ref} is not in {store.root}",
            "base",
            remedy="build or pull the base again",
        )
    if not base.python:
        raise declared.error(
            f"{base.identity.ref} does not state its Python", "base", remedy="build it again"
        )
    return base


def _base_before(
    declared: Declaration, store: ImageStore, old: DerivedLock | None, base: DerivedBase
) -> DerivedBase | None:
    """Return the base of the old lock if it is another one and the store still has it."""
    if old is None or old.base.digest == base.image.digest or not store.layout.has(old.base.digest):
        return None
    try:
        return open_base(declared, store, old.base.digest)
    except ImageError:
        return None  # a part of it is gone


def _verified(store: ImageStore, base: DerivedBase, options: DeriveOptions) -> str:
    """Return the result of the verification of the base. Raises ImageError if it is not signed by a key."""
    ref = base.identity.ref
    if not options.trust:
        return f"the signature of {ref} was not verified: no key was given with --trust or as images.public_key"
    signature = verify(store.layout, base.image.digest, options.trust, layers=False)
    signature.demand(
        f"the base {ref}",
        f"see `goldnode images verify {ref}`, sign it, or name another key with --trust",
    )
    return f"{ref} is signed by a trusted key"


def _unpacked(base: DerivedBase) -> list[str]:
    return [canonicalize_name(row.name) for row in base.contents.wheels if row.unpacked]


# The lock


def _row(declared: Declaration, base: DerivedBase) -> MatrixRow:
    """Return the requests of the image to pip, in the form that the resolver of the matrix reads."""
    system = next(
        (
            row.system
            for row in load_matrix().images.values()
            if row.image.os == base.image.labels.get(f"{LABELS}os")
            and row.system.python == base.python
            and row.architecture == base.image.config.get("architecture")
        ),
        None,
    )
    if system is None:
        raise declared.error(
            f"the matrix does not know {base.identity.os} with Python {base.python}",
            "base",
            remedy="name the matrix of the base in $GOLDNODE_MATRIX",
        )
    lines = []
    for line in declared.requirements.lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment(system)):
            requirement.marker = None
            lines.append(str(requirement))
    name = declared.data.name
    return MatrixRow(
        image=ImageSpec(name, base.identity.backend, base.identity.runtime, "", base.identity.os),
        system=system,
        title=name,
        debs=declared.data.packages,
        wheels=tuple(lines),
        layout="python",
        file=declared.file,
        line=declared.source.line(("requirements",)),
    )


def _lock(
    declared: Declaration,
    base: DerivedBase,
    before: DerivedBase | None,
    old: DerivedLock | None,
    row: MatrixRow,
    *,
    options: DeriveOptions,
) -> DerivedLock:
    """Return the old lock if it still fits, else a new one."""
    intent = _intent(declared)
    same = old is not None and old.intent == intent and old.image == declared.data.name
    if old is not None and same and not options.upgrade and old.base.digest == base.image.digest:
        return old
    if options.locked:
        raise declared.error(
            "the lock is stale: the declaration or its requirements have changed since",
            "name",
            remedy="run it without --locked",
        )
    # With the same requests and the same content below, apt and pip would find the same again.
    again = old if same and before is not None and not options.upgrade else None
    if again is not None and before is not None and _same_python(before, base):
        wheels = again.wheels
    else:
        wheels = _wheels(declared, base, old, row, options)
    if again is not None and before is not None and before.installed == base.installed:
        added = AddedPackages(again.archives, again.debs)
    else:
        added = _packages(declared, base, old, row, options)
    today = options.today or dt.datetime.now(tz=dt.UTC).date()
    new = DerivedLock(
        lock=1,
        image=declared.data.name,
        intent=intent,
        resolved=today.isoformat(),
        base=LockedBase(ref=base.identity.ref, digest=base.image.digest, lock=base.lock),
        archives=added.archives if added.debs else [],
        debs=added.debs,
        wheels=wheels,
    )
    return (
        old if old is not None and old.model_copy(update={"resolved": new.resolved}) == new else new
    )


def _same_python(one: DerivedBase, two: DerivedBase) -> bool:
    return (one.python, one.wheels) == (two.python, two.wheels)


def _intent(declared: Declaration) -> str:
    return digest_of(
        {
            "base": declared.data.base,
            "requirements": list(declared.requirements.lines),
            "hashes": {
                name: sorted(digests) for name, digests in declared.requirements.hashes.items()
            },
            # Only if set: locks made before this key existed stay valid.
            **({"packages": list(packages)} if (packages := declared.data.packages) else {}),
        }
    )


def _packages(
    declared: Declaration,
    base: DerivedBase,
    old: DerivedLock | None,
    row: MatrixRow,
    options: DeriveOptions,
) -> AddedPackages:
    """Resolve the packages on top of those of the base, whose versions are fixed. Raises ImageError."""
    if not row.debs:
        return AddedPackages([], [])
    if options.offline:
        raise declared.error(
            "packages cannot be resolved offline",
            "packages",
            remedy="run it once without --offline",
        )
    keep = old.debs if old is not None and not options.upgrade else ()
    with Resolver() as resolver:
        return resolved_packages(
            declared, base.identity.ref, lambda: resolver.packages(row, base.installed, keep)
        )


def resolved_packages(
    declared: Declaration, base: str, resolve: Callable[[], AddedPackages]
) -> AddedPackages:
    """Return the packages that `resolve` chooses for a declaration on the image `base`.

    Raises ImageError with apt's reason, the line of the declaration and the remedy.
    """
    try:
        return resolve()
    except UnsolvableError as problem:
        why = problem.message.partition(": ")[2]
        if unknown := re.search(r"Unable to locate package (\S+)", why):
            raise declared.error(
                f'no archive of the base\'s OS has a package "{unknown[1]}"',
                "packages",
                remedy="correct its name: `apt-cache search WORD` on that OS finds it",
            ) from None
        raise declared.error(
            f"apt cannot add these packages to {base}, whose own packages stay as they are: {why}",
            "packages",
            remedy=(
                "derive from a newer build of the base (`goldnode images lock --upgrade` and `images build`, or its "
                "channel); or lock against a snapshot of the archives of the base's day, see "
                "docs/how-to/site.md#lock-from-a-snapshot"
            ),
        ) from None


def _wheels(
    declared: Declaration,
    base: DerivedBase,
    old: DerivedLock | None,
    row: MatrixRow,
    options: DeriveOptions,
) -> list[LockedWheel]:
    if not row.wheels:
        return []
    if options.offline:
        raise declared.error(
            "wheels cannot be resolved offline",
            "requirements",
            remedy="run it once without --offline",
        )
    keep = old.wheels if old is not None and not options.upgrade else ()
    with Resolver() as resolver:
        try:
            wheels = resolver.closure(row, base.wheels, keep)
        except NoWheelError as problem:
            place = declared.requirements.places.get(problem.project)
            if place is None:  # required by another one
                raise
            raise ImageError(
                problem.message, file=place[0], line=place[1], remedy=problem.remedy
            ) from None
    hashes = declared.requirements.hashes
    if hashes:
        for wheel in wheels:
            if wheel.name not in hashes:
                raise declared.error(
                    f"{wheel.name} {wheel.version} is {wheel.why}, and the requirements have no hash of it",
                    "requirements",
                    remedy="add it with its hashes, or leave all hashes out",
                )
            if wheel.sha256 not in hashes[wheel.name]:
                raise declared.error(
                    f"{wheel.file} has the hash {wheel.sha256}, which is none of those in the requirements",
                    "requirements",
                    remedy="find out which of the two is wrong; do not simply add the hash",
                )
    return wheels

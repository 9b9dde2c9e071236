"""STACK.modules.yml: the package that provides the prebuilt modules of a lock, and the packages
that a node does not need then.

The file is next to the lock and belongs to exactly one version of it: a newer lock makes it stale.
This module only reads and writes the file; `builder` builds, and `modpackage` signs and packages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from goldnode.catalog.load import MODULES_SUFFIX, CatalogEntry
from goldnode.catalog.models import Stack
from goldnode.core import yamlsource
from goldnode.core.errors import ModulesError
from goldnode.core.site import Site
from goldnode.documents.base import Digest
from goldnode.lock.model import Lock, LockedPackage, LockModel, Sha256, flow

ARCHIVE = "goldnode-mirror"

_HEADER = "# Written by `goldnode modules build {stack}`. Not to be edited: run it again.\n"


class BuilderPackage(LockModel):
    """One package of the root in which the modules were built."""

    name: str
    version: str
    sha256: Sha256


class BuiltModules(LockModel):
    """The modules of one lock. `names` are those of modinfo; `replaces` leave a node, `sources` are the DKMS packages among them.

    `key` names the build: a hash of all that went into it. `signer` is the name in the certificate
    the modules are signed with, null where they are not.
    """

    modules: Literal[1]
    stack: str
    lock: Digest
    key: Sha256
    flavour: str | None
    signer: str | None
    names: list[str]
    package: LockedPackage
    sources: list[str]
    replaces: list[str]
    builder: list[BuilderPackage]


def modules_name(stack: str) -> str:
    """Return the file name of a stack's prebuilt modules."""
    return stack + MODULES_SUFFIX


def load_modules(path: Path) -> BuiltModules:
    """Read a modules file. Raises ModulesError naming file and line."""
    return yamlsource.validate(
        BuiltModules, yamlsource.read(path, error=ModulesError), error=ModulesError
    )


def find_modules(stack: CatalogEntry[Stack], lock: Lock, site: Site) -> BuiltModules:
    """Return the prebuilt modules of `stack` for `lock`, searched in the same directories as locks;
    the first file found decides.

    Raises ModulesError if there is none, if it belongs to another lock or stack, or if the stack
    requires signed modules and these are not signed.
    """
    remedy = f"run `goldnode modules build {stack.name}`"
    places = [*site.lock_directories(), *site.lock_places(stack.file.parent, "stacks")]
    path = next(
        (
            place / modules_name(stack.name)
            for place in places
            if (place / modules_name(stack.name)).is_file()
        ),
        None,
    )
    if path is None:
        raise ModulesError(
            f'the site wants prebuilt modules (modules: prebuilt), and stack "{stack.name}" has none',
            file=site.file,
            remedy=remedy,
        )
    built = load_modules(path)
    if built.stack != stack.name:
        raise ModulesError(
            f'these are the modules of stack "{built.stack}", not of "{stack.name}"',
            file=path,
            remedy="rename the file",
        )
    if built.lock != lock.digest:
        raise ModulesError(
            f"these modules are stale: they were built for another lock of {stack.name} (now kernel {lock.kernel_release}, "
            f"driver {lock.driver_version})",
            file=path,
            remedy=remedy,
        )
    if stack.item.secure_boot and built.signer is None:
        raise ModulesError(
            f'stack "{stack.name}" says secure_boot, and these modules are not signed',
            file=path,
            remedy=remedy,
        )
    return built


def dump_modules(built: BuiltModules) -> str:
    """Return the text of the file: fixed order, one line per package."""
    lines = [_HEADER.format(stack=built.stack) + f"modules: {built.modules}"]
    for key in ("stack", "lock", "key", "flavour", "signer", "names"):
        lines.append(f"{key}: {flow(getattr(built, key))}")
    lines.append(f"package: {flow(built.package.model_dump(exclude_none=True))}")
    lines += [
        f"sources: {flow(built.sources)}",
        f"replaces: {flow(built.replaces)}",
        "builder:" if built.builder else "builder: []",
    ]
    lines += [f"  - {flow(item.model_dump())}" for item in built.builder]
    return "\n".join(lines) + "\n"


def write_modules(built: BuiltModules, directory: Path) -> Path:
    """Write the file into `directory`, whole or not at all, and return it. Raises ModulesError."""
    path = directory / modules_name(built.stack)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Renamed into place: a class that is compiled meanwhile reads a whole file.
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(dump_modules(built), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ModulesError(
            f"it cannot be written: {error.strerror}",
            file=path,
            remedy="make room, or name another directory",
        ) from error
    return path

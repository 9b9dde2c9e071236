"""Kernel updates from the security archives: kernel and driver module move as a pair, or the lock
stays and the report names the module that does not build.

A pair is taken if the driver is known to build on the kernel. A pair without a known outcome is
named, and taken only if the user requests it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from goldnode.catalog.load import CatalogEntry
from goldnode.catalog.models import Kernel, Stack
from goldnode.compat import rules
from goldnode.core.errors import FactsError, UnsolvableError
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.lock.builds import KnownBuild, known_builds, results_directory
from goldnode.lock.diff import is_security
from goldnode.lock.model import Lock, LockedPackage
from goldnode.lock.resolve import KernelOffer, StackArchives
from goldnode.node.state.debversion import compare
from goldnode.node.state.family import kernel_release

SecurityUpdateState = Literal["moved", "current", "held-back"]


@dataclass(frozen=True)
class KernelDriverPair:
    """A kernel with a driver (None: the module comes with the kernel), and whether the one builds on the other."""

    kernel: str
    driver: str | None
    build: KnownBuild

    def data(self) -> dict[str, Any]:
        """Return the pair as plain data."""
        build = self.build
        return {
            "kernel": self.kernel,
            "driver": self.driver,
            "outcome": build.outcome,
            "reason": build.reason,
            "line": build.line,
            "source": build.source,
        }


@dataclass(frozen=True)
class PendingUpdate:
    """A security update of a held package, which `--security` does not move."""

    package: LockedPackage
    version: str
    archive: str


@dataclass(frozen=True)
class SecurityUpdate:
    """Result of a kernel update. `newest` is the newest kernel of the security archives, `passed`
    the newer pairs that were not taken.

    moved: the lock is at the newest kernel now. current: it was already. held-back: a newer kernel
    exists whose module does not build or has no known outcome; the lock stays, or moved to the
    newest pair that is known to build.
    """

    state: SecurityUpdateState
    lock: Lock
    newest: KernelOffer | None
    taken: KernelDriverPair | None
    passed: tuple[KernelDriverPair, ...]
    pending: tuple[PendingUpdate, ...]
    free: int
    notes: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {
            "state": self.state,
            "kernel": self.lock.kernel_release,
            "driver": self.lock.driver_version,
            "newest": None if self.newest is None else self.newest.release,
            "taken": None if self.taken is None else self.taken.data(),
            "passed": [pair.data() for pair in self.passed],
            "pending": [
                {
                    "name": one.package.name,
                    "part": one.package.part,
                    "from": one.package.version,
                    "to": one.version,
                    "archive": one.archive,
                }
                for one in self.pending
            ],
            "base_packages_with_updates": self.free,
            "notes": list(self.notes),
        }

    @property
    def headline(self) -> str:
        """Return the outcome for the kernel, in one line."""
        newest = self.newest.release if self.newest is not None else "none"
        return {
            "moved": f"kernel {self.lock.kernel_release} is the newest of the security archives",
            "current": f"kernel {self.lock.kernel_release} stays: the security archives have nothing newer",
            "held-back": f"held back at kernel {self.lock.kernel_release}: the newest of the security archives is {newest}",
        }[self.state]

    def lines(self) -> list[str]:
        """Return the outcome for a reader, a line each."""
        text: list[str] = []
        reported = ""
        for pair in self.passed:
            verb = {
                "fails": "does not build",
                "unknown": "is not known to build",
                "ok": "cannot be taken",
            }[pair.build.outcome]
            text.append(
                f"not taken: kernel {pair.kernel}: driver {pair.driver or 'module'} {verb}: {pair.build.reason}"
            )
            if pair.build.line:
                text.append(f"  the compiler says: {pair.build.line}")
            if pair.build.source not in ("", reported):
                reported = pair.build.source
                text.append(f"  source: {reported}")
        text.append(self.headline)
        for one in self.pending:
            text.append(
                f"pending: {one.package.name} {one.package.version} -> {one.version} ({one.archive}), held on nodes; `--upgrade-package {one.package.name}`"
            )
        if self.free:
            text.append(
                f"pending: {self.free} packages of the base system, which nodes update by themselves"
            )
        return [*text, *(f"note: {note}" for note in self.notes)]


def security_update(
    stack: CatalogEntry[Stack],
    lock: Lock,
    archives: StackArchives,
    site: Site,
    today: dt.date,
    *,
    allow_unknown: bool = False,
) -> SecurityUpdate:
    """Move kernel and driver of `lock` to the newest pair of the security archives that is known to
    build; everything else stays.

    The driver moves only if the newer kernel needs a newer version of its branch. If the stack
    names its kernel exactly, nothing moves, and the newer kernels are reported with the known
    outcomes of their builds. Raises LockError as `StackArchives.resolve` does.
    """
    notes, exact = [], stack.item.kernel.release
    guarded = _guarded(lock)
    if not any(is_security(item) for item in lock.archives):
        notes.append(
            f"none of the archives {', '.join(sorted(guarded))} is one of security updates, so all of them count"
        )
    newest, newer = newer_kernels(stack, lock, archives)
    passed: list[KernelDriverPair] = []
    result, taken = lock, None
    for pair in _pairs(stack.item, lock, newer, archives, site):
        # The stack names its kernel, so nothing moves; the outcomes help to choose another.
        if exact is not None:
            named = dataclasses.replace(
                pair.build, reason=f"the stack names kernel {exact} itself; {pair.build.reason}"
            )
            passed.append(
                dataclasses.replace(pair, build=named) if pair.build.outcome == "ok" else pair
            )
            continue
        # The pairs come newest first, so the first that can be taken is the best.
        if pair.build.outcome == "ok" or (pair.build.outcome == "unknown" and allow_unknown):
            try:
                made = archives.resolve(today, keep=lock, kernel=pair.kernel, driver=pair.driver)
            # It builds, but the archives do not fit together: the next older pair may.
            except UnsolvableError as error:
                passed.append(
                    KernelDriverPair(pair.kernel, pair.driver, KnownBuild("ok", error.message))
                )
                continue
            result, taken = made.lock, pair
            notes += [made.relaxed] if made.relaxed else []
            if pair.build.outcome == "unknown":
                notes.append(f"not verified: {pair.build.reason}; taken because of --allow-unknown")
            break
        passed.append(pair)
    if exact is not None and newer:
        line = stack.source.line(("kernel", "release"))
        where = f"{stack.file}:{line}"
        if all(pair.build.outcome == "fails" for pair in passed):
            notes.append(
                f"{where}: no newer kernel is one that the driver builds on; the stack has to stay, or to move to another driver"
            )
        else:
            notes.append(
                f"{where}: name a newer `release`, or write `series` and `flavour` instead, and lock again"
            )
    state: SecurityUpdateState = "held-back" if newer else "current"
    if newer and taken is not None and taken.kernel == newer[0].release:
        state = "moved"
    updates = archives.newer(result, guarded)
    pending, free = [], 0
    for item in result.packages:
        if item.name in updates and item.part != "kernel":
            if item.set == "stack":
                pending.append(PendingUpdate(item, *updates[item.name]))
            else:
                free += 1
    notes += _bulletins(stack.item, result)
    return SecurityUpdate(
        state,
        lock=result,
        newest=newest,
        taken=taken,
        passed=tuple(passed),
        pending=tuple(pending),
        free=free,
        notes=tuple(notes),
    )


def newer_kernels(
    stack: CatalogEntry[Stack], lock: Lock, archives: StackArchives
) -> tuple[KernelOffer | None, list[KernelOffer]]:
    """Return the newest kernel of the security archives, and all newer than the locked one, newest first.

    They are of the locked kernel's series and flavour, even if the stack names an exact kernel.
    """
    exact = stack.item.kernel.release
    series = re.match(r"\d+\.\d+", exact) if exact is not None else None
    asked = None
    if series is not None and exact is not None:
        asked = Kernel(series=series.group(), flavour=exact.rpartition("-")[2])
    offers = [offer for offer in archives.kernels(asked) if offer.archives & _guarded(lock)]
    locked = next(
        item.version for item in lock.packages if kernel_release(item.name) == lock.kernel_release
    )
    newer = [offer for offer in offers if compare(offer.version, locked) > 0]
    return (offers[0] if offers else None), newer


def _guarded(lock: Lock) -> set[str]:
    """Return the archives of security updates, or all archives if the stack has none of those."""
    return {item.id for item in lock.archives if is_security(item)} or {
        item.id for item in lock.archives
    }


def _pairs(
    stack: Stack, lock: Lock, kernels: list[KernelOffer], archives: StackArchives, site: Site
) -> Iterator[KernelDriverPair]:
    """Yield every kernel, newest first, with the locked driver and then the newer ones of its branch."""
    driver, results = stack.driver, results_directory(site)
    others = [
        module for module in stack.modules if module.package is not None and module.dkms is not None
    ]
    untried = None
    if others:
        untried = KnownBuild(
            "unknown",
            f"whether {', '.join(module.name for module in others)} builds there was not tried",
        )
    if driver is None or driver.dkms is None or lock.driver_version is None:
        why = "the stack has no GPU driver"
        if driver is not None:
            why = "the GPU's module comes with the kernel"
        inside = KnownBuild("ok", why)
        for kernel in kernels:
            yield KernelDriverPair(kernel.release, None, untried or inside)
        return
    offered = archives.drivers()
    # The locked driver first: it moves only if the kernel needs a newer one.
    drivers = [version for version in (lock.driver_version,) if version in offered]
    drivers += [version for version in offered if compare(version, lock.driver_version) > 0]
    for kernel in kernels:
        for version in drivers:
            build = known_builds(kernel.release, kernel.version, version, driver, results=results)
            # The driver builds, and another module of the stack may not: unknown, not good.
            if build.outcome == "ok" and untried is not None:
                build = untried
            yield KernelDriverPair(kernel.release, version, build)


def _bulletins(stack: Stack, lock: Lock) -> list[str]:
    """Return the security bulletins of the facts for the driver and the toolkit that stay."""
    bulletins = []
    driver = stack.driver
    if driver is not None and driver.branch is not None and lock.driver_version is not None:
        try:
            floor = facts.security_floor(driver.branch)
        except FactsError:
            bulletins.append(
                f"driver branch {driver.branch} has no security facts, so nothing is known of its bulletins"
            )
        else:
            if floor.floor is not None and compare(lock.driver_version, floor.floor) < 0:
                bulletins.append(
                    f"driver {lock.driver_version} is below {floor.floor}, the oldest of branch {driver.branch} without known holes"
                )
            if not floor.fixed:
                bulletins.append(
                    f"driver branch {driver.branch} has no version that fixes its newest bulletin"
                )
    toolkit = stack.runtime.toolkit if stack.runtime is not None else None
    for item in lock.packages if toolkit is not None and toolkit.packages else ():
        if item.name == toolkit.packages[0] and not rules.toolkit_safe(item.version):  # type: ignore[union-attr]
            faults = ", ".join(rules.toolkit_faults(item.version))
            bulletins.append(
                f"{item.name} {item.version} is affected by {faults}; the safe floor is {rules.toolkit_floor()}"
            )
    return bulletins

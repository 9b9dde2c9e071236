"""Implementation of `goldnode lock`: make, keep, move and check the lock of a stack.

A good lock stays unchanged. If packages left the archives, or if the stack's intent has changed,
only the affected versions move. `UpdateMode.UPGRADE` moves everything, `UpdateMode.SECURITY` kernel
and module as a pair (lock.security).
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import KERNEL_HEADERS, Stack
from goldnode.compat import rules
from goldnode.core.errors import (
    EditedLockError,
    LockError,
    NewerLockError,
    SigningKeyError,
    UnsolvableError,
    VanishedError,
    nearest,
)
from goldnode.core.site import Site
from goldnode.lock import model
from goldnode.lock.archive_keys import judge_keys
from goldnode.lock.archives import archives_of
from goldnode.lock.diff import ChangeReason, LockDiff, PackageChange, compare_locks, is_security
from goldnode.lock.model import Lock
from goldnode.lock.resolve import StackArchives, open_archives
from goldnode.lock.security import SecurityUpdate, newer_kernels, security_update
from goldnode.node.state.family import kernel_release

REPORT = "goldnode.lock-report/1"


class UpdateMode(enum.Enum):
    """The parts of a lock that may move: those that must, everything, or kernel and module."""

    KEEP = "keep"
    UPGRADE = "upgrade"
    SECURITY = "security"


@dataclass(frozen=True)
class LockRequest:
    """How to update or check a lock.

    `packages` may move in addition to what `mode` moves. `out` is the directory of the lock,
    `status` a dpkg status file to resolve on top of. `allow_unknown`: take a kernel of which it is
    unknown whether the driver builds on it. Without `write`, the change is only reported. `today`
    is the day of the resolution.
    """

    mode: UpdateMode = UpdateMode.KEEP
    packages: Collection[str] = ()
    out: Path | None = None
    status: Path | None = None
    cache: Path | None = None
    offline: bool = False
    write: bool = True
    allow_unknown: bool = False
    today: dt.date = field(default_factory=lambda: dt.datetime.now(tz=dt.UTC).date())


@dataclass(frozen=True)
class _LockBefore:
    """The lock before an update, its file, and what is known about it. `target`: directory of the new lock."""

    lock: Lock | None
    file: Path | None
    target: Path
    why: ChangeReason
    notes: Sequence[str]


@dataclass(frozen=True)
class LockProblem:
    """One problem of a lock.

    `wrong`: the lock cannot be used as it is; otherwise a newer version is available.

    `kind`: edited, intent, vanished, changed, bulletin, key; kernel, security, newer, unneeded,
    unresolved, held-back.
    """

    kind: str
    message: str
    wrong: bool
    package: str | None = None


def _contents(lock: Lock) -> dict[str, Any]:
    """Return the part of a report that describes the lock."""
    return {
        "kernel": lock.kernel_release,
        "driver": lock.driver_version,
        "packages": len(lock.packages),
        "stack_sha256": {
            "without_nvswitch": lock.stack_hash(nvswitch=False),
            "with_nvswitch": lock.stack_hash(nvswitch=True),
        },
    }


@dataclass(frozen=True)
class LockUpdate:
    """Result for a lock. `action` is written, kept (nothing moved) or would-write; `old` is the lock before."""

    file: Path
    action: Literal["written", "kept", "would-write"]
    lock: Lock
    old: Lock | None
    diff: LockDiff
    notes: tuple[str, ...] = ()
    security: SecurityUpdate | None = None

    def data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "schema": REPORT,
            "stack": self.lock.stack,
            "file": str(self.file),
            "action": self.action,
            "digest": self.lock.digest,
            "digest_before": self.old.digest if self.old is not None else None,
            **_contents(self.lock),
            "diff": self.diff.data(),
            "security": self.security.data() if self.security is not None else None,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class LockCheck:
    """Report about a lock. `needed` is the change of a plain `goldnode lock`, `pending` that of
    `--upgrade` (None: unknown).
    """

    file: Path
    lock: Lock
    problems: tuple[LockProblem, ...]
    needed: LockDiff
    pending: LockDiff | None
    security: SecurityUpdate | None = None

    @property
    def wrong(self) -> list[LockProblem]:
        """Return the problems that make the lock unusable."""
        return [problem for problem in self.problems if problem.wrong]

    def data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "schema": REPORT,
            "stack": self.lock.stack,
            "file": str(self.file),
            "action": "checked",
            "digest": self.lock.digest,
            **_contents(self.lock),
            "good": not self.wrong,
            "problems": [
                {
                    "kind": one.kind,
                    "message": one.message,
                    "wrong": one.wrong,
                    "package": one.package,
                }
                for one in self.problems
            ],
            "needed": self.needed.data(),
            "pending": self.pending.data() if self.pending is not None else None,
            "security": self.security.data() if self.security is not None else None,
        }


def update(
    stack: CatalogEntry[Stack],
    catalog: Catalog,
    site: Site,
    request: LockRequest | None = None,
) -> LockUpdate:
    """Update the lock of `stack` and write it, or only report the change.

    It is written into `out`, else into the first of the site's lock directories, else next to the
    stack. The old lock is the one in `out`, else the one that `model.find_lock` finds. Raises
    LockError and as `resolve.resolve` does; after an error the old lock is still there.
    """
    request = request or LockRequest()
    day, mode, out = request.today, request.mode, request.out
    places = [*site.lock_directories(to_write=True), *site.lock_places(stack.file.parent, "stacks")]
    target = out or places[0]
    path = _place(stack, site, out, to_write=True)
    old, fault, notes = _old(stack, path, mode)
    _known(request.packages, old, path)
    if mode is UpdateMode.SECURITY:
        old = _updatable(old, fault, stack, path)
    with open_archives(
        stack, catalog, site, status=request.status, cache=request.cache, offline=request.offline
    ) as archives:
        notes += _keys(stack, archives, site, day)
        if mode is UpdateMode.SECURITY and old is not None:
            security = security_update(
                stack, old, archives, site, day, allow_unknown=request.allow_unknown
            )
            why = _why(old, fault, stack, archives)
            if request.write:
                archives.places.store(target)
            before = _LockBefore(old, path, target, why, notes)
            return _written(security.lock, before, security, write=request.write)
        why = _why(old, fault, stack, archives) if old is not None else ChangeReason()
        missing = old.lacks(archives.options) if old is not None else []
        spare = _spare(old, stack) if old is not None else None
        if (
            # With nothing moved and nothing asked for, a resolution would give the same lock.
            not missing
            and old is not None
            and path is not None
            and mode is UpdateMode.KEEP
            and request.status is None
            and not request.packages
            and _is_current(why, old, stack)
            and spare is None
        ):
            return LockUpdate(
                path, action="kept", lock=old, old=old, diff=LockDiff(), notes=tuple(notes)
            )
        made = archives.resolve(
            day, keep=old if mode is UpdateMode.KEEP else None, free=request.packages
        )
        notes += [made.relaxed] if made.relaxed else []
        if spare is not None:
            notes.append(f"no module of {stack.name} is built on nodes: {_WITHOUT.format(spare)}")
        if missing:
            notes.append(
                f"classes ask for optional parts that were not locked: {', '.join(missing)}"
            )
        if request.write:
            archives.places.store(target)
        return _written(
            made.lock, _LockBefore(old, path, target, why, notes), None, write=request.write
        )


def check(
    stack: CatalogEntry[Stack],
    catalog: Catalog,
    site: Site,
    request: LockRequest | None = None,
) -> LockCheck:
    """Report the packages of the lock of `stack` that moved or vanished, the change that would
    follow, and why. Nothing is written.

    With UpdateMode.UPGRADE or UpdateMode.SECURITY, a change that this mode would make counts as a
    fault too. Raises LockError if there is no lock or it cannot be read.
    """
    request = request or LockRequest()
    day, mode, out = request.today, request.mode, request.out
    path = _place(stack, site, out)
    old, fault, _ = _old(stack, path, UpdateMode.KEEP)
    if old is None or path is None:
        # Raises the reason; it can only return if the lock was to be in `out`.
        model.find_lock(stack, site)
        raise LockError(
            "there is no lock here",
            file=out,
            remedy=f"run `goldnode lock {stack.name} --out {out}`",
        )
    problems: list[LockProblem] = []
    needed, pending, moved = LockDiff(), None, None
    with open_archives(
        stack, catalog, site, cache=request.cache, offline=request.offline
    ) as archives:
        why = _why(old, fault, stack, archives)
        if fault is not None:
            problems.append(LockProblem("edited", fault.message, True))
        try:
            problems += [
                LockProblem("key", text, False) for text in _keys(stack, archives, site, day)
            ]
        except SigningKeyError as error:
            problems.append(LockProblem("key", f"{error.message} ({error.remedy})", True))
        if why.intent:
            problems.append(
                LockProblem(
                    "intent", f"{stack.file} asks for something else since {old.resolved}", True
                )
            )
        for name in old.lacks(archives.options):
            text = f'classes ask for optional part "{name}", which is not locked'
            problems.append(LockProblem("intent", text, True))
        if (spare := _spare(old, stack)) is not None:
            text = f"{spare} and a compiler are locked, and no module of {stack.name} is built on nodes"
            problems.append(LockProblem("unneeded", text, False, spare))
        for finding in archives.check(old):
            edited = fault is not None and finding.kind == "changed"
            note = ", or the lock was edited by hand" if edited else ""
            problems.append(
                LockProblem(finding.kind, finding.message + note, True, finding.package.name)
            )
        problems += [LockProblem("bulletin", text, True) for text in _unsafe(old, stack)]
        # Only then: without a problem, `goldnode lock` would keep the lock as it is.
        if problems:
            try:
                needed = compare_locks(old, archives.resolve(day, keep=old).lock, why)
            except (UnsolvableError, VanishedError) as error:
                problems.append(
                    LockProblem("unresolved", f"`goldnode lock` would fail: {error.message}", True)
                )
        try:
            pending = compare_locks(old, archives.resolve(day).lock, why)
        except (UnsolvableError, VanishedError) as error:
            problems.append(
                LockProblem(
                    "unresolved",
                    f"newer versions are unknown: {error.message}",
                    mode is UpdateMode.UPGRADE,
                )
            )
        if pending is not None:
            problems += _waiting(pending, old, mode)
        if stack.item.kernel.release is not None:
            newest, newer = newer_kernels(stack, old, archives)
            if newer and newest is not None:
                place = ", ".join(sorted(newest.archives))
                text = f"{newest.release} is there ({place}), and the stack names {stack.item.kernel.release} itself"
                problems.append(LockProblem("kernel", text, False))
        if mode is UpdateMode.SECURITY and not any(problem.wrong for problem in problems):
            moved = security_update(
                stack, old, archives, site, day, allow_unknown=request.allow_unknown
            )
            if moved.state != "current":
                problems.append(
                    LockProblem(
                        "held-back" if moved.state == "held-back" else "kernel",
                        moved.headline,
                        True,
                    )
                )
    return LockCheck(
        path, lock=old, problems=tuple(problems), needed=needed, pending=pending, security=moved
    )


def _keys(
    stack: CatalogEntry[Stack], archives: StackArchives, site: Site, day: dt.date
) -> list[str]:
    """Return warnings about the archives' keys. Raises SigningKeyError for one that the nodes' apt refuses."""
    direct = site.mirror is None or site.mirror.url is None
    return judge_keys(
        archives_of(stack.item, archives.options), archives.places, day, direct=direct
    )


def compare_files(before: Path, after: Path) -> LockDiff:
    """Return the differences between two lock files, without any archive. Raises LockError."""
    try:
        old = model.load_lock(before)
    except NewerLockError:
        raise
    except (
        LockError
    ) as error:  # what is to be done about the lock in force is nothing to do with this file
        error.remedy = "name a STACK.lock.yml as goldnode wrote it"
        raise
    return compare_locks(old, model.load_lock(after))


def _place(
    stack: CatalogEntry[Stack], site: Site, out: Path | None, *, to_write: bool = False
) -> Path | None:
    """Return the path of the existing lock."""
    if out is None:
        return model.lock_file(stack, site, to_write=to_write)
    path = out / model.lock_name(stack.name)
    return path if path.is_file() else None


def _old(
    stack: CatalogEntry[Stack], path: Path | None, mode: UpdateMode
) -> tuple[Lock | None, EditedLockError | None, list[str]]:
    """Return the existing lock, its faults, and remarks about it. Raises LockError if it cannot be used."""
    if path is None:
        return None, None, []
    try:
        lock, fault = model.read_lock(path)
    # Not even --upgrade replaces a lock that a later goldnode has written.
    except NewerLockError:
        raise
    except LockError as error:
        if mode is not UpdateMode.UPGRADE:
            raise
        return None, None, [f"the lock that was there could not be read: {error.message}"]
    model.check_stack(lock, path, stack)
    return lock, fault, [] if fault is None else [fault.message]


def _updatable(
    old: Lock | None, fault: EditedLockError | None, stack: CatalogEntry[Stack], path: Path | None
) -> Lock:
    """Return the lock to update with `--security`. Raises LockError for a missing, edited or stale one."""
    if fault is not None:
        raise fault
    if old is None or path is None:
        raise LockError(
            f'stack "{stack.name}" has no lock to update',
            file=stack.file,
            remedy=f"run `goldnode lock {stack.name}`",
        )
    model.check_intent(old, path, stack)
    return old


def _known(packages: Collection[str], old: Lock | None, path: Path | None) -> None:
    names = [item.name for item in old.packages] if old is not None else []
    for name in packages:
        if name not in names:
            raise LockError(
                f'package "{name}" is not in the lock',
                file=path,
                remedy=nearest(name, names) or "leave --upgrade-package out",
            )


def _why(
    old: Lock, fault: EditedLockError | None, stack: CatalogEntry[Stack], archives: StackArchives
) -> ChangeReason:
    findings = archives.check(old)
    return ChangeReason(
        vanished={item.package.name for item in findings if item.kind == "vanished"},
        changed={item.package.name for item in findings if item.kind == "changed"},
        edited=fault is not None,
        intent=old.intent != model.intent_digest(stack.item),
    )


def _is_current(why: ChangeReason, old: Lock, stack: CatalogEntry[Stack]) -> bool:
    return not (why.vanished or why.changed or why.edited or why.intent or _unsafe(old, stack))


_WITHOUT = f"{{}} and its compiler are left out; a class gets them with options: [{KERNEL_HEADERS}]"


def _spare(lock: Lock, stack: CatalogEntry[Stack]) -> str | None:
    """Return the headers that every node gets although nothing uses them, as in locks made before they were optional."""
    headers = lock.headers
    if headers is None or headers.when is not None or headers.name in stack.item.packages:
        return None
    if stack.item.builds_modules or lock.has_dkms:
        return None
    return headers.name


def _unsafe(lock: Lock, stack: CatalogEntry[Stack]) -> list[str]:
    """Return a sentence for a locked container toolkit that a bulletin affects."""
    toolkit = stack.item.runtime.toolkit if stack.item.runtime is not None else None
    names = toolkit.packages[:1] if toolkit is not None else []
    return [
        f"{item.name} {item.version} is affected by {', '.join(rules.toolkit_faults(item.version))}; the safe floor is {rules.toolkit_floor()}"
        for item in lock.packages
        if item.name in names and not rules.toolkit_safe(item.version)
    ]


def _written(
    lock: Lock, before: _LockBefore, moved: SecurityUpdate | None, *, write: bool
) -> LockUpdate:
    """Write a new lock if it differs from the one before, and return the result."""
    old, path, notes = before.lock, before.file, tuple(before.notes)
    # The day alone is no change: it would give lock and class documents another digest.
    same = old is not None and lock.model_copy(update={"resolved": old.resolved}) == old
    if same and path is not None and old is not None and not before.why.edited:
        return LockUpdate(
            path, action="kept", lock=old, old=old, diff=LockDiff(), notes=notes, security=moved
        )
    diff = compare_locks(old, lock, before.why)
    where = before.target / model.lock_name(lock.stack)
    if not write:
        return LockUpdate(
            where, action="would-write", lock=lock, old=old, diff=diff, notes=notes, security=moved
        )
    return LockUpdate(
        model.write_lock(lock, before.target),
        action="written",
        lock=lock,
        old=old,
        diff=diff,
        notes=notes,
        security=moved,
    )


def _waiting(pending: LockDiff, old: Lock, mode: UpdateMode) -> list[LockProblem]:
    """Return the newer versions in the archives: packages of the stack set one by one, the base
    system as a number.
    """
    wrong = mode is UpdateMode.UPGRADE
    suites = {item.id: item for item in old.archives}
    problems, base = [], []
    if "kernel" in pending.header:
        was, now = pending.header["kernel"]
        rows = [
            change
            for change in pending.changes
            if kernel_release(change.name) == now and change.now is not None
        ]
        where = f" ({rows[0].now.archive})" if rows and rows[0].now is not None else ""
        problems.append(
            LockProblem(
                "kernel",
                f"{now} is there, {was} is locked{where}",
                wrong,
                rows[0].name if rows else "kernel",
            )
        )
    for change in pending.changes:
        if change.kind != "moved" or change.was is None or change.now is None:
            continue
        # The line about the kernel covers its packages.
        if change.part == "kernel" and "kernel" in pending.header:
            continue
        if change.now.set == "base":
            base.append(change)
            continue
        safe = change.now.archive in suites and is_security(suites[change.now.archive])
        problems.append(
            LockProblem(
                "security" if safe else "newer",
                f"{change.name} {change.was.version} -> {change.now.version} ({change.now.archive}), held on nodes",
                wrong or (safe and mode is UpdateMode.SECURITY),
                change.name,
            )
        )
    if base:
        problems.append(
            LockProblem("newer", f"{len(base)} packages of the base system: {_some(base)}", wrong)
        )
    return problems


def _some(changes: Sequence[PackageChange]) -> str:
    names = [change.name for change in changes]
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")

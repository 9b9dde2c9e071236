"""Differences between two locks, for a reader: by part, from and to, why, how many bytes, and
whether nodes reboot for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from goldnode.lock.model import Lock, LockedArchive, LockedPackage
from goldnode.node.state.debversion import compare
from goldnode.node.state.family import kernel_release

PARTS = ("kernel", "driver", "module", "runtime", "base")


@dataclass(frozen=True)
class ChangeReason:
    """Reasons for which a lock was resolved again: packages that left the archives or have other
    bytes there, and a changed intent.
    """

    vanished: Collection[str] = ()
    changed: Collection[str] = ()
    edited: bool = False
    intent: bool = False


def _fields(row: LockedPackage | None, *names: str) -> dict[str, Any] | None:
    return {name: getattr(row, name) for name in names} if row is not None else None


@dataclass(frozen=True)
class PackageChange:
    """One package that differs. `was` and `now` are its rows in the two locks.

    Packages of two kernels are paired although their names differ.
    """

    kind: Literal["moved", "rebuilt", "new", "removed"]
    part: str
    was: LockedPackage | None
    now: LockedPackage | None
    reason: str

    @property
    def name(self) -> str:
        """Return the package's name in the newer lock that has it."""
        row = self.now or self.was
        assert row is not None  # noqa: S101 - one of the two is there
        return row.name

    def data(self) -> dict[str, Any]:
        """Return the change as plain data: names, versions, archive, reason, size of the file in bytes before and after."""
        return {
            "kind": self.kind,
            "part": self.part,
            "name": self.name,
            "from": _fields(self.was, "name", "version", "size"),
            "to": _fields(self.now, "name", "version", "size", "archive"),
            "held": (self.now or self.was).set == "stack",  # type: ignore[union-attr]
            "reason": self.reason,
        }


@dataclass(frozen=True)
class LockDiff:
    """The changes between two locks, by part and name.

    `notes` counts rows of which only `why`, `part` or the like differs. `fetch` is the size in
    bytes of the new files, `size` the growth of the whole closure. `reboot` is the reason why a
    node with the newer lock must reboot, or None.
    """

    changes: tuple[PackageChange, ...] = ()
    notes: int = 0
    fetch: int = 0
    size: int = 0
    reboot: str | None = None
    header: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.changes or self.notes)

    def data(self) -> dict[str, Any]:
        """Return the diff as plain data."""
        return {
            "changes": [change.data() for change in self.changes],
            "rows_with_other_notes": self.notes,
            "fetch_bytes": self.fetch,
            "size_delta_bytes": self.size,
            "reboot": self.reboot,
        }

    def text(self) -> str:
        """Return the diff for a reader, grouped by part."""
        lines = [
            f"{name}: {was or 'none'} -> {now or 'none'}"
            for name, (was, now) in self.header.items()
        ]
        for part in PARTS:
            rows = [change for change in self.changes if change.part == part]
            if rows:
                lines.append(f"{part}{', free on nodes' if part == 'base' else ''}:")
                lines += _table(rows)
        if self.notes:
            lines.append(
                f"{_count(self.notes, 'row')} of which only the reason, the part or the place differs"
            )
        if self.changes:
            kinds = {
                kind: len([change for change in self.changes if change.kind == kind])
                for kind in ("moved", "rebuilt", "new", "removed")
            }
            shown = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
            lines.append(
                f"{shown}; {_bytes(self.fetch)} to fetch, the closure {'grows' if self.size >= 0 else 'shrinks'} by {_bytes(abs(self.size))}"
            )
            lines.append(
                f"nodes that take it reboot: {self.reboot}" if self.reboot else "no reboot follows"
            )
        return "\n".join(lines)


def compare_locks(old: Lock | None, new: Lock, why: ChangeReason | None = None) -> LockDiff:
    """Return the differences between `old` (None if there was no lock) and `new`."""
    why = why or ChangeReason()
    if old is None:
        rows = [PackageChange("new", item.part, None, item, item.why) for item in new.packages]
        return _diff(rows, 0, None, new)
    before = {_role(item.name, old): item for item in old.packages}
    after = {_role(item.name, new): item for item in new.packages}
    places = {item.id: item for item in new.archives}
    changes, notes = [], 0
    for role in sorted(before.keys() | after.keys()):
        was, now = before.get(role), after.get(role)
        if was is None and now is not None:
            reason = "the stack asks for it" if now.requested else now.why
            changes.append(PackageChange("new", now.part, None, now, reason))
        elif now is None and was is not None:
            gone = "nothing needs it any more"
            if was.requested and why.intent:
                gone = "the stack asks for it no more"
            changes.append(PackageChange("removed", was.part, was, None, gone))
        elif was is not None and now is not None:
            if (was.name, was.version) != (now.name, now.version):
                changes.append(
                    PackageChange(
                        "moved",
                        now.part,
                        was,
                        now,
                        _reason(was, now=now, old=old, new=new, places=places, why=why),
                    )
                )
            elif was.sha256 != now.sha256 or was.size != now.size:
                reason = "other bytes under the same version"
                if why.edited:
                    reason = "the lock was edited by hand"
                changes.append(PackageChange("rebuilt", now.part, was, now, reason))
            elif was.model_copy(update={"why": _role(was.why, old)}) != now.model_copy(
                update={"why": _role(now.why, new)}
            ):
                notes += 1
    changes.sort(key=lambda change: (PARTS.index(change.part), change.name))
    return _diff(changes, notes, old, new)


def is_security(archive: LockedArchive) -> bool:
    """Return whether an archive holds security updates, by the name Debian and Ubuntu give such suites."""
    return archive.suite.endswith("-security")


def _role(text: str, lock: Lock) -> str:
    """Return a package name without the kernel release, so that packages of two kernels can be paired."""
    release = lock.kernel_release
    # Debian's common headers have the release without its flavour: 6.1.0-56-common.
    for part, mark in ((release, "RELEASE"), (release.rpartition("-")[0], "ABI")):
        if part:
            text = re.sub(rf"(linux-[a-z-]+)-{re.escape(part)}\b", rf"\1-{mark}", text)
    return text


def _reason(
    was: LockedPackage,
    now: LockedPackage,
    old: Lock,
    new: Lock,
    places: Mapping[str, LockedArchive],
    *,
    why: ChangeReason,
) -> str:
    # The first that holds is the cause: a version that vanished moves, newer or not.
    place = places.get(now.archive)
    where = f" ({now.archive})"
    if was.name in why.vanished:
        return f"the locked version left the archives{where}"
    if was.part == "kernel" and old.kernel_release != new.kernel_release:
        newer = compare(was.version, now.version) < 0
        return f"{'newer' if newer else 'older'} kernel{where}"
    if compare(was.version, now.version) > 0:
        return f"older version{where}"
    if was.part == "driver" and old.driver_version != new.driver_version:
        return f"driver {old.driver_version} -> {new.driver_version}{where}"
    if place is not None and is_security(place):
        return f"security update{where}"
    return f"newer version{where}"


def _diff(changes: list[PackageChange], notes: int, old: Lock | None, new: Lock) -> LockDiff:
    header: dict[str, tuple[str | None, str | None]] = {}
    if old is not None and old.kernel_release != new.kernel_release:
        header["kernel"] = (old.kernel_release, new.kernel_release)
    if old is not None and old.driver_version != new.driver_version:
        header["driver"] = (old.driver_version, new.driver_version)
    fetch = sum(change.now.size for change in changes if change.now is not None)
    size = sum(item.size for item in new.packages) - (
        sum(item.size for item in old.packages) if old is not None else 0
    )
    return LockDiff(
        tuple(changes),
        notes=notes,
        fetch=fetch,
        size=size,
        reboot=_reboot(changes, new),
        header=header,
    )


def _reboot(changes: list[PackageChange], new: Lock) -> str | None:
    """Return why the changes need a reboot, or None.

    A node's own plan decides by the same rule (node.state.domains.packages).
    """
    put = [
        change.now
        for change in changes
        if change.now is not None and change.now.set == "stack" and change.kind != "rebuilt"
    ]
    if any(kernel_release(item.name) == new.kernel_release for item in put):
        return f"kernel {new.kernel_release} has to be booted"
    if any(item.part == "driver" for item in put):
        if not new.driver_version:
            return "firmware or libraries of the GPU driver are replaced"
        return "the GPU driver is replaced"
    if any(item.part == "module" for item in put):
        return "kernel modules of the stack are replaced"
    return None


def _table(rows: list[PackageChange]) -> list[str]:
    cells = []
    for change in rows:
        was, now = change.was, change.now
        if was is not None and now is not None:
            name = now.name if was.name == now.name else f"{was.name} -> {now.name}"
            middle = (
                now.version if was.version == now.version else f"{was.version} -> {now.version}"
            )
        else:
            name = f"{'+' if now is not None else '-'} {change.name}"
            middle = (now or was).version  # type: ignore[union-attr]
        cells.append((name, middle, change.reason))
    widths = [min(60, max(len(cell[column]) for cell in cells)) for column in range(2)]
    return [
        f"  {name.ljust(widths[0])}  {middle.ljust(widths[1])}  {reason}"
        for name, middle, reason in cells
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _bytes(number: int) -> str:
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"

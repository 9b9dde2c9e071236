"""The packages that a lock would change on a machine, from its survey. Pure, and without contact to it.

`goldnode plan` asks the machine itself, and also shows files, units and settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goldnode.lock.model import Lock
from goldnode.node.state.debversion import compare

Survey = Mapping[str, Any]
INSTALL, UPGRADE, DOWNGRADE = "install", "upgrade", "downgrade"
_SHOWN = 6  # packages of a kind of change that a line lists


@dataclass(frozen=True)
class LockEffect:
    """The changes to one machine: (verb, package, version before or None, version of the lock)."""

    packages: tuple[tuple[str, str, str | None, str], ...]
    kernel: tuple[str, str] | None

    def lines(self) -> list[str]:
        """Return the changes as lines for a person."""
        lines = []
        for verb in (UPGRADE, DOWNGRADE, INSTALL):
            rows = [row for row in self.packages if row[0] == verb]
            if not rows:
                continue
            listed = [
                f"{name} {new}" if old is None else f"{name} {old} to {new}"
                for _, name, old, new in rows[:_SHOWN]
            ]
            if len(rows) > _SHOWN:
                listed.append(f"{len(rows) - _SHOWN} more")
            lines.append(f"{verb} {len(rows)}: {', '.join(listed)}")
        if self.kernel:
            lines.append(f"boot kernel {self.kernel[1]} (now {self.kernel[0]})")
        return lines or ["no package of the stack changes"]


def lock_effect(survey: Survey, lock: Lock, *, nvswitch: bool) -> LockEffect:
    """Return what the stack set of `lock` would change on a machine.

    :param nvswitch: whether the platform of its class has NVSwitch.
    """
    packages = survey["packages"]
    rows: list[tuple[str, str, str | None, str]] = []
    for item in lock.stack_set(nvswitch=nvswitch):
        row = packages.get(item.name)
        # A package that is only configured or half removed is not installed.
        old = row["version"] if row is not None and row["state"] == "installed" else None
        if old == item.version:
            continue
        verb = INSTALL
        if old is not None:
            verb = UPGRADE if compare(old, item.version) < 0 else DOWNGRADE
        rows.append((verb, item.name, old, item.version))
    running = survey["kernel"]["running"]
    kernel = (running, lock.kernel_release) if running not in (None, lock.kernel_release) else None
    return LockEffect(tuple(rows), kernel)

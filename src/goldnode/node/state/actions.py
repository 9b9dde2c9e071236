"""Builders of actions that several domains plan. Each is named after what it does, and knows its kind's texts and data."""

from __future__ import annotations

from .model import BOOT, Action, Observed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence


def link(part: str, name: str, to: str, *, seen: Observed, missing: str) -> List[Action]:
    """Return the action that points a symbolic link to `to`, or none if it does. `missing` is the reason without a link."""
    have = seen.links.get(name)
    if have == to:
        return []
    reason = missing if have is None else f"it points at {have}"
    data = {"to": to}
    return [Action(part, "link", name, reason, before=have, after=to, data=data)]


def unlink(part: str, name: str, reason: str, *, seen: Observed) -> List[Action]:
    """Return the action that removes a symbolic link, or none if there is no such link."""
    have = seen.links.get(name)
    if have is None:
        return []
    return [Action(part, "file.remove", name, reason, before=f"-> {have}\n")]


def start_unit(part: str, name: str, reason: str) -> Action:
    """Return the action that starts a unit."""
    return Action(part, "units.start", name, reason, BOOT)


def stop_unit(
    part: str, name: str, reason: str, patterns: Optional[Sequence[str]] = None
) -> Action:
    """Return the action that stops a unit, or all units that match `patterns`."""
    data = {"names": list(patterns or [name])}
    return Action(
        part, "units.stop", name, reason, BOOT, before="running\n", after="stopped\n", data=data
    )


def unmerge_file(part: str, path: str, reason: str, now: str, text: Optional[str]) -> Action:
    """Return the action that takes goldnode's settings out of a foreign file. `text` None removes the file."""
    data = {"content": text}
    return Action(part, "file.unmerge", path, reason, before=now, after=text, data=data)


def remove_directory(path: str, reason: str) -> Action:
    """Return the action that removes an empty directory, or one that is goldnode's alone."""
    return Action("node_class", "directory.remove", path, reason, before=f"{path}\n")


def hold(part: str, target: str, names: Sequence[str], reason: str) -> Action:
    """Return the action that puts packages on hold."""
    data = {"names": list(names)}
    return Action(part, "packages.hold", target, reason, before="", after=_held(names), data=data)


def release_hold(part: str, target: str, names: Sequence[str], reason: str) -> Action:
    """Return the action that takes packages off hold."""
    data = {"names": list(names)}
    return Action(part, "packages.unhold", target, reason, before=_held(names), after="", data=data)


def _held(names: Sequence[str]) -> str:
    return "".join(f"hold {name}\n" for name in names)

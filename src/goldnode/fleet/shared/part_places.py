"""Where parts were over time: the history of a slot, the history of a part, and what changed in a node.

A part is known by its UUID, else by its serial number. Neither is certain: GeForce boards show no serial number,
a vendor may leave a placeholder, the GPUs of one board share a number, and clones repeat one. A part that a capture
could not read is unknown, and never counts as replaced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

# Texts that firmware shows in place of a number. Our list; dmidecode prints them as they are.
PLACEHOLDERS = frozenset(
    (
        "", "-", "none", "n/a", "na", "[n/a]", "unknown", "empty", "invalid", "default string", "default",
        "not specified", "not applicable", "not available", "to be filled by o.e.m.", "system serial number",
        "chassis serial number", "base board serial number", "serial number", "oem", "o.e.m.",
        "123456789", "1234567890", "0123456789", "012345678", "12345678",
    )
)  # fmt: skip
MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class PartSighting:
    """A part in one place over consecutive captures of its node. `slot` is empty for the machine itself.

    Times are naive UTC. `captures` counts those that showed it.
    """

    node: str
    kind: str
    slot: str
    serial: str | None
    identity: str | None
    first: datetime
    last: datetime
    captures: int = 1
    model: str | None = None
    part_number: str | None = None
    firmware: str | None = None
    simulated: bool = False


class ChangeKind(StrEnum):
    """Change of the part of a slot between two inventories."""

    SAME = "same"
    REPLACED = "replaced"
    MOVED = "moved"  # to another slot of the same node
    ABSENT = "absent"  # nothing is seen in the slot: removed, or it does not answer
    NEW = "new"
    UNKNOWN = "unknown"  # one of the two shows no identity


@dataclass(frozen=True, slots=True)
class PartChange:
    """Change of one slot. `before` and `after` are None for a new and an absent part."""

    kind: ChangeKind
    before: PartSighting | None
    after: PartSighting | None

    @property
    def slot(self) -> tuple[str, str]:
        """Return kind and slot."""
        part = self.before or self.after
        return (part.kind, part.slot) if part is not None else ("", "")


def is_placeholder(text: str | None) -> bool:
    """Return whether a serial number or UUID identifies nothing."""
    low = (text or "").strip().lower()
    # A driver writes question marks for a GPU that it never initialised.
    return low in PLACEHOLDERS or "?" in low or len(set(low) - set(" -:.")) < 2


def repeated(sightings: Iterable[PartSighting]) -> frozenset[str]:
    """Return the serial numbers and UUIDs that two places had at the same time: they identify no single part."""
    places: dict[str, list[PartSighting]] = defaultdict(list)
    for one in sightings:
        for text in {one.serial, one.identity}:
            if text and not is_placeholder(text):
                places[text].append(one)
    twice = set()
    for text, rows in places.items():
        rows.sort(key=lambda row: row.first)
        for number, row in enumerate(rows):
            for other in rows[number + 1 :]:
                # Captures of one node have one time; those of two nodes overlap only if each saw it meanwhile.
                same_node = (row.node, row.kind) == (other.node, other.kind)
                together = (other.first <= row.last if same_node else other.first < row.last) and (
                    row.node,
                    row.kind,
                    row.slot,
                ) != (other.node, other.kind, other.slot)
                if together:
                    twice.add(text)
    return frozenset(twice)


@dataclass(frozen=True)
class PartIdentities:
    """Which sightings are of one part. `twice`: numbers that identify none (:func:`repeated`)."""

    twice: frozenset[str] = frozenset()

    def names(self, part: PartSighting) -> frozenset[str]:
        """Return what identifies a part: its UUID and serial number, without placeholders and repeated ones."""
        return frozenset(
            text
            for text in (part.identity, part.serial)
            if text and not is_placeholder(text) and text not in self.twice
        )

    def same(self, one: PartSighting, other: PartSighting) -> bool | None:
        """Return whether two sightings are of one part; None if that cannot be told.

        An equal serial number is the same board, also with another UUID: its GPU was replaced.
        """
        if self.names(one) & self.names(other):
            return True
        for mine, theirs in ((one.identity, other.identity), (one.serial, other.serial)):
            right = [text for text in (mine, theirs) if text and not is_placeholder(text)]
            if len(right) == 2 and not set(right) & self.twice:
                return False
        return None


def identities(sightings: Iterable[PartSighting]) -> PartIdentities:
    """Return which sightings are of one part."""
    return PartIdentities(repeated(sightings))


def history_of(
    sightings: Sequence[PartSighting], wanted: Iterable[str]
) -> tuple[list[PartSighting], frozenset[str]]:
    """Return the sightings of a part in the order of time, wherever it was, and all names that it had.

    :param wanted: serial numbers or UUIDs of the part.

    A number leads to a further one: a board that came back with another UUID has one history.
    """
    known, rules = set(wanted), identities(sightings)
    known = {name for name in known if name not in rules.twice and not is_placeholder(name)}
    while True:
        more = {
            name for one in sightings if rules.names(one) & known for name in rules.names(one)
        } - known
        if not more:
            break
        known |= more
    rows = [one for one in sightings if rules.names(one) & known]
    return sorted(rows, key=lambda one: (one.first, one.node, one.slot)), frozenset(known)


def compare(
    before: Sequence[PartSighting],
    after: Sequence[PartSighting],
    rules: PartIdentities | None = None,
) -> list[PartChange]:
    """Return what changed between two inventories of one node, slot by slot."""
    rules = rules or PartIdentities(repeated(before) | repeated(after))
    now = {(one.kind, one.slot): one for one in after}
    old_slots = {(one.kind, one.slot) for one in before}
    changes = [_change(one, now, rules) for one in before]
    changes += [
        PartChange(ChangeKind.NEW, None, one)
        for one in after
        if (one.kind, one.slot) not in old_slots
        and not any(rules.same(old, one) for old in before if old.kind == one.kind)
    ]
    return sorted(changes, key=lambda change: change.slot)


def _change(
    old: PartSighting, now: Mapping[tuple[str, str], PartSighting], rules: PartIdentities
) -> PartChange:
    there = now.get((old.kind, old.slot))
    if there is not None and rules.same(old, there):
        return PartChange(ChangeKind.SAME, old, there)
    moved = next(
        (one for one in now.values() if one.kind == old.kind and rules.same(old, one)), None
    )
    if moved is not None:
        return PartChange(ChangeKind.MOVED, old, moved)
    if there is None:
        return PartChange(ChangeKind.ABSENT, old, None)
    if rules.same(old, there) is None:
        return PartChange(ChangeKind.UNKNOWN, old, there)
    return PartChange(ChangeKind.REPLACED, old, there)


def machine_replaced(changes: Sequence[PartChange]) -> bool | None:
    """Return whether the whole machine is another one: its number, and no known part of it is the same.

    None if that cannot be told. False if only the chassis or main board was replaced around the same parts.
    """
    kinds = [change.kind for change in changes if change.slot[0] == MACHINE]
    others = [change.kind for change in changes if change.slot[0] != MACHINE]
    stays = any(kind in (ChangeKind.SAME, ChangeKind.MOVED) for kind in others)
    if stays or (kinds and kinds[0] is ChangeKind.SAME):
        return False
    if kinds and kinds[0] is ChangeKind.REPLACED:
        return True
    return None


def shown(rows: Sequence[PartSighting], node: str) -> list[PartSighting]:
    """Return the parts of a node that its last capture with any part shows."""
    own = [one for one in rows if one.node == node]
    newest = max((one.last for one in own), default=None)
    return [one for one in own if one.last == newest]


def known(rows: Sequence[PartSighting], node: str, at: datetime) -> list[PartSighting]:
    """Return the last known part of each slot of a node as of a time (naive UTC).

    A GPU that has left the bus is in no capture any more: the part is the one that the slot showed before.
    """
    last: dict[tuple[str, str], PartSighting] = {}
    for one in rows:
        if one.node != node or one.first > at:
            continue
        before = last.get((one.kind, one.slot))
        if before is None or one.first > before.first:
            last[one.kind, one.slot] = one
    return [last[key] for key in sorted(last)]

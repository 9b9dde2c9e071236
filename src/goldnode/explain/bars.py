"""Windows of PCI devices (BARs) for which the kernel found no room, and the drivers that could not start without them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from goldnode.explain.model import TextAnswer, of_symptom

# Linux 6.9 and later print the window in front of the result, older ones behind it.
_UNASSIGNED = re.compile(
    r"\b(?P<address>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?P<virtual>VF )?BAR (?P<number>\d+)"
    r"(?:: (?:no space for|failed to assign))? "
    r"\[(?P<kind>mem|io) +size (?P<size>0x[0-9a-f]+)(?P<flags>[ \w]*)\](?:: (?:can.t assign; no space|failed to assign))?"
)
_FAILED = ("no space", "failed to assign", "can't assign", "can\u2019t assign")
_NOT_STARTED = ("driver.probe_failed", "driver.init_failed")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class UnassignedBar:
    """A window that a device did not get. `high`: it may lie above 4 GiB. `line` counts from 0."""

    address: str
    number: int
    size: int
    high: bool
    line: int
    text: str

    @property
    def name(self) -> str:
        """Return number, size and place of the window in words."""
        size, unit = self.size, 0
        while size >= 1024 and size % 1024 == 0 and unit < len(_UNITS) - 1:
            size, unit = size // 1024, unit + 1
        place = "may lie above 4 GiB" if self.high else "must lie below 4 GiB"
        return f"BAR {self.number} ({size} {_UNITS[unit]}, {place})"


def unassigned(lines: Sequence[str]) -> list[UnassignedBar]:
    """Return the memory windows that the kernel could not place, once each.

    Ports of I/O are left out, as no driver of a GPU needs them, and so are windows of virtual functions, which a
    board needs for virtual machines only.
    Behind a bridge only 64-bit prefetchable memory may lie above 4 GiB.
    """
    rows: dict[tuple[str, int], UnassignedBar] = {}
    for at, line in enumerate(lines):
        match = _UNASSIGNED.search(line)
        if match is None or match["kind"] == "io" or match["virtual"]:
            continue
        if not any(word in line for word in _FAILED):
            continue
        flags = match["flags"].split()
        bar = UnassignedBar(
            match["address"],
            number=int(match["number"]),
            size=int(match["size"], 16),
            high="64bit" in flags and "pref" in flags,
            line=at,
            text=line,
        )
        rows.setdefault((bar.address, bar.number), bar)
    return list(rows.values())


def _address(line: str) -> str | None:
    match = _UNASSIGNED.search(line)
    return match["address"] if match else None


def needless(line: str) -> bool:
    """Return whether the line is about a window of I/O ports, which no driver of a GPU needs."""
    match = _UNASSIGNED.search(line)
    return match is not None and match["kind"] == "io"


def of_started(answers: Sequence[TextAnswer], lines: Sequence[str]) -> list[TextAnswer]:
    """Return the answers, in which a device that did not start is connected with its windows without a place."""
    failed = {one.subject for one in answers if one.id in _NOT_STARTED}
    bars = [bar for bar in unassigned(lines) if bar.address in failed]
    connected = {bar.address for bar in bars}
    rows = []
    for answer in answers:
        mine = [bar for bar in bars if bar.address == answer.subject]
        if answer.id == "bar-unassigned" and _address(answer.text) in connected:
            continue  # these windows get an answer of their own
        if answer.id not in _NOT_STARTED or not mine:
            rows.append(answer)
            continue
        names = " and ".join(bar.name for bar in mine)
        cause = f"it has no address for {names}: the driver cannot reach its registers or memory"
        fix = "Give it address space first, as the other answer states."
        rows.append(replace(answer, causes=(cause,), fix=fix))
        rows.append(
            of_symptom(
                "bar-unassigned",
                text=mine[0].text,
                line=mine[0].line,
                subject=answer.subject,
                title=f"The kernel found no room for {names}",
            )
        )
    return rows

"""Typed access to `facts/xid.yml`: Xids and SXids, NVIDIA's actions, and their effect on a node.

:func:`table` returns the part that a class document contains. :func:`explain` explains a number or lines of a
kernel log to a person.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.node.probe import logs

FILE = "xid.yml"
FIRST_SXID = 10000  # NVSwitch error numbers (SXid) start here

XidSeverity = Literal["none", "degraded", "drain"]

# How titles of issues, agents and plugins quote an error: without the driver's prefix.
_QUOTED = (
    re.compile(r"\bXid ?\((?:PCI:)?(?P<address>[0-9a-fA-F:.]+)\): ?(?P<code>\d+)", re.IGNORECASE),
    re.compile(
        r"\bXid[ :=#]*(?:errors?[ :=#]*)?(?P<code>\d{1,3})\b(?:.*?PCI:(?P<address>[0-9a-fA-F:.]+))?",
        re.IGNORECASE,
    ),
)
_BLAST = {
    "nothing": "nothing",
    "process": "the process that got the error",
    "gpu": "the jobs on that GPU",
    "node": "everything on the node",
    "hardware": "the node, and hands on site",
}
_REMEDY = {
    "gpu": (
        "Stop what runs on that GPU, then `nvidia-smi --gpu-reset -i ADDRESS`; where that fails, restart "
        "the node."
    ),
    "node": "Drain the node and restart it.",
    "hardware": "Drain the node, and have power cables and seating inspected.",
    "process": "Start the program again, and let its owner know.",
    "nothing": "Nothing at once.",
}
_EVIDENCE = (
    "`nvidia-bug-report.sh` before any reset or restart, the kernel's log of that boot, and `goldnode-node "
    "capture`"
)


@dataclass(frozen=True)
class ImmediateAction:
    """NVIDIA's immediate action. `node` and `blast` (the blast radius) are this project's interpretation."""

    name: str
    node: XidSeverity
    blast: str
    does: str


@dataclass(frozen=True)
class XidCode:
    """One Xid or SXid.

    `action` is `None` if NVIDIA's catalogue lists no action. `unused`: the catalogue states that
    the driver never prints it. For an SXid `action` is the class in NVIDIA's guide: SXID_FATAL,
    SXID_POTENTIAL, SXID_NON_FATAL, or SXID if the guide does not list it.
    """

    code: int
    name: str
    action: str | None
    then: str | None
    means: str | None
    node: XidSeverity
    blast: str
    unused: bool
    driver: str | None
    conflict: tuple[str, ...]
    origins: tuple[facts.Origin, ...]
    causes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return the kind of number: Xid or SXid."""
        return "SXid" if self.code >= FIRST_SXID else "Xid"


# Class in the Fabric Manager guide -> effect on the node, blast radius, explanation.
_SWITCH: dict[str, tuple[XidSeverity, str, str]] = {
    "SXID_FATAL": (
        "drain",
        "node",
        "always fatal for the whole fabric: the machine has to be restarted",
    ),
    "SXID_POTENTIAL": (
        "drain",
        "node",
        "fatal for the fabric where the line marks it: GPUs and switches have to be reset, as a restart does",
    ),
    "SXID_NON_FATAL": ("none", "nothing", "not fatal; many of one kind point at a link"),
    "SXID": ("degraded", "nothing", "the guide does not list it: the word in the line decides"),
}


@dataclass(frozen=True)
class NvlinkBits:
    """Bits of the first register of an Xid 74, and what they mean."""

    bits: tuple[int, ...]
    means: str


@cache
def nvlink_bits() -> tuple[NvlinkBits, ...]:
    """Return the meanings of the first register of Xid 74."""
    return tuple(
        NvlinkBits(tuple(row["bits"]), row["means"]) for row in facts.load(FILE)["nvlink_bits"]
    )


@cache
def actions() -> dict[str, ImmediateAction]:
    """Return NVIDIA's immediate actions by name."""
    rows = facts.load(FILE)["actions"]
    return {
        row["action"]: ImmediateAction(row["action"], row["node"], row["blast"], row["does"])
        for row in rows
    }


@cache
def codes() -> dict[int, XidCode]:
    """Return every Xid and SXid that the catalogue or the driver's headers name, by number.

    Raises FactsError for an invalid row.
    """
    data = facts.load(FILE)
    by_number: dict[int, XidCode] = {}
    for row in data["xid"]:
        by_number[row["code"]] = _xid(row, unused=False)
    for row in data["unused"]:
        by_number[row["code"]] = _xid(row, unused=True)
    by_number.update({row.code: row for row in _switch(data["sxid"])})
    return by_number


def _xid(row: Mapping[str, Any], *, unused: bool) -> XidCode:
    action = row.get("action")
    if action is not None and action not in actions():
        raise FactsError(f"Xid {row['code']} has the unknown action {action}", file=f"facts/{FILE}")
    known = actions().get(action) if action else None
    # Report an Xid that should never be printed as degraded, unless NVIDIA's action for it is to
    # ignore it.
    node = row.get("node") or (known.node if known else "degraded")
    return XidCode(
        row["code"],
        name=row["name"],
        action=action,
        then=row.get("then"),
        means=row.get("means"),
        node=node,
        blast=known.blast if known else {"drain": "gpu"}.get(node, "nothing"),
        unused=unused,
        driver=row.get("driver"),
        conflict=(row["conflict"],) if "conflict" in row else (),
        origins=facts.origins(FILE, row["source"]),
        causes=tuple(row.get("causes", ())),
    )


def _switch(block: Mapping[str, Any]) -> list[XidCode]:
    classes = dict.fromkeys(block["always_fatal"], "SXID_FATAL")
    classes.update(dict.fromkeys(block["potentially_fatal"], "SXID_POTENTIAL"))
    classes.update(dict.fromkeys(block["non_fatal"], "SXID_NON_FATAL"))
    reported: dict[int, list[str]] = {}
    for row in block["disagreements"]:
        reported.setdefault(row["code"], []).append(row["conflict"])
    origins = facts.origins(FILE, block["source"])
    rows = []
    for code in sorted({*classes, *block["names"]}):
        name = classes.get(code, "SXID")
        node, blast, _ = _SWITCH[name]
        rows.append(
            XidCode(
                code,
                name=block["names"].get(code) or "",
                action=name,
                then=None,
                means=None,
                node=node,
                blast=blast,
                unused=False,
                driver=None,
                conflict=tuple(reported.get(code, ())),
                origins=origins,
            )
        )
    return rows


def table() -> dict[str, list[str | None]]:
    """Return the table for a class document: number as text -> [NVIDIA's action, effect on the node, name].

    It has only those SXids that the guide classifies. For the others the fatal or non-fatal mark in
    the log line decides.
    """
    return {
        str(code): [row.action, row.node, row.means or row.name]
        for code, row in sorted(codes().items())
        if code < FIRST_SXID or row.action != "SXID"
    }


def explain(text: str) -> list[dict[str, Any]]:
    """Explain the number in `text`, or every event if `text` is lines of a log.

    :return: rows {code, kind, name, action, does, then, means, causes, node, blast, remedy, evidence,
    conflict, sources, event}.
        `means` is `None` and `name` empty for an unlisted number. `event` is the row that the line becomes in
        a
        capture; it is `None` for a bare number.
    """
    text = text.strip()
    bare = re.fullmatch(r"(?:S?Xid\s*)?(\d{1,6})", text, re.IGNORECASE)
    if bare:
        return [_row_data(int(bare.group(1)), None)]
    lines = text.splitlines()
    rows = [_row_data(row["code"], row) for row in logs.parse(lines)]
    return rows or [row for line in lines for row in _explain_quoted(line)]


def quoted(line: str) -> list[tuple[int, str | None]]:
    """Return codes and PCI addresses of the known Xids that a line quotes without the driver's prefix."""
    pattern = next((form for form in _QUOTED if form.search(line)), None)
    addresses: dict[int, str | None] = {}
    for match in pattern.finditer(line) if pattern else ():
        code = int(match["code"])
        if code in codes():
            addresses.setdefault(code, logs.address(match["address"] or ""))
    return list(addresses.items())


def _explain_quoted(line: str) -> list[dict[str, Any]]:
    rows = []
    for code, address in quoted(line):
        # In the kernel's form, for the reader of logs.
        events = logs.parse([f"NVRM: Xid (PCI:{address[:-2]}): {code}, {line}"]) if address else []
        rows += [_row_data(code, {**row, "text": line.strip()}) for row in events] or [
            _row_data(code, None)
        ]
    return rows


def _row_data(code: int | None, event: dict[str, Any] | None) -> dict[str, Any]:
    row = codes().get(code) if code is not None else None
    if row is None:
        return {
            "code": code,
            "kind": "SXid" if (code or 0) >= FIRST_SXID else "Xid",
            "name": "",
            "known": False,
            "event": event,
        }
    known = actions().get(row.action or "")
    node, blast, does = (
        row.node,
        row.blast,
        known.does if known else _SWITCH.get(row.action or "", ("", "", None))[2],
    )
    fatal = event.get("fatal") if event else None
    # The log line itself states whether an SXid or an NVLink Xid (144 to 150) is fatal. That
    # overrides the table.
    if fatal is not None and (row.kind == "SXid" or 144 <= row.code <= 150):
        node, blast = ("drain", "gpu") if fatal else ("none", "nothing")
        if fatal and row.kind == "SXid":
            blast = "node"  # an NVSwitch serves every GPU of the node
    return {
        "code": code,
        "kind": row.kind,
        "name": row.name,
        "known": True,
        "action": row.action,
        "does": does,
        "then": row.then,
        "means": row.means,
        "causes": list(row.causes),
        "unused": row.unused,
        "driver": row.driver,
        "node": node,
        "blast": _BLAST[blast],
        "remedy": _REMEDY[blast].replace("ADDRESS", (event or {}).get("address") or "ADDRESS"),
        "evidence": _EVIDENCE if node != "none" else None,
        "conflict": list(row.conflict),
        "sources": [str(origin) for origin in row.origins],
        "event": event,
    }

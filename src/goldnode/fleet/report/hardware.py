"""The parts of each node by its last capture: what a CMDB records about them."""
# ruff: noqa: S608  # keys and columns of the tables below; nothing that a request gives

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from goldnode.documents.fleet_hardware import FleetHardwareDocument, HardwarePart
from goldnode.fleet.ingest.class_names import NO_CLASS
from goldnode.fleet.ingest.read import ReadLimits, connect
from goldnode.node.ground.text import phrase

_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class PartKeys:
    """The keys of one kind of part: column -> key of the facts."""

    kind: str
    columns: Mapping[str, str]
    physical: str | None = None  # column without which a part is virtual: no part of the machine


PARTS = (
    PartKeys(
        "machine",
        {
            "vendor": "identity.product.vendor",
            "model": "identity.product.name",
            "part_number": "identity.product.board",
            "serial": "identity.product.serial",
            "firmware": "identity.product.bios_version",
        },
    ),
    PartKeys(
        "gpu",
        {
            "address": "gpu.address",
            "vendor": "gpu.vendor",
            "model": "gpu.name",
            "part_number": "gpu.board_part",
            "serial": "gpu.serial",
            "identity": "gpu.uuid",
            "pci_id": "gpu.pci_id",
            "firmware": "gpu.vbios",
        },
    ),
    PartKeys("nvswitch", {"address": "nvswitches.address", "pci_id": "nvswitches.pci_id"}),
    PartKeys(
        "network",
        {"address": "network.address", "identity": "network.mac", "firmware": "network.firmware"},
        physical="address",
    ),
    PartKeys(
        "infiniband",
        {
            "address": "infiniband.address",
            "part_number": "infiniband.board",
            "identity": "infiniband.guid",
            "firmware": "infiniband.firmware",
        },
    ),
    PartKeys(
        "disk",
        {
            "address": "storage.devices.address",
            "model": "storage.devices.model",
            "firmware": "storage.devices.firmware",
        },
    ),
)
COLUMNS = (
    "address",
    "vendor",
    "model",
    "part_number",
    "serial",
    "identity",
    "pci_id",
    "firmware",
)


def part_value(part: PartKeys, name: str) -> str:
    """Return the SQL of a column of a part; NULL for one that its kind does not have."""
    key = part.columns.get(name)
    return "NULL" if key is None else f"max(CASE WHEN f.key = '{key}' THEN f.value END)"


def _rows(part: PartKeys) -> str:
    """Return the SELECT of all parts of one kind."""
    values = ", ".join(f"{part_value(part, name)} AS {name}" for name in COLUMNS)
    keys = ", ".join(f"'{key}'" for key in part.columns.values())
    having = phrase("HAVING {} IS NOT NULL", part.physical)
    return (
        f"SELECT f.node AS node, '{part.kind}' AS kind, {values} FROM facts AS f "
        f"WHERE f.key IN ({keys}) AND f.fault IS NULL AND f.value <> '' GROUP BY f.node, f.item {having}"
    )


# The PCI id of a part that does not name its own is that of its PCI function.
_QUERY = f"""
WITH parts AS ({" UNION ALL ".join(map(_rows, PARTS))}),
functions AS (SELECT node, item, any_value(value) AS pci_id FROM facts WHERE key = 'pci.pci_id' AND fault IS NULL GROUP BY ALL)
SELECT n.node AS node, n.class AS class, n.time AS captured, n.simulated AS simulated, p.kind AS kind,
    p.address AS address, p.vendor AS vendor, p.model AS model, p.part_number AS part_number, p.serial AS serial,
    p.identity AS identity, coalesce(p.pci_id, f.pci_id) AS pci_id, p.firmware AS firmware
FROM nodes AS n
LEFT JOIN parts AS p ON p.node = n.node
LEFT JOIN functions AS f ON f.node = p.node AND f.item = p.address
"""


def hardware(directory: Path, at: datetime) -> FleetHardwareDocument:
    """Return the parts of the nodes by their last captures at a time. Raise GoldnodeError for a directory without data."""
    with connect(directory, ReadLimits(at=at, last=True)) as connection:
        cursor = connection.execute(_QUERY)
        names = [column[0] for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    order = {part.kind: place for place, part in enumerate(PARTS)}
    parts = [_part(row) for row in rows if row["kind"] is not None]
    parts.sort(key=lambda one: (one.node, order[one.kind], one.address or "", one.identity or ""))
    return FleetHardwareDocument(
        schema="goldnode.fleet-hardware/1",
        at=at.astimezone(UTC).strftime(_MOMENT),
        parts=parts,
        without=sorted(row["node"] for row in rows if row["kind"] is None),
    )


def _part(row: Mapping[str, Any]) -> HardwarePart:
    class_ = None if row["class"] == NO_CLASS else row["class"]
    captured = row["captured"].strftime(_MOMENT)
    return HardwarePart.model_validate(
        {**row, "class": class_, "captured": captured, "simulated": bool(row["simulated"])}
    )

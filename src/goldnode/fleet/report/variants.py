"""Hardware variants of the nodes by their last captures."""
# ruff: noqa: S608  # keys of the table below; nothing that a request gives

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from goldnode.fleet.ingest.read import ReadLimits, connect
from goldnode.fleet.shared.variants import HardwareVariant

# Kind as persons read it -> key of the facts. Serial numbers and the like are of one node each, and no variant.
KINDS = {
    "machine": "identity.product.name",
    "main board": "identity.product.board",
    "BIOS": "identity.product.bios_version",
    "CPU": "cpu.model",
    "GPU board": "gpu.board_part",
    "VBIOS": "gpu.vbios",
    "NIC firmware": "network.firmware",
    "InfiniBand board": "infiniband.board",
    "InfiniBand firmware": "infiniband.firmware",
    "disk": "storage.devices.model",
    "disk firmware": "storage.devices.firmware",
}
_QUERY = (
    "SELECT DISTINCT node, key, value FROM facts WHERE fault IS NULL AND value <> '' "
    f"AND key IN ({', '.join(repr(key) for key in KINDS.values())})"
)


def variants(directory: Path, at: datetime) -> dict[str, frozenset[HardwareVariant]]:
    """Return what each node with a capture has. Raise GoldnodeError for a directory without data."""
    kinds = {key: kind for kind, key in KINDS.items()}
    by_node: dict[str, set[HardwareVariant]] = {}
    with connect(directory, ReadLimits(at=at, last=True)) as connection:
        for node, key, value in connection.execute(_QUERY).fetchall():
            by_node.setdefault(node, set()).add(HardwareVariant(kinds[key], value))
    return {node: frozenset(rows) for node, rows in by_node.items()}

"""The parts of the nodes of a fleet, for a CMDB: `goldnode fleet hardware` (docs/how-to/fleet-report.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Moment, Part

HardwareKind = Literal["machine", "gpu", "nvswitch", "network", "infiniband", "disk"]


class HardwarePart(Part):
    """One part, as the last capture of its node has it. null: the capture has no such value."""

    node: str
    class_: str | None = Field(alias="class", description="null: the node has no class")
    captured: Moment
    simulated: bool
    kind: HardwareKind
    address: str | None = Field(description="PCI address; null: the machine, or a part without one")
    vendor: str | None
    model: str | None
    part_number: str | None = Field(
        description="GPU: of its board. InfiniBand: PSID. Machine: name of its board"
    )
    serial: str | None
    identity: str | None = Field(
        description="GPU: UUID. Interface: MAC address. InfiniBand: node GUID"
    )
    pci_id: str | None = Field(description="vendor and device, as 10de:2330")
    firmware: str | None = Field(description="GPU: VBIOS. Machine: BIOS")


class FleetHardwareDocument(Part):
    """The parts of all nodes, sorted by node, kind and address."""

    schema_: Literal["goldnode.fleet-hardware/1"] = Field(alias="schema")
    at: Moment
    parts: list[HardwarePart]
    without: list[str] = Field(description="nodes whose last capture has no part")

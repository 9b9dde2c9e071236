"""Limits of the health check from `facts/health.yml`, and hardware facts about GPU models."""

from __future__ import annotations

from functools import cache
from typing import Any

from goldnode.core.dataclass import dataclass
from goldnode.facts import host as facts
from goldnode.facts.host import Origin, load, origins

HEALTH = "health.yml"


@dataclass(frozen=True)
class Limit:
    """One limit: its value (a number, or numbers by name), its unit, and its sources."""

    name: str
    value: Any
    unit: str
    sources: tuple[Origin, ...]
    note: str | None


@dataclass(frozen=True)
class Hardware:
    """Expected hardware properties of a GPU model.

    None or empty: no source states the value, so it is not checked.
    """

    pcie_gen: int | None
    pcie_width: int | None
    nvlinks: int | None
    memory_mib: tuple[int, ...]
    ecc: bool | None
    mig: bool | None


@cache
def limits() -> dict[str, Limit]:
    """Return every limit by name."""
    return {
        name: Limit(
            name, row["value"], row["unit"], origins(HEALTH, row["source"]), row.get("note")
        )
        for name, row in load(HEALTH)["limits"].items()
    }


@cache
def hardware(sku: str) -> Hardware:
    """Return the hardware facts of model `sku`. Raises FactsError for an unknown one."""
    model = facts.gpu(sku)
    row: dict[str, Any] = next(
        item for item in load("gpus.yml")[model.vendor] if item["sku"] == sku
    )
    pcie = row.get("pcie") or {}
    sets: list[int] = next(
        (item["memory_mib"] for item in load(HEALTH)["memory_sets"] if item["sku"] == sku), []
    )
    return Hardware(
        pcie_gen=pcie.get("gen"),
        pcie_width=pcie.get("width"),
        nvlinks=row.get("nvlink_links"),
        memory_mib=tuple(dict.fromkeys([*([model.memory_mib] if model.memory_mib else []), *sets])),
        # A stated default, on or off, implies ECC support.
        ecc=None if row.get("ecc_default") is None else True,
        mig=model.mig_capable,
    )

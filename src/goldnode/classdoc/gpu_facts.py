"""Facts about GPU models in the form in which a node reads them: by model, and by PCI id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from goldnode.facts import health, pci_bridges
from goldnode.facts import host as facts
from goldnode.facts import workload as facts_workload


def health_facts(model: str | None) -> dict[str, Any]:
    """Return the limits of the health check and the facts about the hardware of GPU model `model`.

    Raises FactsError for an unknown model.
    """
    health_of_model: dict[str, Any] = {
        "limits": {name: row.value for name, row in sorted(health.limits().items())}
    }
    if model is None:
        return health_of_model
    known = health.hardware(model)
    stated = {
        "pcie": {
            key: value
            for key, value in (("gen", known.pcie_gen), ("width", known.pcie_width))
            if value is not None
        },
        "nvlinks": known.nvlinks,
        "memory_mib": list(known.memory_mib),
        "ecc": known.ecc,
        "mig": known.mig,
    }
    health_of_model["gpu"] = {
        key: value for key, value in stated.items() if value not in (None, {}, [])
    }
    if facts.gpu(model).vendor != "nvidia":
        health_of_model["on_package"] = list(pci_bridges.on_package())
    else:
        health_of_model["cuda"] = {
            "families": {str(row.major): row.minimum for row in facts_workload.families().values()},
            "bundled": {
                row.version: row.bundled
                for row in facts_workload.cudas().values()
                if row.bundled is not None
            },
        }
    return health_of_model


def shared_facts(models: Iterable[str]) -> dict[str, Any]:
    """Return the facts of :func:`health_facts` that models of one vendor share."""
    shared: dict[str, Any] = {}
    for sku in models:
        shared |= {
            key: value for key, value in health_facts(sku).items() if key not in ("gpu", "limits")
        }
    return shared


def by_pci_id(models: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return models, vendor, architecture and facts by the PCI id of a GPU."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for sku in models:
        gpu = facts.gpu(sku)
        for pci_id in gpu.pci_ids:
            rows.setdefault(pci_id, []).append(
                {
                    "models": [sku],
                    "vendor": gpu.vendor,
                    "architecture": gpu.architecture,
                    "health": health_facts(sku).get("gpu", {}),
                }
            )
    return {pci_id: common(same_id) for pci_id, same_id in sorted(rows.items())}


def common(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts that models with one PCI id have in common; memory is any of theirs."""
    first = rows[0]["health"]
    agreed = {
        key: value
        for key, value in first.items()
        if key != "memory_mib" and all(row["health"].get(key) == value for row in rows)
    }
    memory = sorted({size for row in rows for size in row["health"].get("memory_mib", ())})
    # A model without a known size may have any.
    if memory and all(row["health"].get("memory_mib") for row in rows):
        agreed["memory_mib"] = memory
    return {
        "models": [name for row in rows for name in row["models"]],
        "vendor": rows[0]["vendor"],
        "architecture": rows[0].get("architecture"),
        "health": dict(sorted(agreed.items())),
    }

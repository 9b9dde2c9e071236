"""GPUs that a class takes: one model, or with `model: auto` each model that fits its stack."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from ..ground.document import ClassDocument, ClassGpu

AUTO = "auto"
# The first half of a PCI id.
VENDORS = {"nvidia": "10de", "amd": "1002", "intel": "8086"}


def is_auto(gpu: ClassGpu) -> bool:
    """Return whether the class takes the model that the node has."""
    return gpu["model"] == AUTO


def own(gpu: ClassGpu, pci_id: object) -> bool:
    """Return whether a GPU of this PCI id counts as one of the class's.

    Of a class that takes any model, these are all GPUs of the vendor. A workstation also has the
    graphics and the accelerator of its processor.
    """
    if is_auto(gpu):
        return str(pci_id).startswith(f"{VENDORS[gpu['vendor']]}:")
    return pci_id in gpu["pci_ids"]


def on_bus(gpu: Optional[ClassGpu], rows: Optional[List[Dict[str, Optional[str]]]]) -> List[Any]:
    """Return the GPUs on the PCI bus that concern the class; for a class of one model all of them."""
    return [row for row in rows or () if not gpu or not is_auto(gpu) or own(gpu, row.get("id"))]


def unfit(gpu: ClassGpu, pci_id: object) -> Optional[str]:
    """Return why a GPU cannot be one of the class's; None if it can, or if no fact rules it out."""
    if is_auto(gpu):
        return (gpu.get("unfit") or {}).get(str(pci_id))
    return None if pci_id in gpu["pci_ids"] else f"not a {gpu['model']}"


def names(gpu: ClassGpu, ids: List[str]) -> Tuple[List[str], List[str]]:
    """Return the models of these PCI ids, and the ids that the facts do not have."""
    models = gpu.get("models") or {}
    known = [models[name] for name in ids if name in models]
    unknown = [name for name in ids if name not in models and not unfit(gpu, name)]
    return list(dict.fromkeys(known)), unknown


def unknown_accepted(document: ClassDocument) -> bool:
    """Return whether the class accepts what no fact states (`compat.unknown: accept`)."""
    return (document.get("compat") or {}).get("unknown") == "accept"


def unknown_blocks(document: ClassDocument) -> bool:
    """Return whether the class refuses what no fact states (`compat.unknown: block`)."""
    return (document.get("compat") or {}).get("unknown") == "block"

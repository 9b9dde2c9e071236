"""Choice of the class that a machine is judged by, and the judgement of a capture.

A machine provisioned by goldnode has its own class document. For any other, the document describes
the machine, with the facts of its GPU model. It gets the baseline of a catalog class that matches
GPU, count, system and driver. Operating system, kernel, driver and packages then come from the
machine. No class declares them, so they are not judged.
"""

from __future__ import annotations

import platform
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, cast

from goldnode.node.ground.text import phrase
from goldnode.node.state.domains.program import document_digest
from goldnode.node.state.finding import MISMATCH
from goldnode.node.verdict import check as checking
from goldnode.node.verdict import deltas, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from goldnode.node.ground.document import ClassDocument

Json = Dict[str, Any]

OWN, CATALOG, FACTS, UNKNOWN = "of the node", "of the catalog", "of the facts", "unknown model"
# Prefixes of hardware findings that are in no table of rules: the kernel log, failed readers.
ALSO = ("xid.", "sxid.", "events.", "capture.", "changed.")


class ChosenClass(NamedTuple):
    """A class document, its origin, a sentence about the choice, and the GPU model."""

    kind: str
    document: Json
    why: str
    model: Optional[str]


def gpus(capture: Mapping[str, Any]) -> List[Json]:
    """Return the NVIDIA GPUs of a capture."""
    # A section that could not be read is a fault, a dictionary: none of its keys is a GPU.
    rows = [row for row in capture.get("gpus") or () if isinstance(row, dict)]
    return [row for row in rows if row.get("vendor") == "nvidia"]


def choose(
    capture: Mapping[str, Any], known: Mapping[str, Any], own: Optional[Json]
) -> ChosenClass:
    """Return the class document for a capture.

    :param known: facts.json of the carry folder.
    :param own: the node's own class document.
    """
    if own is not None:
        return ChosenClass(
            OWN,
            own,
            f"the node's own class {own.get('class')}",
            (own.get("gpu") or {}).get("model"),
        )
    boards = gpus(capture)
    ids = sorted({str(row.get("pci_id")) for row in boards if isinstance(row.get("pci_id"), str)})
    models = [sku for sku, row in sorted(known["models"].items()) if set(row["pci_ids"]) & set(ids)]
    listed = ", ".join(dict.fromkeys(f"{row.get('name')} ({row.get('pci_id')})" for row in boards))
    if len(models) != 1 or not set(ids) <= set(known["models"][models[0]]["pci_ids"]):
        why = f"the facts have no model with the PCI id of {listed}"
        if models:
            why = f"GPUs of several models, {listed}: a class has one"
        return ChosenClass(
            UNKNOWN,
            document(capture, None, known, None),
            f"no class of the catalog fits: {why}",
            None,
        )
    model = models[0]
    fitting, reasons = None, []
    for row in known["classes"]:
        if row["model"] == model:
            differs = unlike(capture, row, len(boards))
            fitting = fitting or (None if differs else row)
            if differs:
                reasons.append(f"{row['class']} is for {', '.join(differs)}")
    made = document(capture, model, known, fitting)
    if fitting is not None:
        return ChosenClass(
            CATALOG,
            made,
            f"class {fitting['class']} fits by GPU, count, system and driver branch",
            model,
        )
    why = "; ".join(reasons) or f"the catalog has none for {model}"
    return ChosenClass(
        FACTS, made, f"no class of the catalog fits ({why}); judged by the facts of {model}", model
    )


def unlike(capture: Mapping[str, Any], row: Mapping[str, Any], count: int) -> List[str]:
    """Return the differences between a catalog class and this machine, in words."""
    system = capture.get("os") or {}
    branch = str((capture.get("driver") or {}).get("reported")).partition(".")[0]
    reasons = [] if count == row["count"] else [f"{row['count']} GPUs, not {count}"]
    if (system.get("id"), system.get("version")) != (row["os"]["id"], row["os"]["version"]):
        reasons.append(
            f"{row['os']['id']} {row['os']['version']}, not {system.get('id')} {system.get('version')}"
        )
    if row["branch"] is not None and branch != row["branch"]:
        reasons.append(f"driver {row['branch']}, not {branch}")
    return reasons


def document(
    capture: Mapping[str, Any],
    model: Optional[str],
    known: Mapping[str, Any],
    fitting: Optional[Json],
) -> Json:
    """Return a class document (schema goldnode.class/1) that describes a machine, with the facts of its
    model.
    """
    boards, system = gpus(capture), capture.get("os") or {}
    row = known["models"].get(model, {})
    ids = row.get("pci_ids") or sorted({str(board.get("pci_id")) for board in boards})
    release = (system.get("kernel") or {}).get("running")
    health = row.get("health", known["health"])
    class_document: Json = {
        "schema": ("goldnode.class/1"),
        "class": fitting["class"] if fitting else "as_found",
        "backend": "cuda",
        "simulated": False,
        "gate": "report",
        "os": {
            "id": str(system.get("id")),
            "version": str(system.get("version")),
            "codename": "",
            "architecture": {"aarch64": "arm64"}.get(platform.machine(), "amd64"),
        },
        "stack": {
            "name": "as found",
            "exercised": "none",
            "end_of_life": None,
            "limits": [],
            "waiver": None,
        },
        "lock": {"digest": None, "resolved": None},
        "gpu": {
            "vendor": "nvidia",
            "model": model or str(boards[0].get("name") if boards else "unknown"),
            "count": fitting["count"] if fitting else len(boards),
            "pci_ids": ids,
            "architecture": row.get("architecture"),
        },
        "platform": {
            "name": None,
            "nvswitch": bool(fitting["nvswitch"] if fitting else capture.get("nvswitches")),
        },
        "kernel": {"release": str(release), "image": "", "headers": ""},
        "driver": None,
        "runtime": None,
        "modules": [],
        "blacklist": [],
        "fence": [],
        "packages": [],
        "policy": {},
        "baseline": fitting["baseline"] if fitting else {},
        "site": {"archives": []},
        "health": health,
        "xid": known["xid"],
    }
    class_document["digest"] = document_digest(class_document)
    return class_document


def judge(document: Mapping[str, Any], capture: Mapping[str, Any], *, whole: bool = False) -> Json:
    """Return the verdict on a capture. Pure except for its time.

    `whole` also judges the declarations beyond hardware, for a node's own class.
    """
    declared = cast("ClassDocument", document)
    if whole:
        from goldnode.node.ground.host import Host

        return checking.check(Host("/", live=False), declared, captured=capture)
    counted, _ = deltas.step({}, capture)
    counted.first_of_boot = False
    findings = table.judge(declared, capture, counted) + checking.events(declared, capture, {})[0]
    verdict = checking.summary(declared, findings, time.time(), passive=False)
    return {
        **verdict,
        "simulated": bool(capture.get("simulated")),
        "recorded": {"time": capture.get("time"), "source": capture.get("source")},
    }


def hardware(verdict: Mapping[str, Any]) -> List[Json]:
    """Return the findings of a verdict about hardware and driver."""
    judge({**EMPTY}, {})  # enters the rules into the table
    ids = {entry.kind.id for entry in table.TABLE}
    return [row for row in verdict["findings"] if row["id"] in ids or row["id"].startswith(ALSO)]


EMPTY: Json = {
    "class": "",
    "digest": "",
    "lock": {"digest": ""},
    "stack": {"name": "", "exercised": ""},
    "simulated": False,
}


def wrong(findings: List[Json]) -> List[str]:
    """Return the mismatches, each as `id subject: got (expected)`."""
    return [
        f"{row['id']}{phrase(' {}', row['subject'])}: {row['got']} (expected {row['expected']})"
        for row in findings
        if row["outcome"] == MISMATCH
    ]


def outcomes(verdict: Mapping[str, Any]) -> List[List[Any]]:
    """Return the parts of a verdict that tests compare: id, subject and outcome of each finding, sorted."""
    return sorted([row["id"], row["subject"] or "", row["outcome"]] for row in verdict["findings"])

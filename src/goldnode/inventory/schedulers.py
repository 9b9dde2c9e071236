"""Nodes as a scheduler lists them: the output of `scontrol show node` and of `kubectl get nodes`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from goldnode.core.errors import InventoryError

SLURM_WORDS = ("--all", "show", "node", "--oneliner")
KUBERNETES_WORDS = ("get", "nodes", "--output=json")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# In the order of scontrol. Texts of persons (Reason, Comment, Extra) are at the end of a line, so
# the first one counts.
_SLURM_KEYS = (
    "ActiveFeatures",
    "AvailableFeatures",
    "Gres",
    "NodeAddr",
    "NodeHostName",
    "Partitions",
    "State",
)
_STATE_FLAGS = "*~#!%$@^-"  # scontrol(1), NODE STATE CODES
_NONE = "(null)"


@dataclass(frozen=True)
class SchedulerHost:
    """A node of a scheduler, with variables for Ansible. `address` is None where the name is the address."""

    name: str
    address: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def slurm_hosts(text: str) -> list[SchedulerHost]:
    """Return the nodes in the output of `scontrol --all show node --oneliner`. Raise InventoryError for other text."""
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        match = re.match(r"NodeName=(\S+) ", line)
        if match is None:
            if line.startswith("No nodes in the system"):
                continue
            raise InventoryError(
                f"line {number} of scontrol's answer has no NodeName: {line[:60]!r}",
                remedy=f"compare with `scontrol {' '.join(SLURM_WORDS)}`",
            )
        hosts.append(_slurm_host(_checked(match[1]), line))
    return hosts


def _slurm_host(name: str, line: str) -> SchedulerHost:
    values = {}
    for key in _SLURM_KEYS:
        match = re.search(rf" {key}=(\S*)", line)
        values[key] = "" if match is None or match[1] == _NONE else match[1]
    address = values["NodeAddr"] or name
    return SchedulerHost(
        name,
        None if address == name else address,
        {
            "slurm_node": name,
            "slurm_hostname": values["NodeHostName"] or name,
            "slurm_features": _words(values["AvailableFeatures"]),
            "slurm_active_features": _words(values["ActiveFeatures"]),
            "slurm_gres": _words(values["Gres"]),
            "slurm_partitions": _words(values["Partitions"]),
            "slurm_state": [
                flag.rstrip(_STATE_FLAGS).lower() for flag in values["State"].split("+") if flag
            ],
        },
    )


def _words(text: str) -> list[str]:
    """Return the elements of a list with commas. A comma within parentheses is part of an element: `gpu:8(S:0,1)`."""
    return [word for word in re.split(r",(?![^(]*\))", text) if word]


def kubernetes_hosts(text: str) -> list[SchedulerHost]:
    """Return the nodes in the output of `kubectl get nodes --output=json`. Raise InventoryError for other text."""
    try:
        items = json.loads(text)["items"]
        return [_kubernetes_host(item) for item in items]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise InventoryError(
            f"kubectl's answer is no list of nodes: {type(problem).__name__}: {problem}",
            remedy=f"compare with `kubectl {' '.join(KUBERNETES_WORDS)}`",
        ) from None


def _kubernetes_host(item: Mapping[str, Any]) -> SchedulerHost:
    name = _checked(item["metadata"]["name"])
    spec, status = item.get("spec") or {}, item.get("status") or {}
    addresses: dict[str, str] = {}
    for row in status.get("addresses") or ():
        # With two families, the first address is the node's main one.
        addresses.setdefault(str(row["type"]), str(row["address"]))
    ready = [row["status"] for row in status.get("conditions") or () if row["type"] == "Ready"]
    address = addresses.get("InternalIP") or addresses.get("ExternalIP")
    return SchedulerHost(
        name,
        None if address == name else address,
        {
            "kubernetes_node": name,
            "kubernetes_labels": {str(key): str(value) for key, value in _labels(item).items()},
            "kubernetes_taints": _taints(spec),
            "kubernetes_unschedulable": bool(spec.get("unschedulable", False)),
            # A node whose kubelet is silent has Unknown here.
            "kubernetes_ready": ready == ["True"],
            "kubernetes_capacity": {
                str(key): str(value) for key, value in _capacity(status).items()
            },
            "kubernetes_addresses": addresses,
        },
    )


def _labels(item: Mapping[str, Any]) -> Mapping[str, Any]:
    labels: Mapping[str, Any] = item["metadata"].get("labels") or {}
    return labels


def _capacity(status: Mapping[str, Any]) -> Mapping[str, Any]:
    capacity: Mapping[str, Any] = status.get("capacity") or {}
    return capacity


def _taints(spec: Mapping[str, Any]) -> list[str]:
    """Return taints in the form of kubectl: KEY=VALUE:EFFECT, or KEY:EFFECT."""
    rows: Sequence[Mapping[str, Any]] = spec.get("taints") or ()
    return [
        f"{row['key']}{'=' + str(row['value']) if row.get('value') else ''}:{row['effect']}"
        for row in rows
    ]


def _checked(name: Any) -> str:
    """Return a name that is one of a host. Raise InventoryError for any other: it becomes an argument of ssh."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InventoryError(
            f"{str(name)[:60]!r} is not a name of a host", remedy="rename the node"
        )
    return name

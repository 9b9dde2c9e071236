"""Nodes as a scheduler lists them: the output of `scontrol show node` and of `kubectl get nodes`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
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
    "RealMemory",
    "State",
)
_STATE_FLAGS = "*~#!%$@^-"  # scontrol(1), NODE STATE CODES
_NONE = "(null)"
_TIMEOUT = 120.0  # seconds; an answer about 10,000 nodes takes a few


@dataclass(frozen=True)
class SchedulerHost:
    """A node of a scheduler, with variables for Ansible. `address` is None where the name is the address."""

    name: str
    address: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def slurm_hosts(text: str) -> list[SchedulerHost]:
    """Return the nodes in the output of `scontrol show node`, with or without `--oneliner`.

    Raise InventoryError for other text.
    """
    hosts = []
    for number, line in _records(text):
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


def _records(text: str) -> list[tuple[int, str]]:
    """Return the text of each node on one line, with the number of its first line.

    Without `--oneliner`, the further lines of a node are indented.
    """
    records: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(" ") and records:
            first, before = records[-1]
            records[-1] = (first, f"{before} {line.strip()}")
        elif line.strip():
            records.append((number, line))
    return records


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
            "slurm_memory_mib": int(values["RealMemory"]) if values["RealMemory"].isdigit() else 0,
            "slurm_state": [
                flag.rstrip(_STATE_FLAGS).lower() for flag in values["State"].split("+") if flag
            ],
        },
    )


def _words(text: str) -> list[str]:
    """Return the elements of a list with commas. A comma within parentheses is part of an element: `gpu:8(S:0,1)`."""
    return [word for word in re.split(r",(?![^(]*\))", text) if word]


def kubernetes_hosts(text: str) -> list[SchedulerHost]:
    """Return the nodes in the output of `kubectl get nodes --output=json`, or of one node.

    Raise InventoryError for other text.
    """
    try:
        document = json.loads(text)
        items = [document] if document.get("kind") == "Node" else document["items"]
        return [_kubernetes_host(item) for item in items]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        what = f"it has no {problem}" if isinstance(problem, KeyError) else str(problem)
        raise InventoryError(
            f"kubectl's answer is no list of nodes: {what}",
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
            "kubernetes_os_image": str((status.get("nodeInfo") or {}).get("osImage") or ""),
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


def program_output(command: Sequence[str]) -> str:
    """Return the output of a program. Raise InventoryError with its reason."""
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError as problem:
        raise InventoryError(
            f"{command[0]} is not installed here",
            remedy=f"name one that is, with words before it: `program: [ssh, HOST, {command[0]}]`",
        ) from problem
    except subprocess.TimeoutExpired as problem:
        raise InventoryError(
            f"no answer from `{shown}` within {_TIMEOUT:.0f} s", remedy=f"run `{shown}`"
        ) from problem
    except OSError as problem:
        raise InventoryError(
            f"`{shown}` cannot be run: {problem}", remedy="correct `program`"
        ) from problem
    if done.returncode != 0:
        reasons = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = reasons[-1][:300] if reasons else f"exit status {done.returncode}"
        raise InventoryError(f"`{shown}` failed: {reason}", remedy=f"run `{shown}`")
    return done.stdout

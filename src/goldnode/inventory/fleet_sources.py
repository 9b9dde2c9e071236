"""The machines of a fleet that runs already, from Slurm, Kubernetes or an Ansible inventory.

Each has the groups in which its site puts it, and what the site itself declares of it. Machines that
cannot be surveyed over ssh keep the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.core.errors import InventoryError
from goldnode.inventory.cohorts import COHORT
from goldnode.inventory.fleet import RACK
from goldnode.inventory.listing import hosts_of_group, listed
from goldnode.inventory.schedulers import (
    KUBERNETES_WORDS,
    SLURM_WORDS,
    SchedulerHost,
    kubernetes_hosts,
    program_output,
    slurm_hosts,
)
from goldnode.inventory.selection import check_inventory
from goldnode.node.state.family import FAMILIES

SLURM, KUBERNETES = "slurm", "kubernetes"
WORDS = {SLURM: ("scontrol", SLURM_WORDS), KUBERNETES: ("kubectl", KUBERNETES_WORDS)}
# scontrol since 21.08 writes POWERED_DOWN; before, POWER (slurm.conf, power saving). A node in FUTURE
# has never existed.
_OFF = {"power", "powered_down", "powering_down", "future"}
# NVIDIA's GPU feature discovery: machines with one value share an NVLink domain.
_NVLINK_DOMAIN = "nvidia.com/gpu.clique"
# Labels by which a site groups its machines. Labels of discovery follow the hardware.
_FOUND_LABELS = re.compile(
    r"(^|\.)(nvidia\.com|feature\.node\.kubernetes\.io|kubernetes\.io|k8s\.io|amd\.com|intel\.com)/"
)


_SOURCES = (
    "name slurm, kubernetes, an inventory, a list with one name a line, or a file with the saved output of "
    "`scontrol show node` or `kubectl get nodes -o json`"
)


@dataclass(frozen=True)
class FleetHost:
    """A machine of the fleet.

    `groups` are partitions, features, labels or inventory groups. `gpus` and `memory_mib` are what the
    scheduler's configuration declares; None if it declares nothing. `unreached` is the reason for
    which the machine is not contacted.
    """

    name: str
    address: str | None = None
    groups: frozenset[str] = frozenset()
    gpus: int | None = None
    memory_mib: int | None = None
    cohort: str | None = None
    rack: str | None = None
    state: str = ""
    unreached: str | None = None


@dataclass(frozen=True)
class FleetSource:
    """The machines, and the inventory by which Ansible reaches them; None if that has to be written."""

    kind: str
    hosts: Sequence[FleetHost] = field(default_factory=tuple)
    inventory: str | None = None


def read_source(source: str, program: Sequence[str] = ()) -> FleetSource:
    """Return the machines of a source.

    :param source: `slurm` or `kubernetes` to run scontrol or kubectl; else a file with the saved output
        of one of them, or an Ansible inventory, of which a list of names is one.
    :param program: scontrol or kubectl, with words before it.

    Raises InventoryError.
    """
    if source in WORDS:
        own, words = WORDS[source]
        try:
            text = program_output([*(program or [own]), *words])
        except InventoryError as problem:
            # The program is usually at home on another machine than goldnode.
            problem.remedy = (
                f"name a machine that has it, as in --program 'ssh HOST {own}', or save the output of "
                f"`{own} {' '.join(words)}` there, and name the file"
            )
            raise
        return _of_scheduler(source, text)
    path = Path(source)
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise InventoryError(
                f"this file cannot be read: {problem}", file=path, remedy="save it as UTF-8"
            ) from problem
        kind = _kind(text)
        if kind is not None:
            try:
                return _of_scheduler(kind, text)
            except InventoryError as problem:
                problem.file = problem.file or str(path)
                raise
    check_inventory(source, _SOURCES)
    return FleetSource("inventory", _inventory_hosts(listed(source)), source)


def _kind(text: str) -> str | None:
    """Return the scheduler whose output a text is, or None."""
    if re.match(r"\s*NodeName=", text):
        return SLURM
    if text.lstrip().startswith("{"):
        try:
            kind = json.loads(text).get("kind")
        except ValueError:
            return None
        if kind in ("List", "Node", "NodeList"):
            return KUBERNETES
    return None


def _of_scheduler(kind: str, text: str) -> FleetSource:
    read, made = (slurm_hosts, _slurm) if kind == SLURM else (kubernetes_hosts, _kubernetes)
    hosts = [made(host) for host in read(text)]
    if not hosts:
        raise InventoryError(
            f"{WORDS[kind][0]} lists no node", remedy="check that it shows the right cluster"
        )
    return FleetSource(kind, hosts)


def _slurm(host: SchedulerHost) -> FleetHost:
    values = host.variables
    states = [str(state) for state in values["slurm_state"]]
    unreached = None
    if _OFF.intersection(states):
        unreached = "Slurm has powered it down, so it cannot be surveyed"
    memory = values["slurm_memory_mib"]
    return FleetHost(
        host.name,
        host.address,
        groups=frozenset(
            [
                *(f"partition {name}" for name in values["slurm_partitions"]),
                *(f"feature {name}" for name in values["slurm_features"]),
            ]
        ),
        gpus=gpus_of_gres(values["slurm_gres"]),
        # The default of RealMemory is 1 (slurm.conf), which declares nothing.
        memory_mib=memory if memory > 1 else None,
        state=", ".join(states),
        unreached=unreached,
    )


def gpus_of_gres(words: Iterable[str]) -> int | None:
    """Return the number of GPUs in Slurm's generic resources: `gpu:h100:8(S:0-1)` is 8. None: none declared.

    MIG instances have a type with a profile (`gpu:1g.10gb:7`) and are not GPUs.
    """
    total = None
    for word in words:
        match = re.fullmatch(r"gpu(?::([^:()]+))??(?::(\d+))?(?:\(.*\))?", word)
        if match is not None and not re.search(r"\d+g\.\d+gb", match[1] or ""):
            total = (total or 0) + int(match[2] or 1)
    return total


def _kubernetes(host: SchedulerHost) -> FleetHost:
    values = host.variables
    labels: Mapping[str, str] = values["kubernetes_labels"]
    state = "ready" if values["kubernetes_ready"] else "not ready"
    if values["kubernetes_unschedulable"]:
        state = f"{state}, cordoned"
    roles = [
        name.partition("/")[2] for name in labels if name.startswith("node-role.kubernetes.io/")
    ]
    return FleetHost(
        host.name,
        host.address,
        groups=frozenset(
            [
                *(f"role {name}" for name in roles),
                *(
                    f"label {name}={value}"
                    for name, value in labels.items()
                    if not _FOUND_LABELS.search(name)
                ),
            ]
        ),
        # The capacity of nvidia.com/gpu is what the device plugin has found, and no declaration.
        cohort=labels.get(_NVLINK_DOMAIN),
        rack=labels.get("topology.kubernetes.io/rack"),
        state=state,
        unreached=_without_ssh(labels, str(values["kubernetes_os_image"])),
    )


def _without_ssh(labels: Mapping[str, str], image: str) -> str | None:
    """Return the reason for which a node of Kubernetes is no machine that apt can provision, or None."""
    if labels.get("eks.amazonaws.com/compute-type") == "fargate":
        return "it is a Fargate node, which is no machine of yours"
    if labels.get("type") == "virtual-kubelet":
        return "it is a virtual kubelet, which is no machine"
    # osImage is PRETTY_NAME of os-release (Kubernetes API, NodeSystemInfo).
    if image and not image.lower().startswith(tuple(FAMILIES)):
        return f"it runs {image}; goldnode provisions {' and '.join(sorted(FAMILIES))}"
    return None


def _inventory_hosts(data: Mapping[str, Any]) -> list[FleetHost]:
    """Return the hosts of an inventory as Ansible lists it."""
    known: dict[str, set[str]] = {}
    tree = dict(data)
    groups = {
        name: hosts_of_group(name, tree, known)
        for name in tree
        if name not in ("_meta", "all", "ungrouped")
    }
    variables = tree.get("_meta", {}).get("hostvars", {})
    hosts = []
    for name in sorted(hosts_of_group("all", tree, known)):
        own = variables.get(name, {})
        hosts.append(
            FleetHost(
                name,
                groups=frozenset(
                    f"group {group}" for group, members in groups.items() if name in members
                ),
                cohort=_literal(own.get(COHORT)),
                rack=_literal(own.get(RACK)),
            )
        )
    return hosts


def _literal(value: Any) -> str | None:
    """Return a value of the inventory; None for a template, which is not evaluated here."""
    return None if value is None or "{{" in str(value) else str(value)

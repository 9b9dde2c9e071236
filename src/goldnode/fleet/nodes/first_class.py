"""Find or propose the class of a first node: from a GPU and a stack that a person names, and from this machine."""

from __future__ import annotations

import datetime as dt
import platform
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from goldnode.catalog.load import Catalog
from goldnode.catalog.models import AUTO, NodeClass, Stack
from goldnode.classdoc.checks import VENDOR_OF_BACKEND
from goldnode.core.errors import CatalogError, FactsError, GoldnodeError
from goldnode.facts import host as facts
from goldnode.node.ground.host import Host, is_container
from goldnode.node.state import observe

GRAPHICS = "graphics"  # the optional part of a stack for a monitor on the GPU
NONE = "none"  # the GPU of a class without one
BACKENDS: dict[str | None, str] = {vendor: backend for backend, vendor in VENDOR_OF_BACKEND.items()}


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of a node: a model of the facts, `auto` or `none`, and how many."""

    model: str
    count: int = 1

    @property
    def vendor(self) -> str | None:
        """Return the vendor whose driver they need; `auto` means NVIDIA's."""
        if self.model == NONE:
            return None
        return "nvidia" if self.model == AUTO else facts.gpu(self.model).vendor

    def __str__(self) -> str:
        if self.model == NONE or self.count == 1:
            return self.model
        return f"{self.count} x {self.model}"


@dataclass(frozen=True)
class ThisMachine:
    """This machine, as far as it decides about a class. `gpus` are models, or PCI ids that no fact knows, with their number."""

    os: tuple[str, str]
    kernel: str
    gpus: tuple[tuple[str, int], ...]
    container: bool
    architecture: str = "amd64"

    @property
    def text(self) -> str:
        """Return the machine in words."""
        gpus = ", ".join(f"{count} x {model}" for model, count in self.gpus) or "no GPU"
        return f"{' '.join(self.os).strip() or 'unknown system'}, kernel {self.kernel}, {gpus}"


def this_machine(host: Host | None = None) -> ThisMachine:
    """Return this machine. A container shows the kernel and the bus of its host, and no GPU of its own is assumed."""
    host = host or Host("/")
    system = observe.os_release(host.text("/etc/os-release") or "")
    by_id = {pci_id: sku for sku, gpu in facts.gpus().items() for pci_id in gpu.pci_ids}
    container = is_container(host)
    rows = [] if container else observe.gpus(host, observe.functions(host))
    counted = Counter(by_id.get(str(row["id"]), str(row["id"])) for row in rows)
    # The class 12 has accelerators of processors too. Without a fact, only NVIDIA's and AMD's count as GPUs.
    gpus = [
        (name, count)
        for name, count in counted.most_common()
        if name in facts.gpus() or name.startswith(("10de:", "1002:"))
    ]
    return ThisMachine(
        (system["id"], system["version"]),
        platform.release(),
        tuple(gpus),
        container,
        "arm64" if platform.machine() == "aarch64" else "amd64",
    )


def gpus_of(machine: ThisMachine) -> NodeGpus:
    """Return the GPUs that a class for this machine would name. One NVIDIA card of any model is `auto`."""
    if not machine.gpus:
        return NodeGpus(NONE)
    model, count = machine.gpus[0]
    known = model in facts.gpus()
    nvidia = facts.gpu(model).vendor == "nvidia" if known else model.startswith("10de:")
    if nvidia and (count == 1 or not known):
        return NodeGpus(AUTO, count)
    return NodeGpus(model, count) if known else NodeGpus(NONE)


def parse_gpus(text: str) -> NodeGpus:
    """Return the GPUs that a person writes: `auto`, `none`, MODEL, or COUNT x MODEL. Raises GoldnodeError."""
    match = re.fullmatch(r"(?:(\d+)\s*[x*]\s*)?(\S.*)", text.strip())
    if match is None or match.group(1) == "0":
        raise GoldnodeError(
            f'"{text}" names no GPU', remedy="write auto, none, MODEL or COUNT x MODEL"
        )
    count, name = int(match.group(1) or 1), match.group(2).strip()
    if name.casefold() in (AUTO, NONE):
        return NodeGpus(name.casefold(), count if name.casefold() == AUTO else 1)
    try:
        return NodeGpus(facts.gpu(name).sku, count)
    except FactsError:
        fold = {sku.casefold(): sku for sku in facts.gpus()}
        # As people and shops write it: vendor before it, spaces for hyphens, any case.
        written = re.sub(r"^(nvidia|amd)\s+", "", name.casefold()).replace(" ", "-")
        if written in fold:
            return NodeGpus(fold[written], count)
        raise


def stacks_for(gpus: NodeGpus, catalog: Catalog, machine: ThisMachine | None = None) -> list[str]:
    """Return the stacks with the driver that the GPUs need, the most suitable first.

    Those for the machine's architecture (without one: amd64), release and kernel series come first,
    then those that are supported longest.
    """
    fitting = [
        name
        for name, entry in catalog.stacks.items()
        if (entry.item.driver.vendor if entry.item.driver else None) == gpus.vendor
        and not name.startswith("demo_")
    ]

    def order(name: str) -> tuple[object, ...]:
        stack = catalog.stacks[name].item
        return (
            stack.os.architecture != (machine.architecture if machine is not None else "amd64"),
            machine is not None and (stack.os.id, stack.os.version) != machine.os,
            machine is not None and not _same_series(stack, machine.kernel),
            # A GPU stack on Debian's archive is past the end of life of its driver branch.
            -stack.end_of_life.date.toordinal(),
            -_released(stack),
            # A stack with containerd alone is for nodes of a cluster. Its class is chosen by name.
            stack.runtime is not None and stack.runtime.engine == "containerd",
            name,
        )

    return sorted(fitting, key=order)


def _released(stack: Stack) -> int:
    """Return the day on which the OS release came out; 0 if no fact has it."""
    row = facts.distribution(f"{stack.os.id} {stack.os.version}") or {}
    return dt.date.fromisoformat(str(row["released"])).toordinal() if row.get("released") else 0


def _same_series(stack: Stack, kernel: str) -> bool:
    series = stack.kernel.series or ".".join((stack.kernel.release or "").split(".")[:2])
    return kernel.startswith(f"{series}.")


def class_of(
    gpus: NodeGpus, stack: str, catalog: Catalog, name: str | None = None, parts: Sequence[str] = ()
) -> tuple[str, dict[str, str]]:
    """Return the class for these GPUs and this stack, and its file for a catalog of the site's own.

    No file is needed where the catalog has the class. `name` names a class of the site's own,
    `parts` are optional parts of the stack. Raises CatalogError for a name that is taken.
    """
    catalog.stack(stack)
    if name is None:
        for known, entry in sorted(catalog.classes.items()):
            gpu = entry.item.gpu
            have = NodeGpus(NONE) if gpu is None else NodeGpus(gpu.model, gpu.count)
            item = entry.item
            if (have, item.stack, tuple(item.options), item.simulated) == (
                gpus,
                stack,
                tuple(parts),
                False,
            ):
                return known, {}
    elif name in catalog.classes:
        raise CatalogError(
            f'class "{name}" exists already',
            file=catalog.classes[name].file,
            remedy="choose another name",
        )
    chosen = name or _free_name(gpus, stack, catalog)
    document = _class_document(chosen, gpus, stack, catalog)
    if parts:
        document["options"] = list(parts)
    return chosen, {
        f"classes/{chosen}.yml": _HEAD + yaml.safe_dump(document, sort_keys=False, width=110)
    }


def _free_name(gpus: NodeGpus, stack: str, catalog: Catalog) -> str:
    base = {AUTO: "workstation", NONE: "cpu"}.get(gpus.model, gpus.model)
    slug = re.sub(
        r"[^a-z0-9]+",
        "_",
        f"{base}_{gpus.count}" if gpus.count > 1 else base.casefold(),
        flags=re.IGNORECASE,
    )
    names = [slug.casefold(), f"{slug}_{stack}".casefold()]
    names += [f"{slug}_{stack}_{number}".casefold() for number in range(2, 100)]
    taken = {*catalog.classes, *catalog.stacks}
    return next(name for name in names if name not in taken)


_HEAD = """\
# Written by `goldnode init`. Every key: docs/reference/configuration.md.
# The facts of the GPU model decide what is not declared here.
"""


def _class_document(name: str, gpus: NodeGpus, stack: str, catalog: Catalog) -> dict[str, Any]:
    document: dict[str, Any] = {
        "class": name,
        "description": _described(gpus),
        "backend": BACKENDS[gpus.vendor],
        "stack": stack,
        "platform": _platform(gpus, catalog),
    }
    if gpus.model != NONE:
        document["gpu"] = {"model": gpus.model, "count": gpus.count}
    if gpus.vendor == "nvidia":
        document["policy"] = {"persistence_mode": True}
    return document


def _described(gpus: NodeGpus) -> str:
    if gpus.model == NONE:
        return "Node without a GPU"
    model = "NVIDIA GPU of any model" if gpus.model == AUTO else gpus.model
    return f"Node with {gpus.count} x {model}"


def unlike(machine: ThisMachine, node_class: NodeClass, stack: Stack) -> list[str]:
    """Return why site.yml would refuse this machine as one of the class, one sentence each."""
    differences = []
    if (stack.os.id, stack.os.version) != machine.os:
        differences.append(
            f"this machine runs {' '.join(machine.os).strip() or 'an unknown system'}, and stack {stack.stack} is for "
            f"{stack.os.id} {stack.os.version}"
        )
    if stack.os.architecture != machine.architecture:
        differences.append(
            f"this machine is of {machine.architecture}, and stack {stack.stack} is for {stack.os.architecture}"
        )
    gpu, have = node_class.gpu, sum(count for _, count in machine.gpus)
    models = {model for model, _ in machine.gpus}
    if machine.container:
        return differences  # it does not show its GPUs
    if gpu is None and have:
        differences.append(
            f"this machine has {have} GPU ({', '.join(sorted(models))}), and the class has none"
        )
    elif gpu is not None and have != gpu.count:
        differences.append(f"this machine has {have or 'no'} GPU, and the class has {gpu.count}")
    elif gpu is not None and gpu.model != AUTO and models != {gpu.model}:
        differences.append(
            f"this machine has {', '.join(sorted(models))}, and the class has {gpu.model}"
        )
    return differences


def _platform(gpus: NodeGpus, catalog: Catalog) -> str:
    for name, entry in sorted(catalog.platforms.items()):
        slots = entry.item.gpus
        if slots is not None and gpus.model in slots.models and gpus.count <= slots.count:
            return name
    return "generic"

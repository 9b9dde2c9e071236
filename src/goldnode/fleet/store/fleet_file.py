"""The fleet file: nodes of classes with their failure domains, and limits, in YAML.

It serves a site that runs the lock service without rollouts, and gives rollouts the failure domains
of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from goldnode.core import yamlsource
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode

_Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
_Limit = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?%?$")] | int


class FleetFileNode(BaseModel):
    """One node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rack: _Name | None = None
    leaf: _Name | None = None
    cohort: _Name | None = None
    machine: _Name | None = Field(
        default=None,
        description="Id with which a FleetLock client asks, if it is not the name of the node.",
    )
    tags: tuple[_Name, ...] = Field(
        default=(), description="Tags, by which pools of a rollout choose."
    )


class FleetFilePer(BaseModel):
    """Nodes that may be granted at once in one rack, leaf or cohort."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rack: int | None = Field(default=None, ge=1)
    leaf: int | None = Field(default=None, ge=1)
    cohort: int | None = Field(default=None, ge=1)


class FleetFileLimits(BaseModel):
    """Limits of a class. A share is of its nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    planned: _Limit = "2%"
    failed: _Limit = "8%"
    total: _Limit = "10%"
    per: FleetFilePer = Field(default_factory=FleetFilePer)
    return_within: float = Field(
        default=120, gt=0, description="Minutes until a granted node is overdue."
    )


class FleetFileClass(BaseModel):
    """Nodes and limits of one class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limits: FleetFileLimits = Field(default_factory=FleetFileLimits)
    nodes: dict[_Name, FleetFileNode | None]


class FleetFile(BaseModel):
    """Nodes and limits by class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    classes: dict[_Name, FleetFileClass]


@dataclass(frozen=True)
class DeclaredFleet:
    """Content of a fleet file, as the store takes it."""

    nodes: tuple[StoredNode, ...]
    limits: dict[str, FleetLimits]


def load(path: Path) -> DeclaredFleet:
    """Read a fleet file. Raise StoreError with file and line for a wrong one."""
    document = yamlsource.validate(
        FleetFile, yamlsource.read(path, error=StoreError), error=StoreError
    )
    nodes: dict[str, StoredNode] = {}
    for name, entry in document.classes.items():
        for node, own in entry.nodes.items():
            if node in nodes:
                raise StoreError(
                    f"{node} is in class {nodes[node].node_class} and in class {name}",
                    file=path,
                    remedy="leave it in one of them",
                )
            domains = own.model_dump() if own else {}
            nodes[node] = StoredNode(node, name, **domains)
    limits = {
        name: FleetLimits(
            planned=str(entry.limits.planned),
            failed=str(entry.limits.failed),
            total=str(entry.limits.total),
            per={
                key: value
                for key, value in entry.limits.per.model_dump().items()
                if value is not None
            },
            return_within=entry.limits.return_within * 60,
        )
        for name, entry in document.classes.items()
    }
    return DeclaredFleet(tuple(nodes.values()), limits)

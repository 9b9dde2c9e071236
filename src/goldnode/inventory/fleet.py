"""The hosts of one class with what a rollout needs of them: rack, leaf switch, cohort and tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from goldnode.core.errors import InventoryError
from goldnode.inventory.cohorts import COHORT
from goldnode.inventory.listing import hosts_of_group, listed
from goldnode.inventory.selection import check_inventory

RACK, LEAF, TAGS = "goldnode_rack", "goldnode_leaf", "goldnode_tags"


@dataclass(frozen=True)
class InventoryNode:
    """A host of a class."""

    name: str
    rack: str | None
    leaf: str | None
    cohort: str | None
    tags: tuple[str, ...]
    variables: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # as written: templates unevaluated


def nodes_of_class(inventory: str, name: str) -> list[InventoryNode]:
    """Return the hosts of a class in an inventory, sorted by name. Raises InventoryError."""
    check_inventory(inventory)
    data = listed(inventory)
    variables = data.get("_meta", {}).get("hostvars", {})
    return [_node(host, variables.get(host, {})) for host in sorted(hosts_of_group(name, data, {}))]


def _node(host: str, values: Mapping[str, Any]) -> InventoryNode:
    tags = values.get(TAGS, [])
    if not isinstance(tags, Sequence) or isinstance(tags, str):
        raise InventoryError(
            f'{TAGS} of host "{host}" is {tags!r}, expected a list',
            remedy="write it as a list: [reserved]",
        )
    return InventoryNode(
        name=host,
        rack=_text(host, RACK, values),
        leaf=_text(host, LEAF, values),
        cohort=_text(host, COHORT, values),
        tags=tuple(str(tag) for tag in tags),
        variables=values,
    )


def _text(host: str, name: str, values: Mapping[str, Any]) -> str | None:
    value = values.get(name)
    if value is None:
        return None
    refuse_template(host, name, value)
    return str(value)


def refuse_template(host: str, name: str, value: Any) -> None:
    """Raise InventoryError for a value that Ansible would have to evaluate."""
    if "{{" in str(value):
        raise InventoryError(
            f'{name} of host "{host}" is a template ({value}), which is not evaluated here',
            remedy="write its value",
        )

"""Validation of -i, --limit and inventory groups, with a suggestion for each misspelt name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from goldnode.core.errors import InventoryError, candidates, nearest
from goldnode.inventory.classes import expand, inventory_files

_CREATE = (
    "create it: `goldnode init` writes one, and inventories/example_fleet/hosts.yml is an example"
)


def check_inventory(inventory: str, create: str = _CREATE) -> None:
    """Refuse an inventory that does not exist.

    `create` is the remedy where no other name is close. Raises InventoryError. Ansible would only list the parsers it tried. A value with a comma is a
    list of hosts.
    """
    path = Path(inventory)
    if path.is_dir() and not inventory_files(path):
        raise InventoryError(
            f'directory "{inventory}" has no inventory file',
            remedy="write hosts.yml there, or correct -i",
        )
    if path.exists() or "," in inventory:
        return
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, siblings, n=3, cutoff=0.7)
    likely = " or ".join(f'"{path.parent / name}"' for name in close)
    raise InventoryError(
        f'there is no inventory "{inventory}"',
        remedy=f"use {likely}" if likely else create,
    )


_LISTED = 8  # hosts that an error lists


def no_host(inventory: str, limit: str, names: Iterable[str]) -> InventoryError:
    """Return the error for a limit that matches no host. `names` are the names of all hosts and groups."""
    known = set(names)
    if (
        "[" in limit
        and (meant := [host for host in expand(limit) if host in known])
        and limit not in known
    ):
        listed = ",".join(meant) if len(meant) <= _LISTED else "a list of hosts"
        return InventoryError(
            f"--limit {limit}: a range is for the hosts in an inventory; Ansible has none in a limit",
            remedy=f"use {listed}, or a pattern such as gpu0* or gpu0[1-3]",
        )
    # Of a list, the member that is unknown; patterns are left to Ansible.
    members = [
        part for part in re.split("[,:]", limit) if part.isidentifier() and part not in known
    ]
    wrong = next(iter(members), limit)
    return InventoryError(
        f"--limit {wrong} names no host of {inventory}",
        remedy=nearest(wrong, known) or "correct the pattern",
    )


def put_right(groups: Iterable[str], classes: Iterable[str]) -> str:
    """Return the remedy for hosts that are in no class group, in the form of `nearest`.

    It suggests renaming a group whose name is close to a class.
    """
    known = sorted(classes)
    for group in sorted(groups):
        close = candidates(group, known, cutoff=0.8)
        if close:
            return f'rename group "{group}" to "{close[0]}", the name of the class'
    return "put each host into a group that is named after its class; `goldnode classes` lists them"

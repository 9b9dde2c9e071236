"""An inventory as Ansible reads it: groups, hosts and their variables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from goldnode.core.data import installed_locale
from goldnode.core.errors import InventoryError
from goldnode.inventory.classes import check_shape
from goldnode.inventory.selection import no_host


def hosts_of_group(name: str, data: dict[str, Any], known: dict[str, set[str]]) -> set[str]:
    """Return the hosts of a group and of its children. `known` has the answers so far."""
    if name not in known:
        known[name] = set()
        group = data.get(name, {})
        known[name] = set(group.get("hosts", ())).union(
            *(hosts_of_group(child, data, known) for child in group.get("children", ()))
        )
    return known[name]


def listed(inventory: str, limit: str | None = None) -> dict[str, Any]:
    """Return the output of `ansible-inventory --list`. Raises InventoryError.

    goldnode's own vars plugin is disabled, because it would compile every class.
    """
    # Prefer the ansible-core in goldnode's own virtual environment.
    program = Path(sys.executable).parent / "ansible-inventory"
    command = [str(program) if program.exists() else "ansible-inventory", "-i", inventory, "--list"]
    # UNPARSED_FAILED: by default Ansible only warns about an unreadable inventory and returns an
    # empty one.
    import subprocess  # start-up time: a check without an inventory starts no program

    environment = {
        **os.environ,
        **installed_locale(),
        "ANSIBLE_VARS_PLUGINS": os.devnull,
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
    }
    try:
        done = subprocess.run(
            command + (["--limit", limit] if limit else []),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        raise InventoryError(
            f"ansible-inventory cannot be run: {problem}",
            remedy="install ansible-core beside goldnode",
        ) from problem
    tree: dict[str, Any] = (
        json.loads(done.stdout, object_hook=_unmarked) if done.returncode == 0 else {}
    )
    if limit and not hosts_of_group("all", tree, {}):
        whole = listed(inventory)  # if this succeeds, the limit is at fault
        raise no_host(inventory, limit, {*whole, *hosts_of_group("all", whole, {})} - {"_meta"})
    if done.returncode != 0:
        refuse_misread(inventory)
        raise InventoryError(
            f'Ansible cannot read inventory "{inventory}": {_reason(done.stderr.splitlines())}',
            remedy="correct it, or its path",
        )
    check_names(inventory, hosts_of_group("all", tree, {}))
    return tree


def check_names(inventory: str | None, hosts: Iterable[str]) -> None:
    """Refuse names of hosts that have run together in a YAML inventory: "gpu01 gpu02", with file and line."""
    joined = next((name for name in hosts if " " in name), None)
    if joined is not None:
        refuse_misread(inventory)
        raise InventoryError(
            f'a host is called "{joined}"', remedy="write a colon after the name of each host"
        )


def refuse_misread(inventory: str | None) -> None:
    """Raise InventoryError where a file of the inventory has a form that Ansible misreads."""
    if inventory is not None and Path(inventory).exists():
        check_shape(Path(inventory))


def _unmarked(value: dict[str, Any]) -> Any:
    """Return the text of what Ansible marks as not to be evaluated: values of inventory plugins."""
    return value["__ansible_unsafe"] if value.keys() == {"__ansible_unsafe"} else value


# A source with the key `plugin` is read by `auto`. The other parsers that Ansible tries afterwards
# fail too.
_OF_PLUGIN = "Failed to parse inventory with 'auto' plugin: "


def _reason(lines: Sequence[str]) -> str:
    """Return the reason in what Ansible has printed."""
    plugin = [line.partition(_OF_PLUGIN)[2] for line in lines if _OF_PLUGIN in line]
    reason = (
        plugin or [line for line in lines if "ERROR" in line] or lines[-1:] or ["no reason given"]
    )
    return reason[0].strip()

"""Apply a class to this machine (`goldnode apply --local`): site.yml with a local connection.

There is one path to a node's state. This module only chooses the class, writes an inventory of one
host to a temporary directory, and runs the packaged playbook there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from goldnode.catalog.load import Catalog
from goldnode.classdoc.cache import ClassDocuments
from goldnode.classdoc.load import load_catalog
from goldnode.core.data import ansible_environment, data
from goldnode.core.errors import GoldnodeError
from goldnode.core.extras import require
from goldnode.fleet.nodes import first_class
from goldnode.fleet.nodes import plan as planning
from goldnode.fleet.nodes.plan import CHANGE as CHANGE
from goldnode.fleet.nodes.plan import HostPlan
from goldnode.fleet.nodes.site_directory import INVENTORY, THIS_MACHINE
from goldnode.inventory.classes import classes_of_hosts


class LocalError(GoldnodeError):
    """A class cannot be applied to this machine."""


@dataclass(frozen=True)
class LocalTarget:
    """The class for this machine, its document, and the reason why it was chosen."""

    name: str
    document: Mapping[str, Any]
    reason: str


def choose(name: str | None) -> LocalTarget:
    """Return the class for this machine: the named one, that of localhost in ./inventory, or the one that fits.

    Raises GoldnodeError without a class, if it cannot be used, or if this user is not root.
    """
    require("ansible")
    catalog = load_catalog()
    if name is not None:
        catalog.node_class(name)
        reason = "named by --class"
    else:
        name, reason = _own(catalog) or _fitting(catalog)
    document = ClassDocuments().document(name)
    if "error" in document:
        raise LocalError(f'class "{name}" ({reason}) cannot be applied: {document["error"]}')
    if os.geteuid() != 0:
        command = " ".join(["sudo", str(Path(sys.argv[0]).absolute()), *sys.argv[1:]])
        raise LocalError(
            "the plan and the changes need root: packages, kernel modules and settings of this machine",
            remedy=f"run `{command}`",
        )
    return LocalTarget(name, document, reason)


def _own(catalog: Catalog) -> tuple[str, str] | None:
    """Return the class of localhost in the inventory of the working directory."""
    path = Path(INVENTORY)
    name = classes_of_hosts(path, catalog).get(THIS_MACHINE) if path.exists() else None
    return None if name is None else (name, f"of {THIS_MACHINE} in ./{INVENTORY}")


def _fitting(catalog: Catalog) -> tuple[str, str]:
    """Return the class of the catalog that fits this machine. Raises LocalError without one."""
    machine = first_class.this_machine()
    gpus = first_class.gpus_of(machine)
    for stack in first_class.stacks_for(gpus, catalog, machine):
        system = catalog.stacks[stack].item.os
        name, files = first_class.class_of(gpus, stack, catalog)
        # With `files`, the class would have to be written first: that is `goldnode init --local`.
        if (system.id, system.version) == machine.os and not files:
            return name, f"fits this machine: {machine.text}"
    raise LocalError(
        f"no class of the catalog fits this machine ({machine.text})",
        remedy="run `goldnode init --local`, which writes one, or name a class with --class",
    )


@contextmanager
def _inventory(name: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="goldnode-local-") as directory:
        path = Path(directory) / "hosts.yml"
        hosts = {THIS_MACHINE: {"ansible_connection": "local"}}
        path.write_text(yaml.safe_dump({name: {"hosts": hosts}}), encoding="utf-8")
        yield str(path)


def plan(target: LocalTarget) -> HostPlan:
    """Return what site.yml would change on this machine. Raises GoldnodeError."""
    with _inventory(target.name) as inventory:
        return planning.fleet_plans(inventory, None, [target.name], own=True)[0]


def text(target: LocalTarget, planned: HostPlan, full: bool) -> str:
    """Return the class and the plan for a person."""
    documents = {target.name: target.document}
    return f"Class {target.name} ({target.reason})\n\n{planning.text([planned], documents, full)}"


def run(target: LocalTarget, *, quiet: bool) -> None:
    """Run site.yml on this machine. With `quiet`, its output goes to standard error. Raises LocalError if it fails."""
    with _inventory(target.name) as inventory:
        command = [
            str(Path(sys.executable).with_name("ansible-playbook")),
            "-i",
            inventory,
            str(data("site.yml")),
        ]
        environment = {
            **ansible_environment(own=True),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_DEPRECATION_WARNINGS": "false",
        }
        # The text printed so far comes before Ansible's output, also in a pipe.
        sys.stdout.flush()
        done = subprocess.run(
            command, env=environment, stdout=sys.stderr if quiet else None, check=False
        )
    if done.returncode != 0:
        raise LocalError(
            f"site.yml did not finish on this machine (status {done.returncode}); its report above names the reason",
            remedy="correct that, and run the same command again: it continues with what is left",
        )


def reboot_reasons(planned: HostPlan) -> list[str]:
    """Return why this machine must be rebooted now."""
    return [] if planned.plan is None else list(planned.plan["reboot"]["reasons"])


def ending(target: LocalTarget, planned: HostPlan, *, applied: bool) -> str:
    """Return the next steps for a person; empty if the plan names them."""
    if not applied:
        return ""
    if planned.state == CHANGE or planned.state in planning.BAD:
        return "The machine is not yet what its class declares. Run the same command again, or see `goldnode apply --local --dry-run`."
    lines = [f"This machine is what class {target.name} declares."]
    waiting = [] if planned.plan is None else planned.plan["waiting"]
    lines += [f"Waits until the GPU is free: {row['subject']}: {row['message']}" for row in waiting]
    reasons = reboot_reasons(planned)
    if reasons:
        lines += [
            "It must be rebooted (nothing reboots it by itself):",
            *(f"  {reason}" for reason in reasons),
        ]
        lines.append("Next: `sudo reboot`, then `goldnode-node check`.")
    else:
        lines.append("Next: `goldnode-node check`.")
    return "\n".join(lines)


def document(target: LocalTarget, planned: HostPlan, *, applied: bool) -> dict[str, Any]:
    """Return the result for a program."""
    return {
        "class": target.name,
        "reason": target.reason,
        "applied": applied,
        "state": planned.state,
        "message": planned.message,
        "reboot": reboot_reasons(planned),
        "plan": planned.plan,
    }


def exit_code(planned: HostPlan, *, applied: bool, dry_run: bool) -> int:
    """Return 2 for no plan, a refusal or a change that is left after a run, 1 for a plan that was only shown."""
    if planned.state in planning.BAD or (applied and planned.state == CHANGE):
        return 2
    return 1 if dry_run and planned.state == CHANGE else 0


def reboot() -> None:
    """Reboot this machine through systemd."""
    subprocess.run(["systemctl", "reboot"], check=True)

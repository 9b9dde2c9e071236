"""Command `goldnode plan`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from goldnode.commands.options import BECOME, LIMIT, grouped
from goldnode.commands.output import emit, reports, say


@dataclass(frozen=True)
class BecomeOptions:
    """How Ansible becomes root on the hosts."""

    become: bool = False
    ask: bool = False


@contextmanager
def become_password(ask: bool) -> Iterator[list[str]]:
    """Ask for the password of become, and yield the options by which Ansible reads it from a file of this user alone."""
    if not ask:
        yield []
        return
    # Ansible's own prompt would be mixed into the progress.
    password = click.prompt(
        "BECOME password", hide_input=True, default="", show_default=False, err=True
    )
    with tempfile.NamedTemporaryFile("w", prefix="goldnode-become-", encoding="utf-8") as file:
        file.write(f"{password}\n")
        # Ansible reads it while it is open here; it goes with the block, whatever happens.
        file.flush()
        yield ["--become-password-file", file.name]


@click.command()
@click.option(
    "-i",
    "--inventory",
    metavar="PATH",
    show_default="`inventory` of ansible.cfg",
    help="Inventory, as for ansible-playbook.",
)
@LIMIT
@reports("plans")
@click.option("--full", is_flag=True, help="Show complete diffs.")
@click.option(
    "--exit-code", "detailed", is_flag=True, help="Exit with 1 if a change or a reboot is pending."
)
@click.option(
    "-f",
    "--forks",
    type=click.IntRange(min=1),
    metavar="N",
    show_default="`forks` of ansible.cfg",
    help="Number of hosts to query in parallel.",
)
@grouped(
    "root",
    BecomeOptions,
    BECOME,
    click.option(
        "-K", "--ask-become-pass", "ask", is_flag=True, help="Ask for the password of become."
    ),
)
def plan(
    inventory: str | None,
    limit: str | None,
    form: str,
    full: bool,
    detailed: bool,
    *,
    forks: int | None,
    root: BecomeOptions,
) -> None:
    """Show what site.yml would change on the hosts of an inventory.

    Nothing is changed. Hosts are grouped by class and by equal plans.

    Exit status: 0 all hosts reported their plan; 1 a change or a reboot is pending, with --exit-code; 2 an error,
    or a host that could not be reached or refuses changes.
    """
    from goldnode.classdoc.cache import ClassDocuments  # start-up time
    from goldnode.fleet.nodes import plan as planning

    classes = ClassDocuments()
    # A broken file of the catalog stops only the classes that need it.
    for fault in classes.faults():
        say(f"warning: not used: {fault}")
    options = ["--become"] if root.become else []
    with become_password(root.ask) as password:
        hosts = planning.fleet_plans(
            inventory, limit, classes.names(), forks, [*options, *password]
        )
    documents = {
        host.node_class: classes.document(host.node_class)
        for host in hosts
        if host.node_class in classes.names()
    }
    emit(
        form,
        planning.overview(hosts, {"inventory": inventory, "limit": limit}, documents),
        lambda: planning.text(hosts, documents, full),
    )
    sys.exit(planning.exit_code(hosts, detailed))

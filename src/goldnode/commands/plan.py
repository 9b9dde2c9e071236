"""`goldnode plan`."""

from __future__ import annotations

import json
import sys

import click


@click.command()
@click.option("-i", "--inventory", required=True, help="Inventory, as for ansible-playbook.")
@click.option("-l", "--limit", help="Ask only the hosts of this pattern.")
@click.option("--format", "shape", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--full", is_flag=True, help="Print every line of every diff.")
@click.option("--exit-code", "detailed", is_flag=True, help="End with 1 where anything is pending.")
@click.option(
    "-f",
    "--forks",
    type=click.IntRange(min=1),
    help="Nodes that are asked at once; default: what ansible.cfg says.",
)
@click.option("-b", "--become", is_flag=True, help="Ask as root through Ansible's become.")
def plan(
    inventory: str, limit: str | None, shape: str, full: bool, detailed: bool, forks: int | None, become: bool
) -> None:
    """Show what site.yml would do to the hosts of an inventory, per class, and change nothing.

    Exit code 0: every host gave its plan. 1, with --exit-code alone: one of them has something to do, or to be booted for. 2: an error, or a
    host that could not be asked, or that refuses to be changed.
    """
    from goldnode.classdoc.cache import ClassDocuments
    from goldnode.fleet import plan as planning

    classes = ClassDocuments()
    hosts = planning.ask(inventory, limit, classes.names(), forks, ["--become"] if become else [])
    documents = {
        host.node_class: classes.document(host.node_class)
        for host in hosts
        if host.node_class in classes.names()
    }
    if shape == "json":
        click.echo(
            json.dumps(
                planning.overview(hosts, {"inventory": inventory, "limit": limit}, documents),
                indent=1,
                ensure_ascii=False,
            )
        )
    else:
        click.echo(planning.text(hosts, documents, full))
    sys.exit(planning.exit_code(hosts, detailed))

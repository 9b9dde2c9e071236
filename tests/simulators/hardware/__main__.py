"""Command that manages simulated hardware on a lab node: python -m tests.simulators.hardware."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
from tests.simulators.hardware import node as on_node
from tests.simulators.hardware.scenario import Scenario

from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core import docker_engine as engine
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import load_site
from goldnode.testing.lab.nodes import Lab, LabNode

_NODE = [
    click.option("--lab", required=True, help="Name of the lab."),
    click.option("--node", required=True, help="Name of the node."),
    click.option(
        "--state",
        type=click.Path(path_type=Path),
        default=Path(".goldnode"),
        help="Directory of the labs.",
    ),
]


def _on_node(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_NODE):
        function = option(function)
    return function


def _find(lab: str, node: str, state: Path) -> LabNode:
    return Lab(lab, engine.connect(), state=state).node(node)


@click.group(invoke_without_command=True)
@click.option("--lab", help="Name of the lab.")
@click.option("--node", help="Name of the node.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=Path(".goldnode"),
    help="Directory of the labs.",
)
@click.option("--class", "name", help="Node class whose hardware the node gets.")
@click.option("--driver-version", help="Version that NVML reports; default: the class's.")
@click.option(
    "--fault", multiple=True, help="A fault, for instance gpu3.power_limit=300000 (repeat)."
)
@click.pass_context
def main(
    context: click.Context,
    lab: str | None,
    node: str | None,
    state: Path,
    name: str | None,
    driver_version: str | None,
    fault: tuple[str, ...],
) -> None:
    """Install the simulated hardware of a class on a node; the commands need a node that has it."""
    if context.invoked_subcommand is not None:
        return
    if not (lab and node and name):
        raise click.UsageError("give --lab, --node and --class")
    document = class_document(name, load_catalog(), load_site())
    scenario = Scenario.of(document, driver_version).with_faults(fault)
    on_node.install(_find(lab, node, state), scenario)
    click.echo(f"{node}: simulated {len(scenario.gpus)} x {scenario.model}")
    click.echo(f"made up, for the facts do not say: {', '.join(scenario.invented)}")


@main.command(
    help="Write the files of the simulated hardware of a class document to a tar archive, for a virtual "
    "machine."
)
@click.option(
    "--document",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The class document, JSON.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Archive to write.",
)
@click.option("--fault", multiple=True, help="A fault, for instance gpu0.absent=1 (repeat).")
def pack(document: Path, out: Path, fault: tuple[str, ...]) -> None:
    on_node.pack(Scenario.of(json.loads(document.read_text())).with_faults(fault), out)


@main.command(
    help="Add faults to a running node: FAULT is KEY=VALUE, for instance gpu3.all=error:lost. They "
    "stick, whatever is set."
)
@_on_node
@click.argument("fault", nargs=-1, required=True)
def fault(lab: str, node: str, state: Path, fault: tuple[str, ...]) -> None:
    on_node.inject(_find(lab, node, state), fault)


@main.command(
    help="Change the state as somebody on the node could have: CHANGE is KEY=VALUE. The next run of a "
    "setter mends it."
)
@_on_node
@click.argument("change", nargs=-1, required=True)
def drift(lab: str, node: str, state: Path, change: tuple[str, ...]) -> None:
    on_node.drift(_find(lab, node, state), change)


@main.command(help="Take all faults away.")
@_on_node
def clear(lab: str, node: str, state: Path) -> None:
    on_node.clear(_find(lab, node, state))


@main.command(help="Forget what was set, as a reload of the driver does without a boot.")
@_on_node
def reload(lab: str, node: str, state: Path) -> None:
    on_node.reload(_find(lab, node, state))


@main.command(help="Show faults, what was set, and the setters that were called since boot.")
@_on_node
def show(lab: str, node: str, state: Path) -> None:
    found = _find(lab, node, state)
    scenario = on_node.installed(found)
    click.echo(f"simulated {len(scenario.gpus)} x {scenario.model}")
    for title, rows in (
        ("faults", [f"{key}={value}" for key, value in sorted(scenario.faults.items())]),
        ("set", [f"{key}={value}" for key, value in sorted(on_node.state(found).items())]),
        ("calls", on_node.calls(found)),
    ):
        click.echo(f"{title}:")
        click.echo("\n".join(f"  {row}" for row in rows) or "  none")


@main.command(help="Take the simulated hardware away.")
@_on_node
def remove(lab: str, node: str, state: Path) -> None:
    on_node.remove(_find(lab, node, state))


if __name__ == "__main__":
    try:
        main()
    except GoldnodeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)

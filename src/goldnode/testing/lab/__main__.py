"""Command line of the lab, for molecule's playbooks and the scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
from docker.errors import APIError

from goldnode.core import docker_engine as engine
from goldnode.core.errors import GoldnodeError
from goldnode.testing.lab import images, nodes


def _say(text: str) -> None:
    click.echo(f"lab: {text}", err=True)


def _lab(context: click.Context, name: str) -> nodes.Lab:
    return nodes.Lab(name, engine.connect(), state=context.obj, say=_say)


@click.group(help="Systemd nodes in containers for the demo and for the tests.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=Path(".goldnode"),
    help="Directory for keys and logs.",
)
@click.pass_context
def main(context: click.Context, state: Path) -> None:
    context.obj = state


@main.command("engine", help="Make sure a Docker engine runs, and install one where it is missing.")
@click.option("--yes", is_flag=True, help="Install without asking.")
@click.option("--stop", is_flag=True, help="Stop an engine that an earlier run started itself.")
@click.pass_context
def engine_command(context: click.Context, yes: bool, stop: bool) -> None:
    if stop:
        engine.stop(state=context.obj, say=_say)
    else:
        engine.ensure(yes=yes, state=context.obj, say=_say)


@main.command(help="Make the base image of an operating system and print its name.")
@click.argument("os_name", type=click.Choice(list(images.RELEASES)))
@click.argument("flavour", type=click.Choice(images.FLAVOURS))
def image(os_name: str, flavour: str) -> None:
    click.echo(images.ensure(engine.connect(), os_name, flavour, say=_say))


@main.command(
    help="Start nodes: NAME=GROUP pairs after the lab's name. Prints the inventory directory."
)
@click.argument("lab")
@click.argument("node", nargs=-1, required=True)
@click.option(
    "--os",
    "os_name",
    default="debian12",
    show_default=True,
    type=click.Choice(list(images.RELEASES)),
)
@click.option("--flavour", default="bare", show_default=True, type=click.Choice(images.FLAVOURS))
@click.option(
    "--engine", is_flag=True, help="Give the nodes what a container engine inside them needs."
)
@click.option(
    "--image", help="An image of your own with systemd, sshd and python3, instead of a made one."
)
@click.pass_context
def up(
    context: click.Context,
    lab: str,
    node: tuple[str, ...],
    os_name: str,
    flavour: str,
    *,
    engine: bool,
    image: str | None,
) -> None:
    specs = []
    for pair in node:
        name, equals, group = pair.partition("=")
        if not equals:
            raise nodes.LabError(f'"{pair}" names no group', remedy=f"write {pair}=CLASS")
        specs.append(
            nodes.NodeSpec(
                name, group=group, os=os_name, flavour=flavour, image=image, engine=engine
            )
        )
    made = _lab(context, lab)
    made.up(specs)
    click.echo(made.inventory)


@main.command(help="Serve a directory to the lab's nodes by HTTP. Prints the address.")
@click.argument("lab")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", default="archive", show_default=True)
@click.option("--image", help="Any image with python3, instead of debian12's warm one.")
@click.option(
    "--keep", is_flag=True, help="Leave a running server of that name as it is: its address stays."
)
@click.pass_context
def serve(
    context: click.Context, lab: str, directory: Path, name: str, image: str | None, *, keep: bool
) -> None:
    click.echo(_lab(context, lab).serve(directory, name, image=image, keep=keep).url)


@main.command(help="Remove everything a lab made.")
@click.argument("lab")
@click.option(
    "--images",
    "with_images",
    is_flag=True,
    help="Also the base images its nodes ran, where no other lab does.",
)
@click.pass_context
def down(context: click.Context, lab: str, with_images: bool) -> None:
    for row in _lab(context, lab).down(with_images=with_images):
        _say(f"removed {row}")


@main.command(help="Remove all base images and snapshots that no lab uses.")
def prune() -> None:
    client = engine.connect()
    for base in client.images.list(filters={"label": images.LABEL}):
        for tag in base.tags:
            try:
                client.images.remove(tag)
                _say(f"removed image {tag}")
            except APIError as error:
                _say(f"kept image {tag}: {error.explanation}")


@main.command("list", help="List the labs and their nodes.")
def list_command() -> None:
    for name, rows in nodes.labs(engine.connect()).items():
        click.echo(f"{name}: {'; '.join(rows)}")


@main.command(help="Print the nodes of a lab as JSON.")
@click.argument("lab")
@click.pass_context
def status(context: click.Context, lab: str) -> None:
    click.echo(nodes.status(_lab(context, lab).nodes()))


@main.command(help="Open a shell on a node by ssh, or run a command there.")
@click.argument("lab")
@click.argument("node")
@click.argument("command", nargs=-1)
@click.pass_context
def ssh(context: click.Context, lab: str, node: str, command: tuple[str, ...]) -> None:
    sys.exit(subprocess.run(_lab(context, lab).node(node).ssh(*command), check=False).returncode)


@main.command(help="Restart a node (its PID 1), as a reboot would.")
@click.argument("lab")
@click.argument("node")
@click.pass_context
def restart(context: click.Context, lab: str, node: str) -> None:
    _lab(context, lab).node(node).restart()


if __name__ == "__main__":
    try:
        main()
    except GoldnodeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)

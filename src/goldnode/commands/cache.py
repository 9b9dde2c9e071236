"""Commands `goldnode cache key`, `explain`, `verify` and `path`."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from goldnode.commands.options import Decorator, grouped, image_store, options
from goldnode.commands.output import emit, reports
from goldnode.node.cachekey.caches import CACHES, EXACT, STRENGTHS


@dataclass(frozen=True)
class CacheNode:
    """The node of a key: its capture, its class, and which GPU."""

    capture: str | None
    node_class: str | None
    gpu: str | None
    mig: str | None


@dataclass(frozen=True)
class CacheProgram:
    """The program of a key, as `goldnode-node cache key` has it, and the store of its image."""

    strength: str
    image: str | None
    store: Path | None
    image_json: str | None
    libraries: str | None
    library: tuple[str, ...]
    glibc: str | None
    python_abi: str | None
    option: tuple[str, ...]
    variable: tuple[str, ...]
    source: tuple[str, ...]


def _node(required: bool) -> Decorator:
    return grouped(
        "node",
        CacheNode,
        click.option(
            "--capture",
            required=required,
            metavar="FILE",
            help="Capture of the node; - is standard input.",
        ),
        click.option(
            "-c",
            "--class",
            "node_class",
            metavar="CLASS",
            help="Class of the node: a name, or a FILE.",
        ),
        click.option(
            "--gpu", metavar="GPU", help="Index, PCI address or UUID, where the GPUs differ."
        ),
        click.option(
            "--mig", metavar="PROFILE", help="Profile of the partition, where there are several."
        ),
    )


_PROGRAM = grouped(
    "program",
    CacheProgram,
    click.option(
        "--strength",
        type=click.Choice(STRENGTHS),
        default=EXACT,
        show_default=True,
        help="Exact, or portable between nodes where the tool's documents allow it.",
    ),
    click.option(
        "--image", metavar="IMAGE", help="Container image: a digest, or a name in the store."
    ),
    image_store(),
    click.option(
        "--image-json",
        metavar="FILE",
        help="Description of an image of goldnode, for the versions of its libraries.",
    ),
    click.option("--libraries", metavar="DIR", help="Directory site-packages of the program."),
    click.option(
        "--library",
        multiple=True,
        metavar="NAME=VERSION",
        help="A library; NAME=@FILE reads its content.",
    ),
    click.option("--glibc", metavar="VERSION", help="Version of the C library, without an image."),
    click.option(
        "--python-abi", metavar="ABI", help="SOABI of the program's Python, without an image."
    ),
    click.option("--option", multiple=True, metavar="NAME=VALUE", help="An option of the builder."),
    click.option(
        "--variable",
        multiple=True,
        metavar="NAME",
        help="Environment variable whose value decides.",
    ),
    click.option(
        "--source", multiple=True, metavar="FILE", help="The compiled program: network, weights."
    ),
)
_CACHE = options(
    click.argument(
        "caches", nargs=-1, required=True, type=click.Choice(list(CACHES)), metavar="CACHE..."
    )
)


@click.group(no_args_is_help=True)
def cache() -> None:
    """Show, explain and verify the keys of caches of compiled GPU code."""


def _documents(
    caches: Sequence[str], node: CacheNode, program: CacheProgram
) -> Sequence[dict[str, Any]]:
    from goldnode.cache import recorded  # start-up time: it loads pydantic

    declared = asdict(program)
    if program.image is not None:
        declared["image"] = recorded.image_digest(program.image, program.store)
    # The node program has the same command, so that a node and a controller compute one key.
    words = Namespace(**declared, caches=caches, gpu=node.gpu, mig=node.mig, record=node.capture)
    return recorded.documents(str(node.capture), node.node_class, words, os.environ)


@cache.command()
@_CACHE
@_node(required=True)
@_PROGRAM
@reports("cache-keys")
def key(caches: tuple[str, ...], node: CacheNode, program: CacheProgram, form: str) -> None:
    """Print the keys of caches for the node of a capture.

    CACHE is cuda, triton, inductor, xla or tensorrt. A node of the same hardware, settings, driver and program has the
    same key. A value that could not be read makes no key.
    """
    from goldnode.node.cachekey.command import keys_text

    documents = _documents(caches, node, program)
    emit(form, {"keys": list(documents)}, keys_text(documents))


@cache.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@reports("cache-comparison")
def explain(first: str, second: str, form: str) -> None:
    """Show why two keys differ.

    A and B are keys that `goldnode-node cache key --format json` wrote, or directories of keys.

    Exit status: 0 the keys are equal, 1 they differ, 2 a file is no key.
    """
    from goldnode.cache.recorded import node_errors
    from goldnode.node.cachekey import command

    with node_errors():
        report = command.comparison(command.read(first), command.read(second))
    emit(form, report, command.comparison_text(report))
    # As diff does: 1 is an answer, 2 an error.
    sys.exit(1 if report["differences"] else 0)


@cache.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@_node(required=False)
@reports("cache-verification")
def verify(directories: tuple[str, ...], node: CacheNode, form: str) -> None:
    """Verify that directories belong to their keys.

    With --capture, also that they were made on a node like this one.

    Exit status: 0 all may be used, 1 one may not, 2 could not check.
    """
    from goldnode.cache import recorded
    from goldnode.node.cachekey import command

    own = None
    if node.capture is not None:
        own = recorded.node_components(node.capture, node.node_class, node.gpu, node.mig)
    report = command.verified(directories, own)
    emit(form, report, command.verified_text(report))
    sys.exit(0 if report["usable"] else 1)


@cache.command()
@_CACHE
@click.option("--caches", "place", required=True, metavar="DIR", help="Directory of all caches.")
@_node(required=True)
@_PROGRAM
@reports("cache-paths")
def path(
    caches: tuple[str, ...], place: str, node: CacheNode, program: CacheProgram, form: str
) -> None:
    """Print the directories of keys, and the lines for a shell that point the tools to them.

    Makes nothing: `goldnode-node cache path` makes them, on the node.
    """
    from goldnode.cache.recorded import node_errors
    from goldnode.node.cachekey import directory

    documents = _documents(caches, node, program)
    with node_errors():
        places = {item["cache"]: directory.path(place, item) for item in documents}
    lines = directory.exports(places)
    emit(form, {"paths": places, "export": lines}, "\n".join(lines))

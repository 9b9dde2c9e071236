"""Commands `goldnode slurm config` and `check`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, cast

import click

from goldnode.commands.output import emit, reports
from goldnode.core.errors import GoldnodeError
from goldnode.node.ground.document import ClassDocument

MOST = 1 << 20  # bytes of slurmd's answer
# slurmctld 22.05 takes a bracket that is not closed as part of the name of one node, and starts.
_ITEM = r"(?:[A-Za-z0-9._-]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+"
_HOSTS = re.compile(f"{_ITEM}(?:,{_ITEM})*")
_CLASS = click.option(
    "-c", "--class", "name", required=True, metavar="CLASS", help="Node class: a name, or a FILE."
)


@click.group(no_args_is_help=True)
def slurm() -> None:
    """Write Slurm's configuration of the GPUs of a class, and check slurmd's."""


def _class(name: str) -> ClassDocument:
    """Return the class document in a file, or the parts of a class of the catalog that need no lock."""
    from goldnode.classdoc.compile import declaration  # start-up time: it loads pydantic
    from goldnode.classdoc.load import load_catalog
    from goldnode.classdoc.record import document_in
    from goldnode.core.site import load_site

    # Names of classes have neither.
    if Path(name).suffix == ".json" or "/" in name:
        return document_in(name)
    catalog = load_catalog()
    declared = declaration(name, catalog, load_site())
    driver = catalog.stacks[catalog.node_class(name).item.stack].item.driver
    # The features of a node name the branch of its driver, which the stack declares.
    part = {**declared, "driver": None if driver is None else {"branch": driver.branch}}
    return cast(ClassDocument, part)


@slurm.command()
@_CLASS
@click.option(
    "--nodes",
    required=True,
    metavar="HOSTLIST",
    help="Slurm's names of the nodes, such as gpu[001-128].",
)
@reports("slurm-config")
def config(name: str, nodes: str, form: str) -> None:
    """Print the lines of slurm.conf and gres.conf for nodes of a class.

    They have the GPUs and the features of the nodes. Add sockets, cores and memory as `slurmd -C` prints them. NVIDIA's
    GPUs have device files. Partitions (MIG) and the GPUs of other vendors are detected by slurmd; for partitions with
    device files run `goldnode-node slurm` on the node.
    """
    from goldnode.node.ground.errors import NodeError
    from goldnode.node.program import slurm as node

    ranges = re.findall("([0-9]+)-([0-9]+)(?=[],])", nodes)
    if not _HOSTS.fullmatch(nodes) or any(int(first) > int(last) for first, last in ranges):
        raise GoldnodeError(
            f"{nodes!r} is no list of hosts", remedy="write it as Slurm does: gpu[001-128]"
        )
    document = _class(name)
    gpu = document.get("gpu")
    vendor = gpu["vendor"] if gpu else "None"
    try:
        lines = node.with_files(node.wanted(document), vendor, None)
    except NodeError as problem:
        raise GoldnodeError(str(problem).rstrip(".")) from None
    report = {
        "slurm_conf": node.slurm_conf(lines, node.features(document), nodes),
        "gres_conf": node.gres_conf(lines, vendor, nodes),
    }
    emit(form, report, lambda: node.config_text(report))


@slurm.command()
@click.argument("file", type=click.File("rb"), metavar="FILE")
@_CLASS
@reports("slurm-check")
def check(file: Any, name: str, form: str) -> None:
    """Check the answer of `slurmd -G` against a class.

    FILE is the output of `slurmd -G` with its standard error (`slurmd -G 2>&1`); - is standard input.

    Exit status: 0 slurmd has the GPUs of the class, 1 it does not, 2 could not check.
    """
    from goldnode.node.ground.errors import NodeError
    from goldnode.node.program import slurm as node

    # A bound, since the file may be anything.
    text = file.read(MOST).decode("utf-8", "replace")
    answer = node.parsed(text)
    try:
        wanted = node.wanted(_class(name))
    except NodeError as problem:
        raise GoldnodeError(str(problem).rstrip(".")) from None
    # An empty file is no evidence that slurmd finds no GPU.
    if wanted and not answer.lines and not answer.problems:
        raise GoldnodeError(
            "there is no line of `slurmd -G`",
            remedy="store both outputs: `slurmd -G >FILE 2>&1`",
        )
    why = node.failure(answer)
    if why is not None:
        raise GoldnodeError(
            f"`slurmd -G` did not come to the GPUs: {why}", remedy=node.NO_START_REMEDY
        )
    report = node.check_report(wanted, answer)
    emit(form, report, lambda: node.check_text(report))
    sys.exit(1 if report["differences"] else 0)

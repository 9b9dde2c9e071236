"""Command `goldnode rollout canaries`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.fleet.ingest import DATA, directory
from goldnode.commands.fleet.report import now
from goldnode.commands.options import grouped
from goldnode.commands.output import emit, reports, table
from goldnode.commands.rollout import DOCUMENT, INVENTORY, nodes_of
from goldnode.core.errors import GoldnodeError

if TYPE_CHECKING:
    from goldnode.fleet.rollout.cover import VariantCount


@dataclass(frozen=True)
class CanaryChoice:
    """The canaries that are wanted, as the command line has them."""

    least: int
    each: int | None
    never: tuple[str, ...]


@click.command()
@DOCUMENT
@INVENTORY
@grouped(
    "choice",
    CanaryChoice,
    click.option(
        "--nodes",
        "least",
        type=click.IntRange(min=1),
        default=8,
        show_default=True,
        metavar="N",
        help="Number of canaries, if fewer hold each variant.",
    ),
    click.option(
        "--each",
        type=click.IntRange(min=1),
        metavar="N",
        show_default="same_cause of the document, else 2",
        help="Canaries of each hardware variant, as far as the class has them.",
    ),
    click.option(
        "--never", multiple=True, metavar="TAG", help="Tag of nodes that are no canary. Repeatable."
    ),
)
@DATA
@reports("rollout-canaries")
def canaries(
    document: Path, inventory: str | None, choice: CanaryChoice, data: Path | None, form: str
) -> None:
    """Choose canaries that hold each hardware variant of the class.

    The variants are those of the last captures: machine, main board, BIOS, CPU, GPU board, VBIOS, boards and firmware
    of network and disks. Prints a pool for the document. A variant is wanted on two canaries, because one failed node
    stops no change. `goldnode rollout check -i` warns of variants that no canary holds.

    Exit status: 0 each variant is held, 1 some are not (all nodes that have them are excluded), 2 it could not be read.
    """
    if inventory is None:
        raise click.UsageError("Give the inventory with the hosts of the class: -i PATH")
    where = directory(data)
    # After `directory`, which names a missing extra: these imports need its packages.
    from goldnode.fleet.control.document_files import load
    from goldnode.fleet.report.variants import variants
    from goldnode.fleet.rollout import cover

    file = load(document)
    settings = file.settings
    nodes = nodes_of(inventory, settings.class_, settings.origin)
    if not nodes:
        raise GoldnodeError(
            f'{inventory}: no host of class "{settings.class_}"',
            remedy=f"correct the class in {document}, or -i",
        )
    held = variants(where, now())
    each = choice.each or (settings.boot.same_cause if settings.boot else cover.EACH)
    chosen = cover.canaries(
        settings.name, nodes, held, least=choice.least, each=each, never=choice.never
    )
    rows = cover.counts(nodes, held, chosen)
    missing = cover.uncovered(rows, each)
    silent = sorted(node.name for node in nodes if not held.get(node.name))
    content = {
        "rollout": settings.name,
        "canaries": chosen,
        "variants": [
            {
                "kind": row.variant.kind,
                "value": row.variant.value,
                "nodes": row.nodes,
                "canaries": row.canaries,
            }
            for row in rows
        ],
        "without_capture": silent,
    }
    emit(form, content, lambda: _text(chosen, rows, silent))
    if missing:
        raise SystemExit(1)


def _text(chosen: Sequence[str], rows: Sequence[VariantCount], silent: Sequence[str]) -> str:
    """Return the pool for the document, and the variants with the nodes that have them."""
    lines = ["pools:", f"  canary: {{hosts: [{', '.join(chosen)}]}}", ""]
    if rows:
        heading = ["kind", "variant", "nodes", "canaries"]
        body = [
            [row.variant.kind, row.variant.value, str(row.nodes), str(row.canaries)] for row in rows
        ]
        lines.append(table([heading, *body]))
    else:
        lines.append("The nodes with captures do not differ in hardware.")
    if silent:
        count = "1 node has" if len(silent) == 1 else f"{len(silent)} nodes have"
        lines += ["", f"{count} no capture, so that the hardware is not known: {silent[0]}"]
        lines[-1] += f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    return "\n".join(lines)

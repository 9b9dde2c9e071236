"""Command `goldnode rollout check`."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.fleet_common import address, opened
from goldnode.commands.output import emit, grouped, reports, table
from goldnode.commands.rollout import DOCUMENT, INVENTORY, nodes_of, number, share
from goldnode.core import extras
from goldnode.core.site import load_site

if TYPE_CHECKING:
    from goldnode.fleet.rollout.check import RolloutReport, StepOutcomes


@dataclass(frozen=True)
class RolloutAssumptions:
    """Assumptions of the estimate, as the command line has them."""

    size: int | None
    minutes: float
    confidence: float


@click.command()
@DOCUMENT
@INVENTORY
@grouped(
    "assumed",
    RolloutAssumptions,
    click.option(
        "--nodes",
        "size",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of nodes of the class, where no inventory is given.",
    ),
    click.option(
        "--step-minutes",
        "minutes",
        type=click.FloatRange(min=0, min_open=True),
        default=20,
        show_default=True,
        metavar="MINUTES",
        help="Time from a drained node to its return, for the estimate.",
    ),
    click.option(
        "--confidence",
        type=click.FloatRange(0.5, 0.9999),
        default=0.95,
        show_default=True,
        metavar="SHARE",
        help="Confidence of the failure rates that a clean wave excludes.",
    ),
)
@reports("rollout-check")
def check(document: Path, inventory: str | None, assumed: RolloutAssumptions, form: str) -> None:
    """Check a rollout document: what each wave proves, and how long it takes.

    Reports for each wave the failure rate that a wave without a failure excludes, the number of failures that
    stops the rollout, and the hours. Refuses a document that cannot work, with file and line: a cohort above the
    limit, empty waves, waves that do not reach 100 %, windows that never open, a class or target that cannot
    be, requirements that decide nothing.

    Where this machine has a store with completed rollouts of the class, their failures are compared with the base
    rate.

    The hours do not include the time until jobs end. No node is contacted.

    Exit status: 0 it can work, 1 it cannot, 2 it could not be read.
    """
    import time

    from goldnode.classdoc.load import load_catalog
    from goldnode.fleet.rollout import check as checking
    from goldnode.fleet.rollout.document import load

    if inventory is not None and assumed.size is not None:
        raise click.UsageError("--nodes and --inventory exclude each other")
    file = load(document)
    nodes = None if inventory is None else nodes_of(inventory, file.document.class_, file.settings.origin)
    basis = checking.EstimateBasis(assumed.confidence, assumed.minutes * 60, time.time())
    found = checking.check(
        file,
        nodes=nodes,
        size=assumed.size,
        catalog=load_catalog(),
        basis=basis,
        earlier=_earlier(file.document.class_),
    )
    content = {
        "rollout": file.document.rollout,
        "nodes": found.size,
        "confidence": basis.confidence,
        "step_minutes": assumed.minutes,
        "waves": [asdict(wave) for wave in found.waves],
        "findings": [{**asdict(finding), "file": str(finding.file)} for finding in found.findings],
        "refused": found.refused,
    }
    emit(form, content, lambda: _text(file.document.rollout, found))
    sys.exit(1 if found.refused else 0)


def _earlier(node_class: str) -> StepOutcomes | None:
    """Return the steps of earlier rollouts, if this machine has a store. A check needs none."""
    where = address(None, load_site())
    if not extras.installed("fleet") or ("://" not in where and not Path(where).exists()):
        return None
    from goldnode.fleet.store import history

    with opened(where) as store, store.read() as connection:
        return history.outcomes(connection, node_class)


def _text(name: str, report: RolloutReport) -> str:
    lines = [str(finding) for finding in report.findings]
    confidence = f"{report.basis.confidence:.0%}"
    if report.waves:
        rows = [
            ["wave", "nodes", "moved", "clean wave excludes", "clean so far", "stops at", "hours", "until"]
        ]
        rows += [
            [
                wave.name,
                number(wave.nodes),
                number(wave.moved),
                share(wave.excludes),
                share(wave.excludes_all),
                "?" if wave.stops_at is None else f"{wave.stops_at} failed",
                number(wave.hours),
                number(wave.ends_after),
            ]
            for wave in report.waves
        ]
        size = "an unknown number of nodes" if report.size is None else f"{report.size} nodes"
        lines += ["", f"rollout {name}, {size}:", table(rows), ""]
        lines.append(
            f"A wave without a failure excludes, with {confidence} confidence, a change that breaks more than this "
            f"share of the nodes. Hours assume {report.basis.step / 60:.0f} minutes for a node and no wait for jobs."
        )
        if report.size is None:
            lines.append("For the waves by percentage give the inventory (-i) or --nodes.")
    lines.append("refused" if report.refused else "it can work")
    return "\n".join(lines).strip()

"""Command `goldnode rollout simulate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.options import NEW_FILE, grouped
from goldnode.commands.output import emit, reports, say
from goldnode.commands.rollout import DOCUMENT, INVENTORY, nodes_of
from goldnode.core.errors import GoldnodeError

if TYPE_CHECKING:
    from goldnode.fleet.rollout.model import CalendarReading
    from goldnode.fleet.rollout.simulate import SimulatedRun
    from goldnode.fleet.rollout.simulation_report import SimulationSummary


@dataclass(frozen=True)
class SimulationOptions:
    """How many nodes and runs to simulate, and from which seed on."""

    size: int
    runs: int
    seed: int


@click.command()
@DOCUMENT
@INVENTORY
@grouped(
    "how",
    SimulationOptions,
    click.option(
        "--nodes",
        "size",
        type=click.IntRange(1, 100_000),
        default=1000,
        show_default=True,
        metavar="N",
        help="Number of nodes, where no inventory is given: four to a rack, 32 to a leaf switch.",
    ),
    click.option(
        "--runs",
        type=click.IntRange(1, 10_000),
        default=1,
        show_default=True,
        metavar="N",
        help="Number of runs, each with its own seed.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        metavar="N",
        help="Seed of the first run. A seed repeats its run.",
    ),
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="KIND[=RATE]",
    help="Fault to simulate, such as image=5%. Repeatable; a wrong name lists all kinds.",
)
@click.option(
    "--chart",
    type=NEW_FILE,
    metavar="FILE",
    help="Write a chart of the run with the median duration, as FILE.svg or FILE.html.",
)
@reports("rollout-simulation")
def simulate(
    document: Path,
    inventory: str | None,
    how: SimulationOptions,
    faults: tuple[str, ...],
    chart: Path | None,
    *,
    form: str,
) -> None:
    """Run a rollout document on simulated nodes with faults.

    The simulator calls the function that decides for real nodes, and simulates jobs, boots and faults. Reports
    the nodes touched before a bad change is stopped (p50 and p95), the hours, and the capacity lost. All
    figures are simulated.

    Kinds of faults: module, image, late, slow, absent, lying, hardware, killed, partition, no-data. Queries and
    commands pass, without no-data. Requirements on floors are judged by simulated canary results, of 16 changed
    nodes and 8 others.

    Exit status: 0 the runs ended, 2 the document could not be read.
    """
    from goldnode.fleet.control.document_files import load  # start-up time: it loads pydantic
    from goldnode.fleet.rollout import simulation_report as report
    from goldnode.fleet.rollout.faults import parse
    from goldnode.fleet.rollout.simulate import Simulation, made_up

    file, chosen = load(document), parse(faults)
    settings = file.settings
    if not settings.waves:
        raise GoldnodeError(
            "the document has no waves, so that no node ever moves",
            file=document,
            line=1,
            remedy=f"run `goldnode rollout check {document}`",
        )
    if inventory is None:
        nodes = made_up(how.size, settings.origin)
    else:
        nodes = nodes_of(inventory, settings.class_, settings.origin)
    if not nodes:
        raise GoldnodeError(
            f'{inventory} has no host of class "{settings.class_}"',
            remedy="correct -i, or the class of the document",
        )
    # Consecutive seeds: any single run can be repeated.
    readings = _calendars(settings.class_)
    runs = [
        Simulation(settings, nodes, chosen, how.seed + number, calendars=readings).run()
        for number in range(how.runs)
    ]
    summary = report.summarize(runs)
    title = f"rollout {settings.name}: {len(nodes)} nodes, faults {chosen.text()}"
    if chart is not None:
        _write_chart(chart, report.middle(runs), title, summary)
        say(f"wrote {chart}")
    content = {
        "rollout": settings.name,
        "nodes": len(nodes),
        "faults": dict(chosen.rates),
        **report.data(summary, runs),
    }
    reason = report.middle(runs).reason
    lines = [f"simulated: {title}", report.text(summary)]
    if reason:
        lines.append(
            f"reason of the stop, in the run with seed {report.middle(runs).seed}: {reason}"
        )
    emit(form, content, "\n".join(lines))


def _calendars(node_class: str) -> list[CalendarReading]:
    """Return the freeze calendars of the site in the time of a simulation, whose first second is now."""
    import time

    from goldnode.core.site import load_site
    from goldnode.fleet.control import calendar_files
    from goldnode.fleet.rollout.simulate import LONGEST, shifted

    now = time.time()
    return shifted(calendar_files.read(load_site(), node_class, now, LONGEST / 86400 + 1), now)


def _write_chart(path: Path, run: SimulatedRun, title: str, summary: SimulationSummary) -> None:
    """Write the chart as SVG, or as one HTML page with the summary. Raises GoldnodeError."""
    from goldnode.core.files import replace_file
    from goldnode.fleet.rollout import simulation_report as report

    if path.suffix not in (".svg", ".html"):
        raise GoldnodeError(
            f"a chart is an SVG or an HTML file, not {path.name}",
            remedy="name it FILE.svg or FILE.html",
        )
    page = path.suffix == ".html"
    content = report.page(run, title, summary) if page else report.svg(run, title)
    try:
        replace_file(path, content.encode())
    except OSError as problem:
        raise GoldnodeError(
            f"the chart cannot be written: {problem.strerror}",
            file=path,
            remedy="name another file",
        ) from problem

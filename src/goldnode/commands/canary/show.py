"""Command `goldnode canary show`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.options import EXISTING
from goldnode.commands.output import emit, reports, table
from goldnode.core.errors import GoldnodeError
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from goldnode.canary.results import Quantile
    from goldnode.documents.canary import CanaryDocument, CanaryJob


@click.command()
@click.argument("places", nargs=-1, type=EXISTING, metavar="[FILE|DIRECTORY]...")
@reports("canary-results")
def show(places: tuple[Path, ...], form: str) -> None:
    """Show results: states, and quantiles with their bounds.

    Without an argument, shows all results in .goldnode/canary. The quantile p95 is the value that 95 % of the samples
    reach or better; its bound holds with 95 % confidence. Without enough samples there is no bound and no claim.
    """
    from goldnode.canary import results  # start-up time: it loads pydantic

    chosen = places or (results.DIRECTORY,)
    if not places and not results.DIRECTORY.is_dir():
        raise GoldnodeError(
            "there are no results in .goldnode/canary", remedy="run `goldnode canary run` first"
        )
    documents = [results.load(path) for path in results.files(chosen)]
    emit(
        form,
        {"results": [document.model_dump(by_alias=True) for document in documents]},
        lambda: "\n\n".join("\n".join(lines(document)) for document in documents),
    )


def lines(document: CanaryDocument) -> Iterator[str]:
    """Yield a document as text."""
    class_ = phrase(", class {}", document.class_)
    yield f"{document.node}: {document.platform}{class_}, {document.started}, by {document.how}"
    if document.simulated:
        yield "SIMULATED HARDWARE: no result of a real device"
    for job in document.jobs:
        yield "  " + state(job)
    rows = [row for job in document.jobs for row in _rows(job)]
    if rows:
        yield table(
            [
                [
                    "METRIC",
                    "UNIT",
                    "PHASE",
                    "N",
                    "P50",
                    "P95 (BOUND)",
                    "P99 (BOUND)",
                    "SM MHZ",
                    "°C",
                    "W",
                ],
                *rows,
            ]
        )


def state(job: CanaryJob) -> str:
    """Return the line of a job: its state, why, and whether it was seen on such hardware."""
    text = f"{job.state.replace('_', ' '):15} {job.name}"
    if job.state == "passed" and not job.verified:
        text += " (not verified: this job was never seen on such hardware)"
    return f"{text}: {job.why}" if job.why else text


def _rows(job: CanaryJob) -> Iterator[list[str]]:
    from goldnode.canary.results import quantiles

    for metric in job.metrics:
        levels = quantiles(metric)
        if not levels:
            continue
        given = metric.conditions
        outside = phrase(" throttled: {}", ", ".join(given.throttled or ()))
        yield [
            metric.name + phrase(" {}", metric.device),
            metric.unit,
            metric.phase + outside,
            str(len(metric.samples)),
            f"{levels[0].value:.4g}",
            *(_quantile(one, len(metric.samples)) for one in levels[1:]),
            *(_range(one) for one in (given.sm_mhz, given.temperature_c, given.power_w)),
        ]


def _quantile(quantile: Quantile, count: int) -> str:
    if quantile.bound is None:
        return "too few" if count > 1 else "-"
    return f"{quantile.value:.4g} ({quantile.bound:.4g})"


def _range(values: list[float] | None) -> str:
    if values is None:
        return "-"
    return f"{values[0]:g}" if values[0] == values[1] else f"{values[0]:g}-{values[1]:g}"

"""Command `goldnode floors check`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.floors import RESULTS, TRUST, percent, trusted
from goldnode.commands.options import EXISTING, FILE, grouped
from goldnode.commands.output import emit, reports

if TYPE_CHECKING:
    from goldnode.floors.verdicts import SpeedReport

EXITS = {"passes": 0, "fails": 1, "inconclusive": 3}  # exit status by answer


@dataclass(frozen=True)
class SlowOptions:
    """The baseline that nodes are compared with."""

    baseline: Path | None
    trust: tuple[Path, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ChangeOptions:
    """Results before a change, and the accepted loss."""

    before: tuple[Path, ...]
    control: tuple[str, ...]
    margin: str


@click.command()
@RESULTS
@grouped(
    "slow",
    SlowOptions,
    click.option(
        "--baseline",
        type=FILE,
        metavar="FILE",
        help="Baseline that `goldnode floors learn` wrote, to find slow nodes.",
    ),
    TRUST,
    click.option(
        "--node", "nodes", multiple=True, metavar="NODE", help="Judge this node only. Repeatable."
    ),
)
@grouped(
    "change",
    ChangeOptions,
    click.option(
        "--before",
        multiple=True,
        type=EXISTING,
        metavar="PATH",
        help="Results of the same nodes before a change, to find its cost. Repeatable.",
    ),
    click.option(
        "--control",
        multiple=True,
        metavar="NODE",
        show_default="nodes whose class digest and image are the same before and after",
        help="Node that did not change; its drift is taken off. Repeatable.",
    ),
    click.option(
        "--margin",
        default="2%",
        show_default=True,
        metavar="PERCENT",
        help="Loss of a change that is accepted.",
    ),
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="METRIC",
    show_default="all",
    help="Metric to judge, such as gemm_fp16, gemm_fp16/cold or, of a change, decode_ms:p99. Repeatable.",
)
@reports("floors-check")
def check(
    results: tuple[Path, ...],
    slow: SlowOptions,
    change: ChangeOptions,
    metrics: tuple[str, ...],
    form: str,
) -> None:
    """Check canary results against a baseline, or against results before a change.

    With --baseline, a device is slow if the upper 99 % bound of its median is below the floor. With --before, a
    change fails if its loss is significant and the margin is not excluded, and passes if the margin is excluded:
    Wilcoxon's tests over at least eight changed nodes with five runs each, less the drift of unchanged nodes.

    Exit status: 0 all metrics pass, 1 a metric fails, 2 a file could not be read, 3 inconclusive: too few runs count.
    """
    # numpy: only the extra `floors` installs it.
    from goldnode.commands.floors import text as floors_text
    from goldnode.core import extras

    extras.require("floors")
    if bool(slow.baseline) == bool(change.before):
        raise click.UsageError("name either --baseline or --before")
    if slow.baseline is None:
        report = _change(results, change, metrics)
    else:
        report = _slow(results, slow, slow.baseline, metrics)
    emit(form, floors_text.report_data(report), lambda: floors_text.report_text(report))
    sys.exit(EXITS[report.answer.value])


def _slow(
    results: tuple[Path, ...], slow: SlowOptions, baseline: Path, metrics: tuple[str, ...]
) -> SpeedReport:
    from goldnode.floors import baseline as baselines  # numpy: only the extra `floors` installs it
    from goldnode.floors import results as canary
    from goldnode.floors import slow as slowness

    paths = tuple(map(str, results))
    learned = baselines.read(baseline, trusted(slow.trust))
    return slowness.judge(
        canary.read(results), learned, slowness.SlowQuestion(metrics, slow.nodes, paths)
    )


def _change(
    results: tuple[Path, ...], options: ChangeOptions, metrics: tuple[str, ...]
) -> SpeedReport:
    from goldnode.floors import change  # numpy: only the extra `floors` installs it
    from goldnode.floors import results as canary

    margin = percent(options.margin)
    before, after = canary.read(options.before), canary.read(results)
    arms = change.arms_of(before, after, options.control)
    wanted = tuple(change.metric_of(one) for one in metrics)
    canary.check_metrics([one.name for one in wanted], [*before, *after])
    # An inconclusive answer prints the command to run again with more results.
    repeat = ["goldnode", "floors", "check", *map(str, results)]
    for name, values in (("--before", options.before), ("--control", options.control)):
        repeat += [word for value in values for word in (name, str(value))]
    question = change.ChangeQuestion(
        wanted,
        margin,
        repeat=(*repeat, "--margin", options.margin),
    )
    return change.judge(arms, question)

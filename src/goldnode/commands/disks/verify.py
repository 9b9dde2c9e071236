"""Command `goldnode disks verify`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.options import DIRECTORY, disk_store, grouped
from goldnode.commands.output import emit, reports
from goldnode.core import progress

if TYPE_CHECKING:
    from goldnode.disks.verify import Estimate


@dataclass(frozen=True)
class GuestOptions:
    """Which guests to boot, and what to leave of them. `memory` is in MiB."""

    clones: bool
    simulated_gpu: bool
    memory: int
    work: Path | None
    keep: bool


def _reporter(name: str, estimate: Estimate) -> Callable[[str], None]:
    """Return a function that prints what the run does, and shows it with the time left until the next text."""

    def report(text: str) -> None:
        progress.note(f"{name}: {text}")

        def label() -> str:
            left = estimate.left()
            if left is None:
                return f"{name}: {text}"
            return f"{name}: {text}, about {max(1, round(left / 60))} min left"

        progress.rename(label)

    return report


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="DIR|CLASS...")
@disk_store()
@grouped(
    "guests",
    GuestOptions,
    click.option(
        "--clones/--no-clones",
        default=True,
        show_default=True,
        help="Also boot a copy of the image and compare the identities of both.",
    ),
    click.option(
        "--simulated-gpu",
        is_flag=True,
        help="Boot twice more with simulated GPUs: with all of them, and with one missing.",
    ),
    click.option(
        "--memory",
        type=click.IntRange(512),
        default=2048,
        show_default=True,
        metavar="MIB",
        help="Memory of each guest.",
    ),
    click.option(
        "--work",
        type=DIRECTORY,
        metavar="DIR",
        show_default="next to the image",
        help="Directory for overlays and logs.",
    ),
    click.option(
        "--keep", is_flag=True, help="Do not delete overlays, consoles and logs of the guests."
    ),
)
@click.option("--all", "everything", is_flag=True, help="Show passed checks, too.")
@reports("disk-boots", json_flag=True)
def verify(
    names: tuple[str, ...],
    store: Path | None,
    guests: GuestOptions,
    everything: bool,
    form: str,
) -> None:
    """Boot disk images in QEMU and check them against their class.

    DIR is a build; CLASS selects the newest build of a node class. The image is not modified. The report is
    written next to it as verified.json.

    Exit status: 0 passed, as far as a virtual machine can show; 1 a check failed; 2 the image could not be
    tried.
    """
    from goldnode.disks import verify as verification
    from goldnode.disks.model import builds, find, store_directory
    from goldnode.disks.qemu import accelerator, check_tools

    images = [find(name, store_directory(store)) for name in names]
    for architecture in sorted({built.os.architecture for built in images}):
        check_tools(architecture)
    reports_of = {}
    for built in images:
        known = verification.last_durations(
            builds(store_directory(store), built.class_),
            accelerator(built.os.architecture),
        )
        estimate = verification.Estimate(known, boots=4 if guests.simulated_gpu else 2)
        report = verification.verify(
            built,
            verification.VerifyOptions(
                work=guests.work,
                clones=guests.clones,
                gpus=guests.simulated_gpu,
                memory=guests.memory,
                keep=guests.keep,
            ),
            say=_reporter(built.name, estimate),
            estimate=estimate,
        )
        # Written image by image: an interrupted run keeps what it has verified.
        reports_of[built.name] = report
        verification.write(report)
        if form == "text":
            click.echo(report.table(everything=everything))
    emit(form, {"reports": {name: report.to_json() for name, report in reports_of.items()}})
    sys.exit(0 if all(report.outcome == "passed" for report in reports_of.values()) else 1)

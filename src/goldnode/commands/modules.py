"""Command `goldnode modules`."""

from __future__ import annotations

import datetime as dt
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.options import FILE, NEW_FILE, OFFLINE_INDEXES, WAIT, grouped, out_directory
from goldnode.commands.output import emit, reports, say
from goldnode.node.ground.optional import optional

if TYPE_CHECKING:
    from goldnode.lock.pairbuild import PairRequest


@click.group(no_args_is_help=True)
def modules() -> None:
    """Build kernel modules once and package them for the mirror."""


_ON = click.option(
    "--on",
    "base",
    type=FILE,
    metavar="FILE",
    show_default="mmdebstrap creates one",
    help="Tar archive of the root to build in, with a compiler and DKMS (see `goldnode lock --on`).",
)


@modules.command()
@click.argument("stack")
@_ON
@OFFLINE_INDEXES
@out_directory("next to the lock")
@WAIT
@reports("built-modules")
def build(
    stack: str, base: Path | None, offline: bool, out: Path | None, wait: float, *, form: str
) -> None:
    """Build the kernel modules of a stack's lock and publish their package.

    The package goes into the mirror, and STACK.modules.yml next to the lock. Cached modules are not built again.
    With `secure_boot: true` in the stack, modules are signed outside of the build root with the key
    `module_signing` of the site file. Requires root.
    """
    from goldnode.classdoc.load import load_catalog  # start-up time: it loads pydantic
    from goldnode.core.site import load_site
    from goldnode.lock.builder import Base
    from goldnode.lock.modulebuild import BuildSettings, build_stack

    catalog, site = load_catalog(), load_site()
    root = optional(Base.read, base)
    settings = BuildSettings(say, root, offline)
    made = build_stack(catalog.stack(stack), catalog, site, settings, out=out, wait=wait)
    row = made.modules.package
    emit(
        form,
        {
            "stack": stack,
            "file": made.file,
            "modules": made.modules.names,
            "kernel": made.result.kernel,
            "package": {"name": row.name, "version": row.version},
            "publication": made.publication,
            "replaces": made.modules.replaces,
        },
        f"{made.file}: {', '.join(made.modules.names)} for {made.result.kernel}\n"
        f"{row.name} {row.version} in {made.publication}; it replaces {len(made.modules.replaces)} packages on nodes",
    )
    if site.modules != "prebuilt":
        say("Nodes still build their own modules: set `modules: prebuilt` in the site file.")


@dataclass(frozen=True)
class _Packages:
    """The options of `goldnode modules matrix` for packages of archives."""

    packages: bool
    suites: tuple[str, ...]
    drivers: tuple[str, ...]
    jobs: int
    again: bool
    plan: bool
    facts: Path | None
    changes: Path | None


_PACKAGES = grouped(
    "packages",
    _Packages,
    click.option(
        "--packages",
        is_flag=True,
        help="Build all driver packages of the archives on all their kernels, instead of the drivers of stacks.",
    ),
    click.option(
        "--suite",
        "suites",
        multiple=True,
        metavar="ARCHIVE/SUITE",
        show_default="those of the catalog's stacks",
        help="With --packages: read this suite, for instance debian/sid. Repeatable.",
    ),
    click.option(
        "--driver",
        "drivers",
        multiple=True,
        metavar="GLOB",
        show_default="all",
        help="With --packages: build these driver packages (NAME or NAME=VERSION), in this order. Repeatable.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(1),
        metavar="N",
        default=1,
        show_default=True,
        help="With --packages: builds at a time.",
    ),
    click.option(
        "--again", is_flag=True, help="With --packages: build pairs that were measured before, too."
    ),
    click.option("--plan", is_flag=True, help="With --packages: list the pairs and build none."),
    click.option(
        "--facts",
        type=NEW_FILE,
        metavar="FILE",
        help="With --packages: add all records to this facts file, for instance CATALOG/facts/module_builds.yml.",
    ),
    click.option(
        "--changes",
        type=NEW_FILE,
        metavar="FILE",
        help="With --packages: compare with the last run in this file, report what has changed, and add this run.",
    ),
)


@modules.command()
@click.argument("stacks", nargs=-1, metavar="[STACK]...")
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="RELEASE",
    show_default="the locked kernel; with --packages all",
    help="Build for this kernel release; with --packages a glob. Repeatable.",
)
@click.option(
    "--flavour",
    "flavours",
    multiple=True,
    type=click.Choice(["open", "proprietary"]),
    show_default="that of the stack; with --packages both",
    help="Build this flavour of the driver's modules. Repeatable.",
)
@_PACKAGES
@reports("module-matrix", "markdown")
@_ON
@OFFLINE_INDEXES
def matrix(
    stacks: tuple[str, ...],
    kernels: tuple[str, ...],
    flavours: tuple[str, ...],
    packages: _Packages,
    form: str,
    *,
    base: Path | None,
    offline: bool,
) -> None:
    """Build all combinations of kernel and driver flavour, and report which ones build.

    Without STACK, all stacks are used that have a lock and build a module. Combinations that do not build are
    listed with the compiler's error. Cached results are used where the inputs are the same.

    With --packages, the driver packages of archives are built on the kernels of archives, each pair in a clean root
    of the kernel's release. Each pair has one record. A run that is stopped continues where it was when it is
    started again.
    """
    from dataclasses import asdict

    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock import modulebuild
    from goldnode.lock.builder import Base

    catalog, site = load_catalog(), load_site()
    if packages.packages:
        if stacks or base is not None:
            raise click.UsageError("--packages goes with neither STACK nor --on")
        _measure(packages, _request(packages, kernels, flavours, offline), form)
        return
    chosen = [catalog.stack(name) for name in dict.fromkeys(stacks)] or modulebuild.locked(
        catalog, site
    )
    root = optional(Base.read, base)
    results = modulebuild.build_combinations(
        modulebuild.Combinations(chosen, kernels, flavours, everywhere=not stacks),
        catalog,
        site,
        modulebuild.BuildSettings(say, root, offline),
    )
    if form == "markdown":
        click.echo(modulebuild.markdown(results), nl=False)
    else:
        emit(
            form,
            {"results": [asdict(item) for item in results]},
            lambda: modulebuild.table(results),
        )


def _request(
    packages: _Packages, kernels: tuple[str, ...], flavours: tuple[str, ...], offline: bool
) -> PairRequest:
    from goldnode.lock.pairbuild import PairRequest
    from goldnode.lock.pairs import PairSelection, PairSuite

    return PairRequest(
        [PairSuite.parse(text) for text in packages.suites],
        PairSelection(packages.drivers, kernels, flavours),
        packages.jobs,
        offline,
        packages.again,
    )


def _selection(packages: _Packages, request: PairRequest) -> list[str]:
    """Return the options that choose pairs, as they are typed."""
    return [
        *(f"--suite {name}" for name in packages.suites),
        *(f"--driver {name}" for name in packages.drivers),
        *(f"--kernel {name}" for name in request.selection.kernels),
        *(f"--flavour {name}" for name in request.selection.flavours),
    ]


def _measure(packages: _Packages, request: PairRequest, form: str) -> None:
    """Run `goldnode modules matrix --packages`."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock import pairbuild, pairchanges
    from goldnode.lock.builder import needs_tools

    # Before anything is downloaded or built.
    if packages.facts is not None:
        # A file that cannot be read must not be found out after hours of builds.
        pairbuild.rows_of(packages.facts)
    known = None
    if packages.changes is not None:
        known = pairchanges.history(packages.changes, _selection(packages, request))
    if not packages.plan:
        needs_tools(base=False)
    plan = pairbuild.plan_pairs(request, load_catalog(), load_site(), pairbuild.architecture())
    say(f"{len(plan.chosen)} pairs, {len(plan.chosen) - len(plan.open)} of them measured before")
    # With --plan nothing is built, and the report has what was measured before.
    run = pairbuild.PairRun()
    if not packages.plan:
        builder = pairbuild.OverlayBuilder(plan.archives, jobs=request.jobs)
        # Threads look at the event between two pairs; `builder.stop` ends the compilers that run.
        stop = threading.Event()

        def end(*_: object) -> None:
            stop.set()
            builder.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        run = pairbuild.measure(
            plan.open, builder, plan.records, jobs=request.jobs, say=say, stop=stop
        )
    if packages.facts is not None:
        say(f"{packages.facts}: {pairbuild.write_facts(plan.records, packages.facts)} records")
    rows = pairbuild.report(plan, run)
    content: dict[str, Any] = {"pairs": rows, "stopped": run.stopped}
    text, page = pairbuild.report_text(rows), pairbuild.report_markdown(rows)
    if known is not None and packages.changes is not None:
        today = dt.datetime.now(tz=dt.UTC).date()
        after, changed = pairchanges.compared(known, rows, today=today)
        if not packages.plan:
            pairchanges.write(packages.changes, after)
        content["changes"] = changed.model_dump()
        text = "\n".join([text, *pairchanges.run_lines(changed)])
        page = f"{page}\n{pairchanges.markdown(after)}"
    if form == "markdown":
        click.echo(page, nl=False)
    else:
        emit(form, content, text)
    if run.stopped:
        say("Stopped. The same command continues with the next pair.")

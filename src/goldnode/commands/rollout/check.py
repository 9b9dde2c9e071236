"""Command `goldnode rollout check`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.fleet.common import address, opened
from goldnode.commands.options import FILE, grouped
from goldnode.commands.output import emit, reports, table
from goldnode.commands.rollout import DOCUMENT, INVENTORY, nodes_of, number, share
from goldnode.commands.rollout.calendars import DAYS, freezes
from goldnode.core import extras
from goldnode.core.site import load_site
from goldnode.node.ground.optional import optional

if TYPE_CHECKING:
    from goldnode.cache.rollout import ColdCaches
    from goldnode.core.site import Site
    from goldnode.fleet.rollout.both_states import BothStates
    from goldnode.fleet.rollout.check import RolloutReport, StepOutcomes, WaveEstimate
    from goldnode.fleet.rollout.document import RolloutFile
    from goldnode.fleet.rollout.model import CalendarReading, Outage
    from goldnode.fleet.shared.variants import Variants

_FREEZES = 5


@dataclass(frozen=True)
class RolloutAssumptions:
    """Assumptions of the estimate, as the command line has them."""

    size: int | None
    minutes: float
    confidence: float
    locks: tuple[Path, ...]


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
    click.option(
        "--lock",
        "locks",
        multiple=True,
        type=FILE,
        metavar="FILE",
        help="Lock of `from` or `to` that has been replaced here, to compare the keys of caches.",
    ),
)
@reports("rollout-check")
def check(document: Path, inventory: str | None, assumed: RolloutAssumptions, form: str) -> None:
    """Check a rollout document: what each wave proves, and how long it takes.

    Reports for each wave the failure rate that a wave without a failure excludes, the number of failures that
    stops the rollout, the share of broken nodes from which a change is stopped, and the hours. Warns of a wave that
    cannot stop the rollout, such as one of a single node. Refuses a document that cannot work, with file and line: a cohort above the
    limit, empty waves, waves that do not reach 100 %, windows that never open, a class or target that cannot
    be, requirements that decide nothing.

    Refuses a rollout that would put two versions into one cohort of the inventory that may not be in one job, and warns
    of images that only one of its states can run.

    Names the caches of compiled GPU code that turn cold, with the parts of their keys that change.

    Where the site names the fleet's captures, warns of hardware variants that no node of the first wave has.

    Where this machine has a store with completed rollouts of the class, their failures are compared with the base
    rate.

    Prints the next freezes of the site's calendars, and warns of one that cannot be read.

    The hours do not include the time until jobs end. No node is contacted.

    Exit status: 0 it can work, 1 it cannot, 2 it could not be read.
    """
    import time

    from goldnode.cache import rollout as caches
    from goldnode.classdoc.load import load_catalog
    from goldnode.fleet.control import calendar_files, state_locks
    from goldnode.fleet.control.document_files import load
    from goldnode.fleet.rollout import check as checking

    if inventory is not None and assumed.size is not None:
        raise click.UsageError("--nodes and --inventory exclude each other")
    file = load(document)
    if inventory is None:
        nodes = None
    else:
        nodes = nodes_of(inventory, file.document.class_, file.settings.origin)
    basis = checking.EstimateBasis(assumed.confidence, assumed.minutes * 60, time.time())
    catalog, site = load_catalog(), load_site()
    cold = caches.cold(file.document, catalog, site, assumed.locks)
    readings = calendar_files.read(site, file.document.class_, basis.begin, DAYS)
    states = state_locks.read_states(file.document, catalog, site, assumed.locks)
    checked = checking.check(
        file,
        nodes=nodes,
        size=assumed.size,
        catalog=catalog,
        basis=basis,
        known=checking.KnownOfClass(
            earlier=_earlier(file.document.class_),
            states=states,
            variants=_variants(site) if nodes else None,
            calendars=readings,
            outages=_outages(file, basis.begin),
        ),
    )
    content = {
        "rollout": file.document.rollout,
        "nodes": checked.size,
        "confidence": basis.confidence,
        "step_minutes": assumed.minutes,
        "waves": [asdict(wave) for wave in checked.waves],
        "findings": [
            {**asdict(finding), "file": str(finding.file)} for finding in checked.findings
        ],
        "caches": asdict(cold),
        "states_unknown": states.unknown,
        "calendars": [asdict(reading) for reading in readings],
        "budget": optional(asdict, checked.budget),
        "refused": checked.refused,
    }
    warm = any(item.command is not None for item in file.document.require)
    budget = [] if checked.budget is None else ["", f"{checked.budget.text()}."]
    more = [*budget, *_calendars_text(readings, basis.begin), *_more(cold, warm, states)]
    emit(form, content, lambda: _text(file.document.rollout, checked, more))
    sys.exit(1 if checked.refused else 0)


def _calendars_text(readings: Sequence[CalendarReading], now: float) -> list[str]:
    """Return the lines about the next freezes."""
    return ["", *freezes(readings, now, _FREEZES)] if readings else []


def _outages(file: RolloutFile, now: float) -> list[Outage]:
    """Return the outages of the class that the error budget counts, if this machine has a store."""
    budget, where = file.settings.budget, address(None, load_site())
    if budget is None or not _has_store(where):
        return []
    from goldnode.fleet.store import outages  # sqlalchemy: only the extra `fleet` installs it

    since = now - budget.period
    with opened(where) as store, store.read() as connection:
        return outages.ended(connection, file.settings.class_, since)


def _has_store(where: str) -> bool:
    """Return whether this machine has a store. A reader must not create one."""
    return extras.installed("fleet") and ("://" in where or Path(where).exists())


def _earlier(node_class: str) -> StepOutcomes | None:
    """Return the steps of earlier rollouts, if this machine has a store. A check needs none."""
    where = address(None, load_site())
    if not _has_store(where):
        return None
    from goldnode.fleet.store import history  # sqlalchemy: only the extra `fleet` installs it

    with opened(where) as store, store.read() as connection:
        return history.outcomes(connection, node_class)


def _variants(site: Site) -> Variants | None:
    """Return the hardware variants of the captures that the site names; None where there are none to read."""
    from datetime import UTC, datetime

    data = site.declared_fleet_data()
    if data is None or not data.is_dir() or not extras.installed("report"):
        return None
    from goldnode.fleet.report.variants import variants  # duckdb: only the extra installs it

    return variants(data, datetime.now(UTC))


WARM = (
    "To compile them in the soak of the canary wave, add a requirement such as\n"
    '  - command: {run: [/usr/local/sbin/warm-caches, "{wave}"], timeout: 2h}\n'
    "(docs/how-to/cache-keys.md has the program)."
)


def _cold_text(cold: ColdCaches, has_command: bool) -> list[str]:
    """Return the lines about caches. `has_command`: the document has a requirement that may warm them."""
    if cold.unknown is not None:
        return ["", f"caches that turn cold: unknown: {cold.unknown}."]
    if not cold.caches:
        return ["", "No cache of compiled GPU code turns cold."]
    rows = [["cache that turns cold", "key", "of", "because"]]
    places = {"all": "all programs", "host": "programs without an image"}
    for row in cold.caches:
        because = ", ".join(map(str, row.changes))
        rows.append([row.cache, " and ".join(row.strengths), places[row.where], because])
    return ["", table(rows), *([] if has_command else [WARM])]


def _more(cold: ColdCaches, has_command: bool, states: BothStates) -> list[str]:
    """Return the lines about caches and about both states."""
    lines = _cold_text(cold, has_command)
    if states.unknown is not None and states.unknown != cold.unknown:
        lines += [f"versions of both states in one job: unknown: {states.unknown}."]
    return lines


def _detects(wave: WaveEstimate) -> str:
    """Return the least share of broken nodes at which a wave stops a change, for a table."""
    # Its limit is known and is never reached; without a limit nothing is known.
    if wave.detects is None and wave.stops_at is not None:
        return "nothing"
    return share(wave.detects)


def _stops_at(wave: WaveEstimate) -> str:
    """Return the failures that stop, for a table: of one cause as well, where those are fewer."""
    if wave.stops_at is None:
        return "?"
    if wave.one_cause is None or wave.one_cause >= wave.stops_at:
        return f"{wave.stops_at} failed"
    return f"{wave.stops_at} failed, {wave.one_cause} alike"


def _text(name: str, report: RolloutReport, caches: list[str]) -> str:
    lines = [str(finding) for finding in report.findings]
    confidence = f"{report.basis.confidence:.0%}"
    if report.waves:
        rows = [
            [
                "wave",
                "nodes",
                "moved",
                "clean wave excludes",
                "clean so far",
                "stops at",
                "detects",
                "hours",
                "until",
            ]
        ]
        rows += [
            [
                wave.name,
                number(wave.nodes),
                number(wave.moved),
                share(wave.excludes),
                share(wave.excludes_all),
                _stops_at(wave),
                _detects(wave),
                number(wave.hours),
                number(wave.ends_after),
            ]
            for wave in report.waves
        ]
        size = "an unknown number of nodes" if report.size is None else f"{report.size} nodes"
        lines += ["", f"rollout {name}, {size}:", table(rows), ""]
        lines.append(
            f"A wave without a failure excludes, with {confidence} confidence, a change that breaks more than this "
            f"share of the nodes. A change that breaks the share under `detects` for one cause is stopped by the end of "
            f"the wave, with the same confidence. `alike` are failures with one cause. "
            f"Hours assume {report.basis.step / 60:.0f} minutes for a node and no wait for jobs."
        )
        if report.size is None:
            lines.append("For the waves by percentage give the inventory (-i) or --nodes.")
    lines += [*caches, ""]
    lines.append("refused" if report.refused else "it can work")
    return "\n".join(lines).strip()

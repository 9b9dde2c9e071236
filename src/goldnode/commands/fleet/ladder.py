"""Command `goldnode fleet ladder`: repairs of single nodes, rung by rung."""

from __future__ import annotations

import datetime as dt
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.fleet.common import REASON, STORE, give, opened
from goldnode.commands.options import BECOME
from goldnode.commands.output import emit, reports, say
from goldnode.commands.rollout import INVENTORY
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import load_site

if TYPE_CHECKING:
    from goldnode.fleet.rollout.ladder import LadderAction, RepairCase
    from goldnode.fleet.rollout.learning import RungLesson
    from goldnode.fleet.store.repairs import LadderRecord

_DAYS = click.option(
    "--period",
    "days",
    type=click.FloatRange(min=0, min_open=True),
    default=7.0,
    show_default=True,
    metavar="DAYS",
    help="Time of the past to count.",
)


@click.group(no_args_is_help=True)
def ladder() -> None:
    """Run repairs of single nodes, rung by rung, with evidence before each.

    `ladder.mode` of the site file turns it on: `plan` records, `run` repairs.
    """


@ladder.command()
@INVENTORY
@STORE
@click.option(
    "--class", "class_names", multiple=True, metavar="CLASS", help="Only this class (repeatable)."
)
@click.option(
    "--tick",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Pause between two decisions.",
)
@click.option("--once", is_flag=True, help="Decide once, wait for what was begun, and end.")
@BECOME
@reports("fleet-ladder-run")
def run(inventory: str, where: str | None, form: str, **given: Any) -> None:
    """Run the controller of the ladder until it is stopped.

    With `ladder.mode: plan` it changes nothing. Exit status with `--once`: 1 if a node could not be checked.

    A controller that is killed leaves its intents in the log of the store; the next one restores what they took down.
    """
    site = load_site()
    if site.ladder.mode == "off":
        raise GoldnodeError(
            "the ladder is off",
            remedy="set ladder.mode of goldnode-site.yml to `plan`; docs/how-to/ladder.md has the way",
        )
    from goldnode.classdoc.load import load_catalog
    from goldnode.fleet.control import ladder_site  # sqlalchemy: only the extra `fleet` installs it
    from goldnode.inventory.fleet import nodes_of_class

    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    count = 0
    unread: Mapping[str, str] = {}
    with opened(where) as store:
        catalog, hosts, classes = load_catalog(), {}, {}
        for class_ in ladder_site.classes_of(given["class_names"], store):
            item = catalog.node_class(class_).item
            for host in nodes_of_class(inventory, class_):
                hosts[host.name], classes[host.name] = host, item
        if not hosts:
            raise GoldnodeError(
                "no host of the inventory is in a class of the store",
                file=inventory,
                remedy="add the nodes: `goldnode fleet nodes FILE`",
            )
        fleet = ladder_site.LadderFleet(hosts, classes, given["become"])
        controller = ladder_site.controller(site, store, fleet)
        try:
            while not stop.is_set():
                report = controller.tick()
                count += len(report.actions)
                for action in report.actions:
                    say(sentence(action))
                if report.problem:
                    say(report.problem)
                else:
                    for node, why in report.unread.items():
                        if unread.get(node) != why:
                            say(f"{node}: could not check: {why}")
                    unread = report.unread
                if given["once"] and not report.actions and controller.idle():
                    break
                pause = 0.5 if given["once"] else given["tick"]
                stop.wait(0.2 if report.actions else pause)
        finally:
            controller.close()
    content = {"mode": site.ladder.mode, "actions": count, "could_not_check": dict(unread)}
    more = f"; {len(unread)} of {len(hosts)} nodes could not be checked" if unread else ""
    word = "transitions were"
    if count == 1:
        word = "transition was"
    emit(form, content, f"{count} {word} written{more}")
    if given["once"] and unread:
        sys.exit(1)


@ladder.command()
@_DAYS
@STORE
@reports("fleet-ladder")
def status(days: float, where: str | None, form: str) -> None:
    """Show open repairs, stops, and the rungs of the last days.

    In mode `plan` the open repairs are those with which the ladder would have begun.
    """
    import time

    record = _read(where)
    since = time.time() - days * 86400.0
    content = _content(record, since)
    emit(form, content, lambda: "\n".join(_status(content, days)))


@ladder.command()
@click.option("--together", is_flag=True, help="All models, VBIOS and drivers in one row.")
@STORE
@reports("fleet-ladder-learned")
def learned(together: bool, where: str | None, form: str) -> None:
    """Show which rung cured which finding.

    Per GPU model, VBIOS and driver of the evidence before the rung, with 95 % intervals (Wilson). A rung that never
    helps is named when 16 tries or more had no cure.
    """
    from goldnode.fleet.control.rung_versions import versions_of  # start-up time
    from goldnode.fleet.rollout.learning import lessons

    record = _read(where)
    versions = versions_of(Path(load_site().ladder.evidence))
    rows = lessons(record.state, versions, together=together)
    content = {"rungs": [{**asdict(row), "never_helps": row.never_helps} for row in rows]}
    emit(form, content, lambda: "\n".join(map(_lesson, rows)) or "no rung has been judged yet")


def _lesson(row: RungLesson) -> str:
    own = row.versions
    hardware = ", ".join(text for text in (own.model, own.firmware, own.driver) if text)
    back = f", {row.came_back} came back" if row.came_back else ""
    named = ": NEVER HELPS" if row.never_helps else ""
    return (
        f"{row.finding}: {row.rung}{f' ({hardware})' if hardware else ''}: cured {row.cured} of {row.tries}{back}; "
        f"{row.low:.0%} to {row.high:.0%}{named}"
    )


@ladder.command()
@click.argument("node")
@STORE
@reports("fleet-ladder-node")
def explain(node: str, where: str | None, form: str) -> None:
    """Show the repairs of a node, transition by transition."""
    record = _read(where, node)
    lines: list[dict[str, Any]] = [
        {"at": at, "text": sentence(action)} for at, action in record.lines if _node(action) == node
    ]
    case = record.state.cases.get(node)
    content = {"node": node, "case": _case(case) if case is not None else None, "lines": lines}

    def text() -> str:
        if not lines:
            return f"the ladder has done nothing on {node}"
        return "\n".join(f"{_time(row['at'])}  {row['text']}" for row in lines)

    emit(form, content, text)


@ladder.command()
@click.argument("subject")
@REASON
@STORE
@reports("fleet-ladder-resume")
def resume(subject: str, reason: str, where: str | None, form: str) -> None:
    """Lift a stop of the ladder, such as `finding gpu.lost`, `rack r7` or `leaf l2`.

    The ladder stops by itself when several nodes have one finding at once. Find the common cause first.
    """
    from goldnode.fleet.store import repairs  # sqlalchemy: only the extra `fleet` installs it

    give(where, reason, lambda connection, order: repairs.lift(connection, subject, order))
    emit(form, {"subject": subject}, f"the ladder goes on for {subject}")


def _read(where: str | None, node: str | None = None) -> LadderRecord:
    """Return the log of the ladder. Raises GoldnodeError for a node that neither it nor the store has."""
    with opened(where) as store, store.read() as connection:
        from goldnode.fleet.store import repairs

        record = repairs.LadderRecord()
        record.read(connection)
        if node is None or any(_node(action) == node for _, action in record.lines):
            return record
        if not repairs.domains(connection, [node]):
            raise GoldnodeError(
                f'the store has no node "{node}"', remedy="`goldnode fleet status` lists them"
            )
        return record


def _node(action: LadderAction) -> str | None:
    case = getattr(action, "case", None)
    return case.node if case is not None else getattr(action, "node", None)


def sentence(action: LadderAction) -> str:
    """Return a transition as a line for a person."""
    content: dict[str, Any] = asdict(action)
    kind = type(action).__name__
    if kind == "OpenCase":
        case = content["case"]
        word = "would begin with" if case["planned"] else "begins; the first rung is"
        return f"{case['node']}: {case['finding']}: the repair {word} {case['rung']}"
    if kind == "StopLadder":
        nodes = ", ".join(content["nodes"][:20])
        return f"STOPPED for {content['subject']}: {len(content['nodes'])} nodes at once ({nodes})"
    if kind == "LiftStop":
        return f"the stop for {content['subject']} was lifted"
    if kind == "StoreEvidence":
        return f"{content['node']}: evidence {content['evidence'][:16]} is stored"
    if kind == "ChangeLeave":
        if content["leave"]:
            return f"{content['node']}: its part begins, as {content['run']}"
        return f"{content['node']}: its part has ended"
    outcome = f"{content['outcome']}; " if content["outcome"] else ""
    return f"{content['node']}: {content['rung']}: {outcome}{content['phase']}: {content['why']}"


def _case(case: RepairCase) -> dict[str, Any]:
    content = asdict(case)
    return {
        name: content[name]
        for name in (
            "node",
            "finding",
            "phase",
            "rung",
            "opened_at",
            "changed_at",
            "why",
            "planned",
            "leave",
        )
    }


def _content(record: LadderRecord, since: float) -> dict[str, Any]:
    from goldnode.fleet.rollout.ladder import OpenCase  # start-up time

    state = record.state
    tried = Counter((row.rung, row.finding) for row in state.rungs if row.at > since)
    cured = Counter(
        (row.rung, row.finding)
        for row in state.ended
        if row.at > since and row.phase.value == "cured"
    )
    planned = Counter(
        (action.case.finding, action.case.rung)
        for at, action in record.lines
        if at > since and isinstance(action, OpenCase) and action.case.planned
    )
    return {
        "cases": [_case(state.cases[name]) for name in sorted(state.cases)],
        "stops": sorted(state.stops),
        "rungs": [
            {"rung": rung, "finding": finding, "begun": count, "cured": cured[rung, finding]}
            for (rung, finding), count in sorted(tried.items())
        ],
        "planned": [
            {"finding": finding, "rung": rung, "cases": count}
            for (finding, rung), count in sorted(planned.items())
        ],
    }


def _status(content: dict[str, Any], days: float) -> Iterator[str]:
    for subject in content["stops"]:
        yield f"STOPPED for {subject}: `goldnode fleet ladder resume '{subject}' --reason REASON`"
    for case in content["cases"]:
        word = "would begin with" if case["planned"] else f"{case['phase']},"
        yield f"{case['node']}: {case['finding']}: {word} {case['rung']} ({case['why']})"
    if not content["cases"]:
        yield "no repair is open"
    for row in content["planned"]:
        yield f"{days:g} days: {row['cases']} repairs of {row['finding']} would have begun with {row['rung']}"
    for row in content["rungs"]:
        yield f"{days:g} days: {row['rung']} for {row['finding']}: begun {row['begun']}, cured {row['cured']}"


def _time(at: float) -> str:
    return f"{dt.datetime.fromtimestamp(at, dt.UTC).astimezone():%Y-%m-%d %H:%M:%S}"

"""Command `goldnode game-day`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.options import BECOME, DIRECTORY, FILE, grouped, inventory_option
from goldnode.commands.output import emit, reports, say, table
from goldnode.core.errors import GoldnodeError, nearest
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from goldnode.core.site import Site
    from goldnode.documents.game_day import WitnessName
    from goldnode.fleet.nodes.game_day import GameDayMachine, GameDayPlan, Witness
    from goldnode.fleet.nodes.game_day_faults import GameDayFault, SurveyedNode
    from goldnode.fleet.nodes.game_day_hold import NodeHold
    from goldnode.fleet.rollout.document import RolloutSettings


@dataclass(frozen=True)
class GameDayNode:
    """The node, as the command line has it."""

    node: str | None
    document: Path | None
    inventory: str | None
    become: bool


@dataclass(frozen=True)
class GameDaySteps:
    """The fault, and how it is watched."""

    fault: str | None
    apply: bool
    limit: int
    now: bool
    prometheus: str | None
    alertmanager: str | None
    skip: tuple[str, ...]


@click.command("game-day")
@click.argument("class_name", metavar="CLASS")
@grouped(
    "where",
    GameDayNode,
    click.option("--node", metavar="NODE", help="Node of the class that gets the fault."),
    click.option(
        "--rollout",
        "document",
        type=FILE,
        metavar="DOCUMENT",
        help="Instead of --node: the first canary of this rollout document that is free.",
    ),
    inventory_option("Inventory that defines the nodes. Without it, NODE is an SSH destination."),
    BECOME,
)
@grouped(
    "steps",
    GameDaySteps,
    click.option(
        "--fault",
        metavar="NAME",
        help="Fault to make. Without it, list the faults, and which of them the node can have.",
    ),
    click.option(
        "--apply", is_flag=True, help="Make the fault. Without it, only show what would be done."
    ),
    click.option(
        "--within",
        "limit",
        type=click.IntRange(60, 7200),
        default=1800,
        show_default=True,
        metavar="SECONDS",
        help="Time after which the fault ends. It ends earlier once all that are asked have seen it.",
    ),
    click.option(
        "--now",
        is_flag=True,
        help="Start the node's check at once. Without it, its own schedule is measured.",
    ),
    click.option(
        "--prometheus",
        metavar="URL",
        show_default="the site file's fleet.prometheus",
        help="Prometheus whose alerts must fire.",
    ),
    click.option(
        "--alertmanager",
        metavar="URL",
        show_default="the first Alertmanager of the site file's events.hooks",
        help="Alertmanager that must get the alert.",
    ),
    click.option(
        "--skip",
        type=click.Choice(["alert", "alertmanager", "report"]),
        multiple=True,
        help="Do not ask this witness. Repeatable.",
    ),
)
@click.option("--end", "ends", is_flag=True, help="End the game day that runs on the node.")
@click.option(
    "--data",
    type=DIRECTORY,
    metavar="DIRECTORY",
    show_default="the site file's fleet.data",
    help="Directory of the fleet's captures, which must get the finding.",
)
@reports("game-day")
def game_day(
    class_name: str,
    where: GameDayNode,
    steps: GameDaySteps,
    ends: bool,
    *,
    data: Path | None,
    form: str,
) -> None:
    """Make one harmless fault on a canary, and measure who sees it.

    Seconds are measured until the check, the gate, an alert and the fleet's report have it.

    The end is armed before the fault is made: a timer of the node and a unit of its next boot take it back, whether this
    process is killed, SSH breaks or the node reboots. Nothing is done without --apply.

    With a scheduler in the inventory (goldnode_drain), the node gets no work meanwhile.

    Refused on a node that works for a rollout, a repair or a job, whose gate is closed, or that has a game day already.

    Alerts are asked where the site file or an option names a Prometheus or an Alertmanager, and the stored captures where
    it names the fleet's data.

    Exit status: 0 all that were asked have seen it and the node is as before, 1 not, 2 it was refused or failed.
    """
    from goldnode.core import extras

    if where.inventory is not None:
        extras.require("ansible")
    # After `require`, which names a missing extra.
    from goldnode.core.site import GAME_DAYS, load_site
    from goldnode.fleet.nodes import game_day as engine
    from goldnode.fleet.nodes.game_day_hold import hold_of

    site = load_site()
    machine, variables = _machine(class_name, where, site)
    if ends:
        failed = engine.end(machine)
        if failed is not None:
            raise GoldnodeError(
                f"{machine.name}: {failed.text}",
                remedy="see `journalctl -u game-day-end` on it; its next boot tries again",
            )
        hold = hold_of(machine, variables)
        note = hold.finish() if hold is not None else ""
        done = f"{machine.name} has no game day any more{phrase('; {}', note)}"
        emit(form, {"schema": "goldnode.game-day-end/1", "node": machine.name}, done)
        return
    node = engine.survey(machine)
    if steps.fault is None:
        _list(form, machine.name, node)
        return
    hold = hold_of(machine, variables)
    plan = _plan(class_name, machine.name, steps, (site, data), variables=variables, hold=hold)
    why = engine.refusal(plan, node, machine.name) or _work(site, machine.name, variables)
    if why is not None:
        raise why
    if not steps.apply:
        import time

        shown = engine.planned(plan, node, machine.name, time.time())
        content = shown.model_dump(by_alias=True)
        emit(form, content, lambda: "\n".join(engine.plan_text(plan, node, shown)))
        return
    records = site.resolve(GAME_DAYS)
    result = engine.GameDay(plan, machine, records, say).run()
    lines = [*engine.text(result, plan.fault), f"  record  {records / result.id}.json"]
    emit(form, result.model_dump(by_alias=True), "\n".join(lines))
    sys.exit(1 if engine.missed(result) else 0)


# -- the node


def _machine(
    class_: str, where: GameDayNode, site: Site
) -> tuple[GameDayMachine, Mapping[str, Any]]:
    """Return how to reach the node, and its variables. Raises GoldnodeError for a node that is not of the class."""
    from goldnode.fleet.nodes import reach

    if (where.node is None) == (where.document is None):
        raise click.UsageError("Give --node NODE, or --rollout DOCUMENT whose first wave names it.")
    if where.inventory is None:
        if where.node is None:
            raise click.UsageError("--rollout needs the inventory with its nodes: -i PATH")
        return reach.node(where.node, None, where.become), {}
    from goldnode.inventory.fleet import nodes_of_class

    hosts = {node.name: node.variables for node in nodes_of_class(where.inventory, class_)}
    name = where.node
    if where.document is not None:
        name = _canary(where.document, class_, hosts, site)
    if name is None or name not in hosts:
        raise GoldnodeError(
            f"the inventory has no host {name} of class {class_}",
            file=where.inventory,
            remedy=nearest(str(name), hosts) or "correct the name of the node or of the class",
        )
    return reach.reached(name, hosts[name], where.become), hosts[name]


def _canary(document: Path, class_: str, hosts: Mapping[str, Mapping[str, Any]], site: Site) -> str:
    """Return the first canary of a rollout document on which nothing works."""
    from goldnode.fleet.control.document_files import load

    settings = load(document).settings
    if settings.class_ != class_:
        raise GoldnodeError(
            f"the document is of class {settings.class_}, and not of {class_}", file=document
        )
    names = _named_canaries(settings)
    if not names:
        raise GoldnodeError(
            f"wave {settings.waves[0].name} names no hosts",
            file=document,
            remedy="give --node; `goldnode rollout canaries` prints a pool of canaries for the document",
        )
    reasons = {}
    for name in names:
        why = _work(site, name, hosts.get(name, {}))
        if why is None:
            return name
        reasons[name] = str(why)
    raise GoldnodeError(f"no canary is free: {'; '.join(reasons.values())}", file=document)


def _named_canaries(settings: RolloutSettings) -> tuple[str, ...]:
    """Return the hosts of the pool of the first wave; empty if it has no pool or the pool names none."""
    pool = settings.pools.get(settings.waves[0].pool or "") if settings.waves else None
    return tuple(pool.hosts or ()) if pool is not None else ()


def _work(site: Site, node: str, variables: Mapping[str, Any]) -> GoldnodeError | None:
    """Return why others need a node now: the store or the scheduler has work for it."""
    import time

    from goldnode.commands.canary.run import busy_by_scheduler
    from goldnode.fleet.nodes import queue_place

    queued = queue_place.queue_of(site, node)
    if not isinstance(queued, queue_place.NoQueue):
        from goldnode.fleet.store import queue  # sqlalchemy: only the extra `fleet` installs it

        try:
            with queued.read() as connection:
                work = queue.work_on(connection, node, time.time())
        finally:
            queued.close()
        if work is not None:
            remedy = "wait for its end (`goldnode fleet queue`), or take another canary"
            return GoldnodeError(f"{node}: {work}", remedy=remedy)
    busy = busy_by_scheduler(node, variables)
    why = busy() if busy is not None else ""
    if why:
        return GoldnodeError(
            f"{node}: {why}", remedy="drain the node and wait until its jobs have ended"
        )
    return None


# -- the plan


def _plan(
    class_: str,
    node: str,
    steps: GameDaySteps,
    sources: tuple[Site, Path | None],
    *,
    variables: Mapping[str, Any],
    hold: NodeHold | None,
) -> GameDayPlan:
    from goldnode.fleet.nodes import game_day_faults
    from goldnode.fleet.nodes.game_day import GameDayPlan
    from goldnode.fleet.shared.person import person

    fault = game_day_faults.BY_NAME.get(steps.fault or "")
    if fault is None:
        remedy = (
            nearest(str(steps.fault), game_day_faults.BY_NAME) or "leave --fault out: it lists them"
        )
        raise GoldnodeError(f"fault {steps.fault} is not known", remedy=remedy)
    asked: dict[WitnessName, Witness] = {}
    unasked: dict[WitnessName, str] = {
        "alert": "--skip alert",
        "alertmanager": "--skip alertmanager",
        "report": "--skip report",
    }
    names = {node, str(variables.get("ansible_host"))}
    if "alert" not in steps.skip:
        alert = _alerts(sources[0], steps.prometheus, fault, names)
        if alert is None:
            unasked["alert"] = "neither --prometheus nor fleet.prometheus of the site file is given"
        else:
            asked["alert"] = alert
    if "alertmanager" not in steps.skip:
        arrived = _arrived(sources[0], steps.alertmanager, fault, names)
        if arrived is None:
            unasked["alertmanager"] = (
                "neither --alertmanager nor an Alertmanager in events.hooks of the site file is given"
            )
        else:
            asked["alertmanager"] = arrived
    if "report" not in steps.skip:
        captures = sources[1] or sources[0].declared_fleet_data()
        if captures is None:
            unasked["report"] = "neither --data nor fleet.data of the site file is given"
        else:
            asked["report"] = _captures(captures, node, fault)
    return GameDayPlan(
        class_,
        fault,
        person(),
        steps.limit,
        steps.now,
        witnesses=asked,
        unasked=unasked,
        hold=hold,
    )


_ALERTS = 'ALERTS{alertname=~"Goldnode.*"}'
_NODE_LABELS = ("instance", "node", "host", "nodename")


def _alerts(site: Site, url: str | None, fault: GameDayFault, names: set[str]) -> Witness | None:
    """Return what asks Prometheus for a new alert of the node. None: the site has no Prometheus. Raises GoldnodeError."""
    from dataclasses import replace

    from goldnode.fleet.control import requirements
    from goldnode.fleet.nodes.game_day_faults import alerts_of

    sources = requirements.sources(site)
    if url is not None:
        sources = replace(sources, prometheus=url.rstrip("/"))
    if sources.prometheus is None:
        return None
    expected = alerts_of(fault)

    def active(*states: str) -> set[tuple[str, str]]:
        try:
            series = requirements.query(sources, _ALERTS)
        except requirements.QueryUnknownError as problem:
            raise GoldnodeError(str(problem)) from None
        alerts = set()
        for row in series:
            if (
                _is_of(row.labels, names, expected, fault)
                and row.labels.get("alertstate") in states
            ):
                alerts.add(_shown(row.labels))
        return alerts

    # One that is pending already would fire without the fault.
    before = active("pending", "firing")

    def new() -> str | None:
        return next((" ".join(row).strip() for row in sorted(active("firing") - before)), None)

    return new


def _is_of(
    labels: Mapping[str, str], names: set[str], expected: Collection[str], fault: GameDayFault
) -> bool:
    """Return whether an alert is about a node, and one that a fault can cause."""
    hosts = {labels.get(label, "").partition(":")[0] for label in _NODE_LABELS}
    finding = labels.get("id", "")
    ours = labels.get("alertname") in expected and (not finding or finding in fault.findings)
    return bool(ours and hosts & names)


def _shown(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("alertname", ""), labels.get("id", "")


def _arrived(site: Site, url: str | None, fault: GameDayFault, names: set[str]) -> Witness | None:
    """Return what asks an Alertmanager for a new alert of the node. None: the site names no such server. Raises GoldnodeError.

    An alert that a silence or another alert mutes has arrived, and nobody is notified: it does not count.
    """
    import json

    from goldnode.core.site import SiteHookAlertmanager
    from goldnode.fleet.events.hooks import alertmanager
    from goldnode.fleet.nodes.game_day_faults import alerts_of

    named = [row.alertmanager for row in site.events.hooks.values() if row.alertmanager is not None]
    hook = SiteHookAlertmanager(url=url) if url is not None else next(iter(named), None)
    if hook is None:
        return None
    expected = alerts_of(fault)

    def active() -> set[tuple[str, str]]:
        query = "alerts?active=true&silenced=false&inhibited=false"
        try:
            rows = json.loads(alertmanager(hook, "GET", query, site.resolve))
            labels = [row["labels"] for row in rows]
        except (ValueError, KeyError, TypeError):
            raise GoldnodeError(f"{hook.url} does not answer as an Alertmanager") from None
        return {_shown(row) for row in labels if _is_of(row, names, expected, fault)}

    before = active()

    def new() -> str | None:
        return next((" ".join(row).strip() for row in sorted(active() - before)), None)

    return new


def _captures(data: Path, node: str, fault: GameDayFault) -> Witness:
    """Return what reads the stored captures of the node for the finding."""
    from datetime import UTC, datetime

    from goldnode.core import extras

    extras.require("report")
    from goldnode.fleet.ingest.read import ReadLimits, connect

    begin = datetime.now(UTC).replace(tzinfo=None)
    marks = ", ".join("?" for _ in fault.findings)
    query = (
        "SELECT id, subject, time FROM findings WHERE node = ? AND time >= ? "  # noqa: S608 - marks alone
        f"AND outcome IN ('mismatch', 'could_not_read') AND id IN ({marks}) LIMIT 1"
    )

    def stored() -> str | None:
        with connect(data, ReadLimits(at=datetime.now(UTC), last=True)) as connection:
            row = connection.execute(query, [node, begin, *fault.findings]).fetchone()
        if row is None:
            return None
        return f"capture of {row[2]:%H:%M:%S} UTC: {row[0]} {row[1] or ''}".strip()

    return stored


# -- the list


def _list(form: str, name: str, node: SurveyedNode) -> None:
    """Print the faults, and which of them a node can have."""
    from goldnode.fleet.nodes.game_day_faults import FAULTS

    rows = [
        {
            "fault": fault.name,
            "about": fault.about,
            "harmless": fault.harmless,
            "findings": list(fault.findings),
            "ends_with_boot": fault.ends_with_boot,
            "obstacle": fault.obstacle(node),
        }
        for fault in FAULTS
    ]
    shown = [["fault", "on " + name, "about"]]
    shown += [
        [str(row["fault"]), str(row["obstacle"] or "possible"), str(row["about"])] for row in rows
    ]
    content = {
        "schema": "goldnode.game-day-faults/1",
        "node": name,
        "busy": node.busy,
        "faults": rows,
    }
    lines = [table(shown)]
    if node.busy is not None:
        lines.append(f"a game day runs on it: {node.busy}")
    emit(form, content, "\n".join(lines))

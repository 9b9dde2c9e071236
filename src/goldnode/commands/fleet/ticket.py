"""Command `goldnode fleet ticket`: repairs by a person, from the RMA bundle to the return."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.fleet.common import REASON, STORE, give, opened, order
from goldnode.commands.fleet.ingest import DATA, directory
from goldnode.commands.options import BECOME, DRY_RUN
from goldnode.commands.output import emit, reports, table
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, load_site
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from goldnode.fleet.control.ticket_returns import TicketReturn
    from goldnode.fleet.events.outbox import TrackerRecord
    from goldnode.fleet.store.tickets import Ticket, TicketRecord

SIMULATED = "SIMULATED: "


@click.group(no_args_is_help=True)
def ticket() -> None:
    """Open, view and close tickets of broken hardware.

    The ladder opens one as its last rung, once for a node and finding. Hooks with `ticket` in the site file send it
    to Jira, ServiceNow, GitHub or by e-mail.
    """


@ticket.command(name="list")
@click.option("--all", "everything", is_flag=True, help="Closed tickets as well.")
@STORE
@reports("fleet-tickets")
def list_(everything: bool, where: str | None, form: str) -> None:
    """List the open tickets."""
    record = _read(where)
    rows = [one for one in record.tickets.values() if everything or one.open]
    content = {"tickets": [_content(one, ()) for one in rows]}
    emit(form, content, lambda: _table(rows))


@ticket.command()
@click.argument("name", metavar="TICKET")
@STORE
@reports("fleet-ticket")
def show(name: str, where: str | None, form: str) -> None:
    """Show a ticket, and its records in trackers."""
    one = _read(where).named(name)
    trackers = _trackers(load_site(), name)
    emit(form, _content(one, trackers), lambda: "\n".join(_shown(one, trackers)))


@ticket.command(name="open")
@click.argument("node")
@click.option(
    "--finding", required=True, metavar="FINDING", help="Id of the finding, such as gpu.lost."
)
@REASON
@click.option(
    "-i",
    "--inventory",
    metavar="PATH",
    help="Inventory: ssh fetches the vendor's report from the node.",
)
@BECOME
@DRY_RUN
@STORE
@reports("fleet-ticket-open")
def open_(node: str, finding: str, reason: str, where: str | None, form: str, **given: Any) -> None:
    """Open a ticket of a node by hand, with a bundle.

    A node and finding that have an open ticket get a comment of it.
    """
    site, now = load_site(), time.time()
    with opened(where) as store:
        # sqlalchemy: only the extra `fleet` installs it.
        from goldnode.fleet.control.ticket_gather import TicketCause, TicketGatherer
        from goldnode.fleet.store import repairs, tickets

        with store.read() as connection:
            places = repairs.domains(connection, [node])
            known = tickets.read(connection).of(node, finding)
        if node not in places:
            raise GoldnodeError(
                f'the store has no node "{node}"', remedy="`goldnode fleet status` lists them"
            )
        if given["dry_run"]:
            done = f"comment on {known.id}" if known is not None else "open a ticket"
            text = f"would write the bundle below {site.tickets.bundles}, and {done} of {node}"
            emit(form, {"ticket": known.id if known else None, "written": False}, text)
            return
        reach = None
        if given["inventory"] is not None:
            reach = _reach(node, given["inventory"], given["become"])
        gatherer = TicketGatherer(
            site, store, site.fleet_data(), lambda name: places[name].get("class"), reach
        )
        who = order(reason).who
        # Evidence of the last days belongs to a ticket that a person opens.
        cause = TicketCause(node, finding, reason, now - _RECENT)
        request = gatherer.request(cause, f"person {who} {now!r}")
        name, _ = store.run(lambda c: tickets.open_ticket(c, request, who, now))
    content = {"ticket": name, "written": True, "bundle": request.bundle}
    emit(form, content, f"ticket {name} of {node}; bundle {request.bundle}")


_RECENT = 7 * 86400.0  # seconds


def _reach(node: str, inventory: str, become: bool) -> Any:
    from goldnode.commands.canary.run import inventory_listing, require_host
    from goldnode.fleet.nodes import reach

    hosts = inventory_listing(inventory).get("_meta", {}).get("hostvars", {})
    require_host(node, hosts, inventory)
    return lambda name: reach.reached(name, hosts[name], become)


@ticket.command()
@click.argument("name", metavar="TICKET")
@REASON
@click.option(
    "--accept-offender",
    is_flag=True,
    help="Close it although its node has a repeat offender: a person answers for the return.",
)
@DATA
@STORE
@reports("fleet-ticket-close")
def close(
    name: str,
    reason: str,
    accept_offender: bool,
    data: Path | None,
    *,
    where: str | None,
    form: str,
) -> None:
    """Close a ticket.

    The node is released by `goldnode fleet release`. A node with a part that has too many tickets (`tickets.offender_repairs`) needs --accept-offender.
    """
    state = _returns(where, data, [name], optional=True)[0]
    if state.offenders and not accept_offender:
        raise GoldnodeError(
            state.offenders[0].sentence(load_site().tickets),
            remedy="replace the part, or use the node in another class; --accept-offender closes the ticket all the same",
        )
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.store import tickets

    done = give(
        where,
        reason,
        lambda connection, given: tickets.close(
            connection, name, given.reason, given.who, given.now
        ),
    )
    text = f"ticket {name} is closed" if done else f"ticket {name} was closed already"
    emit(form, {"ticket": name, "changed": done}, text)


@ticket.command()
@DRY_RUN
@DATA
@STORE
@reports("fleet-ticket-returns")
def returns(dry_run: bool, data: Path | None, where: str | None, form: str) -> None:
    """Compare nodes of open tickets with their new captures.

    Each change is a comment of the ticket.

    A swapped part is recognised by its serial number or UUID, in any slot and node. Each news is one
    comment. A node without a capture since its ticket has no news.
    """
    states = _returns(where, data)
    lines: list[str] = []
    rows: list[dict[str, Any]] = []
    for state in states:
        written = False
        if state.news and not dry_run:
            written = _comment(where, state)
        rows.append(_return(state, written))
        lines += _return_lines(state)
    emit(form, {"tickets": rows}, "\n".join(lines) or "no ticket is open")


@ticket.command()
@click.argument("name", metavar="NODE|SERIAL|UUID")
@DATA
@STORE
@reports("fleet-ticket-history")
def history(name: str, data: Path | None, where: str | None, form: str) -> None:
    """Show where a part was, or what a node had.

    A part that moved to another node has its history there as well.
    """
    place = directory(data)
    # After `directory`, which names a missing extra: these imports need its packages.
    from goldnode.fleet.report import part_history
    from goldnode.fleet.shared import part_places

    record, at = _read(where), datetime.now(UTC)
    rows = part_history.sightings(place, at, [name], [name])
    part, names = part_places.history_of(rows, [name])
    listed = part or [one for one in rows if one.node == name]
    if not listed:
        raise GoldnodeError(
            f'no capture has a node or part "{name}"',
            file=place,
            remedy="`goldnode fleet hardware` lists nodes, serial numbers and UUIDs; one that two nodes have at once "
            "names no part",
        )
    own = [
        one
        for one in record.tickets.values()
        if (one.request.node == name and not part)
        or any({row.serial, row.identity} & names for row in one.request.parts)
    ]
    content = {
        "name": name,
        "sightings": [
            {**asdict(one), "first": _moment(one.first), "last": _moment(one.last)}
            for one in listed
        ],
        "tickets": [_content(one, ()) for one in own],
    }

    def text() -> str:
        heading = ("node", "kind", "slot", "serial", "identity", "first", "last")
        shown = [
            (one.node, one.kind, one.slot, one.serial or "", one.identity or "", *_span(one))
            for one in listed
        ]
        label = SIMULATED.rstrip() + "\n" if any(one.simulated for one in listed) else ""
        return f"{label}{table([heading, *shown])}" + phrase("\n{}", _table(own) if own else "")

    emit(form, content, text)


def _span(one: Any) -> tuple[str, str]:
    return f"{one.first:%Y-%m-%d %H:%M}", f"{one.last:%Y-%m-%d %H:%M}"


def _read(where: str | None) -> TicketRecord:
    with opened(where) as store, store.read() as connection:
        from goldnode.fleet.store import tickets  # sqlalchemy: only the extra `fleet` installs it

        return tickets.read(connection)


def _returns(
    where: str | None, data: Path | None, names: Sequence[str] = (), *, optional: bool = False
) -> list[TicketReturn]:
    """Return the states of tickets by name, or of all that are open.

    :param optional: accept that no captures are stored.
    """
    record = _read(where)
    chosen = [record.named(name) for name in names] or [
        one for one in record.tickets.values() if one.open
    ]
    from goldnode.fleet.control.ticket_returns import TicketReturn, returned

    if not chosen:
        return []
    try:
        place = directory(data)
        from goldnode.fleet.report import part_history  # only the extra `report` has its packages

        rows = part_history.sightings(
            place, datetime.now(UTC), [one.request.node for one in chosen]
        )
    except GoldnodeError:
        if not optional:
            raise
        return [TicketReturn(one, None) for one in chosen]
    site, now = load_site(), time.time()
    known = list(record.tickets.values())
    return [returned(one, rows, known, site.tickets, now) for one in chosen]


def _comment(where: str | None, state: TicketReturn) -> bool:
    from goldnode.fleet.store import tickets  # sqlalchemy: only the extra `fleet` installs it

    text = f"capture of {_moment(state.captured)}: {'; '.join(state.news)}"
    return give(
        where,
        "captures since the ticket",
        lambda connection, given: tickets.comment(
            connection, state.ticket.id, text, state.key, (given.who, given.now)
        ),
    )


def _return(state: TicketReturn, written: bool) -> dict[str, Any]:
    settings = load_site().tickets
    return {
        "ticket": state.ticket.id,
        "node": state.ticket.request.node,
        "simulated": state.ticket.request.simulated,
        "captured": _moment(state.captured),
        "news": state.news,
        "machine_replaced": state.machine,
        "offenders": [one.sentence(settings) for one in state.offenders],
        "written": written,
    }


def _return_lines(state: TicketReturn) -> Iterator[str]:
    label = SIMULATED if state.ticket.request.simulated else ""
    head = f"{label}{state.ticket.id} {state.ticket.request.node}"
    if state.captured is None:
        yield f"{head}: no capture since it was opened"
        return
    for sentence in state.news:
        yield f"{head}: {sentence}"
    for one in state.offenders:
        yield f"{head}: {one.sentence(load_site().tickets)}: a person decides about its return"


def _trackers(site: Site, name: str) -> list[TrackerRecord]:
    from goldnode.fleet.events.outbox import Outbox

    outbox = Outbox(site.events_outbox())
    # Reading must not create the outbox.
    return outbox.trackers(name) if outbox.file.exists() else []


def _content(one: Ticket, trackers: Sequence[TrackerRecord]) -> dict[str, Any]:
    content = asdict(one)
    for name in ("opened_at", "closed_at"):
        at = content.pop(name)
        content[name.removesuffix("_at")] = None if at is None else _seconds(at)
    for row in content["comments"]:
        row["at"] = _seconds(row["at"])
    return {**content, "trackers": [asdict(row) for row in trackers]}


def _table(rows: Sequence[Ticket]) -> str:
    if not rows:
        return "no ticket is open"
    heading = ("ticket", "node", "finding", "opened", "state", "reason")
    return table(
        [
            heading,
            *(
                (
                    one.id,
                    one.request.node,
                    one.request.finding,
                    _seconds(one.opened_at),
                    "open" if one.open else "closed",
                    f"{SIMULATED if one.request.simulated else ''}{one.request.why}",
                )
                for one in rows
            ),
        ]
    )


def _shown(one: Ticket, trackers: Sequence[TrackerRecord]) -> Iterator[str]:
    request = one.request
    label = SIMULATED if request.simulated else ""
    yield f"{label}{one.id}: {request.node}: {request.finding}: {request.why}"
    yield f"opened {_seconds(one.opened_at)} by {one.who}"
    for part in request.parts:
        yield f"part: {part.shown}" + phrase(", {}", part.model)
    yield from request.text.splitlines()
    if request.bundle:
        yield f"bundle: {request.bundle}, SHA-256 {request.bundle_sha256}"
    for comment in one.comments:
        yield f"{_seconds(comment.at)} {comment.who}: {comment.text}"
    for row in trackers:
        yield f"{row.hook}: {row.url or 'its record is not known yet'}"
    if one.closed_at is not None:
        yield f"closed {_seconds(one.closed_at)}: {one.closed_why}"


def _moment(at: datetime | None) -> str | None:
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _seconds(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"

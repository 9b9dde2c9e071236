"""Commands `goldnode rollout submit` and `run`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.fleet.common import STORE, address, key_file, opened
from goldnode.commands.options import BECOME, DIRECTORY, KEY, grouped, key_option
from goldnode.commands.output import emit, reports, say
from goldnode.commands.rollout import DOCUMENT, INVENTORY, fleet_nodes
from goldnode.core import files
from goldnode.core.site import load_site
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from goldnode.fleet.control.submission import SubmittedRollout
    from goldnode.fleet.rollout.document import RolloutFile
    from goldnode.fleet.rollout.model import FleetNode, RolloutPhase
    from goldnode.fleet.store.database import StoreDatabase
    from goldnode.inventory.fleet import InventoryNode

# State of nodes at the end of a rollout -> what helps.
_HINTS = {
    "failed": " (`goldnode rollout explain NODE`, then `goldnode rollout release NODE`)",
    "overdue": " (`goldnode rollout explain NODE`, then `goldnode rollout release NODE`)",
    "deferred": " (`--stay` moves each when it is back in service)",
    "given-up": " (busy at each grant: `goldnode rollout status` has the command that updates it)",
    "left": " (neither in the state that the rollout moves from nor in its target)",
}


@click.command()
@DOCUMENT
@INVENTORY
@STORE
@reports("rollout-submit")
def submit(document: Path, inventory: str | None, where: str | None, form: str) -> None:
    """Submit a rollout to the store, where a controller takes it up.

    The document is checked first, as `goldnode rollout check` does, and refused if it cannot work. The hosts of the
    class in the inventory become the nodes of the rollout. A document of the same name replaces the earlier one,
    unless that rollout has ended or has another target.

    Exit status: 0 it is in the store, 1 it was refused, 2 an error.
    """
    file, members, _ = _checked(document, inventory, form)
    with opened(where, create=True) as store:
        done = _submit(store, file, members)
    content = {
        "rollout": file.document.rollout,
        "class": file.document.class_,
        "nodes": len(members),
        "new": done.new,
        "replaced": done.replaced,
    }
    emit(form, content, _submitted(file, done, len(members)))


@dataclass(frozen=True)
class RolloutControl:
    """Options of a controller."""

    jobs: int
    tick: float
    quiet: float
    become: bool
    stay: bool
    channel: Path | None
    channel_keys: tuple[Any, ...]
    order_keys: tuple[Any, ...]


@click.command()
@DOCUMENT
@INVENTORY
@STORE
@grouped(
    "control",
    RolloutControl,
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        metavar="N",
        help="Number of nodes that this controller works on at the same time.",
    ),
    click.option(
        "--tick",
        type=click.FloatRange(min=0.1, max=10),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="Time between two decisions.",
    ),
    click.option(
        "--take-over-after",
        "quiet",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Silence of another controller after which this one takes over.",
    ),
    BECOME,
    click.option(
        "--stay",
        is_flag=True,
        help="Go on after the end, for deferred nodes: each moves when it is back in service.",
    ),
    click.option(
        "--channel",
        type=DIRECTORY,
        metavar="DIR",
        help="Channel that nodes follow: published at each change of the rollout.",
    ),
    click.option(
        "--channel-key",
        "channel_keys",
        multiple=True,
        type=KEY,
        metavar="KEY",
        help="Online key of the channel: a file (PEM, ed25519 or ECDSA) or hsm:KEYID?label=TOKEN. Repeatable.",
    ),
    key_option(
        "--order-key",
        "order_keys",
        "Key of the channel's orders, if the release names another one than the online keys.",
    ),
)
@reports("rollout-run")
def run(
    document: Path, inventory: str | None, where: str | None, control: RolloutControl, form: str
) -> None:
    """Run a rollout to its end: wave by wave, with rollback if it fails.

    Submits the document first, unless the store has it already. One that another document has replaced since is
    refused. What the controller decides is written to the store before it is done. A controller that is stopped or
    killed leaves its nodes as they are; the same command continues. A second controller waits, and takes over when
    the first one is silent.

    The site must have the lock that the rollout moves to. Controllers of a rollout may run on any machine that has
    the site, the store and access to the nodes.

    Exit status: 0 completed, 1 refused, rolled back or superseded, 2 an error, 130 stopped before its end.
    """
    from goldnode.fleet.control import assembly  # sqlalchemy: only the extra `fleet` installs it
    from goldnode.fleet.rollout.lines import PHASES

    file, members, hosts = _checked(document, inventory, form)
    if control.channel is not None and not control.channel_keys:
        raise click.UsageError("--channel needs a key that signs it: --channel-key FILE")
    if control.channel is not None:
        files.readable_by_others()
    # Before the store is written: a node could not move to a target that this site lacks.
    assembly.check_target(file, control.channel)
    with opened(where, create=True) as store:
        # A rollout that has ended is not submitted again: the command only reports it.
        phase = _ended(store, file)
        if phase is None:
            done = _submit(store, file, members, replaces=False)
            _print_line(_submitted(file, done, len(members)), form)
        if phase is None or control.stay:
            phase = _run(
                store, file, control, (address(where, load_site()), str(inventory), hosts, form)
            )
        behind = nodes_behind(store, file)
    content = {
        "rollout": file.document.rollout,
        "phase": phase and phase.value,
        "ended": phase is not None,
        "behind": behind,
    }
    if phase is None:
        again = f"goldnode rollout run {document} -i {inventory}"
        emit(form, content, f"stopped: the nodes stay where they are. `{again}` continues.")
        # As a shell has it for an interrupt: a script can distinguish it from an end.
        sys.exit(130)
    lines = [f"rollout {file.document.rollout} {PHASES[phase]}"]
    lines += [
        f"  {state}: {', '.join(names)}{_HINTS.get(state, '')}" for state, names in behind.items()
    ]
    emit(form, content, "\n".join(lines))
    sys.exit(0 if phase.value == "completed" else 1)


def nodes_behind(store: StoreDatabase, file: RolloutFile) -> dict[str, list[str]]:
    """Return the nodes that a rollout has not moved, or that wait for a person, by state."""
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.rollout.view import state_of
    from goldnode.fleet.store import rollouts

    with store.read() as connection:
        state = rollouts.load(connection, file.settings).state
    words = {name: state_of(state, name).removeprefix("back-") for name in state.steps}
    behind = {word: sorted(name for name in words if words[name] == word) for word in _HINTS}
    return {word: names for word, names in behind.items() if names}


def _run(
    store: StoreDatabase,
    file: RolloutFile,
    control: RolloutControl,
    how: tuple[str, str, Sequence[InventoryNode], str],
) -> RolloutPhase | None:
    """Run a controller, and return the phase in which the rollout ended; None if a signal stopped it."""
    from goldnode.fleet.control import assembly  # sqlalchemy: only the extra `fleet` installs it
    from goldnode.fleet.control.controller import ControllerSettings, RolloutController
    from goldnode.fleet.control.run import RolloutRun
    from goldnode.fleet.shared import identity

    place, inventory, hosts, form = how
    holder = f"{identity.controller()}/{identity.actor().run}"
    site = assembly.RolloutSite(
        holder,
        store=place,
        inventory=inventory,
        hosts=hosts,
        parallel=control.jobs,
        become=control.become,
        channel=control.channel,
        channel_keys=control.channel_keys,
        order_keys=control.order_keys,
    )
    own = ControllerSettings(holder, tick=control.tick, quiet=control.quiet, clock=site.clock)
    parts = assembly.parts(file, site, store, lambda line: _print_line(line, form))
    controller = RolloutController(store, assembly.settings(file), parts, own)
    running = RolloutRun(controller, lambda line: _print_line(line, form), stay=control.stay)

    def stop(number: int, frame: object) -> None:
        running.stop.set()

    # The controller ends after its present decision, and leaves no half-written step.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return running.run()
    finally:
        # From here on, an interrupt ends the process at once, as usual.
        for number, handler in before.items():
            signal.signal(number, handler)


def _checked(
    document: Path, inventory: str | None, form: str
) -> tuple[RolloutFile, list[FleetNode], list[InventoryNode]]:
    """Return a document that can work, and the nodes of its class, also as the inventory has them.

    Exits with 1 if it cannot work.
    """
    from goldnode.classdoc.load import load_catalog
    from goldnode.fleet.control.document_files import load
    from goldnode.fleet.rollout import check
    from goldnode.inventory.fleet import nodes_of_class

    if inventory is None:
        raise click.UsageError("Give the inventory with the hosts of the class: -i PATH")
    file = load(document, key_file(load_site(), "document_key"))
    hosts = nodes_of_class(inventory, file.document.class_)
    members = fleet_nodes(hosts, file.settings.origin)
    checked = check.check(file, nodes=members, catalog=load_catalog())
    for finding in checked.findings:
        # Warnings too: standard output is one document.
        say(str(finding))
    if checked.refused:
        content = {
            "rollout": file.document.rollout,
            "refused": True,
            "findings": [
                {**asdict(finding), "file": str(finding.file)} for finding in checked.findings
            ],
        }
        emit(form, content, "refused: nothing was changed")
        sys.exit(1)
    return file, members, hosts


def _ended(store: StoreDatabase, file: RolloutFile) -> RolloutPhase | None:
    """Return the phase of a rollout that has ended. A changed document of it is an error of the submission."""
    from goldnode.fleet.store import rollouts  # sqlalchemy: only the extra `fleet` installs it

    with store.read() as connection:
        # Byte for byte: a comment that changed is a change of what was signed.
        same = rollouts.document(connection, file.settings.name) == file.source.text
        return rollouts.ended(connection, file.settings.name) if same else None


def _submit(
    store: StoreDatabase, file: RolloutFile, members: Sequence[FleetNode], *, replaces: bool = True
) -> SubmittedRollout:
    """Submit a document. Without `replaces`, it is refused where a later one has replaced it."""
    from goldnode.fleet.control import submission  # sqlalchemy: only the extra `fleet` installs it
    from goldnode.fleet.shared.person import person

    def work(connection: Connection) -> SubmittedRollout:
        if not replaces:
            # In the same transaction, since another person may submit meanwhile.
            submission.refuse_replaced(connection, file)
        return submission.submit(connection, file, members, person(), time.time())

    return store.run(work)


def _submitted(file: RolloutFile, done: SubmittedRollout, count: int) -> str:
    if done.new:
        what = "is in the store"
    elif done.replaced:
        what = "has a new document"
    else:
        what = "was in the store already"
    moved = [
        f"{len(getattr(done.nodes, kind))} {kind}"
        for kind in ("added", "changed", "retired")
        if getattr(done.nodes, kind)
    ]
    nodes = f"{count} nodes of class {file.document.class_}" + phrase(" ({})", ", ".join(moved))
    return f"rollout {file.document.rollout} {what}: {nodes}"


def _print_line(line: str, form: str) -> None:
    """Print a line with its time; to standard error where standard output is a JSON document."""
    click.echo(f"{datetime.now().astimezone():%H:%M:%S}  {line}", err=form == "json")

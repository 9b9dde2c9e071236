"""Commands `goldnode rollout approve` and `rollback`: orders of a person about a rollout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.fleet.common import REASON, STORE, give
from goldnode.commands.options import FILE
from goldnode.commands.output import emit, reports

if TYPE_CHECKING:
    from goldnode.fleet.store.grants import PersonsOrder


@click.command()
@click.argument("rollout")
@click.argument("wave")
@click.option(
    "--role",
    required=True,
    metavar="ROLE",
    help="Role in which you approve, as the document names it.",
)
@click.option(
    "--document",
    type=FILE,
    metavar="FILE",
    help="Document that you have read. The order is refused if another one was submitted since.",
)
@REASON
@STORE
@reports("rollout-approval")
def approve(
    rollout: str,
    wave: str,
    role: str,
    document: Path | None,
    reason: str,
    *,
    where: str | None,
    form: str,
) -> None:
    """Approve a wave of a rollout in a role.

    The wave begins when the one before has passed and each role of the document's `approve` has approved it. Two
    roles are two persons, and the author of the document is none of them. An approval counts for the document that
    was submitted last: one that replaces it is approved again. An approval cannot be withdrawn: freeze the rollout
    instead.
    """
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.control.document_files import load
    from goldnode.fleet.store import orders, rollout_view, rollouts
    from goldnode.fleet.store.errors import StoreError

    def work(connection: Any, order: PersonsOrder) -> tuple[bool, str]:
        name = rollout_view.chosen(connection, rollout)
        wanted = rollout_view.settings_of(connection, name).approve
        if role not in wanted.get(wave, ()):
            roles = [f"{one} ({', '.join(of)})" for one, of in wanted.items()]
            remedy = (
                f"it asks for: {'; '.join(roles)}" if roles else "no wave of it needs an approval"
            )
            raise StoreError(
                f"rollout {name} asks for no approval of wave {wave} by {role}",
                remedy=remedy,
            )
        # The approver has read a file; it counts only if the store has the same one.
        if document is not None and load(document).text != rollouts.document(connection, name):
            raise StoreError(
                f"another document of rollout {name} was submitted than this one",
                file=document,
                remedy="read the one that was submitted last, or submit this one again",
            )
        return orders.approve(connection, name, wave, role, order), order.who

    done, who = give(where, reason, work)
    if done:
        text = f"{who} has approved wave {wave} of rollout {rollout} as {role}"
    else:
        text = f"wave {wave} of rollout {rollout} was approved as {role} already"
    emit(form, {"rollout": rollout, "wave": wave, "role": role, "who": who, "changed": done}, text)


@click.command()
@click.argument("rollout")
@click.option(
    "--what",
    type=click.Choice(["failed", "wave", "all"]),
    default="wave",
    show_default=True,
    help="Nodes to roll back: those that the change broke, in all waves; those of the present wave too; or all.",
)
@REASON
@STORE
@reports("rollout-rollback")
def rollback(rollout: str, what: str, reason: str, where: str | None, form: str) -> None:
    """Roll a rollout back, and deny its target.

    Each node goes back to its own earlier state, within the limits of the rollout. A completed rollout can be
    rolled back too, and one that rolls back can be widened; a controller must run: `goldnode rollout run`. The
    target stays denied for the class until `goldnode rollout lift`. `goldnode rollout status` lists the nodes
    that still have it afterwards, with the command for each.
    """
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.rollout.model import BackScope
    from goldnode.fleet.store import orders

    done = give(
        where, reason, lambda c, order: orders.roll_back(c, rollout, BackScope(what), order)
    )
    if done:
        text = (
            f"rollout {rollout} is rolled back ({what}), and its target is denied; `goldnode rollout status {rollout}` "
            "shows the progress"
        )
    else:
        text = (
            f"rollout {rollout} is rolled back that far already: `goldnode rollout status {rollout}` lists the nodes "
            "that remain, if there are any"
        )
    emit(form, {"rollout": rollout, "what": what, "changed": done}, text)

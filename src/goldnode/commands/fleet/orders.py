"""Command `goldnode fleet freeze`, `unfreeze` and `release`: orders of a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.fleet.common import REASON, STORE, give
from goldnode.commands.options import options
from goldnode.commands.output import emit, reports

if TYPE_CHECKING:
    from goldnode.fleet.store.orders import Scope

_SCOPE = options(
    click.option("--all", "everything", is_flag=True, help="All nodes."),
    click.option("--class", "class_name", metavar="CLASS", help="The nodes of a class."),
    click.option("--rack", metavar="RACK", help="The nodes of a rack."),
    click.option("--rollout", metavar="NAME", help="The nodes that a rollout moves."),
)


@click.command()
@_SCOPE
@REASON
@STORE
@reports("fleet-freeze")
def freeze(reason: str, where: str | None, form: str, **given: Any) -> None:
    """Stop all grants of a class, of a rack, or of the fleet.

    The next request is refused. Nodes that have left already finish and return.
    """
    from goldnode.fleet.store import orders  # sqlalchemy: only the extra `fleet` installs it

    scope, done = _order(where, reason, given, orders.freeze)
    if done:
        text = f"{scope} is frozen: no node gets leave; nodes that are out return"
    else:
        text = f"{scope} was frozen already"
    emit(form, {"scope": scope.kind, "subject": scope.subject, "changed": done}, text)


@click.command()
@_SCOPE
@REASON
@STORE
@reports("fleet-freeze")
def unfreeze(reason: str, where: str | None, form: str, **given: Any) -> None:
    """Remove a freeze.

    Give the scope of the freeze. Freezes of other scopes stay in force.
    """
    from goldnode.fleet.store import orders  # sqlalchemy: only the extra `fleet` installs it

    scope, done = _order(where, reason, given, orders.unfreeze)
    text = f"the freeze of {scope} is lifted" if done else f"{scope} was not frozen"
    emit(form, {"scope": scope.kind, "subject": scope.subject, "changed": done}, text)


@click.command()
@click.argument("node")
@REASON
@STORE
@reports("fleet-release")
def release(node: str, reason: str, where: str | None, form: str) -> None:
    """Remove the holds of a node that is overdue, failed or drained.

    Examine the node first: it counts as in service from now on.
    """
    from goldnode.fleet.store import grants  # sqlalchemy: only the extra `fleet` installs it

    owners = give(where, reason, lambda connection, order: grants.release(connection, node, order))
    emit(form, {"node": node, "owners": owners}, f"{node} is released from: {', '.join(owners)}")


def _order(
    where: str | None, reason: str, given: dict[str, Any], work: Callable[[Any, Scope, Any], bool]
) -> tuple[Scope, bool]:
    from goldnode.fleet.store.orders import Scope  # sqlalchemy: only the extra `fleet` installs it

    names = {"class": given["class_name"], "rack": given["rack"], "rollout": given["rollout"]}
    chosen = [Scope(kind, name) for kind, name in names.items() if name]
    if given["everything"]:
        # The default scope is the whole fleet.
        chosen.append(Scope())
    if len(chosen) != 1:
        raise click.UsageError("give one of --all, --class, --rack and --rollout")
    return chosen[0], give(
        where, reason, lambda connection, order: work(connection, chosen[0], order)
    )

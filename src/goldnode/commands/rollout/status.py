"""Command `goldnode rollout status` and `explain`: what a person sees of a rollout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.fleet.common import SIMULATED, STORE, opened, simulated_class
from goldnode.commands.options import NEW_FILE, every_option, grouped
from goldnode.commands.output import emit, reports
from goldnode.commands.rollout.log import ROLLOUT, line_text
from goldnode.core.files import replace_file
from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from goldnode.documents.rollout_status import RolloutStatusDocument
    from goldnode.fleet.rollout.explain import NodeExplanation
    from goldnode.fleet.store.database import StoreDatabase
    from goldnode.fleet.store.rollout_view import RolloutReader


@dataclass(frozen=True)
class StatusOutput:
    """Where the status goes besides standard output, and whether it stays."""

    page: Path | None = None
    watch: bool = False
    every: float = 2.0


@click.command()
@ROLLOUT
@grouped(
    "shown",
    StatusOutput,
    click.option(
        "--html",
        "page",
        type=NEW_FILE,
        metavar="FILE",
        help="Write one self-contained HTML page instead. The file is replaced at once.",
    ),
    click.option("--watch", is_flag=True, help="Stay, and show the state live, until interrupted."),
    every_option("store", "--watch", 0.2),
)
@STORE
@reports("rollout-status")
def status(rollout: str | None, shown: StatusOutput, where: str | None, form: str) -> None:
    """Show a rollout: waves, buffers, nodes by state, and what holds it back.

    Reads the store only. Without ROLLOUT: the rollout that is under way, else the last one. Where no controller
    runs the rollout, the reasons begin with that, and with the command that continues it.
    """
    if shown.watch and (form != "text" or shown.page is not None):
        raise click.UsageError(
            "--watch shows a live terminal view: give no --html and no --format with it"
        )
    if shown.page is not None and form != "text":
        raise click.UsageError("--html and --format exclude each other")
    if shown.watch and not sys.stdout.isatty():
        raise click.UsageError(
            "--watch needs a terminal; `goldnode rollout events --follow` does not"
        )
    with opened(where) as store:
        reader = _reader(store, rollout)
        if shown.watch:
            from goldnode.commands.rollout.watch import watch  # start-up time: it imports rich

            watch(lambda: _read(reader, store), shown.every)
            return
        current = _read(reader, store)
    from goldnode.commands.rollout import (
        text as rollout_text,
    )  # start-up time: it imports the document

    if shown.page is not None:
        replace_file(shown.page, rollout_text.html(current).encode())
        click.echo(f"wrote {shown.page}")
        return
    emit(form, current.model_dump(by_alias=True, mode="json"), lambda: rollout_text.text(current))


@click.command()
@click.argument("node")
@click.option(
    "--rollout",
    metavar="NAME",
    show_default="the one under way, else the last one",
    help="The rollout.",
)
@STORE
@reports("rollout-node")
def explain(node: str, rollout: str | None, where: str | None, form: str) -> None:
    """Explain where a node is in a rollout, why it does not move, and what helps.

    With its holds, its last reports, and its last lines of the log.
    """
    # sqlalchemy: only the extra `fleet` installs it.
    from goldnode.fleet.nodes.return_tests import of_class
    from goldnode.fleet.rollout.explain import explain as explained
    from goldnode.fleet.store import rollout_view
    from goldnode.fleet.store.errors import StoreError

    with opened(where) as store:
        reader = _reader(store, rollout)
        with store.read() as connection:
            facts = reader.facts(connection)
            # Not an empty answer: a misspelt name would look like a node without any news.
            if node not in facts.state.nodes:
                raise StoreError(
                    f'class {facts.settings.class_} of rollout {reader.name} has no node "{node}"',
                    remedy="name a node of this class, or the rollout of its class with --rollout",
                )
            lines = rollout_view.lines(connection, reader.name, limit=10, node=node)
    explanation = explained(
        facts, node, time.time(), of_class(facts.settings.class_, "rollout").outstanding
    )
    one = facts.state.nodes[node]
    content = {
        "node": asdict(one),
        "rollout": explanation.rollout,
        "simulated": facts.simulated,
        "state": explanation.state,
        "wave": explanation.wave,
        "step": optional(asdict, explanation.step),
        "reasons": [asdict(reason) for reason in explanation.reasons],
        "holds": [asdict(hold) for hold in facts.state.ledger.by_node.get(node, {}).values()],
        "report": _as_dict(facts.observations.nodes.get(node)),
        "scheduler": _as_dict(facts.observations.scheduler.get(node)),
        "log": lines,
    }
    emit(form, content, lambda: "\n".join(_explained(explanation, content)))


def _reader(store: StoreDatabase, rollout: str | None) -> RolloutReader:
    from goldnode.fleet.store import rollout_view  # sqlalchemy: only the extra `fleet` installs it

    with store.read() as connection:
        name = rollout_view.chosen(connection, rollout)
        class_ = rollout_view.settings_of(connection, name).class_
    # The catalog is read once, not at each look of --watch.
    return rollout_view.RolloutReader(name, simulated_class(class_))


def _read(reader: RolloutReader, store: StoreDatabase) -> RolloutStatusDocument:
    from goldnode.fleet.rollout.view import view

    return view(reader.read(store), time.time())


def _as_dict(item: Any) -> dict[str, Any] | None:
    return optional(asdict, item)


def _explained(explanation: NodeExplanation, content: dict[str, Any]) -> Iterator[str]:
    from goldnode.fleet.rollout.lines import moment

    node = content["node"]
    if content["simulated"]:
        yield SIMULATED
    wave = phrase(", wave {}", explanation.wave)
    yield f"{explanation.node} in rollout {explanation.rollout}: {explanation.state}{wave}"
    for reason in explanation.reasons:
        yield f"- {reason.text}"
        if reason.remedy:
            yield f"  `{reason.remedy}`"
    groups = [f"{name} {node[name]}" for name in ("rack", "leaf", "cohort") if node[name]]
    yield ""
    yield f"{'groups:':11}{', '.join(groups) or 'none'}"
    yield f"{'state:':11}{node['digest'] or 'unknown'}"
    report, scheduler = content["report"], content["scheduler"]
    if report is not None:
        verdict = report["verdict"] or "no verdict"
        more = phrase(": {}", ", ".join((*report["software"], *report["hardware"])))
        yield f"{'report:':11}{moment(report['at'])}, boot {report['boot_id']}, {verdict}{more}"
    if scheduler is not None:
        if scheduler["in_service"]:
            where = "in service"
        else:
            where = f"out of service: {scheduler['reason'] or 'no reason'}"
        yield f"{'scheduler:':11}{moment(scheduler['at'])}, {where}"
    if content["log"]:
        yield ""
        yield from map(line_text, content["log"])

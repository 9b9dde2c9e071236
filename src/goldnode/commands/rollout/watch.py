"""The live terminal view of `goldnode rollout status --watch`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from goldnode.commands.fleet.common import SIMULATED
from goldnode.commands.rollout.text import approvals, controller, counts, headline, serious, used
from goldnode.core.errors import GoldnodeError
from goldnode.documents.rollout_status import RolloutStatusDocument
from goldnode.node.ground.text import phrase

# States in the order of the columns, with their colours. A step back counts to its own phase.
_STATES = (
    ("waiting", "waiting", ""),
    ("granted", "drains", "cyan"),
    ("applying", "applies", "cyan"),
    ("returning", "returns", "cyan"),
    ("done", "done", "green"),
    ("failed", "failed", "red"),
    ("overdue", "overdue", "red"),
    ("deferred", "deferred", "yellow"),
    ("passed", "passed", "yellow"),
    ("given-up", "given up", "yellow"),
    ("left", "left", ""),
)
# The view must fit on one screen: rich cuts off what is below.
_NODES = 10
_WIDE = 90  # columns of a terminal in which each state has a column


def watch(
    read: Callable[[], RolloutStatusDocument], every: float, console: Console | None = None
) -> None:
    """Show the state again and again, until interrupted. A store that is away is reported with the last state.

    Raises KeyboardInterrupt at the end.
    """
    view, problem = read(), None
    with (
        _interrupt() as interrupted,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not interrupted.is_set():
            live.update(rendered(view, problem, live.console.width), refresh=True)
            if interrupted.wait(every):
                break
            try:
                view, problem = read(), None
            except GoldnodeError as error:
                # The last state stays on the screen, marked with its time.
                problem = str(error)
    raise KeyboardInterrupt


@contextmanager
def _interrupt() -> Iterator[threading.Event]:
    """Set an event at the first Ctrl-C: Python drops an exception that is raised in a finalizer or a callback of
    the database driver. A second Ctrl-C raises KeyboardInterrupt, for a store that does not answer.
    """
    interrupted = threading.Event()

    def handler(*_: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def rendered(
    view: RolloutStatusDocument, problem: str | None = None, width: int = _WIDE
) -> RenderableType:
    """Return the state as rich shows it in a terminal of this width."""
    parts: list[RenderableType] = []
    if view.simulated:
        parts.append(Text(SIMULATED, style="bold magenta"))
    parts.append(Text(headline(view), style="bold"))
    if view.why:
        parts.append(Text(view.why, style="red" if view.phase.startswith("roll") else ""))
    works = view.controller.state in ("working", "ended")
    parts.append(Text(controller(view), style="" if works else "bold red"))
    if problem is not None:
        parts.append(Text(f"as of {view.at}; {problem}", style="bold red"))
    parts += [
        _waits(view),
        _waves(view, width),
        _requirements(view),
        _buffers(view),
        _nodes(view),
    ]
    parts.append(Text(f"{view.at}   Ctrl-C ends the view, not the rollout", style="dim"))
    return Group(*parts)


def _waits(view: RolloutStatusDocument) -> RenderableType:
    lines = Text()
    for wait in view.waits:
        until = phrase(", until {}", wait.until)
        lines.append(f"{wait.subject}: {wait.reason}{until}\n")
        if wait.remedy:
            lines.append(f"  {wait.remedy}\n", style="cyan")
    lines.rstrip()
    return Panel(
        lines if lines.plain else Text("nothing"), title="held back by", title_align="left"
    )


def _waves(view: RolloutStatusDocument, width: int) -> RenderableType:
    shown = [row for row in _STATES if any(_number(wave.states, row[0]) for wave in view.waves)]
    # A narrow terminal gets the counts as text.
    shown = shown if width >= _WIDE else []
    table = Table(expand=True, box=None, header_style="bold")
    for name in ("wave", "state", "nodes"):
        table.add_column(name, no_wrap=True)
    for _, title, _ in shown:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("soak until, approvals" if shown else "", overflow="fold")
    for wave in view.waves:
        notes = [] if shown or not wave.states else [counts(wave)]
        if wave.soak_until:
            notes.append(wave.soak_until)
        if wave.approvals:
            notes.append(approvals(wave))
        size = str(wave.nodes) if wave.nodes else wave.size
        cells = [
            Text(str(_number(wave.states, name) or "-"), style=style) for name, _, style in shown
        ]
        style = {"present": "bold", "stopped": "bold", "later": "dim"}.get(wave.state, "")
        table.add_row(
            f"{wave.number} {wave.name}",
            wave.state,
            size,
            *cells,
            Text("  ".join(notes)),
            style=style,
        )
    return table


def _number(states: dict[str, int], name: str) -> int:
    return states.get(name, 0) + states.get(f"back-{name}", 0)


def _requirements(view: RolloutStatusDocument) -> RenderableType:
    styles = {"pass": "green", "fail": "bold red", "unknown": "yellow"}
    table = Table.grid(padding=(0, 2))
    for item in view.requirements:
        table.add_row(
            Text(item.name), Text(item.answer, style=styles[item.answer]), Text(item.reason)
        )
    return Panel(table, title="requirements", title_align="left")


def _buffers(view: RolloutStatusDocument) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for item in view.buffers:
        limit = item.limit
        # A full planned buffer is how a rollout works, not a warning.
        full = item.kind != "planned" and limit is not None and item.used >= limit
        style = "red" if full else "cyan"
        bar = ProgressBar(
            total=max(limit or 1, 1),
            completed=item.used,
            width=20,
            complete_style=style,
            finished_style=style,
        )
        table.add_row(Text(f"{item.scope} {item.name}"), Text(item.kind), Text(used(item)), bar)
    return Panel(table, title="out of service", title_align="left")


def _nodes(view: RolloutStatusDocument) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for node in view.nodes[:_NODES]:
        notes = [f"until {node.deadline}"] if node.deadline else []
        if node.cause:
            notes.append(node.cause)
        table.add_row(
            Text(node.node),
            Text(node.state, style="red" if serious(node.state) else ""),
            Text(", ".join(notes)),
        )
    more = len(view.nodes) - _NODES
    if more > 0:
        table.add_row(Text(f"and {more} more"))
    return Panel(
        table if view.nodes else Text("none"),
        title="nodes under way or with a problem",
        title_align="left",
    )

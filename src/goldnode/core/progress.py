"""Progress of long commands on standard error: a spinner or bars on a terminal, plain lines elsewhere.

Standard output stays free for results. A command that ends within FIRST seconds shows nothing. On a terminal rich
draws, and respects NO_COLOR; TERM=dumb gets plain lines.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

FIRST = 1.5  # seconds until a command shows that it works
AGAIN = 15.0  # seconds between plain lines
FILES = 10.0  # seconds between plain lines of a download

Label = str | Callable[[], str]


def is_terminal() -> bool:
    """Return whether standard error is a terminal that can redraw a line."""
    # Terminals without a cursor, such as those of some editors and consoles.
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


_NARROW = 40  # columns: no text is wrapped to fewer


def text_width(widest: int) -> int:
    """Return the columns for text on standard output: `widest`, or those of a narrower terminal."""
    if not sys.stdout.isatty():
        return widest
    return max(_NARROW, min(widest, shutil.get_terminal_size().columns))


def _is_file() -> bool:
    """Return whether standard error has a descriptor. Callers in this process, such as tests, read an object instead."""
    try:
        return sys.stderr.fileno() >= 0
    except (OSError, ValueError):
        return False


def console() -> Console:
    """Return the console of standard error."""
    from rich.console import Console  # start-up time: most commands show no progress

    return Console(stderr=True)


class Work:
    """The display of one command, which its own thread draws after FIRST seconds."""

    def __init__(self, label: Label) -> None:
        self.label, self.begun = label, time.monotonic()
        self.paused = False
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._shown = False
        self._live: Any = None
        self._silent = not _is_file()

    def start(self) -> None:
        """Show progress from now on."""
        if not self._silent:
            threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Remove the display, for good."""
        # First: the thread may be about to draw.
        self._ended.set()
        self._erase()

    def text(self) -> str:
        """Return the current step, and for how long the command has run."""
        label = self.label if isinstance(self.label, str) else self.label()
        seconds = int(time.monotonic() - self.begun)
        if seconds >= 60:
            return f"{label} ({seconds // 60} min {seconds % 60} s)"
        return f"{label} ({seconds} s)"

    def step(self, label: Label) -> None:
        """Name what the command does now."""
        self.label = label
        if self._shown and not self.paused and not is_terminal():
            click.echo(self.text(), err=True)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the terminal to another display."""
        self.paused = True
        self._erase()
        try:
            yield
        finally:
            self.paused = False

    def _erase(self) -> None:
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _watch(self) -> None:
        wait = FIRST
        while not self._ended.wait(wait):
            wait = FIRST if is_terminal() else AGAIN
            with self._lock:
                if self._ended.is_set() or self.paused or self._live is not None:
                    continue
                self._shown = True
                if is_terminal():
                    self._live = self._spinner()
                    self._live.start()
                else:
                    click.echo(self.text(), err=True)

    def _spinner(self) -> Any:
        from rich.live import Live  # start-up time: only a terminal shows it
        from rich.spinner import Spinner
        from rich.text import Text

        spinner = Spinner("line")  # ASCII: the terminal's encoding is unknown

        def draw() -> Spinner:
            spinner.update(text=Text(self.text()))
            return spinner

        # A result that goes to a file or a pipe must not be drawn on the terminal.
        return Live(
            get_renderable=draw,
            console=console(),
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )


_current: Work | None = None


@contextmanager
def shown(label: Label) -> Iterator[Work]:
    """Show progress until the block ends, or until `stop`."""
    global _current
    work = _current = Work(label)
    work.start()
    try:
        yield work
    finally:
        work.stop()
        _current = None


def step(label: Label) -> None:
    """Name what the running command does now; a function is asked each time. Without a command it does nothing."""
    if _current is not None:
        _current.step(label)


def note(text: str) -> None:
    """Print what the running command does now, however short it runs, and name it in the display from then on."""
    click.echo(text, err=True)
    if _current is not None:
        _current.label = text


def rename(label: Label) -> None:
    """Name in the display what the running command does, without a line of its own."""
    if _current is not None:
        _current.label = label


def stop() -> None:
    """Remove the display, because the result follows."""
    if _current is not None:
        _current.stop()


@contextmanager
def _alone() -> Iterator[None]:
    if _current is None:
        yield
    else:
        with _current.pause():
            yield


@contextmanager
def downloads(*, each: bool = True) -> Iterator[Any]:
    """Yield a `goldnode.lock.fetch.Progress`: a bar over all bytes, or lines; with `each`, a line per file."""
    with _alone():
        if not is_terminal():
            yield _Lines(each)
            return
        with _Bar() as bar:
            yield bar


class _Lines:
    """Plain lines of a download."""

    def __init__(self, each: bool) -> None:
        self.each, self.files, self.size = each, 0, 0
        self.all_files, self.all_size, self.last = 0, 0, time.monotonic()
        self._lock = threading.Lock()

    def start(self, files: int, size: int, there: int) -> None:
        self.all_files, self.all_size, self.size = files, size, there
        cached = f", {there / 1e6:.1f} MB of them from an earlier run" if there else ""
        click.echo(f"{files} files to fetch, {size / 1e6:.1f} MB{cached}", err=True)

    def advance(self, size: int) -> None:
        with self._lock:
            self.size += size
            # Logs get a line now and then, not one for each block.
            if time.monotonic() - self.last < FILES:
                return
            self.last = time.monotonic()
        done = f"{self.files} of {self.all_files} files, {self.size / 1e6:.1f} of {self.all_size / 1e6:.1f} MB"
        click.echo(f"fetched {done}", err=True)

    def done(self, wanted: Any) -> None:
        self.files += 1
        if self.each:
            click.echo(
                f"fetched {wanted.name} {wanted.version} ({wanted.size / 1e6:.1f} MB)", err=True
            )

    def failed(self, fault: Any) -> None:
        click.echo(f"{fault.kind} {fault.wanted.name} {fault.wanted.version}", err=True)


class _Bar:
    """One bar over all bytes, with the rate and the time left."""

    def __init__(self) -> None:
        # Start-up time: only a terminal shows it.
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console(),
            redirect_stdout=sys.stdout.isatty(),
        )
        self._task = self._bar.add_task("fetching", total=None)
        self._left = 0

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def start(self, files: int, size: int, there: int) -> None:
        self._left = files
        self._bar.update(self._task, total=size, completed=there, description=f"{files} files")

    def advance(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def done(self, wanted: Any) -> None:
        self._left -= 1
        self._bar.update(self._task, description=f"{self._left} files")

    def failed(self, fault: Any) -> None:
        self.done(fault.wanted)


@contextmanager
def bytes_moved(what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts transferred bytes. They are shown on a terminal alone."""
    if not is_terminal():
        step(what)
        yield lambda size: None
        return
    # Start-up time: only a terminal shows it.
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    with (
        _alone(),
        Progress(
            TextColumn("{task.description}"),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console(),
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        ) as bar,
    ):
        task = bar.add_task(what, total=None)
        yield lambda size: bar.advance(task, size)


@contextmanager
def steps() -> Iterator[Callable[[str, str, float], None]]:
    """Yield a function for (step, "started" or its end, seconds): running steps on a terminal, a line per finished one."""
    if not is_terminal():
        yield _StepLines().line
        return
    # Start-up time: only a terminal shows it.
    from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    running: dict[str, TaskID] = {}
    lock = threading.Lock()
    columns = (
        SpinnerColumn("line"),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with (
        _alone(),
        Progress(*columns, console=console(), redirect_stdout=sys.stdout.isatty()) as progress,
    ):

        def draw(what: str, state: str, seconds: float) -> None:
            with lock:
                if state == "started":
                    running[what] = progress.add_task(what, total=1)
                # A step may end that never started: one that was cached.
                elif (number := running.pop(what, None)) is not None:
                    progress.remove_task(number)
                    progress.console.print(
                        f"{state:7} {seconds:6.1f} s  {what}", highlight=False, markup=False
                    )

        yield draw


class _StepLines:
    """Plain lines of steps, of which several may run at the same time."""

    def __init__(self) -> None:
        self._running: list[str] = []
        self._lock = threading.Lock()
        self._before = _current.label if _current is not None else ""

    def line(self, what: str, state: str, seconds: float) -> None:
        with self._lock:
            if state == "started":
                self._running.append(what)
                step(what)
            else:
                click.echo(f"{state:7} {seconds:6.1f} s  {what}", err=True)
                if what in self._running:
                    self._running.remove(what)
            if _current is not None:
                _current.label = ", ".join(self._running) or self._before

"""Progress on standard error: a spinner on a terminal, plain lines elsewhere, nothing of a short command."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from goldnode.core import progress

SECONDS = 30  # limit of a wait for a thread


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.01)
    monkeypatch.setattr(progress, "AGAIN", 0.01)
    monkeypatch.setattr(
        progress, "time", SimpleNamespace(monotonic=lambda: 0.0)
    )  # lines name the seconds
    monkeypatch.setenv("TERM", "xterm-256color")


@contextmanager
def stderr_to(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with file.open("w", encoding="utf-8", buffering=1) as opened, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", opened)
        yield


def await_text(read: Callable[[], str], text: str) -> str:
    """Return what `read` returns, once `text` is in it."""
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if text in (found := read()):
            return found
        pause.wait(0.01)
    raise AssertionError(f"{text!r} did not appear in {found!r}")


def test_a_long_command_prints_plain_lines_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stderr"
    with stderr_to(file, monkeypatch), progress.shown("goldnode lock a"):
        await_text(file.read_text, "goldnode lock a (0 s)\n")
        progress.step("reading the package indexes")
        written = await_text(file.read_text, "reading the package indexes (0 s)\n")
    assert "\x1b" not in written


def test_note_inside_a_command_is_shown_as_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stderr"
    with stderr_to(file, monkeypatch):
        progress.note("before a command")
        with progress.shown("goldnode disks verify a"):
            progress.note("boot 1")
            await_text(file.read_text, "boot 1\n")
            await_text(file.read_text, "boot 1 (0 s)\n")
    assert file.read_text().startswith("before a command\n")


def test_the_lines_of_steps_name_all_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stderr"
    with (
        stderr_to(file, monkeypatch),
        progress.shown("goldnode images build"),
        progress.steps() as line,
    ):
        line("root of a", "started", 0.0)
        line("links of a", "started", 0.0)
        await_text(file.read_text, "root of a, links of a (0 s)\n")
        line("links of a", "done", 2.5)
        await_text(
            lambda: file.read_text().partition("2.5 s  links of a\n")[2], "\nroot of a (0 s)\n"
        )
        line("root of a", "done", 1.5)
        await_text(
            lambda: file.read_text().partition("1.5 s  root of a\n")[2],
            "\ngoldnode images build (0 s)\n",
        )


def test_a_long_command_has_a_spinner_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    written: list[bytes] = []

    def read() -> str:
        written.append(os.read(leader, 1 << 16))
        return b"".join(written).decode()

    with open(follower, "w") as terminal, monkeypatch.context() as patch:  # noqa: PTH123 - a file descriptor
        patch.setattr(sys, "stderr", terminal)
        with progress.shown(lambda: "asking 3 hosts: 1 answered"):
            assert "\x1b[" in await_text(read, "asking 3 hosts: 1 answered (0 s)")
            progress.stop()
            terminal.write("the result\n")
            terminal.flush()
            await_text(read, "the result")
    os.close(leader)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    with open(follower, "w") as terminal, monkeypatch.context() as patch:  # noqa: PTH123 - a file descriptor
        patch.setattr(sys, "stderr", terminal)
        assert progress.is_terminal()
        patch.setenv("TERM", "dumb")
        assert not progress.is_terminal()
    os.close(leader)


def test_a_caller_in_the_same_process_reads_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", captured)
        with progress.shown("goldnode plan") as work:
            assert work._silent
    assert not captured.getvalue()


def test_a_download_is_counted_in_plain_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FILES", 0.0)
    file = tmp_path / "stderr"
    with stderr_to(file, monkeypatch), progress.downloads(each=False) as watcher:
        watcher.start(2, 4_000_000, 0)
        watcher.advance(1_000_000)
    assert file.read_text() == "2 files to fetch, 4.0 MB\nfetched 0 of 2 files, 1.0 of 4.0 MB\n"


def test_json_on_standard_output_stays_one_document(tmp_path: Path) -> None:
    """The command waits for standard input, and so is long."""
    code = (
        "import sys; from goldnode.core import progress; progress.FIRST = 0.01\n"
        "import goldnode.cli as cli; cli._LONG |= {'classes'}\n"
        "wait = progress.Work.start\n"
        "def start(work):\n    wait(work)\n    sys.stdin.read()\n"
        "progress.Work.start = start\n"
        "cli.main(['classes', '--format', 'json'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    first = process.stderr.readline()
    out, _ = process.communicate("")
    assert first.startswith("goldnode classes --format json (")
    assert out.startswith("{")
    assert out.endswith("}\n")

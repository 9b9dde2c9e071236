"""Command line of a program that runs on a GPU: exit codes, usage, signals, its output and its own faults."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import traceback
import zipimport
from typing import Any, Callable, NoReturn

# Exit codes, as in goldnode-node check: 0 healthy, 2 drain, 3 could not check.
OK, BAD, UNKNOWN = 0, 2, 3


class ProgramParser(argparse.ArgumentParser):
    """Parser that exits with 3 on wrong usage. argparse exits with 2, which means a failed test here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(UNKNOWN)


def archive() -> zipimport.zipimporter:
    """Return the importer of the packed program that contains this module."""
    loader: Any = globals()["__loader__"]
    assert isinstance(loader, zipimport.zipimporter)  # noqa: S101 - only a packed program begins here
    return loader


def on_signals(stop: Callable[[signal.Signals], None]) -> None:
    """Call `stop` when this program is to end.

    Child processes run in sessions of their own, so signals of the terminal do not reach them.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: stop(signal.Signals(received)))


def guarded(program: str, work: Callable[[], int]) -> int:
    """Run a program and return its exit code. A fault of the program never looks like a failed test."""
    try:
        return work()
    except (OSError, ValueError) as problem:
        print(f"{program}: {problem}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return UNKNOWN


def write(path: str, text: str) -> None:
    """Write a file whole or not at all."""
    folder = os.path.dirname(os.path.abspath(path))
    number, name = tempfile.mkstemp(prefix=".goldnode-", dir=folder)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise

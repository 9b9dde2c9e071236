"""The modules give a request to the program on the node and get all of its answer."""

from __future__ import annotations

import json
import selectors
import time
from pathlib import Path
from typing import Any

import pytest

from goldnode.ansible.action.goldnode_state import read_verdict
from goldnode.ansible.modules import goldnode_state

PROGRAM = """
import sys
request = sys.stdin.read()
print("a warning", file=sys.stderr)
print(request)
sys.exit(3)
"""


@pytest.fixture
def unlucky(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each first wait for output end without any, just before the program prints its answer and ends."""
    for kind in (selectors.PollSelector, selectors.EpollSelector, selectors.SelectSelector):
        waited: set[int] = set()

        def select(
            self: Any,
            timeout: float | None = None,
            own: Any = kind.select,
            waited: set[int] = waited,
        ) -> Any:
            if id(self) in waited:
                return own(self, timeout)
            waited.add(id(self))
            time.sleep(0.5)  # the program starts, answers and ends meanwhile
            return []

        monkeypatch.setattr(kind, "select", select)


@pytest.mark.usefixtures("unlucky")
def test_an_answer_that_comes_as_a_wait_ends_is_not_lost(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    request = json.dumps({"operation": "plan", "name": "\N{GREEK SMALL LETTER ALPHA}" * 100_000})
    status, out, err = goldnode_state.run_program(str(program), request)
    assert (status, json.loads(out), err) == (3, json.loads(request), "a warning\n")


def test_a_program_that_reads_nothing_is_no_error(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("print('{}')\n")
    assert goldnode_state.run_program(str(program), "x" * (1 << 20)) == (0, "{}\n", "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"schema": "goldnode.verdict/1", "status": "healthy"}', True),
        (
            'a warning\r\n{"schema": "goldnode.verdict/1",\r\n "findings": []}\r\nthe gate is open\r\n',
            True,
        ),
        ('{"schema": "goldnode.error/1", "message": "x"}', False),
        ('{"schema": "goldnode.verdict/1", "findings": [', False),
        ("verdict: healthy", False),
        ("[" * 100_000, False),
        ("{" * 100_000, False),
        ("", False),
    ],
)
def test_a_verdict_is_read_from_the_output_of_a_check(text: str, found: bool) -> None:
    assert bool(read_verdict(text)) == found

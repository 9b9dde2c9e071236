"""The modules give a request to the program on the node and get all of its answer."""

from __future__ import annotations

import base64
import hashlib
import json
import selectors
import subprocess
import sys
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


KILLED = """
import os, pathlib, shutil, signal, sys
installed = pathlib.Path({installed!r})
if sys.argv[0] != str(installed):
    shutil.copy(sys.argv[0], installed)
    installed.chmod(0o755)
    os.kill(os.getpid(), signal.SIGKILL)
print('{{"changed": true}}')
"""


def test_a_program_killed_after_it_installed_itself_ends_the_task(tmp_path: Path) -> None:
    """The installed copy has the wanted digest by then; the run must not go on with it in silence."""
    installed = tmp_path / goldnode_state.INSTALLED.lstrip("/")
    installed.parent.mkdir(parents=True)
    content = KILLED.format(installed=str(installed)).encode()
    arguments = {
        "operation": "apply",
        "part": "node_class",
        "document": {"class": "x"},
        "root": str(tmp_path),
        "program": {
            "sha256": "sha256:" + hashlib.sha256(content).hexdigest(),
            "content": base64.b64encode(content).decode(),
        },
        "_ansible_tmpdir": str(tmp_path),
        "_ansible_remote_tmp": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, goldnode_state.__file__, json.dumps({"ANSIBLE_MODULE_ARGS": arguments})],
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert installed.exists()
    assert (done.returncode, answer["failed"]) == (1, True)
    assert answer["msg"].startswith("goldnode-node gave no answer (exit status -9)")


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

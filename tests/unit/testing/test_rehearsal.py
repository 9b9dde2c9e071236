"""The rehearsal of a vulnerability: what it refuses, and that a step which shows something else fails."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.testing.rehearsal.__main__ import main as program
from goldnode.testing.rehearsal.errors import RehearsalError
from goldnode.testing.rehearsal.lane import CVE, MODULE, CveRehearsal


class NoMachines:
    """Nodes that nothing starts."""

    def start(self, names: list[str], group: str) -> Path:
        raise AssertionError(names)

    def off(self, name: str) -> None: ...

    def on(self, name: str) -> None: ...

    def settle(self, names: list[str]) -> None: ...


class Recorded(CveRehearsal):
    """A rehearsal whose nodes are all in one state."""

    state = "not-loaded"

    def run(self, *words: str, codes: Iterable[int] = (0,), show: bool = True) -> str:
        rows: list[Any] = [{"kind": "lock", "state": "affected", "names": ["rehearsal"]}]
        rows += [{"kind": "node", "state": self.state, "names": list(self.names)}]
        return json.dumps({"vulnerabilities": [{"rows": rows}]})


def test_step_that_shows_another_state_fails(tmp_path: Path) -> None:
    lines: list[str] = []
    rehearsal = Recorded(tmp_path, NoMachines(), lines.append)
    rehearsal.show()
    assert "as expected: states of the nodes" in lines[-1]
    rehearsal.state = "fixed"
    with pytest.raises(RehearsalError, match=r"states of the nodes: expected .*not-loaded.*fixed"):
        rehearsal.show()


def test_command_that_fails_is_shown_with_its_last_lines(tmp_path: Path) -> None:
    rehearsal = CveRehearsal(tmp_path, NoMachines(), print)
    with pytest.raises(RehearsalError, match=r"`goldnode lock` ended with 2:\n.*STACK"):
        rehearsal.run("lock")


def test_name_of_a_vulnerability_needs_its_module(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["cve", "rehearse", "CVE-2020-1000"])
    assert (done.exit_code, "with --module" in done.output) == (2, True)
    done = CliRunner().invoke(main, ["cve", "rehearse", "--module", "tipc"])
    assert (done.exit_code, "for a CVE that is named" in done.output) == (2, True)
    done = CliRunner().invoke(main, ["cve", "rehearse", "../x", "--module", "tipc"])
    assert (done.exit_code, "is no CVE" in done.output) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("mine\n")
    done = CliRunner().invoke(program, [CVE, "--module", MODULE, "--out", str(tmp_path)])
    assert isinstance(done.exception, RehearsalError)
    assert "is not empty" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.yml"]

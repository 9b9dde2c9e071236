"""The engine: what is said when there is none, and that nothing is installed unasked."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException

from goldnode.core import docker_engine as engine


def nothing(_: str) -> None:
    """Swallow what would be said."""


class Recorder:
    """Stands in for subprocess.run; keeps the command lines."""

    def __init__(self, rc: int = 0, output: str = "") -> None:
        self.calls: list[list[str]] = []
        self.rc, self.output = rc, output

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        return subprocess.CompletedProcess(command, self.rc, stdout=self.output, stderr="")


@pytest.mark.parametrize(
    ("error", "installed", "host", "reported"),
    [
        (
            "Permission denied",
            True,
            None,
            "refuses this user. Run as root, or join the group docker",
        ),
        (
            "No such file or directory",
            False,
            None,
            "no Docker engine on this machine. Run scripts/demo as root",
        ),
        ("No such file or directory", True, None, "no Docker engine answers at the local socket"),
        (
            "Connection refused",
            False,
            "tcp://10.0.0.1:2375",
            "no Docker engine answers at tcp://10.0.0.1:2375",
        ),
    ],
)
def test_no_engine_is_explained(
    monkeypatch: pytest.MonkeyPatch, error: str, installed: bool, host: str | None, reported: str
) -> None:
    def fail(**_: object) -> None:
        raise DockerException(f"Error while fetching server API version: {error}")

    monkeypatch.setattr(docker, "from_env", fail)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/sbin/dockerd" if installed else None)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    if host:
        monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(engine.EngineError) as caught:
        engine.connect()
    assert reported.casefold() in str(caught.value).casefold()


def test_missing_tools_are_named_by_package(tmp_path: Path) -> None:
    here = tmp_path / "keyring"
    here.touch()
    tools = {
        "sh": "dash",
        "no-such-tool": "b-tool",
        "no-such-other": "a-tool",
        str(here): "k",
        f"{here}.gone": "b-tool",
    }
    assert engine.missing_tools(tools) == ["a-tool", "b-tool"]


def test_nothing_is_installed_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Recorder()
    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        engine.EngineError, match=r"lacks docker\.io gpg\. Run as root, or: sudo apt-get install"
    ):
        engine.install(["docker.io", "gpg"], yes=True, say=nothing)
    assert run.calls == []


def test_a_refusal_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    run = Recorder()
    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    with pytest.raises(engine.EngineError, match="declined"):
        engine.install(["gpg"], yes=False, say=nothing)
    assert run.calls == []


@pytest.mark.parametrize("terminal", [True, False])
def test_install_reports_the_package_and_runs_apt_without_asking(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """With --yes, and where nobody could be asked."""
    reported: list[str] = []
    run = Recorder()
    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    engine.install(["gpg"], yes=terminal, say=reported.append)
    assert reported == ["will install with apt-get: gpg"]
    assert [call[:2] for call in run.calls] == [["apt-get", "update"], ["apt-get", "install"]]


def test_failed_installation_shows_the_error_of_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", Recorder(100, "E: Unable to locate package gpg\n"))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(engine.EngineError, match="Unable to locate package gpg"):
        engine.install(["gpg"], yes=True, say=nothing)


@pytest.mark.parametrize(
    "record", ["", "no number", pytest.param(str(os.getpid()), id="this process"), "4194304"]
)
def test_only_a_dockerd_of_ours_is_stopped(tmp_path: Path, record: str) -> None:
    """Nothing recorded, nonsense, a number that is now another process (this one), one of no process."""
    if record:
        (tmp_path / "dockerd.pid").write_text(record)
    assert engine.stop(state=tmp_path, say=nothing) is False
    assert not (tmp_path / "dockerd.pid").exists()


@pytest.mark.parametrize(
    ("pid", "stored"),
    [
        ("1", False),
        ("0", False),
        ("not a number", False),
        pytest.param(str(os.getpid()), True, id="this process"),
    ],
)
def test_the_pid_file_of_a_killed_daemon_is_forgotten(
    tmp_path: Path, pid: str, stored: bool
) -> None:
    record = tmp_path / "docker.pid"
    record.write_text(pid)
    own = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    engine.forget_dead(record, own)
    assert record.exists() is stored
    engine.forget_dead(tmp_path / "absent.pid", own)

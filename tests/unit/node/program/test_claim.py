"""A run of a rollout changes a node only while it has taken it over."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from goldnode.fleet.rollout import node_state
from goldnode.node.program import remote


def apply(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], claim: str
) -> Any:
    request = {
        "operation": "apply",
        "state": "present",
        "part": "kernel",
        "document": {},
        "root": str(root),
    }
    monkeypatch.setattr(
        "sys.stdin", io.StringIO(json.dumps({**request, "lock_timeout": 1, "claim": claim}))
    )
    monkeypatch.setattr(remote, "applied", lambda *arguments: {"changed": True})
    assert remote.answer(None, None) == 0
    return json.loads(capsys.readouterr().out)


def test_only_the_last_run_that_took_the_node_over_may_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {"failed": True, "msg": remote.LOST, "lost": True}
    assert apply(tmp_path, monkeypatch, capsys, "first") == lost, "a boot ends all claims"
    (tmp_path / "run/goldnode").mkdir(parents=True)
    (tmp_path / remote.CLAIM[1:]).write_text("second")
    assert apply(tmp_path, monkeypatch, capsys, "first") == lost
    assert apply(tmp_path, monkeypatch, capsys, "second") == {"changed": True}
    assert apply(tmp_path, monkeypatch, capsys, "") == {"changed": True}, (
        "a run of site.yml needs no claim"
    )


def on(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script with goldnode's directory of a node below `root`."""
    moved = script.replace("/run/goldnode", f"{root}/run/goldnode")
    return subprocess.run(["/bin/sh", "-c", moved], capture_output=True, text=True, check=False)


def test_a_claim_waits_for_an_application_and_shows_the_boot(tmp_path: Path) -> None:
    done = on(tmp_path, node_state.claim("first", 5))
    assert done.returncode == 0, done.stderr
    assert node_state.read(done.stdout).boot_id
    assert on(tmp_path, node_state.confirm("first")).returncode == 0
    lock = tmp_path / "run/goldnode/engine.lock"
    with subprocess.Popen(
        ["flock", "-F", str(lock), "sh", "-c", "echo held; exec sleep 60"], stdout=subprocess.PIPE
    ) as held:
        assert held.stdout is not None
        held.stdout.readline()
        refused = on(tmp_path, node_state.claim("second", 0))
        held.kill()
    assert refused.returncode == 75
    assert "still at work" in refused.stderr
    assert on(tmp_path, node_state.confirm("first")).returncode == 0
    assert on(tmp_path, node_state.claim("second", 5)).returncode == 0
    assert on(tmp_path, node_state.confirm("first")).returncode == 1

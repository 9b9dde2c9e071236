"""The module goldnode_drain, in a real run of Ansible: a node that was drained stays out until its tests have passed.

The node is this machine, with a file system of its own, and the scheduler is a command of the site.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.unit.catalog.test_accept_reject import write
from tests.unit.fleet.nodes.test_return_tests import RECORDED

from goldnode.canary import results
from goldnode.core.data import ansible_environment

BIN = Path(sys.executable).parent
PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {"goldnode_drain": {"state": "drained"}, "when": "drains is defined"},
            {"goldnode_drain": {"state": "resumed", "after": "rollout"}},
        ],
    }
]
CLASS = (
    "class: tested\nbackend: cpu\nstack: debian12_cpu\nreturn_tests: {after_rollout: [storage]}\n"
)


@dataclass
class Controller:
    """A site directory with one host, whose drain and resume commands are logged."""

    place: Path

    @property
    def calls(self) -> list[str]:
        log = self.place / "log"
        return log.read_text().split() if log.exists() else []

    def play(self, *options: str) -> tuple[int, str]:
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GOLDNODE_", "ANSIBLE_"))
        }
        done = subprocess.run(
            [str(BIN / "ansible-playbook"), "-i", "hosts.yml", "play.yml", *options],
            cwd=self.place,
            env={
                **ansible_environment(environment),
                "PATH": f"{BIN}:{environment['PATH']}",
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_ACTION_PLUGINS": str(Path(results.__file__).parents[1] / "ansible/action"),
                "GOLDNODE_CATALOG": str(self.place / "catalog"),
                "GOLDNODE_RUNS": str(self.place / "runs"),
                "XDG_CACHE_HOME": str(self.place / "cache"),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "goldnode_drain": "command",
        "goldnode_root": str(tmp_path / "node"),
        "goldnode_node_class": {"class": "tested"},
        **{
            f"goldnode_{what}_command": ["sh", "-c", f"echo {what} >>{tmp_path}/log"]
            for what in ("drain", "resume")
        },
    }
    write(tmp_path / "catalog", {"classes/tested.yml": CLASS})
    files = {
        "hosts.yml": yaml.safe_dump({"all": {"hosts": {"n1": host}}}),
        "play.yml": yaml.safe_dump(PLAY),
    }
    write(tmp_path, files)
    return Controller(tmp_path)


def test_a_run_does_not_return_a_node_that_its_gate_holds(controller: Controller) -> None:
    hosts = controller.place / "hosts.yml"
    hosts.write_text(
        hosts.read_text().replace(
            "class: tested", "class: gated\n        return_tests: {after_xid: [gemm]}"
        )
    )
    status, output = controller.play("-e", "drains=true")
    assert (status != 0, "its gate does not show which tests it wants" in output) == (True, True), (
        output
    )
    row = {
        "cause": "xid",
        "since": "2026-11-26T08:00:00Z",
        "why": "w",
        "jobs": ["gemm"],
        "missing": ["gemm"],
    }
    row["outstanding"] = ["gemm has not run since 2026-11-26T08:00:00Z"]
    state = {
        "schema": "goldnode.gate/1",
        "mode": "drain",
        "open": False,
        "reasons": [],
        "since": row["since"],
    }
    state |= {
        "verdict_time": None,
        "told": None,
        "error": None,
        "tests": {"causes": [row], "unknown": []},
    }
    write(controller.place / "node", {"run/goldnode/gate.json": json.dumps(state)})
    status, output = controller.play()
    assert status != 0
    assert (
        "n1 stays out of service: its gate wants tests before its return: (xid) gemm has not run since"
        in output
    )
    assert controller.calls == ["drain"]
    row["outstanding"] = []
    write(controller.place / "node", {"run/goldnode/gate.json": json.dumps(state)})
    status, output = controller.play()
    assert (status, controller.calls) == (0, ["drain", "resume"]), output


def test_a_run_leaves_a_node_out_until_its_tests_have_passed_and_the_next_run_returns_it(
    controller: Controller,
) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    row = RECORDED.jobs[0].model_copy(update={"name": "storage", "state": "passed"})
    found = {"node": "n1", "started": "2099-01-01T00:00:00Z", "jobs": [row]}
    document = RECORDED.model_copy(update={**found, "boot_id": "another"})
    results.store(document, controller.place / results.DIRECTORY)
    status, output = controller.play("-e", "drains=true")
    assert status != 0
    assert controller.calls == ["drain"], output
    assert "n1 stays out of service: tests before its return: storage has not run since" in output
    assert "--class tested --before-return rollout`, then run again" in output
    results.store(
        document.model_copy(update={"boot_id": boot}), controller.place / results.DIRECTORY
    )
    status, output = controller.play()
    assert status == 0, output
    assert controller.calls == ["drain", "resume"], output

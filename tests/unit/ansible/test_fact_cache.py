"""Facts of an earlier run, which Ansible gives a run with `fact_caching`, ansible-runner with one ident, and AWX with its fact storage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from goldnode.ansible.action.goldnode_state import FACT, RUN, facts_of
from goldnode.node.state.model import PARTS

ROOT = Path(__file__).parents[3]
ASKED = {"parts": {part: [] for part in PARTS}, "actions": [], "state": "present"}


def play(where: Path, name: str, what: dict[str, object]) -> subprocess.CompletedProcess[str]:
    """Run a play for two nodes that nothing answers for, with a fact cache on disk."""
    (where / "hosts.yml").write_text(
        yaml.safe_dump(
            {"cpu_only_debian13": {"hosts": {"n1": {"ansible_port": 1}, "n2": {"ansible_port": 1}}}}
        )
    )
    (where / name).write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, **what}]))
    own = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GOLDNODE_", "ANSIBLE_"))
    }
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "ansible",
            "playbook",
            "-i",
            str(where / "hosts.yml"),
            str(where / name),
        ],
        cwd=ROOT,
        env={
            **own,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_CACHE_PLUGIN": "jsonfile",
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(where / "facts"),
            "GOLDNODE_RUNS": "off",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_plan_of_an_earlier_run_does_not_skip_a_role(tmp_path: Path) -> None:
    run = "{{ '' if inventory_hostname == 'n1' else '/root/.ansible/tmp/ansible-local-1' }}"
    store = {"ansible.builtin.set_fact": {FACT: ASKED, RUN: run, "cacheable": True}}
    asked = play(tmp_path, "asked.yml", {"tasks": [store]})
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert [FACT in path.read_text() for path in (tmp_path / "facts").iterdir()] == [True, True]
    done = play(tmp_path, "own.yml", {"roles": ["gpu_driver"]})
    assert done.returncode == 2, done.stdout + done.stderr
    words = " ".join(done.stdout.split())
    assert (
        words.count(
            "msg: Part gpu_driver cannot be applied, because this run has not asked the node"
        )
        == 2
    ), words


def test_fact_of_a_plan_has_no_login() -> None:
    action = {"before": "URIs: https://ops:secret@mirror.example/debian\n", "after": None}
    plan = {"actions": [action], "reboot": {"required": False}, "waiting": []}
    assert facts_of(plan)[FACT]["actions"] == [
        {"before": "URIs: https://***@mirror.example/debian\n", "after": None}
    ]

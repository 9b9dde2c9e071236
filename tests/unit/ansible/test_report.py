"""site.yml as ansible-playbook runs it, with the report at its end. What nodes answer is canned: no node is asked or changed."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError
from tests import documents

from goldnode.ansible import release
from goldnode.fleet.drain import record as drain_record
from goldnode.fleet.shared import identity
from goldnode.node.ground.drained import FILE
from goldnode.node.state.model import PARTS

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent

# In the place of goldnode_state and of the drain: answers with what the host's variables hold, a second plan with `again`.
STUB = """
import pathlib
import time

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from goldnode.ansible.action.goldnode_state import facts_of, planned_parts

class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        if self._task.args.get("operation") == "check":
            return task_vars["answers"].get("check", {"changed": False, "rc": 2, "stdout": "verdict: drain"})
        part = self._task.args.get("part")
        if task_vars["answers"].get("lost") == part and part is not None:
            raise AnsibleConnectionFailure("ssh: connect to host n port 22: Connection refused")
        if part and not self._task.args.get("rollback") and not planned_parts(part, task_vars):
            return {"changed": False, "skipped": True}
        key = part or ("again" if "goldnode_plan" in task_vars["ansible_facts"] else "plan")
        if "hang" in task_vars["answers"]:
            pathlib.Path(task_vars["answers"]["hang"]).touch()
            time.sleep(600)
        if not task_vars["answers"]:
            return self._execute_module("ansible.builtin.ping", {}, task_vars=task_vars)
        answer = self._templar.template(task_vars["answers"])[key]
        if found := answer.get("ansible_facts", {}).get("goldnode_plan"):
            left = answer["ansible_facts"].get("goldnode_left")
            matches = not found["actions"] and (not left or self._task.check_mode)
            facts = {**answer["ansible_facts"], **facts_of(found), "goldnode_matches": matches}
            answer = {**answer, "ansible_facts": facts}
        return {**answer, **({"part": part} if part else {})}
"""


def plan(
    parts: dict[str, list[str]] | None = None,
    waiting: Sequence[str] = (),
    reboot: Sequence[str] = (),
) -> dict[str, Any]:
    """The result of a plan: targets by part, subjects that wait for a drain, reasons for a reboot."""
    actions = [
        {
            "part": part,
            "kind": "file.write",
            "target": target,
            "reason": "want a, have b",
            "phase": "image",
            "before": None,
            "after": "a",
        }
        for part, targets in (parts or {}).items()
        for target in targets
    ]
    found = {
        "actions": actions,
        "state": "present",
        "parts": {part: (parts or {}).get(part, []) for part in PARTS},
        "notes": [],
        "waiting": [
            {"part": "gpu_policy", "subject": subject, "message": "a job holds the GPU"}
            for subject in waiting
        ],
        "reboot": {"required": bool(reboot), "reasons": list(reboot), "after": list(reboot)},
    }
    return {
        "changed": False,
        "ansible_facts": {"goldnode_plan": found},
        "node_class": {"class": "stub", "class_digest": "sha256:1"},
    }


def applied(part: str, *targets: str, **answer: Any) -> dict[str, Any]:
    """The result of an apply."""
    rows = [
        {
            "resource": target,
            "kind": "file.write",
            "part": part,
            "changed": True,
            "would_change": False,
            "phase": "image",
            "before": None,
            "after": "a",
            "told": None,
            "error": None,
            "reason": "r",
            "seconds": 0.1,
        }
        for target in targets
    ]
    return {"changed": True, "resources": rows, **plan(), **answer}


REFUSED = {
    "failed": True,
    "msg": "refused before anything was touched:\n- [gpu-in-use] GPU in use by sleep, unit train.service. Drain the node.",
    "refusals": [
        {
            "code": "gpu-in-use",
            "message": "GPU in use by sleep, unit train.service.",
            "remedy": "Drain the node.",
        }
    ],
}
FLEET: dict[str, dict[str, Any]] = {
    "fine": {"plan": plan()},
    "fresh": {
        "plan": plan({"kernel": ["/etc/x"], "sanity": ["/etc/y"]}),
        "kernel": applied("kernel", "/etc/x", "/etc/y"),
    },
    "held": {"plan": REFUSED},
    "broken": {
        "plan": plan({"kernel": ["/etc/x"]}),
        "kernel": {"failed": True, "msg": "apt finds no way\nE: more"},
    },
    "boots": {"plan": plan(reboot=["kernel 1 runs, want 2"])},
    "waits": {
        "plan": plan(waiting=["MIG"]),
        "again": plan({"gpu_policy": ["MIG"]}),
        "gpu_policy": applied("gpu_policy", "MIG"),
    },
}


def start(
    where: Path,
    hosts: dict[str, dict[str, Any]],
    *arguments: str,
    book: Path | str = ROOT / "site.yml",
    **environment: str,
) -> subprocess.Popen[str]:
    """Start a playbook, in a process group of its own."""
    (where / "stubs").mkdir(exist_ok=True)
    (where / "stubs" / "goldnode_state.py").write_text(STUB)
    if (ROOT / book).is_file():
        # The plugins beside the playbooks of the tree would precede the stubs.
        (where / "books").mkdir(exist_ok=True)
        book = Path(shutil.copy(ROOT / book, where / "books"))
    inventory: dict[str, Any] = {
        "all": {
            "hosts": {
                name: {
                    "ansible_connection": "local",
                    "answers": found,
                    "goldnode_root": str(where / name),
                }
                for name, found in hosts.items()
            }
        }
    }
    if "lost" in hosts:  # nothing listens on port 1
        inventory["all"]["hosts"]["lost"].update(
            ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1
        )
    (where / "hosts.yml").write_text(yaml.safe_dump(inventory))
    stored = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GOLDNODE_", "ANSIBLE_"))
    }
    return subprocess.Popen(
        [str(BIN / "ansible-playbook"), "-i", str(where / "hosts.yml"), str(book), *arguments],
        cwd=ROOT,
        env={
            **stored,
            "PATH": f"{BIN}:{stored['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_ACTION_PLUGINS": f"{where / 'stubs'}:{ROOT / 'src/goldnode/ansible/action'}",
            "GOLDNODE_RUNS": str(where / "runs"),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(where: Path, run: subprocess.Popen[str]) -> tuple[int, str, dict[str, Any]]:
    """Wait for its end; exit status, what was printed, and the one record that was kept."""
    output, _ = run.communicate(timeout=300)
    records = sorted((where / "runs").glob("*.json"))
    assert len(records) <= 1
    return run.returncode, output, documents.valid(records[0].read_text()) if records else {}


def play(
    where: Path,
    hosts: dict[str, dict[str, Any]],
    *arguments: str,
    book: Path | str = ROOT / "site.yml",
    **environment: str,
) -> tuple[int, str, dict[str, Any]]:
    """Run a playbook to its end; see :func:`end`."""
    return end(where, start(where, hosts, *arguments, book=book, **environment))


def outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {name: host["outcome"] for name, host in record["hosts"].items()}


def test_every_host_ends_with_its_reason_in_print_and_in_the_record(tmp_path: Path) -> None:
    rc, output, record = play(tmp_path, {**FLEET, "lost": {}})
    assert rc != 0
    assert record["schema"] == "goldnode.run/1"
    assert (record["check"], record["end"], record["limit"]) == (False, "finished", None)
    assert outcomes(record) == {
        "fine": "converged",
        "fresh": "changed",
        "held": "held",
        "broken": "failed",
        "boots": "reboot pending",
        "waits": "waiting for drain",
        "lost": "unreachable",
    }
    report = output[output.index("goldnode: 7 hosts") :]
    for text in (
        "1 unreachable, 1 failed, 1 held, 1 reboot pending, 1 waiting for drain, 1 changed, 1 converged",
        "  failed: broken\n    in part kernel: apt finds no way\n",
        "  held: held\n    [gpu-in-use] GPU in use by sleep, unit train.service. Drain the node.\n",
        "  reboot pending: boots\n    Needs a reboot: kernel 1 runs, want 2. Allow it with -e goldnode_reboot=true.\n",
        "  waiting for drain: waits\n    MIG: a job holds the GPU. Allow the drain with -e goldnode_drain_for_waiting=true.\n",
        f"  record: {tmp_path}/runs/",
    ):
        assert text in report, report
    # The second where ssh had ended before Ansible wrote to it, as on a busy machine.
    reasons = (
        "ssh: connect to host .* port 1: Connection refused|Data could not be sent to remote host"
    )
    assert re.search(rf"  unreachable: lost\n    ({reasons})", report), report
    assert "fresh" not in report
    assert [row["resource"] for row in record["hosts"]["fresh"]["parts"]["kernel"]] == [
        "/etc/x",
        "/etc/y",
    ]
    assert "sanity" not in record["hosts"]["fresh"]["parts"], "the kernel's part brought it, too"
    assert record["hosts"]["fine"]["class"] == "stub"


def test_waiting_change_is_applied_while_drained_and_no_node_reboots(tmp_path: Path) -> None:
    # The stub's check ends with 2, which this run accepts.
    hooks = {"goldnode_drain": "command", "goldnode_accepted": [2]}
    for name in ("drain", "resume"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {tmp_path}/log\n')
        (tmp_path / name).chmod(0o755)
        hooks[f"goldnode_{name}_command"] = [str(tmp_path / name)]
    permission = ("-e", "goldnode_drain_for_waiting=true", "-e", json.dumps(hooks))
    rc, output, record = play(
        tmp_path, {name: FLEET[name] for name in ("fine", "waits", "boots")}, *permission
    )
    assert rc == 0, output
    first, second = (tmp_path / "log").read_text().splitlines()
    assert re.fullmatch(r"drain waits goldnode run \S+ of \S+ at \S+: a job holds the GPU", first)
    assert second == "resume waits"
    drain = record["hosts"]["waits"]["drain"]
    assert (drain["changed"], drain["record"]["run"], drain["record"]["in_service"]) == (
        True,
        record["run"],
        True,
    )
    assert not (tmp_path / "waits/var/lib/goldnode/drain.json").exists()
    assert outcomes(record) == {"fine": "converged", "waits": "changed", "boots": "reboot pending"}
    assert [row["resource"] for row in record["hosts"]["waits"]["parts"]["gpu_policy"]] == ["MIG"]


def test_a_node_that_is_not_well_after_its_drain_ends_the_run_and_stays_out(tmp_path: Path) -> None:
    hooks = {
        "goldnode_drain": "command",
        "goldnode_drain_command": ["true"],
        "goldnode_resume_command": ["true"],
        "goldnode_reboot_batch": 1,
    }
    again = {f"waits{number}": FLEET["waits"] for number in range(2)}
    rc, output, record = play(
        tmp_path, again, "-e", "goldnode_drain_for_waiting=true", "-e", json.dumps(hooks)
    )
    assert rc != 0
    assert outcomes(record) == {"waits0": "failed", "waits1": "waiting for drain"}
    assert record["hosts"]["waits0"]["out_of_service"] is True
    assert "“node_class : Judge the node before its return”" in output
    assert "taken out of service by this run and is still out" in output


def test_batch_after_a_lost_node_is_not_touched_under_another_strategy(tmp_path: Path) -> None:
    # There, Ansible itself ignores any_errors_fatal.
    hooks = {
        "goldnode_drain": "command",
        "goldnode_drain_command": ["true"],
        "goldnode_resume_command": ["true"],
        "goldnode_reboot_batch": 2,
    }
    well = {**FLEET["waits"], "check": {"changed": False, "rc": 0, "stdout": "verdict: healthy"}}
    hosts = {"a": FLEET["waits"], "b": well, "c": well}
    permission = ("-e", "goldnode_drain_for_waiting=true", "-e", json.dumps(hooks))
    rc, output, record = play(tmp_path, hosts, *permission, ANSIBLE_STRATEGY="free")
    assert rc != 0
    assert "any_errors_fatal with the free strategy is not supported" in output
    assert outcomes(record) == {"a": "failed", "b": "changed", "c": "waiting for drain"}
    assert "The run ended before its turn: a did not come back into service." in output


def test_results_that_no_log_hides_are_unknown_and_not_a_success(tmp_path: Path) -> None:
    hosts = {name: FLEET[name] for name in ("fine", "fresh", "held")}
    _, output, record = play(tmp_path, hosts, ANSIBLE_NO_LOG="true")
    assert outcomes(record) == {"fine": "unknown", "fresh": "unknown", "held": "failed"}
    assert (
        "  unknown: fine, fresh\n    Ansible hid what goldnode's tasks returned (no_log)" in output
    )
    assert "in task “Get the plan of every node”: Ansible hid what" in output


# A plan, and on request that of a rollback.
BOOTING = {"plan": plan(reboot=["kernel 1 runs, want 2"])}
WAITING = FLEET["waits"]
LOST = {**WAITING, "lost": "gpu_policy"}  # gone when the changes that waited are made


def back(answers: dict[str, Any]) -> dict[str, Any]:
    """The same host, asked for its way back."""
    first = json.loads(json.dumps(answers["plan"]))
    first["ansible_facts"]["goldnode_plan"]["parts"]["gpu_policy"] = ["MIG"]
    first["ansible_facts"]["goldnode_plan"]["actions"] = plan({"gpu_policy": ["MIG"]})[
        "ansible_facts"
    ]["goldnode_plan"]["actions"]
    first["ansible_facts"]["goldnode_rollback"] = {"to": {"document": "sha256:1"}}
    return {**answers, "plan": first, "again": first}


@pytest.mark.parametrize(("batch", "tried"), [(2, ["n0", "n1"])])
def test_a_batch_that_refuses_connections_ends_the_reboots(
    tmp_path: Path, batch: int, tried: list[str]
) -> None:
    """Port 1 of this machine is closed, so that no host is rebooted."""
    hosts = {f"n{number}": BOOTING for number in range(4)}
    closed = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    more = {"goldnode_reboot": True, "goldnode_reboot_batch": batch, **closed}
    rc, output, record = play(tmp_path, hosts, "-e", json.dumps(more))
    assert rc != 0
    assert [
        name for name, outcome in outcomes(record).items() if outcome == "unreachable"
    ] == tried, output
    rest = sorted(set(hosts) - set(tried))
    assert {record["hosts"][name]["outcome"] for name in rest} == {"reboot pending"}
    for name in rest:
        why = record["hosts"][name]["why"]
        assert (
            f"The run ended before its turn: {', '.join(tried)} did not come back into service."
            in why
        )
        assert "Allow it" not in why


@pytest.mark.parametrize(
    ("book", "batch", "lost", "served", "untouched"),
    [
        ("site.yml", 2, [0], [], [2, 3]),
        ("site.yml", 1, [1], [0], [2, 3]),
        ("rollback.yml", 1, [0], [], [1, 2, 3]),
        ("rollback.yml", 2, [], [0, 1, 2, 3], []),
    ],
)
def test_an_unreachable_node_ends_the_run_after_its_batch(
    tmp_path: Path, book: str, batch: int, lost: list[int], served: list[int], untouched: list[int]
) -> None:
    for name in ("drain", "resume"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $1" >> {tmp_path}/log\n')
        (tmp_path / name).chmod(0o755)
    hooks = {
        "goldnode_drain": "command",
        "goldnode_accepted": [2],
        "goldnode_drain_command": [str(tmp_path / "drain")],
        "goldnode_resume_command": [str(tmp_path / "resume")],
        "goldnode_reboot_batch": batch,
        "goldnode_drain_for_waiting": True,
    }
    hosts = {f"n{number}": LOST if number in lost else WAITING for number in range(4)}
    if book == "rollback.yml":
        hosts = {name: back(answers) for name, answers in hosts.items()}
    rc, output, record = play(tmp_path, hosts, "-e", json.dumps(hooks), book=ROOT / book)
    log = (tmp_path / "log").read_text().splitlines()
    assert (rc != 0) == bool(lost), output
    assert sorted(line for line in log if line.startswith("resume")) == [
        f"resume n{n}" for n in served
    ], output
    drained = {line.removeprefix("drain ") for line in log if line.startswith("drain")}
    assert drained == {f"n{n}" for n in range(4) if n not in untouched}, output
    assert [name for name, found in outcomes(record).items() if found == "unreachable"] == [
        f"n{n}" for n in lost
    ]


def left_over(where: Path, name: str, in_service: bool = True) -> dict[str, Any]:
    """A converged host that a run, which has ended, had drained; `in_service`: as it was before that."""
    record = drain_record.DrainRecord(
        "command",
        node=name,
        run=f"{identity.place()}-dead01",
        controller="ctl",
        since="2026-01-01T00:00:00Z",
        reason="x",
        in_service=in_service,
    )
    file = where / name / FILE.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(record.text())
    found = plan()
    found["ansible_facts"]["goldnode_left"] = record.about()
    return {"plan": found}


@pytest.mark.parametrize(
    ("accepted", "arguments", "returns"),
    [([2], (), True), ([0], (), False), ([2], ("--check",), False)],
)
def test_node_left_drained_returns_only_after_an_accepted_check(
    tmp_path: Path, accepted: list[int], arguments: tuple[str, ...], returns: bool
) -> None:
    (tmp_path / "resume").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/log\n')
    (tmp_path / "resume").chmod(0o755)
    hooks = {
        "goldnode_drain": "command",
        "goldnode_drain_command": ["false"],
        "goldnode_resume_command": [str(tmp_path / "resume")],
        "goldnode_accepted": accepted,
    }
    hosts = {
        "fine": FLEET["fine"],
        "left": left_over(tmp_path, "left"),
        "theirs": left_over(tmp_path, "theirs", in_service=False),
    }
    rc, output, record = play(tmp_path, hosts, *arguments, "-e", json.dumps(hooks))
    file, words = tmp_path / "left" / FILE.lstrip("/"), re.sub(r"\s+", " ", output)
    assert record["hosts"]["left"]["out_of_service"] is not returns
    assert (tmp_path / "log").exists() is returns
    assert file.exists() is not returns
    if arguments:
        assert rc == 0
        assert "left out of service by run" in words
        return
    assert (rc == 0) is returns
    assert "theirs was out of service before, as false says, and stays so." in words
    assert not (tmp_path / "theirs" / FILE.lstrip("/")).exists()
    if returns:
        assert (tmp_path / "log").read_text() == "left\n"
        assert re.search(
            r"converged: left It was left out of service by run \S+ of ctl, 2026-01-01T00:00:00Z; it is back\.",
            words,
        )
    else:
        assert outcomes(record) == {"fine": "converged", "left": "failed", "theirs": "converged"}
        assert "It was left out of service by run" in words


def verdict(*faults: str) -> dict[str, Any]:
    """A verdict with these items wrong."""
    findings = [
        {
            "id": name,
            "outcome": "mismatch",
            "expected": "none",
            "got": "one",
            "remedy": "Reboot the node.",
        }
        for name in faults
    ]
    names = (
        "match",
        "not_exposed",
        "could_not_read",
        "not_verified_here",
        "deferred",
        "suppressed",
    )
    return {
        "status": "degraded" if faults else "healthy",
        "exit_code": int(bool(faults)),
        "simulated": False,
        "time": "2026-01-01T00:00:00Z",
        "counts": {**dict.fromkeys(names, 0), "mismatch": len(faults)},
        "findings": findings,
    }


# A reboot that reboots nothing.
BOOT = """
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        return {"changed": True, "rebooted": True}
"""
BOOTS = [
    {"goldnode_state": {"operation": "plan"}},
    {"goldnode_state": {"operation": "apply", "part": "sanity"}},
    {"reboot": {}},
]
JUDGE = {"goldnode_state": {"operation": "check"}, "failed_when": False}


@pytest.mark.parametrize(
    ("tasks", "check", "faults"),
    [
        (BOOTS[:2], {}, ["boot.pending"]),
        (BOOTS, {}, []),
        ([*BOOTS, JUDGE], {"rc": 0, "verdict": verdict()}, []),
        ([*BOOTS, JUDGE], {"rc": 1, "verdict": verdict("gpu.count")}, ["gpu.count"]),
        ([*BOOTS, JUDGE], {"rc": 3, "stderr": "the checker is broken"}, []),
        ([*BOOTS[:2], JUDGE], {"rc": 0, "verdict": verdict()}, []),
    ],
    ids=["no-reboot", "not-judged", "healthy", "another-fault", "no-verdict", "judged-again"],
)
def test_the_last_words_are_about_the_node_after_its_reboot(
    tmp_path: Path, tasks: list[dict[str, Any]], check: dict[str, Any], faults: list[str]
) -> None:
    first = plan({"sanity": ["/etc/y"]})
    first["ansible_facts"]["goldnode_plan"]["notes"] = [
        {"subject": "s", "message": "the driver is not loaded"}
    ]
    hosts = {
        "n1": {
            "plan": first,
            "sanity": {**applied("sanity", "/etc/y"), "verdict": verdict("boot.pending")},
            "check": {"changed": False, **check},
        }
    }
    (tmp_path / "stubs").mkdir()
    (tmp_path / "stubs/reboot.py").write_text(BOOT)
    book = tmp_path / "boots.yml"
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    rc, output, record = play(tmp_path, hosts, book=book)
    host = record["hosts"]["n1"]
    assert (rc, host["outcome"]) == (0, "changed"), output
    report = output[output.index("goldnode: 1 host") :]
    assert [line.partition(":")[0] for line in host["faults"]] == faults
    assert ("Reboot the node" in report) == bool(faults), report
    assert host["reboot"] == {"reasons": [], "done": tasks != BOOTS[:2] and tasks[2] != JUDGE}


def test_check_mode_and_limit(tmp_path: Path) -> None:
    rc, output, record = play(tmp_path, FLEET, "--check", "--limit", "fresh,fine")
    assert rc == 0
    assert "goldnode: 2 hosts in " in output
    assert "1 would change, 1 converged" in output
    assert (record["check"], record["limit"], sorted(record["hosts"])) == (
        True,
        "fresh,fine",
        ["fine", "fresh"],
    )


@pytest.mark.parametrize("place", ["off", "file/runs"])
def test_no_record_where_none_is_wanted_and_a_warning_where_none_can_be(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    rc, output, record = play(
        tmp_path,
        {"fine": FLEET["fine"]},
        GOLDNODE_RUNS=place if place == "off" else str(tmp_path / place),
    )
    assert (rc, record) == (0, {})
    assert "goldnode: 1 host in " in output
    assert ("cannot be kept" in re.sub(r"\s+", " ", output)) == (place != "off")


def test_an_interrupted_run_has_a_record_too(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run = start(tmp_path, {"hangs": {"hang": str(mark)}, "fine": FLEET["fine"]}, "--forks", "2")
    while not mark.exists():
        assert run.poll() is None
        time.sleep(0.1)
    for _ in range(
        5
    ):  # Ansible has been seen to miss one that came while it started a worker; a person presses the keys again
        os.killpg(run.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(timeout=20)
            break
    rc, output, record = end(tmp_path, run)
    assert rc != 0
    assert output.count("goldnode: 2 hosts in ") == 1
    assert (record["end"], outcomes(record)["hangs"]) == ("interrupted", "not reached")


def test_a_fault_of_the_report_is_a_warning(tmp_path: Path) -> None:
    fresh = {
        **FLEET["fresh"],
        "kernel": {**FLEET["fresh"]["kernel"], "resources": [{"nothing": "that it knows"}]},
    }
    rc, output, record = play(tmp_path, {"fresh": fresh})
    assert (rc, record) == (0, {})
    assert re.search(
        r"\[WARNING\]: Callback dispatch '\w+' failed for plugin 'goldnode_report'",
        re.sub(r"\s+", " ", output),
    )


OLD = """
import goldnode.ansible.release
goldnode.ansible.release.too_old.__defaults__ = ("2.14.18",)
"""


@pytest.mark.parametrize("managed", [True, False])
def test_an_old_ansible_is_refused_before_any_host_is_asked(tmp_path: Path, managed: bool) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python/sitecustomize.py").write_text(OLD)
    book = tmp_path / "other.yml"
    book.write_text(
        "- hosts: all\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: {msg: hello}}]\n"
    )
    path = str(tmp_path / "python")
    where = ROOT / "site.yml" if managed else book
    rc, output, record = play(tmp_path, {"lost": {}}, book=where, PYTHONPATH=path)
    words = re.sub(r"\s+", " ", output)
    assert (rc, record) == (1 if managed else 0, {})
    assert ("ansible-core 2.14.18" in words and "needs 2.19 or later" in words) is managed
    assert ("PLAY RECAP" in output) is not managed


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (ROOT / "src/goldnode/ansible/action").glob("*.py"))
)
def test_no_plugin_works_with_an_old_ansible(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("goldnode.ansible.release.too_old", lambda: "too old")
    action = importlib.import_module(f"goldnode.ansible.action.{name}").ActionModule
    with pytest.raises(AnsibleError, match="too old"):
        action.run(action.__new__(action))


def test_the_oldest_ansible_is_the_one_of_the_extra() -> None:
    extra = (ROOT / "pyproject.toml").read_text()
    assert f'"ansible-core>={".".join(map(str, release.MINIMUM))}.' in extra
    assert [
        release.too_old(version) is None
        for version in ("2.14.18", "2.18.9rc1", "2.19.0", "2.22.0b2")
    ] == [
        False,
        False,
        True,
        True,
    ]


def test_a_host_whose_event_was_lost_is_unreachable_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python/sitecustomize.py").write_text(
        "import goldnode.fleet.nodes.runs as runs\ndef fail(text): raise AttributeError('result')\nruns.lost_reason = fail\n"
    )
    _, output, record = play(tmp_path, {"lost": {}}, PYTHONPATH=str(tmp_path / "python"))
    assert outcomes(record) == {"lost": "unreachable"}, output


def test_a_foreign_playbook_is_left_alone(tmp_path: Path) -> None:
    book = tmp_path / "other.yml"
    book.write_text(
        "- hosts: all\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: {msg: hello}}]\n"
    )
    rc, output, record = play(tmp_path, {"fine": {}}, book=book)
    assert (rc, record) == (0, {})
    assert "goldnode:" not in output


@pytest.mark.parametrize(
    ("hosts", "arguments", "book", "text"),
    [
        ({}, (), "site.yml", "There is no host in the inventory"),
        ({"fine": FLEET["fine"]}, ("--limit", "nobody"), "site.yml", "nobody"),
        ({"fine": FLEET["fine"]}, ("--limit", "fine,nobody"), "site.yml", "nobody"),
        ({"fine": FLEET["fine"]}, ("-i", "absent.yml"), "site.yml", "absent.yml"),
        ({"fine": FLEET["fine"]}, (), "stie.yml", "stie.yml could not be found"),
    ],
    ids=["empty-inventory", "limit", "half-a-limit", "inventory", "playbook"],
)
def test_a_run_on_nothing_is_an_error(
    tmp_path: Path, hosts: dict[str, Any], arguments: tuple[str, ...], book: str, text: str
) -> None:
    rc, output, _ = play(tmp_path, hosts, *arguments, book=book)
    assert rc == 1, output
    assert text in re.sub(r"\s+", " ", output)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("module", "goldnode_state"), ("callback", "goldnode_report"), ("vars", "goldnode_class")],
)
def test_ansible_doc_reads_the_plugins(kind: str, name: str) -> None:
    done = subprocess.run(
        [str(BIN / "ansible-doc"), "-t", kind, "--json", name],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)[name]
    assert reported["doc"]["description"]
    if kind == "module":
        assert set(reported["return"]) >= {"resources", "refusals", "verdict", "node_class", "part"}
        assert reported["return"]["resources"]["contains"].keys() >= {
            "resource",
            "changed",
            "would_change",
            "reason",
            "seconds",
        }

"""What became of each host of a run: the outcome, its reason, the record, the lines for a person. No Ansible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from goldnode.fleet.nodes import runs
from goldnode.fleet.nodes.runs import HostRun, PlaybookRun, RunsError

GPU_IN_USE = {
    "code": "gpu-in-use",
    "message": "GPU in use by python (pid 41).",
    "remedy": "Drain the node.",
}
WRONG_OS = {"code": "wrong-os", "message": "The node runs debian 12.", "remedy": "Reinstall it."}


def action(part: str = "kernel", **changes: Any) -> dict[str, Any]:
    return {
        "part": part,
        "kind": "file.write",
        "target": "/etc/x",
        "reason": "want a, have b",
        "phase": "image",
        "before": "b",
        "after": "a",
        "reboot": None,
        **changes,
    }


def plan(*actions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "actions": list(actions),
        "notes": [],
        "waiting": [],
        "reboot": {"required": False, "reasons": [], "after": []},
        **changes,
    }


def row(**changes: Any) -> dict[str, Any]:
    return {**action(), "told": None, "error": None, "seconds": 0.1, **changes}


def verdict(*findings: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "degraded",
        "exit_code": 1,
        "simulated": True,
        "time": "T",
        "counts": {"mismatch": 1},
        "findings": list(findings),
    }


FINDING = {
    "id": "pcie.width",
    "outcome": "mismatch",
    "expected": 16,
    "got": 8,
    "remedy": "Reseat the GPU.",
}
ELSEWHERE = {
    "id": "kernel.running",
    "outcome": "not_verified_here",
    "expected": "6.1",
    "got": None,
    "remedy": "",
}
NEEDED = {
    "required": True,
    "reasons": ["kernel 6.1 runs, want 6.2"],
    "after": ["kernel 6.1 runs, want 6.2"],
}
LATER = {"required": False, "reasons": [], "after": ["kernel 6.2 is installed"]}
WAITS = [
    {
        "part": "container_runtime",
        "subject": "docker.service",
        "message": "a restart waits: container 4711 has a GPU",
    }
]


def converged(host: HostRun) -> None:
    host.saw_plan(plan())


def changed(host: HostRun) -> None:
    host.saw_plan(plan(action(), action("sanity")))
    # The kernel's transaction brought what the second part wanted, too.
    host.saw_apply("kernel", runs.applied([row()], "kernel"), plan(), verdict(ELSEWHERE))


def degraded(host: HostRun) -> None:
    host.saw_plan(plan(action()))
    host.saw_apply("kernel", runs.applied([row()], "kernel"), plan(), verdict(FINDING, ELSEWHERE))


def failed(host: HostRun) -> None:
    host.saw_plan(plan(action(), action("sanity")))
    rows = [row(), row(error="apt finds no way\nmore", target="kernel")]
    host.saw_apply("kernel", runs.applied(rows, "kernel"), None, None)
    host.error = {
        "task": "Install the locked kernel",
        "part": "kernel",
        "message": "\napt finds no way\nmore",
    }


def other_task(host: HostRun) -> None:
    host.saw_plan(plan())
    host.error = {"task": "Reboot the node", "part": None, "message": "timed out"}


def held(host: HostRun) -> None:
    host.refusals, host.error = [GPU_IN_USE], {"task": "t", "part": None, "message": "refused"}


def refused(host: HostRun) -> None:
    host.refusals = [WRONG_OS, GPU_IN_USE]


def unreachable(host: HostRun) -> None:
    converged(host)
    host.unreachable = "ssh: connect to host 10.0.0.9 port 22: Connection refused"


def lost_while_out(host: HostRun) -> None:
    unreachable(host)
    host.out_of_service = True


def reboot(host: HostRun) -> None:
    host.saw_plan(plan(reboot=NEEDED, waiting=WAITS))


def reboot_held(host: HostRun) -> None:
    host.saw_plan(
        plan(
            reboot={
                **NEEDED,
                "required": False,
                "held": ["the next boot would turn ECC off for GPU 0"],
            }
        )
    )


def rebooted(host: HostRun) -> None:
    reboot(host)
    host.plan = {**(host.plan or {}), "waiting": []}
    host.rebooted = True


def waiting(host: HostRun) -> None:
    host.saw_plan(plan(waiting=WAITS))


def partly(host: HostRun) -> None:
    host.saw_plan(plan(action(), action("sanity")))
    host.saw_apply("kernel", runs.applied([row()], "kernel"), plan(action("sanity")), None)


@pytest.mark.parametrize(
    ("told", "outcome", "why"),
    [
        (converged, "converged", None),
        (changed, "changed", None),
        (degraded, "changed", "the check finds pcie.width: want 16, have 8. Reseat the GPU."),
        (failed, "failed", "in part kernel: apt finds no way"),
        (other_task, "failed", "in task “Reboot the node”: timed out"),
        (held, "held", "[gpu-in-use] GPU in use by python (pid 41). Drain the node."),
        (
            refused,
            "refused",
            "[wrong-os] The node runs debian 12. Reinstall it. [gpu-in-use] GPU in use by python (pid 41). Drain the node.",
        ),
        (unreachable, "unreachable", "ssh: connect to host 10.0.0.9 port 22: Connection refused"),
        (
            lost_while_out,
            "unreachable",
            "ssh: connect to host 10.0.0.9 port 22: Connection refused It was taken out of service by this run and is still out.",
        ),
        (
            reboot,
            "reboot pending",
            "Needs a reboot: kernel 6.1 runs, want 6.2. Allow it with -e goldnode_reboot=true.",
        ),
        (
            reboot_held,
            "reboot pending",
            "Needs a reboot: kernel 6.1 runs, want 6.2. It is held back, since the next boot would turn ECC off for GPU 0: "
            "see policy.ecc and policy.mig of `goldnode-node check` on the node.",
        ),
        (rebooted, "converged", None),
        (
            waiting,
            "waiting for drain",
            "docker.service: a restart waits: container 4711 has a GPU. Allow the drain with -e goldnode_drain_for_waiting=true.",
        ),
        (
            partly,
            "not reached",
            "not applied: part sanity, because the run ended before or its tags leave it out. Run again.",
        ),
        (
            lambda host: None,
            "not reached",
            "its turn did not come, because the run ended before or its tags leave it out. Run again.",
        ),
    ],
)
def test_events_of_a_host_give_its_outcome_and_reason(
    told: Any, outcome: str, why: str | None
) -> None:
    host = HostRun("gpu01")
    told(host)
    assert (host.outcome(False), host.why(False)) == (outcome, why)
    assert json.loads(json.dumps(host.to_json(False)))["outcome"] == outcome


def test_check_mode_speaks_of_what_would_be() -> None:
    run = PlaybookRun(check=True)
    run.host("a").saw_plan(plan(action()))
    run.host("b").saw_plan(plan(action(), reboot=LATER))
    run.host("c").saw_plan(plan())
    text = run.text(1)
    assert "1 reboot pending, 1 would change, 1 converged" in text
    assert "  would change: a\n    1 differences: kernel 1. See them with -v." in text
    assert "Would need a reboot: kernel 6.2 is installed." in text
    assert "goldnode_reboot" not in text


def test_record_separates_changed_from_unchanged_parts() -> None:
    run = PlaybookRun({"playbook": "site.yml"})
    failed(run.host("gpu01"))
    record = run.to_json()
    assert (record["schema"], record["counts"]) == ("goldnode.run/1", {"failed": 1})
    host = record["hosts"]["gpu01"]
    first, second = host["parts"]["kernel"]
    assert (first["changed"], first["would_change"], first["seconds"], first["error"]) == (
        True,
        False,
        0.1,
        None,
    )
    assert (second["changed"], second["would_change"], second["error"]) == (
        False,
        True,
        "apt finds no way",
    )
    (left,) = host["parts"]["sanity"]
    assert (left["changed"], left["would_change"], left["seconds"]) == (False, True, None)
    assert left["reason"] == "want a, have b"


def test_contents_of_resources_are_short_and_without_secrets() -> None:
    long = "x\n" * 500
    shown = runs.resource(
        row(
            before=None,
            after=long,
            told="y" * 9000,
            reason="deb https://user:geheim@mirror.example/ x",
        ),
        done=True,
    )
    assert shown["before"] is None
    assert shown["after"].startswith("sha256:")
    assert shown["after"].endswith("(500 lines)")
    assert len(shown["told"]) < 2100
    assert shown["reason"] == "deb https://***@mirror.example/ x"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one line", "one line"),
        ("\n  head\nE: not asked for", "head"),
        ("apt fails:\nReading lists\nE: no such package\nE: more", "apt fails: E: no such package"),
        (
            "apt fails:\ndpkg: error processing x\nE: dpkg failed\n x.c:1:2: error: y\n",
            "apt fails: x.c:1:2: error: y",
        ),
        # A parallel build prints errors in any order; each node has the same first one.
        ("a:\n x.c:17:1: error: y\n x.c:9:16: error: z\n", "a: x.c:9:16: error: z"),
        ("a:\n y.c:1:1: error: y\n x.c:9: error: z\n", "a: x.c:9: error: z"),
        ("dkms fails:\nlast words\n", "dkms fails: last words"),
        ("nothing:", "nothing: no message"),
    ],
)
def test_an_error_in_one_line(text: str, line: str) -> None:
    assert runs.gist(text) == line


def test_a_fleet_of_a_thousand_is_a_few_lines() -> None:
    run = PlaybookRun()
    for number in range(1000):
        host = run.host(f"gpu{number:04}")
        converged(host)
        if number % 10 == 3:
            host.unreachable = (
                f"ssh: connect to host gpu{number:04} port {2000 + number}: No route to host"
            )
        if number == 500:
            failed(host)
    text = run.text(61.4)
    assert (
        text.splitlines()[0]
        == "goldnode: 1000 hosts in 61 s: 100 unreachable, 1 failed, 899 converged"
    )
    assert len(text.splitlines()) == 5
    assert "gpu0003, gpu0013" in text
    assert "and 92 more" in text
    assert "ssh: connect to host ADDRESS port N: No route to host" in text
    assert "  failed: gpu0500" in text
    assert max(len(line) for line in text.splitlines()) < 140


def test_many_reasons_are_cut_short() -> None:
    run = PlaybookRun()
    for number in range(40):
        run.host(f"n{number:02}").unreachable = "x" * (number + 1)
    assert run.text(0).splitlines()[-1] == "  and 15 more reasons; the record names every host"


def test_run_counts_hosts_with_simulated_hardware() -> None:
    run = PlaybookRun()
    degraded(run.host("a"))
    assert "(1 with SIMULATED HARDWARE)" in run.text(0)


def test_the_last_records_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        path = runs.store_run(
            tmp_path / "runs", f"2026010{number}T000000Z-site", {"number": number}, 3
        )
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    assert path == runs.store_run(tmp_path / "runs", "20260104T000000Z-site", {}, 3).with_name(
        "20260104T000000Z-site.json"
    )
    assert sorted(found.name for found in (tmp_path / "runs").iterdir()) == [
        "20260103T000000Z-site.json",
        "20260104T000000Z-site-2.json",
        "20260104T000000Z-site.json",
        "notes.txt",
    ]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunsError, match="GOLDNODE_RUNS=off"):
        runs.store_run(tmp_path / "file" / "runs", "20260104T000000Z-site", {}, 3)


def taken_back(name: str, again: bool = False, **changes: Any) -> HostRun:
    """A host that returned to an earlier class document, or had done so before."""
    to = {
        "class": "gpu",
        "stack": "older",
        "lock_digest": "sha256:aaaaaaaaaaaaaaaa",
        "release": "6.1",
    }
    left = {
        "class": "gpu",
        "stack": "newer",
        "lock_digest": "sha256:bbbbbbbbbbbbbbbb",
        "release": "6.2",
    }
    return HostRun(
        name,
        plan=plan(),
        rollback={"to": to, "left": to if again else left, "again": again},
        **changes,
    )


def test_rollback_is_reported_with_the_command_that_preserves_it() -> None:
    hosts = [
        taken_back("a"),
        taken_back("b"),
        taken_back("c", again=True),
        taken_back("d", unreachable="gone"),
    ]
    run = PlaybookRun(hosts={host.name: host for host in hosts})
    text = run.text(1)
    for line in (
        "  taken back: a, b\n    from lock bbbbbbbbbbbb (newer) to class gpu, lock aaaaaaaaaaaa (older, kernel 6.1).",
        "  taken back already: c\n",
        "  THE NEXT RUN OF site.yml TAKES THEM FORWARD AGAIN",
        "git log -- '*older.lock.yml'; git checkout COMMIT -- FILE",
    ):
        assert line in text, text
    assert "taken back: a, b, d" not in text
    assert run.to_json()["hosts"]["a"]["rollback"]["to"]["stack"] == "older"
    assert "would be taken back: a, b" in PlaybookRun(check=True, hosts=run.hosts).text(1)


def test_run_without_a_rollback_does_not_mention_one() -> None:
    assert "taken" not in PlaybookRun(hosts={"a": HostRun("a", plan=plan())}).text(1)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("Timeout (12s) waiting for privilege escalation prompt:", "ansible_become_exe"),
        ("Incorrect sudo password", "--ask-become-pass"),
        ("Incorrect sudo password of a site", ""),
        ("Timeout (12s) waiting for the node", ""),
    ],
)
def test_report_of_ansible_without_a_remedy_gets_one(message: str, advice: str) -> None:
    text = runs.lost_reason(message)
    assert advice in text
    assert (text == message) is not bool(advice)

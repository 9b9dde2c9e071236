"""goldnode-canary on a node without GPU: results, limits, crashes, signals, and a site's own jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.unit.canary.conftest import Json, Start, small

from goldnode.canary import pack
from goldnode.canary.runner import machine, plan, process, site_job
from goldnode.canary.runner import start as starting
from goldnode.canary.runner.records import JobEnded
from goldnode.commands.schema.kinds import schema
from goldnode.documents.canary import CanaryDocument
from goldnode.gpuprogram import cpu, linear
from goldnode.gpuprogram.children import EndedChild, process_state

QUICK = ("discovery", "memory_bandwidth", "gemm", "host_copies", "launch_latency", "storage")


def site(command: list[str], limit: float = 20, **more: Any) -> Json:
    return small(
        site_jobs=[{"name": "own", "command": command, "limit": limit, **more}],
        jobs=["own"],
        tier="cpu",
    )


def test_the_cpu_tier_measures_and_conforms_to_the_schema(start: Start, program: Path) -> None:
    code, found = start(small(tier="cpu", jobs=QUICK, values={"node": "n1", "class": "cpu_only"}))
    assert code == 0
    assert {job.name: job.state for job in found.jobs} == dict.fromkeys(QUICK, "passed")
    assert (found.node, found.class_, found.how, found.simulated) == (
        "n1",
        "cpu_only",
        "local",
        False,
    )
    assert found.runner == pack.digest()
    assert found.platform.endswith(f"x {len(os.sched_getaffinity(0))}")
    assert all(job.verified for job in found.jobs)
    names = {metric.name for job in found.jobs for metric in job.metrics}
    assert {"memory_copy", "start", "storage_read", "storage_stat"} <= names
    jsonschema.validate(found.model_dump(by_alias=True), schema("canary"))


def test_a_node_without_pytorch_lacks_those_jobs(start: Start) -> None:
    code, found = start(small(tier="cpu", jobs=["inference", "training", "all_reduce"]))
    assert code == 0
    assert {job.state for job in found.jobs} == {"not_run"}
    assert {job.why for job in found.jobs} == {"PyTorch is not here"}


def test_a_job_past_its_limit_is_killed_and_gives_no_verdict(start: Start) -> None:
    code, found = start(site(["sleep", "60"], limit=0.5))
    assert (code, found.jobs[0].state) == (3, "could_not_check")
    assert "did not end within 0.5 s" in found.jobs[0].why


def test_processes_that_a_job_left_behind_are_killed(start: Start, tmp_path: Path) -> None:
    """The process group goes, whatever the job started in the background."""
    mark = tmp_path / "pid"
    start(site(["sh", "-c", f"sleep 300 >/dev/null 2>&1 & echo $! > {mark}"]))
    pid = int(mark.read_text())
    for _ in range(100):
        if process_state(pid) in ("unknown", "Z"):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")


METRIC = {"name": "x", "unit": "ms", "better": "lower", "samples": [1, 2]}
SITE_RESULTS = [
    (0, b"all well\n", "passed", 0),
    (0, b"", "passed", 0),
    (0, json.dumps({"metrics": [METRIC], "facts": {"a": 1, "b": [1]}}).encode(), "passed", 1),
    (1, json.dumps({"metrics": [METRIC]}).encode(), "failed", 1),
    (2, b"GPU 3: memory differs", "failed", 0),
    (3, b"no licence", "could_not_check", 0),
    (127, b"", "could_not_check", 0),
    (-9, b"", "could_not_check", 0),
    (0, b"{not json", "could_not_check", 0),
    (0, b'{"facts": ["a list"]}', "could_not_check", 0),
    (
        0,
        b'{"metrics": [{"name": "x", "unit": "s", "better": "lower", "samples": [1'
        + b"0" * 400
        + b"]}]}",
        "could_not_check",
        0,
    ),
    (0, b'{"metrics": ' + b"[" * 100_000, "could_not_check", 0),
    (0, b'{"metrics": [{"name": "x"}]}', "could_not_check", 0),
    (0, json.dumps({"metrics": [{**METRIC, "better": "faster"}]}).encode(), "could_not_check", 0),
    (
        0,
        b'{"metrics": [{"name": "x", "unit": "s", "better": "lower", "samples": [NaN]}]}',
        "could_not_check",
        0,
    ),
]


@pytest.mark.parametrize(("status", "out", "state", "metrics"), SITE_RESULTS)
def test_results_of_a_site_command(status: int, out: bytes, state: str, metrics: int) -> None:
    found = site_job.result(status, out, b"")
    assert (found["state"], len(found["metrics"])) == (state, metrics)
    assert bool(found["why"]) == (state != "passed")


def test_a_site_command_that_does_not_exist_gives_no_verdict(start: Start) -> None:
    code, found = start(site(["/nonexistent/program"]))
    assert (code, found.jobs[0].state) == (3, "could_not_check")


ANSWERS = [
    (0, b'{"state": "passed"}', "passed"),
    (0, b"garbage", "could_not_check"),
    (0, b'{"state": "wonderful"}', "could_not_check"),
    (1, b"", "could_not_check"),
    (-signal.SIGSEGV, b"", "failed"),
    (-signal.SIGKILL, b"", "could_not_check"),
]


@pytest.mark.parametrize(("status", "out", "state"), ANSWERS)
def test_answers_of_a_job_process(status: int, out: bytes, state: str) -> None:
    assert process.answered(EndedChild(status, out, b"last line", 1.0))["state"] == state


def test_a_fault_of_the_program_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    found = process.answer({"call": "cpu_jobs.gemm", "arguments": {"surprise": 1}})
    assert found["state"] == "could_not_check"
    assert "TypeError" in found["why"]
    wrong = process.answer({"call": "cpu_jobs.discovery", "arguments": {"expected": 12345}})
    assert wrong["state"] == "failed"
    assert "the class has 12345 CPUs" in wrong["why"]


def test_a_wrong_product_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from goldnode.canary.runner import cpu_jobs

    monkeypatch.setattr(cpu, "blas", lambda: None)
    monkeypatch.setattr(linear, "multiply", lambda left, right: [[0.0] * len(left) for _ in left])
    with pytest.raises(JobEnded, match="the fp32 product is wrong in row 0"):
        cpu_jobs.gemm(samples=1, seconds=0.01)


CODES = [
    (["passed", "not_run"], 0),
    (["passed", "could_not_check"], 3),
    (["passed", "not_counted"], 3),
    (["failed", "could_not_check"], 2),
    ([], 3),
]


@pytest.mark.parametrize(("states", "code"), CODES)
def test_exit_code_follows_from_the_states_of_jobs(states: list[str], code: int) -> None:
    assert starting.exit_code({"jobs": [{"state": state} for state in states]}) == code


@pytest.mark.parametrize("end", ["SIGTERM", "EOF"])
def test_an_ended_run_writes_its_document_and_counts_nothing(
    program: Path, tmp_path: Path, end: str
) -> None:
    asked = tmp_path / "request.json"
    rows = [
        {"name": name, "command": ["sleep", seconds], "limit": 60}
        for name, seconds in (("a", "0"), ("b", "50"))
    ]
    asked.write_text(json.dumps(small(site_jobs=rows, jobs=["a", "b"], tier="cpu")))
    process = subprocess.Popen(
        [sys.executable, "-I", str(program), "--request", str(asked), "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert process.stdin is not None
    for line in process.stderr:
        if line.strip().endswith(b" b"):
            break
    time.sleep(0.3)
    if end == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        process.stdin.close()
        process.stdin = None
    out, _ = process.communicate(timeout=10)
    found = CanaryDocument.model_validate_json(out)
    # The first job had passed less than ten seconds before, so that it may have been disturbed.
    assert [job.state for job in found.jobs] == ["not_counted", "not_counted"]
    assert process.returncode == 3
    assert "ended" in found.jobs[1].why


def test_jobs_are_selected_and_wrong_names_refused() -> None:
    request = plan.request(small(jobs=["gemm"], limits={"gemm": 5}))
    (job,) = plan.jobs(request, "gpu")
    assert (job.name, job.call, job.limit, job.arguments["samples"]) == ("gemm", "gemm.gemm", 5, 2)
    with pytest.raises(ValueError, match="there is no job gem"):
        plan.jobs(plan.request(small(jobs=["gem"])), "gpu")
    with pytest.raises(ValueError, match="no request of schema"):
        plan.request({"schema": "goldnode.canary-request/2"})


VERIFIED = [
    ("gpu", "gemm", "NVIDIA H200 x 1", True),
    ("gpu", "gemm", "NVIDIA H100 80GB HBM3 x 8", False),
    ("gpu", "gemm", "SIMULATED board x 1", False),
    ("gpu", "all_reduce", "NVIDIA H200 x 8", False),
    ("cpu", "gemm", "AMD EPYC x 2", True),
]


@pytest.mark.parametrize(("tier", "name", "platform", "wanted"), VERIFIED)
def test_a_job_is_verified_on_hardware_that_it_was_seen_on(
    tier: str, name: str, platform: str, wanted: bool
) -> None:
    (job,) = plan.jobs(plan.request(small(jobs=[name])), tier)
    assert plan.verified(job, tier, platform) is wanted


def test_every_call_of_the_table_exists() -> None:
    import importlib

    for row in plan.table():
        for tier in (tier for tier in plan.TIERS if tier in row):
            module, _, function = row[tier]["call"].rpartition(".")
            assert callable(
                getattr(importlib.import_module(f"goldnode.canary.runner.{module}"), function)
            )


def test_the_program_is_reproducible_and_has_no_other_package(program: Path) -> None:
    assert program.read_bytes() == pack.program()
    with zipfile.ZipFile(program) as archive:
        names = set(archive.namelist())
    assert not {
        name
        for name in names
        if name.startswith(("goldnode/core", "goldnode/fleet", "goldnode/facts"))
    }


def test_cpu_lists_quotas_and_file_systems(tmp_path: Path) -> None:
    assert machine.cpu_list("0-3,8,x") == {0, 1, 2, 3, 8}
    assert machine.quota(str(tmp_path)) is None
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("90000 100000\n")
    assert machine.quota(str(tmp_path)) == 0.9
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert machine.quota(str(tmp_path)) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(
        "/dev/a / ext4 rw 0 0\nfs /scratch lustre rw 0 0\nfs /scratchy nfs4 rw 0 0\n"
    )
    root = str(tmp_path)
    assert [machine.file_system(path, root) for path in ("/scratch/x", "/scratchy", "/var")] == [
        "lustre",
        "nfs4",
        "ext4",
    ]


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: Xeon  8480+\n", "Xeon 8480+"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "0x41 0xd4f"),
        ("processor\t: 0\n", os.uname().machine),
    ],
)
def test_processor_of_arm_is_named_by_its_numbers(tmp_path: Path, text: str, model: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text, encoding="utf-8")
    assert machine.processor(str(tmp_path)) == model

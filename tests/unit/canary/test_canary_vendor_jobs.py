"""`dcgmi diag` and nvbandwidth as jobs: their outputs in the forms of the projects' sources. Neither has run here.

DCGM: nvvs/include/NvvsCommon.h, nvvs/tests, dcgmi/Diag.cpp and dcgmi/tests/DiagTests.cpp. nvbandwidth: json_output.cpp. The values are ours.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldnode.canary import suite
from goldnode.canary.runner import plan, vendor_jobs
from goldnode.canary.runner.records import JobEnded
from goldnode.canary.runner.vendor_jobs import judged_dcgm, judged_nvbandwidth

Json = dict[str, Any]


def dcgm(*results: Json, **root: Any) -> str:
    tests: list[Any] = [
        {"name": f"test {number}", "results": [row]} for number, row in enumerate(results)
    ]
    # DCGM 3 writes null between tests.
    categories = [
        {"category": "Deployment", "tests": [tests[0], None, *tests[1:]] if tests else []}
    ]
    return json.dumps(
        {"DCGM GPU Diagnostic": {"test_categories": categories, "version": "3.1.0", **root}}
    )


def row(status: str, **more: Any) -> Json:
    return {"gpu_ids": "0,1", "status": status, **more}


DCGM = [
    ((0, dcgm(row("PASS"), row("Pass")), ""), "passed", ""),
    ((0, "WARNING: a line before\n" + dcgm(row("Pass")), ""), "passed", ""),
    ((0, dcgm(row("Pass"), row("Skip")), ""), "passed", ""),
    ((0, dcgm(row("Pass"), row("Warn", warnings=["hot"])), ""), "passed", "test 1 (GPU 0,1): hot"),
    ((226, dcgm(row("Pass"), row("Fail", warnings="row remap")), ""), "failed", "test 1 (GPU 0,1): row remap"),
    ((226, dcgm(row("Fail", warnings=[{"warning": "ECC", "error_id": 3}])), ""), "failed", "test 0 (GPU 0,1): ECC"),
    # A failed test counts with any exit status.
    ((0, dcgm(row("FAIL")), ""), "failed", "test 0 (GPU 0,1)"),
    ((0, dcgm({"entity_group": "GPU", "entity_id": 3, "status": "Fail"}), ""), "failed", "test 0 (GPU 3)"),
    ((0, dcgm(row("Skip", info=["not supported"])), ""), "not_run", "skipped every test: not supported"),
    ((0, dcgm(), ""), "not_run", "without a reason"),
    ((226, dcgm(row("Pass")), "host engine"), "could_not_check", "status 226, and no test failed: host engine"),
    ((0, dcgm(row("Perhaps")), ""), "could_not_check", "unknown status perhaps"),
    ((1, json.dumps({"DCGM GPU Diagnostic": {"runtime_error": "no host engine"}}), ""), "could_not_check", "no host engine"),
    ((1, "Error: unable to connect", ""), "could_not_check", "status 1 and printed no results: Error: unable to connect"),
    ((0, "", ""), "could_not_check", "printed no results: nothing"),
    ((0, '{"a": 1, "b": 2}', ""), "could_not_check", "printed no results"),
]  # fmt: skip


def ended(call: Any, *arguments: Any) -> Json:
    try:
        found: Json = call(*arguments)
    except JobEnded as problem:
        return dict(problem.result)
    return found


@pytest.mark.parametrize(("given_", "state", "why"), DCGM)
def test_dcgm_output_gives_state_and_reason(
    given_: tuple[int, str, str], state: str, why: str
) -> None:
    found = ended(judged_dcgm, *given_)
    assert (found["state"], why in found["why"]) == (state, True), found


def test_version_and_counts_of_dcgm_are_facts() -> None:
    found = judged_dcgm(0, dcgm(row("Pass"), row("Skip")), "")
    assert found["facts"] == {"passed": 1, "skipped": 1, "dcgm": "3.1.0"}


def copies(*rows: Json, **root: Any) -> str:
    return json.dumps({"nvbandwidth": {"testcases": list(rows), "version": "v0.8", **root}})


def case(name: str, status: str, **more: Any) -> Json:
    return {"name": name, "status": status, **more}


RATE = {
    "sum": 55.5,
    "bandwidth_matrix": [["55.5", "N/A"]],
    "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
}
LATENCY = {"sum": 700.0, "bandwidth_description": "memory latency SM CPU(row) <-> GPU(column) (ns)"}
NVBANDWIDTH = [
    ((0, copies(case("h2d", "Passed", **RATE)), ""), "passed", ""),
    ((0, copies(case("h2d", "Passed", **RATE), case("d2d", "Waived")), ""), "passed", ""),
    ((0, copies(case("d2d", "Waived")), ""), "not_run", "waived every test case"),
    ((0, copies(case("latency", "Passed", **LATENCY)), ""), "not_run", "waived every test case"),
    ((1, copies(case("h2d", "Error")), ""), "could_not_check", "h2d: Error"),
    ((0, copies(case("h2d", "Not Found")), ""), "could_not_check", "h2d: Not Found"),
    ((0, copies(case("h2d", "Running")), ""), "could_not_check", "h2d: Running"),
    ((1, json.dumps({"nvbandwidth": {"error": "CUDA_ERROR_NO_DEVICE"}}), ""), "could_not_check", "CUDA_ERROR_NO_DEVICE"),
    ((1, copies(case("h2d", "Passed", **RATE)), "cleanup"), "could_not_check", "status 1: cleanup"),
    ((127, "", "not there"), "could_not_check", "status 127 and printed no results: not there"),
]  # fmt: skip


@pytest.mark.parametrize(("given_", "state", "why"), NVBANDWIDTH)
def test_nvbandwidth_output_gives_state_and_reason(
    given_: tuple[int, str, str], state: str, why: str
) -> None:
    found = ended(judged_nvbandwidth, *given_)
    assert (found["state"], why in found["why"]) == (state, True), found


def test_sums_of_nvbandwidth_are_metrics() -> None:
    (one,) = judged_nvbandwidth(0, copies(case("h2d", "Passed", **RATE)), "")["metrics"]
    assert (one["name"], one["unit"], one["samples"]) == ("nvbandwidth_h2d", "GB/s", [55.5])


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)


@given(st.integers(0, 255), JSON | st.text(max_size=50))
def test_any_other_output_passes_nothing(status: int, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    for call in (judged_dcgm, judged_nvbandwidth):
        assert ended(call, status, text, "")["state"] != "passed"


def test_the_programs_are_run_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for call, name in ((vendor_jobs.dcgm, "dcgmi"), (vendor_jobs.nvbandwidth, "nvbandwidth")):
        assert ended(call)["why"] == f"{name} is not installed"
    for name, text in (
        ("dcgmi", dcgm(row("Pass"))),
        ("nvbandwidth", copies(case("h2d", "Passed", **RATE))),
    ):
        (tmp_path / name).write_text(
            f"#!/bin/sh\necho \"$@\" >{tmp_path}/{name}.words\nprintf '%s' '{text}'\n"
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    assert vendor_jobs.dcgm(level=1)["state"] == "passed"
    assert vendor_jobs.nvbandwidth(["h2d"])["state"] == "passed"
    assert (tmp_path / "dcgmi.words").read_text().split() == ["diag", "--run", "1", "--json"]
    assert (tmp_path / "nvbandwidth.words").read_text().split() == ["--json", "--testcase", "h2d"]


def test_the_jobs_run_by_name_and_are_not_verified() -> None:
    usual = set(suite.load_suite().usual)
    for name in ("dcgm", "nvbandwidth"):
        assert name not in usual
        (job,) = plan.jobs(plan.request({"schema": plan.REQUEST, "jobs": [name]}), "gpu")
        assert not plan.verified(job, "gpu", "NVIDIA H200 x 8")
        assert plan.jobs(plan.request({"schema": plan.REQUEST, "jobs": [name]}), "cpu") == []

"""The jobs file of a site: errors with lines, and the request that it becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.canary import suite
from goldnode.canary.errors import CanaryError
from goldnode.canary.runner import plan
from goldnode.canary.suite import CanaryClass

GOOD = """\
canary: 1
skip: [training]
arguments:
  storage: {directories: [/scratch]}
limits: {gemm: 600}
jobs:
- name: dcgm_diag
  title: DCGM's short test
  command: [dcgmi, diag, --run, "2"]
  tier: gpu
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "canary.yml"
    path.write_text(text)
    return path


def test_a_site_adds_skips_and_sets(tmp_path: Path) -> None:
    found = suite.load_suite(write(tmp_path, GOOD))
    assert found.names[-1] == "dcgm_diag"
    assert "training" not in found.names
    asked = suite.request(
        found, class_=CanaryClass("h200", "sha256:1", 8, False, architectures=("90",))
    )
    read = plan.request(asked)
    gpu = {job.name: job for job in plan.jobs(read, "gpu")}
    assert list(gpu) == found.usual
    assert gpu["gemm"].limit == 600
    assert gpu["storage"].arguments == {"directories": ["/scratch"]}
    assert gpu["discovery"].arguments == {"expected": 8}
    assert gpu["extension"].arguments == {"architectures": ["90"]}
    assert gpu["dcgm_diag"].command == ("dcgmi", "diag", "--run", "2")
    assert "dcgm_diag" not in {job.name for job in plan.jobs(read, "cpu")}
    assert read.values == {"class": "h200", "class_digest": "sha256:1"}


BAD = [
    (GOOD.replace("skip: [training]", "skip: [trainig]"), 2, '"trainig"', 'use "training"'),
    (GOOD.replace("storage:", "storge:"), 4, '"storge"', 'use "storage"'),
    (GOOD.replace("limits: {gemm: 600}", "limits: {gem: 600}"), 5, '"gem"', 'use "gemm"'),
    (GOOD.replace("limits: {gemm: 600}", "limits: {gemm: 0}"), 5, "gemm", ""),
    (GOOD.replace("name: dcgm_diag", "name: gemm"), 7, 'two jobs "gemm"', "another name"),
    (GOOD.replace("name: dcgm_diag", "name: DCGM"), 7, "DCGM", ""),
    (GOOD.replace('command: [dcgmi, diag, --run, "2"]', "command: []"), 9, "command", ""),
    (GOOD.replace("tier: gpu", "tire: gpu"), 10, "tire", "tier"),
    (GOOD.replace("canary: 1", "canary: 2"), 1, "2", ""),
    ("jobs: [\n", 2, "YAML", ""),
]


@pytest.mark.parametrize(("text", "line", "message", "remedy"), BAD)
def test_an_error_names_file_line_and_remedy(
    tmp_path: Path, text: str, line: int, message: str, remedy: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(CanaryError) as caught:
        suite.load_suite(path)
    assert (caught.value.file, caught.value.line) == (str(path), line), str(caught.value)
    assert message in caught.value.message
    assert remedy in str(caught.value.remedy)


def test_an_unknown_job_of_the_command_line_is_refused() -> None:
    with pytest.raises(CanaryError, match="there is no job"):
        suite.request(suite.load_suite(), ("gem",))


def test_only_the_arguments_of_wanted_jobs_are_sent(tmp_path: Path) -> None:
    found = suite.request(
        suite.load_suite(write(tmp_path, GOOD)), ("storage",), class_=CanaryClass("x", gpus=8)
    )
    assert set(found["arguments"]) == {"storage"}
    assert found["limits"] == {}

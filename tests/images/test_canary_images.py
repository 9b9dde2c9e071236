"""The canary suite in two real CPU images with Debian's PyTorch, by the container engine; and a process that a CPU quota slows down."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.canary.conftest import small

from goldnode.canary import launchers, results, session
from goldnode.canary.launchers import ContainerOptions
from goldnode.cli import main
from goldnode.core.site import archive_url, load_site
from goldnode.documents.canary import CanaryDocument
from goldnode.testing.lab.images import KEYRING

pytestmark = [
    pytest.mark.images,
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]
# Debian release -> version of its python3-torch
TORCH = {"bookworm": "1.13", "trixie": "2.6"}
SPREAD = 0.02  # of the medians of equal runs, above which this machine is not quiet enough for a loss of 10 %


def built(release: str) -> str:
    """Return the image of a release. It is built once, and stays for later runs."""
    name = f"goldnode-canary-lab/torch-{release}"
    if subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode == 0:
        return name
    words = ["mmdebstrap", "--quiet", "--variant=apt", "--include=python3-torch", f"--keyring={KEYRING}"]
    with subprocess.Popen(
        [*words, release, "-", archive_url(load_site(), "debian")], stdout=subprocess.PIPE
    ) as tree:
        subprocess.run(
            ["docker", "import", "-", name], stdin=tree.stdout, stdout=subprocess.DEVNULL, check=True
        )
    assert tree.returncode == 0
    return name


def run(image: str, request: dict[str, Any], **options: Any) -> CanaryDocument:
    found = launchers.container(request, "n1", ContainerOptions(image, **options))
    return session.run(replace(found, arrived=None))  # other tests run jobs on this machine


@pytest.mark.parametrize("release", TORCH)
def test_all_jobs_pass_in_an_image_with_pytorch(release: str) -> None:
    request = small(tier="cpu")
    request["arguments"] |= {
        "inference": {"samples": 300},
        "training": {"samples": 10},
        "all_reduce": {"samples": 3, "mib": 1},
    }
    found = run(built(release), request)
    states = {job.name: (job.state, job.why) for job in found.jobs}
    # Neither image has a C compiler.
    assert states.pop("extension")[0] == "not_run"
    assert set(states.values()) == {("passed", "")}, states
    (inference,) = (job for job in found.jobs if job.name == "inference")
    assert str(inference.facts["torch"]).startswith(TORCH[release])
    (warm,) = (metric for metric in inference.metrics if (metric.name, metric.phase) == ("inference", "warm"))
    assert results.quantiles(warm)[-1].bound is not None, "300 samples carry a claim about p99"
    assert {metric.name for metric in inference.metrics if metric.phase == "cold"} == {
        "torch_import",
        "inference",
    }


def test_a_quota_of_85_percent_is_flagged_and_equal_runs_never(tmp_path: Path) -> None:
    """Acceptance (c)10, on a quiet machine only: here the quota takes 15 %, and the margin is 5 %."""
    image = built("bookworm")
    request = small(tier="cpu", jobs=["discovery", "gemm"])
    request["arguments"] = {"gemm": {"samples": 10, "seconds": 0.5, "threads": 1}}

    def measured(folder: str, count: int, **options: Any) -> list[float]:
        found = []
        for _ in range(count):
            document = run(image, request, cpuset="0", **options)
            results.store(document, tmp_path / folder)
            (metric,) = (one for job in document.jobs for one in job.metrics if one.name == "gemm_fp64")
            found.append(statistics.median(metric.samples))
        return found

    medians = measured("base", 3)
    if max(medians) - min(medians) > SPREAD * statistics.median(medians):
        pytest.skip(f"could not check: other work on this machine moves the medians, {medians} GFLOP/s")
    baseline = str(tmp_path / "floors.json")
    assert floors("learn", str(tmp_path / "base"), "--out", baseline, "--margin", "5%") == 0
    measured("equal", 5)
    for path in results.files([tmp_path / "equal"]):
        assert floors("check", str(path), "--baseline", baseline, "--metric", "gemm_fp64") == 0
    measured("slow", 1, cpus=0.85)
    assert floors("check", str(tmp_path / "slow"), "--baseline", baseline, "--metric", "gemm_fp64") == 1


def floors(*words: str) -> int:
    found: Sequence[str] = ("floors", *words)
    return CliRunner().invoke(main, list(found)).exit_code

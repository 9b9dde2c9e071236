"""An all-reduce over real containers with PyTorch and gloo: by the container engine, and as jobs of a real Slurm.

All members are on this machine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests import documents, slurm
from tests.images.test_canary_images import TORCH, built

from goldnode.canary import cohort as cohorts
from goldnode.canary import launchers, pack, session
from goldnode.canary.launchers import ContainerOptions
from goldnode.canary.suite import load_suite, request
from goldnode.cli import main
from goldnode.commands.canary.cohort import free_port

pytestmark = [
    pytest.mark.images,
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.SlurmCluster]:
    if (why := slurm.missing()) is not None:
        pytest.skip(why)
    with slurm.cluster(3) as found:
        yield found


def measured(*words: str) -> tuple[int, dict[str, Any]]:
    """Run the command over three members with gloo."""
    line = [
        "canary",
        "cohort",
        *words,
        "--backend",
        "gloo",
        "--mib",
        "2",
        "--samples",
        "5",
        "--format",
        "json",
    ]
    done = CliRunner().invoke(main, line)
    assert done.stdout, done.output
    found: dict[str, Any] = documents.valid(done.stdout)
    return done.exit_code, found


@pytest.mark.parametrize("release", TORCH)
def test_containers_of_both_images_sum(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The margin is wide: other work of this machine must not make a member slow."""
    monkeypatch.chdir(tmp_path)
    code, found = measured(
        "a",
        "b",
        "c",
        "--how",
        "engine",
        "--image",
        built(release),
        "--patience",
        "180",
        "--margin",
        "0.8",
    )
    assert (code, found["answer"]) == (0, "passed"), found["reasons"]
    assert [member["state"] for member in found["members"]] == ["passed"] * 3
    assert len(found["bandwidth"][0]["samples"]) == 5
    (file,) = (tmp_path / ".goldnode/canary/b").glob("*.json")
    (job,) = json.loads(file.read_text())["jobs"]
    assert (job["facts"]["torch"].startswith(TORCH[release]), job["facts"]["member"]) == (True, 1)


def test_slow_member_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transfers are slowed down in its program; containers, gloo and the rest are real."""
    monkeypatch.chdir(tmp_path)
    transfer = b"                step(data, other)\n"
    sources = pack.sources()
    name = "goldnode/canary/runner/cohort.py"
    assert sources[name].count(transfer) == 1
    slowed = {
        **sources,
        name: sources[name].replace(transfer, transfer[:-1] + b"; time.sleep(1.5)\n"),
    }
    usual = pack.program()
    monkeypatch.setattr(pack, "sources", lambda: slowed)
    pack.program.cache_clear()
    slow = pack.program()
    pack.program.cache_clear()
    assert slow != usual

    def program(request: dict[str, Any]) -> bytes:
        chosen = slow if request["arguments"][cohorts.JOB]["member"] == 2 else usual
        asked = json.dumps(request).encode()
        return b"%d %d\n" % (len(chosen), len(asked)) + chosen + asked

    monkeypatch.setattr(session, "payload", program)
    settings = cohorts.CohortSettings(
        "127.0.0.1", free_port(), "gloo", mib=(2,), samples=5, patience=300.0
    )
    given = request(load_suite(), (cohorts.JOB,), tier="cpu", watch=False)
    base, runs = launchers.run_name(), []
    options = ContainerOptions(built("bookworm"), network="host")
    for number in range(3):
        words = launchers.engine_words(options, f"{base}-{number}", base)
        asked = cohorts.request(settings, number, 3, given)
        runs.append(launchers.engine_run(asked, f"n{number}", words, f"{base}-{number}", base))
    found = cohorts.judge(cohorts.run(runs), settings, "engine")
    assert [member.node for member in found.members if member.slow] == ["n2"], (
        found.model_dump_json()
    )
    assert found.answer == "failed"


def test_jobs_of_slurm_sum_and_an_absent_member_is_named(
    cluster: slurm.SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", cluster.conf)
    words = ("n1", "n2", "n3", "--how", "slurm", "--image", built("bookworm"), "--margin", "0.8")
    code, found = measured(*words, "--patience", "180", "--port", str(free_port()))
    assert (code, found["answer"], found["how"]) == (0, "passed", "slurm"), found["reasons"]
    cluster.wait(lambda: {state for state, _ in cluster.rows().values()} == {"IDLE"})
    cluster.update("n3", "State=DRAIN", "Reason=fan broken")
    code, found = measured(*words, "--patience", "60", "--port", str(free_port()))
    assert (code, found["answer"]) == (3, "could_not_check")
    assert [reason.split()[:3] for reason in found["reasons"]] == [["n3", "is", "absent:"]], found[
        "reasons"
    ]
    states = {member["node"]: (member["state"], member["why"]) for member in found["members"]}
    assert states["n3"][0] == "absent"
    assert states["n1"] == states["n2"] == ("could_not_check", "member 2 did not come within 60 s")

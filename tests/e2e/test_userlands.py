"""The single file goldnode-node on real userlands: Debian 11 to sid from their archive, and busybox with Python.

Each root is made by mmdebstrap. The GPU is simulated (tests/simulators/hardware): its sysfs tree and its NVML are files of the root, and the
program sees nothing of this machine but its kernel. It runs as an ordinary user and as root, with the Python of the root, without systemd, /proc
or a home directory. Layouts of Ubuntu, RHEL and SLES, whose packages cannot be had here, are in tests/unit/node/verdict/test_layouts.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import documents
from tests.debian_archive import debian_archive
from tests.simulators.hardware import Scenario, build, tree, write

from goldnode.core import program_file

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="a chroot needs root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]

DRIVER = "580.178.04"
CLASS: dict[str, Any] = {
    "class": "userland",
    "gpu": {"vendor": "nvidia", "model": "L4", "count": 1},
    "platform": {"nvswitch": False},
    "driver": {"version": DRIVER},
}
# Suite or layout: version by os-release (None where the suite has none yet), and the Python that it brings.
SUITES = {
    "bullseye": "3.9",
    "bookworm": "3.11",
    "trixie": "3.13",
    "forky": None,
    "sid": None,
    "busybox": "3.11",
}
CHROOT = shutil.which("chroot", path="/usr/sbin:/sbin:/usr/bin") or "chroot"
BASH = (
    "usr/bin/bash",
    "bin/bash",
    "usr/bin/dash",
    "bin/dash",
    "usr/bin/ls",
    "bin/ls",
    "usr/bin/ps",
    "bin/ps",
)


def make(suite: str, root: Path) -> None:
    """A minimal root of a suite with Python; `busybox`: all commands of bookworm are those of busybox."""
    name = "bookworm" if suite == "busybox" else suite
    packages = "python3" + (",busybox-static" if suite == "busybox" else "")
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={packages}",
        name,
        str(root),
        debian_archive(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{name} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
    if suite == "busybox":
        for path in BASH:
            if (root / path).exists():
                (root / path).unlink()
        subprocess.run([CHROOT, root, "/bin/busybox", "--install", "-s", "/bin"], check=True)


@pytest.fixture(scope="module", params=SUITES)
def userland(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    root = tmp_path_factory.mktemp(request.param) / "root"
    make(request.param, root)
    program = root / "opt/goldnode-node"
    program.write_bytes(program_file.build())
    program.chmod(0o755)
    scenario = Scenario.of(CLASS)
    tree.write(scenario, root)
    write(scenario, root / "sim")
    build(root / "sim")
    for path in (root / "sim", root / "sim/run"):
        path.mkdir(exist_ok=True)
        path.chmod(0o1777)
    for name in ("nvidia0", "nvidiactl"):
        (root / "dev" / name).touch()
    yield request.param, root
    shutil.rmtree(root)


def run(
    root: Path, *words: str, user: bool = True, without: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the program in a root, with no variable but the simulator's."""
    drop = ["--userspec=65534:65534"] if user else []
    environment = {"LD_LIBRARY_PATH": "/sim", "GOLDNODE_SIMULATOR": "/sim", "PATH": "/usr/bin:/bin"}
    stored = {key: value for key, value in environment.items() if key not in without}
    return subprocess.run(
        [CHROOT, *drop, root, "/usr/bin/python3", "-I", "-S", "/opt/goldnode-node", *words],
        capture_output=True,
        text=True,
        check=False,
        env=stored,
        timeout=120,
    )


@pytest.mark.parametrize("user", [True, False], ids=["user", "root"])
def test_a_healthy_gpu_is_judged(userland: tuple[str, Path], user: bool) -> None:
    suite, root = userland
    done = run(root, "check", "--format", "json", user=user)
    assert "Traceback" not in done.stderr
    verdict = documents.valid(done.stdout)
    bad = [row for row in verdict["findings"] if row["outcome"] not in ("match", "deferred")]
    assert (done.returncode, bad) == (0, []), verdict["unread"]
    assert verdict["simulated"], "simulated hardware is labelled"
    assert verdict["detected"]["gpus"] == ["1 x L4"]
    assert any(text.startswith("debian") for text in verdict["detected"]["platform"])
    found = {row["id"]: row["outcome"] for row in verdict["findings"]}
    assert {found[name] for name in ("gpu.memory", "gpu.ecc.uncorrected", "gpu.throttle")} == {
        "match"
    }
    version = subprocess.run(
        [
            CHROOT,
            root,
            "/usr/bin/python3",
            "-c",
            "import sys; print('%d.%d' % sys.version_info[:2])",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert SUITES[suite] in (None, version)


def test_a_fault_is_found(userland: tuple[str, Path]) -> None:
    _, root = userland
    scenario = Scenario.of(CLASS).with_faults(["gpu0.remapped.failure=1"])
    write(scenario, root / "sim")
    try:
        done = run(root, "check", "--format", "json")
    finally:
        write(Scenario.of(CLASS), root / "sim")
    wrong = {
        row["id"] for row in json.loads(done.stdout)["findings"] if row["outcome"] == "mismatch"
    }
    assert (done.returncode, wrong) == (2, {"gpu.remap.failure"})


def test_without_the_library_nothing_is_healthy(userland: tuple[str, Path]) -> None:
    _, root = userland
    done = run(root, "check", without=("LD_LIBRARY_PATH",))
    assert done.returncode in (2, 3)
    assert "Traceback" not in done.stderr
    assert "gpu.library" in done.stdout


def test_every_record_is_judged(userland: tuple[str, Path]) -> None:
    _, root = userland
    fixtures = Path(__file__).parents[1] / "unit/node/fixtures"
    for file in [*sorted((fixtures / "smi").glob("*.xml")), *(fixtures / "smi-text").glob("*.txt")]:
        shutil.copy(file, root / "sim/record")
        done = run(root, "check", "--from", "/sim/record", "--format", "json")
        assert done.returncode in (0, 1, 2, 3), file
        assert documents.valid(done.stdout)["exit_code"] == done.returncode

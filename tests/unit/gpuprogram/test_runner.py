"""goldnode-smoke on machines without a GPU: what computes really computes, codes are exact, and what was not run is never passed."""

from __future__ import annotations

import ast
import json
import mmap
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from tests.unit.gpuprogram.conftest import Run, one, states

from goldnode.gpuprogram import cpu, image, linear
from goldnode.gpuprogram.children import ChildProcesses
from goldnode.gpuprogram.results import Failed
from goldnode.gpuprogram.smoke import pack, process, report

RUNNER = Path(pack.__file__).parents[1]
PLACE = str(RUNNER.parents[3])


def test_the_cpu_backend_computes(run: Run) -> None:
    code, record = run("--backend", "cpu", "--seconds", "0.05", "--size", "48")
    assert code == 0
    assert states(record, "cpu") == dict.fromkeys(
        ("gemm", "inference", "collective", "memory"), "passed"
    )
    assert (record["tiers"]["gpu"]["state"], record["status"], record["simulated"]) == (
        "not_run",
        "passed",
        False,
    )
    assert one(record, "cpu", "collective")["figures"]["ranks"] >= 2
    assert one(record, "cpu", "memory")["figures"]["mib"] >= 1


def test_a_blas_that_computes_wrongly_fails(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "blas.c"
    source.write_text("void cblas_sgemm(void) {}\nvoid cblas_dgemm(void) {}\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libopenblas.so.0"), str(source)],
        check=True,
    )
    code, record = run(
        "--backend", "cpu", "--test", "gemm", "--test", "inference", LD_LIBRARY_PATH=str(tmp_path)
    )
    assert code == 2
    assert states(record, "cpu") == {"gemm": "failed", "inference": "failed"}
    assert "the fp32 product is wrong in row 0, column 0" in one(record, "cpu", "gemm")["why"]


def test_memory_and_sums_that_differ_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flips(mmap.mmap):
        def __setitem__(self, place: slice, data: bytes) -> None:  # type: ignore[override]
            super().__setitem__(
                place, data[:-1] + b"\0" if len(data) > 8 and place.start > cpu.BLOCK else data
            )

    monkeypatch.setattr(mmap, "mmap", Flips)
    monkeypatch.setattr(image, "memory", lambda root: 80 << 20)
    with pytest.raises(Failed, match="memory differs"):
        cpu.memory()
    monkeypatch.undo()
    monkeypatch.setattr(cpu, "exchange", lambda to, of, data: bytes(len(data)))
    with pytest.raises(Failed, match="another sum"):
        cpu.collective(2, 64)


def test_without_a_driver_the_codes_are_exact(run: Run, libraries: Path) -> None:
    """Simulated runtimes that say what real ones were seen to say without a driver, and the same with one number off."""
    code, record = run("--backend", "cuda", "--test", "driver")
    assert states(record, "cpu") == {"driver": "passed"}
    assert record["tiers"]["gpu"] == {
        "state": "not_run",
        "why": "no device here (/dev/nvidia*)",
        "simulated": False,
        "tests": [],
    }
    code, record = run(
        "--backend", "rocm", LD_LIBRARY_PATH=str(libraries), GOLDNODE_ACCELERATOR="count=0"
    )
    found = states(record, "cpu")
    assert (found["device count"], found["rocminfo"]) == ("passed", "not_run")
    assert (code, record["simulated"]) == (0, True)
    code, record = run(
        "--backend",
        "rocm",
        "--test",
        "device count",
        LD_LIBRARY_PATH=str(libraries),
        GOLDNODE_ACCELERATOR="count=0,error=hipGetDeviceCount:101",
    )
    test = one(record, "cpu", "device count")
    assert (code, test["state"], test["expected"], test["got"]) == (2, "failed", 100, 101)


def test_an_image_must_not_bring_a_driver(run: Run, libraries: Path) -> None:
    code, record = run(
        "--backend", "cuda", "--without-driver", "--test", "driver", LD_LIBRARY_PATH=str(libraries)
    )
    assert code == 2
    assert "libcuda.so.1 of its own" in one(record, "cpu", "driver")["why"]


def test_parts_of_an_image_are_loaded_and_compared(run: Run, libraries: Path) -> None:
    described = {
        "name": "cuda-12.4.1-runtime-debian12",
        "backend": "cuda",
        "parts": {"cudart": "12.4.127", "nccl": "2.21.5", "nvcc-docs": "1"},
    }
    only = ("--test", "load cudart", "--test", "load nccl")
    code, record = run(*only, image=described, LD_LIBRARY_PATH=str(libraries))
    assert code == 0, record
    assert (record["backend"], record["image"], record["parts_without_a_test"]) == (
        "cuda",
        described["name"],
        ["nvcc-docs"],
    )
    described["parts"] = {"cudart": "12.5.82", "nccl": {"version": "2.21.6"}, "cudnn": "9.1.0.70"}
    code, record = run(
        *only, "--test", "load cudnn", image=described, LD_LIBRARY_PATH=str(libraries)
    )
    assert code == 2
    assert states(record, "cpu") == {
        "load cudart": "failed",
        "load cudnn": "failed",
        "load nccl": "failed",
    }
    assert (
        one(record, "cpu", "load cudart")["expected"],
        one(record, "cpu", "load cudart")["got"],
    ) == (
        "12.5",
        "12.4",
    )
    assert one(record, "cpu", "load cudnn")["got"] == "absent"


def test_required_tier_that_did_not_run_exits_3(run: Run) -> None:
    assert (
        run("--backend", "cpu", "--require", "gpu", "--test", "inference")[0] == 0
    )  # one test was asked for by name, and ran
    assert run("--backend", "cuda", "--tier", "gpu", "--gpus", "8")[0] == 3
    code, record = run("--backend", "cuda", "--tier", "gpu", "--require", "gpu")
    assert (code, record["status"], record["tiers"]["cpu"]["why"]) == (
        3,
        "not_run",
        "not asked for",
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--backend", "tpu"], "invalid choice"),
        (["--memory-share", "1.5"], "more than 0 and at most 1"),
        (
            ["--backend", "cpu", "--test", "gem"],
            "there is no test gem here. Choose of: collective, gemm",
        ),
        (["--floors", "/nowhere"], "No such file"),
    ],
)
def test_a_wrong_use_is_3(run: Run, words: list[str], text: str) -> None:
    code, record = run(*words)
    assert code == 3
    assert text in record["stderr"]


def test_a_broken_description_is_3(run: Run, tmp_path: Path) -> None:
    (tmp_path / "root/usr/lib/goldnode").mkdir(parents=True)
    (tmp_path / "root/usr/lib/goldnode/image.json").write_text("{")
    code, record = run("--backend", "cpu")
    assert code == 3
    assert "/usr/lib/goldnode/image.json" in record["stderr"]


# -- tests of a team


def team_test(name: str, *words: str, **other: object) -> dict[str, object]:
    """A row of image.json."""
    return {
        "name": name,
        "run": list(words),
        "seconds": 20,
        "tier": "cpu",
        "workdir": "/",
        **other,
    }


@pytest.mark.parametrize(
    ("row", "state", "why", "code"),
    [
        (team_test("t", "sh", "-c", "echo ready"), "passed", "", 0),
        (team_test("t", "sh", "-c", "pwd | grep -qx /usr", workdir="/usr"), "passed", "", 0),
        # It leaves a process that holds its output: the test ends all the same.
        (team_test("t", "sh", "-c", "sleep 30 & echo ready"), "passed", "", 0),
        (
            team_test("t", "sh", "-c", "echo out; echo no model >&2; exit 4"),
            "failed",
            "status 4: no model",
            2,
        ),
        (team_test("t", "sh", "-c", "echo only out; exit 1"), "failed", "status 1: only out", 2),
        (team_test("t", "false"), "failed", "status 1: it printed nothing", 2),
        (team_test("t", "sh", "-c", "kill -ABRT $$"), "failed", "ended with SIGABRT", 2),
        (team_test("t", "no-such-program"), "failed", "no-such-program: No such file", 2),
        (team_test("t", "true", workdir="/no/such"), "failed", "/no/such: No such file", 2),
        (team_test("t", "/etc/passwd"), "failed", "/etc/passwd: Permission denied", 2),
        # From outside, or without an end: no verdict.
        (team_test("t", "sh", "-c", "kill -KILL $$"), "not_run", "killed from outside", 3),
        (team_test("t", "sleep", "30", seconds=2), "not_run", "did not end within 2 s", 3),
    ],
)
def test_team_tests_have_the_state_of_their_program(
    run: Run, row: dict[str, object], state: str, why: str, code: int
) -> None:
    status, record = run(
        "--backend", "cpu", "--test", "team t", image={"backend": "cpu", "tests": [row]}
    )
    found = one(record, "cpu", "team t")
    assert (found["state"], found["required"], status) == (state, True, code)
    assert why in found["why"]
    assert found["figures"] == ({"printed": "ready"} if "ready" in str(row["run"]) else {})


def test_team_tests_for_a_gpu_need_one(run: Run) -> None:
    rows = [team_test("on gpu", "true", tier="gpu"), team_test("main", "true")]
    code, record = run(
        "--backend", "cuda", "--test", "team main", image={"backend": "cuda", "tests": rows}
    )
    assert (code, states(record, "cpu")) == (0, {"team main": "passed"})
    assert record["tiers"]["gpu"]["tests"] == []


@pytest.mark.parametrize(
    "tests",
    [
        {"main": ["true"]},
        [team_test("t")],
        [team_test("t", "true", tier="tpu")],
        [team_test("t", "true", seconds="60")],
        [{"name": "t", "run": ["true"]}],
    ],
)
def test_team_tests_of_another_form_are_3(run: Run, tests: object) -> None:
    code, record = run("--backend", "cpu", image={"backend": "cpu", "tests": tests})
    assert code == 3
    assert "image.json: its tests are no list of" in record["stderr"]


# -- children


def faulty(tmp_path: Path, body: str) -> ChildProcesses:
    """Child processes that run `body`."""
    package = tmp_path / "goldnode/gpuprogram"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:1]):
        (folder / "__init__.py").touch()
    (package / "work.py").write_text(
        f"import ctypes, os, signal, sys, time, subprocess\ndef main(module):\n    {body}\n"
    )
    return ChildProcesses(str(tmp_path))


@pytest.mark.parametrize(
    ("body", "state", "why"),
    [
        ("time.sleep(60)", "not_run", "did not end within 2 s (state S) and was killed"),
        ("ctypes.string_at(8)", "failed", "ended by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "not_run", "killed from outside"),
        ("sys.exit('no way')", "not_run", "ended with status 1: no way"),
        ("print('passed')", "not_run", "ended with status 0: it printed nothing"),
        ('print(\'{"state": "fine"}\')', "not_run", "ended with status 0"),
    ],
)
def test_a_test_that_ends_badly_never_passes(
    tmp_path: Path, body: str, state: str, why: str
) -> None:
    found = process.run(
        faulty(tmp_path, body), {"tier": "cpu"}, 2 if "sleep" in body else 20, site=False
    )
    assert found["state"] == state
    assert why in found["why"]


def test_a_test_has_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without HOME the loader of Level Zero 1.20.6 (Debian 13) was seen to crash."""
    monkeypatch.delenv("HOME")
    found = process.run(
        faulty(tmp_path, "sys.exit(os.environ['HOME'])"), {"tier": "cpu"}, 10, site=False
    )
    assert found["why"].endswith("status 1: /")


def test_children_of_a_timed_out_test_are_killed(tmp_path: Path) -> None:
    body = f"subprocess.Popen(['sleep', '61']); open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpgid(0))); time.sleep(60)"
    process.run(faulty(tmp_path, body), {"tier": "cpu"}, 4, site=False)
    group = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("a process of the killed test still runs")


def test_after_a_process_that_cannot_be_killed_no_gpu_test_starts(tmp_path: Path) -> None:
    children = faulty(tmp_path, 'print(\'{"state": "passed"}\')')
    children.stuck = [4711]
    found = process.run(children, {"tier": "gpu"}, 10, site=False)
    assert (found["state"], found["required"]) == ("not_run", True)
    assert "4711" in found["why"]
    assert process.run(children, {"tier": "cpu"}, 10, site=False)["state"] == "passed"


def test_a_signal_ends_the_runner_and_its_test(
    program: Path, libraries: Path, tmp_path: Path
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries),
        "GOLDNODE_ACCELERATOR": f"hang=cuInit,name={tmp_path.name}",
    }
    argv = [
        sys.executable,
        "-I",
        str(program),
        "--backend",
        "cuda",
        "--root",
        str(tmp_path),
        "--test",
        "driver",
    ]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():
        time.sleep(0.02)
    child = int(children.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 3
    deadline = (
        time.monotonic() + 30
    )  # it was killed; on a machine with other work it takes a moment to go
    while (
        Path(f"/proc/{child}").exists()
        and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- arithmetic and sums


def test_the_known_product_is_the_product() -> None:
    left = [[linear.a(i, k) for k in range(50)] for i in range(9)]
    right = [[linear.b(k, j) for j in range(11)] for k in range(50)]
    assert linear.multiply(left, right) == [
        [linear.cell(i, j, 50) for j in range(11)] for i in range(9)
    ]
    data = linear.flat(linear.multiply(left, right))
    assert linear.wrong(data, 9, 11, 50, "fp32") == []
    broken = bytearray(data)
    broken[4 * (9 * 4 + 2) + 3] ^= 0x40
    assert linear.wrong(bytes(broken), 9, 11, 50, "fp32")[0][:2] == (2, 4)
    assert linear.matrix_a(9, 50, "fp32") == linear.flat(left)
    assert linear.matrix_b(50, 11, "fp32") == linear.flat(right)
    assert max(abs(value) for row in linear.logits() for value in row) < 2**24


@pytest.mark.parametrize(
    ("tests", "state", "why", "code"),
    [
        ([("passed", True)], "passed", "", 0),
        ([("passed", True), ("not_run", False)], "passed", "not run: t1", 0),
        ([("passed", True), ("not_run", True)], "not_run", "could not be run: t1", 3),
        ([("not_run", False)], "not_run", "there was nothing to run", 3),
        ([], "not_run", "there was nothing to run", 3),
        ([("passed", True), ("not_run", True), ("failed", True)], "failed", "failed: t2", 2),
    ],
)
def test_a_tier_sums_up(tests: list[tuple[str, bool]], state: str, why: str, code: int) -> None:
    rows = [
        {"name": f"t{at}", "state": state, "required": required}
        for at, (state, required) in enumerate(tests)
    ]
    found = report.tier(rows)
    assert (found["state"], found["why"]) == (state, why)
    nothing = report.tier([])
    assert report.exit_code({"tiers": {"cpu": found, "gpu": nothing}}, ("cpu",)) == code
    assert report.exit_code({"tiers": {"cpu": found, "gpu": nothing}}, ("cpu", "gpu")) == (
        code or 3
    )


def test_a_line_for_a_person_has_no_control_characters(run: Run) -> None:
    test = {
        "name": "x",
        "state": "failed",
        "required": True,
        "why": "\x1b[31mred\n",
        "expected": None,
        "got": None,
        "figures": {},
    }
    record = {
        "backend": "cpu",
        "image": None,
        "simulated": True,
        "tiers": {"cpu": report.tier([test]), "gpu": report.tier([])},
    }
    text = report.text(record)
    assert "\x1b" not in text
    assert "SIMULATED HARDWARE" in text
    assert text.splitlines()[-1].startswith("cpu tier: failed")


# -- the file


def test_the_file_is_the_same_each_time_and_holds_the_standard_library_only(program: Path) -> None:
    data = program.read_bytes()
    pack.program.cache_clear()
    assert pack.program() == data
    with zipfile.ZipFile(program) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        for name in archive.namelist():
            if not name.endswith(".py"):
                continue
            tree = ast.parse(archive.read(name), feature_version=(3, 9))
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    assert {
                        item.name.partition(".")[0] for item in node.names
                    } <= sys.stdlib_module_names
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    module = str(node.module)
                    assert module.partition(".")[0] in sys.stdlib_module_names or module.startswith(
                        "goldnode.gpuprogram"
                    )


def test_runner_passes_and_packs_itself_from_a_checkout(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "goldnode.images.smoke",
        "--backend",
        "cpu",
        "--test",
        "inference",
        "--output",
        str(tmp_path / "out.json"),
    ]
    done = subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": PLACE}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["status"] == "passed"
    written = subprocess.run(
        [sys.executable, "-m", "goldnode.images.smoke", "pack", str(tmp_path / "file")],
        capture_output=True,
        check=False,
    )
    assert written.returncode == 0
    assert (tmp_path / "file").read_bytes() == pack.program()

"""Compilers of a devel image: what they make is linked and run, not only compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gpuprogram.conftest import Run, one

from goldnode.gpuprogram.results import Failed
from goldnode.gpuprogram.smoke import compilers as runner

# Says its version; fails for an argument that {refuses} names; else makes a program that prints {prints}.
NVCC = """#!/bin/sh
[ "$1" = --version ] && {{ echo 'Cuda compilation tools, release 12.4, V12.4.131'; exit 0; }}
case " $* " in *" {refuses} "*) echo 'ld: cannot find {refuses}'; exit 1 ;; esac
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\necho "{prints}"\\n' > "$2"
chmod 755 "$2"
"""


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def nvcc(folder: Path, refuses: str = "nothing", prints: str = "code 35") -> dict[str, Any]:
    (folder / "nvcc").write_text(NVCC.format(refuses=refuses, prints=prints))
    (folder / "nvcc").chmod(0o755)
    return runner.compiles("nvcc", "12.4.131")


def test_program_compiled_by_gcc_runs(run: Run) -> None:
    version = re.match(r"\d+", runner._run(["gcc", "-dumpfullversion"]))
    assert version is not None
    described = {"name": "cpu-1-devel-debian12", "backend": "cpu", "parts": {"gcc": version[0]}}
    code, record = run("--test", "compile with gcc", image=described, PATH="/usr/bin:/bin")
    assert code == 0, record
    assert one(record, "cpu", "compile with gcc")["got"]["runs"] == "goldnode"


def test_a_cuda_program_is_linked_and_run_and_another_linked_with_the_stub_of_the_driver(
    compilers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nvcc(compilers, refuses="-lcuda")["got"]
    assert found == {
        "version": "12.4.131",
        "compiles": "a.cu",
        "runs": "code 35",
        "stub": "no libcuda.so in LIBRARY_PATH",
    }
    monkeypatch.setenv("LIBRARY_PATH", f"/nowhere:{compilers}")
    (compilers / "libcuda.so").touch()
    assert nvcc(compilers)["got"]["stub"] == "links with libcuda.so"
    with pytest.raises(Failed, match="nvcc fails: ld: cannot find -lcuda"):
        nvcc(compilers, refuses="-lcuda")
    with pytest.raises(Failed, match="prints something else"):
        nvcc(compilers, prints="")


def test_place_that_runs_no_programs_is_reported_as_not_run(
    compilers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(command: list[str], folder: str = "/") -> str:
        if command[0].endswith("/made"):
            raise PermissionError
        return original(command, folder)

    original = runner._run
    monkeypatch.setattr(runner, "_run", refused)
    assert nvcc(compilers)["got"]["runs"].startswith("not run: ")

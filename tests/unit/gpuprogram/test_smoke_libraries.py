"""What a library's answer is worth: versions that are told, and such as are told only where a driver is."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from tests.unit.gpuprogram.conftest import Run, one

from goldnode.gpuprogram import libraries, native
from goldnode.gpuprogram.results import Failed

SOURCE = "int cudaRuntimeGetVersion(int *version) {{ if ({status}) return {status}; *version = {number}; return 0; }}"


@pytest.mark.parametrize(
    ("soname", "part", "status", "number", "stated"),
    [
        # 11.8.89 as it is without a driver, and without a device
        ("libcudart.so.11.0", "11.8.89", 35, 0, "only where a driver is"),
        ("libcudart.so.11.0", "11.8.89", 100, 0, "only where a driver is"),
        ("libcudart.so.11.0", "11.8.89", 0, 11080, "11.8"),
        ("libcudart.so.12", "12.4.127", 0, 12040, "12.4"),
        ("libcudart.so.11.0", "11.8.89", 0, 11070, None),
        ("libcudart.so.11.0", "11.8.89", 3, 0, None),
        ("libcudart.so.12", "12.4.127", 35, 0, None),  # 12's tells it always
    ],
)
def test_cudart_passes_with_its_version_or_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    soname: str,
    part: str,
    status: int,
    number: int,
    stated: str | None,
) -> None:
    path = tmp_path / soname
    text = SOURCE.format(status=status, number=number)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)],
        input=text,
        text=True,
        check=True,
    )
    monkeypatch.setattr(native, "which", lambda names: soname if soname in names else None)
    monkeypatch.setattr(native, "load", lambda _: ctypes.CDLL(str(path)))
    if stated is None:
        with pytest.raises(Failed):
            libraries.check("cudart", part)
        return
    found = libraries.check("cudart", part)
    assert found["state"] == "passed"
    assert stated in (found["why"] or found["got"]["version"])
    assert found["got"]["loads"] == soname


@pytest.mark.parametrize(
    ("lacks", "state"), [("libcuda.so.1", "passed"), ("libother.so.1", "failed")]
)
def test_cudnn_passes_without_libcuda_and_fails_without_another_library(
    run: Run, tmp_path: Path, lacks: str, state: str
) -> None:
    """cuDNN 9.28 as its wheel is: the compiled engines need libcuda.so.1 itself. Any other library that is missing is a fault."""

    def make(name: str, text: str = "", *needs: str) -> None:
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            f"-Wl,-soname,{name}",
            "-x",
            "c",
            "-",
            "-x",
            "none",
            *needs,
        ]
        subprocess.run([*command, "-o", str(tmp_path / name)], input=text, text=True, check=True)

    make(lacks)
    make("libcudnn.so.9", "unsigned long cudnnGetVersion(void) { return 92800; }")
    for name in libraries._CUDNN["9"]:
        make(
            f"libcudnn_{name}.so.9",
            "",
            *([str(tmp_path / lacks)] if name == "engines_runtime_compiled" else []),
        )
    (tmp_path / lacks).unlink()
    described = {
        "name": "cuda-13.5.0-runtime-debian13",
        "backend": "cuda",
        "parts": {"cudnn": "9.28.0.42"},
    }
    _, record = run("--test", "load cudnn", image=described, LD_LIBRARY_PATH=str(tmp_path))
    found = one(record, "cpu", "load cudnn")
    assert found["state"] == state
    if state == "passed":
        assert found["got"] == {"loads": "libcudnn.so.9", "version": "9.28.0"}
        assert (
            found["why"]
            == "libcudnn_engines_runtime_compiled.so.9 can be loaded only where a driver is"
        )

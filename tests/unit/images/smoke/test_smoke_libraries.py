"""What a library's answer is worth: versions that are told, and such as are told only where a driver is."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from goldnode.images.smoke.runner import libraries, native
from goldnode.images.smoke.runner.report import Failed

SOURCE = "int cudaRuntimeGetVersion(int *version) {{ if ({status}) return {status}; *version = {number}; return 0; }}"


@pytest.mark.parametrize(
    ("soname", "part", "status", "number", "said"),
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
def test_cudart_says_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soname: str, part: str, status: int, number: int, said: str | None
) -> None:
    path = tmp_path / soname
    text = SOURCE.format(status=status, number=number)
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=text, text=True, check=True)
    monkeypatch.setattr(native, "which", lambda names: soname if soname in names else None)
    monkeypatch.setattr(native, "load", lambda _: ctypes.CDLL(str(path)))
    if said is None:
        with pytest.raises(Failed):
            libraries.check("cudart", part)
        return
    found = libraries.check("cudart", part)
    assert found["state"] == "passed"
    assert said in (found["why"] or found["got"]["version"])
    assert found["got"]["loads"] == soname

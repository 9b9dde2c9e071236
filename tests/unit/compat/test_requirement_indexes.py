"""Which version pip takes from several indexes, and which pins it accepts together: goldnode reads as pip does."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from goldnode.compat import workloads
from goldnode.core.errors import WorkloadError

PYPI, CU126, CU130, CPU = "pypi", "whl/cu126", "whl/cu130", "whl/cpu"


def index(root: Path, name: str, versions: Sequence[str]) -> str:
    """Write a package index with empty wheels of torch, and return its address."""
    folder = root / name / "simple/torch"
    folder.mkdir(parents=True)
    links = []
    for version in versions:
        wheel = folder / f"torch-{version}-py3-none-any.whl"
        info = f"torch-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        links.append(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')
    (folder / "index.html").write_text(
        "<html><body>" + "\n".join(links) + "</body></html>", encoding="utf-8"
    )
    return (root / name / "simple").as_uri()


def taken(file: Path) -> str | None:
    """Return the version of torch that pip would install from a requirements file; None if it refuses."""
    import json

    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    command = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
    ]
    command += ["--disable-pip-version-check", "--no-deps", "--report", "-", "-r", str(file)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "PIP_CONFIG_FILE": os.devnull},
        check=False,
    )
    if done.returncode != 0:
        return None
    return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])


VERSIONS: Mapping[str, Sequence[str]] = {
    PYPI: ["2.6.0", "2.11.0"],
    CU126: ["2.6.0+cu126", "2.11.0+cu126"],
    CU130: ["2.11.0+cu130"],
    CPU: ["2.11.0+cpu"],
}

CASES = {
    "extra index": [f"--index-url {PYPI}", f"--extra-index-url {CU126}", "torch==2.11.0"],
    "two extra indexes": [f"--index-url {PYPI}", f"--extra-index-url {CU126}", f"--extra-index-url {CU130}", "torch==2.11.0"],
    "extra index of CPU builds": [f"--index-url {CU126}", f"--extra-index-url {CPU}", "torch==2.11.0"],
    "pin with its build": [f"--index-url {PYPI}", f"--extra-index-url {CU130}", f"--extra-index-url {CU126}", "torch==2.11.0+cu126"],
    "constraint without the build": [f"--index-url {PYPI}", f"--extra-index-url {CU126}", "-c CONSTRAINTS torch==2.6.0", "torch==2.6.0+cu126"],
    "constraint with fewer numbers": [f"--index-url {CU126}", "-c CONSTRAINTS torch==2.6", "torch==2.6.0+cu126"],
    "constraint of another build": [f"--index-url {CU126}", "-c CONSTRAINTS torch==2.6.0+cu124", "torch==2.6.0+cu126"],
    "constraint of another release": [f"--index-url {CU126}", "-c CONSTRAINTS torch==2.11.0", "torch==2.6.0"],
}  # fmt: skip


@pytest.mark.parametrize("lines", CASES.values(), ids=CASES)
def test_torch_is_the_one_that_pip_takes(lines: Sequence[str], tmp_path: Path) -> None:
    text = []
    for line in lines:
        option, _, value = line.partition(" ")
        if option == "-c":
            (tmp_path / "c.txt").write_text(value.partition(" ")[2] + "\n", encoding="utf-8")
            text.append("-c c.txt")
        elif value:
            text.append(f"{option} {index(tmp_path, value, VERSIONS[value])}")
        else:
            text.append(line)
    file = tmp_path / "requirements.txt"
    file.write_text("\n".join(text) + "\n", encoding="utf-8")
    try:
        read: str | None = workloads.requirements(file, python="3.11").frameworks["torch"]
    except WorkloadError:
        read = None
    assert read == taken(file)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("-e git+https://git.example/vllm.git#egg=vllm", "vllm"),
        ("git+https://user:secret@git.example/vllm.git@v0.11.0#egg=vllm", "vllm"),
        ("vllm @ git+https://git.example/vllm.git", "vllm"),
        ("https://files.example/flash-attn-2.7.4.tar.gz", "flash-attn"),
        ("-e git+https://git.example/tool.git#egg=tool", None),
        ("-e .", None),
    ],
)
def test_package_built_from_source_is_not_pinned(
    line: str, name: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(line + "\n", encoding="utf-8")
    reports = workloads.requirements(file, python="3.11").reports
    assert [item.message.split(" ")[0] for item in reports] == ([name] if name else [])
    assert all(
        "it is built from" in item.message and "secret" not in item.message for item in reports
    )
    assert all(item.place is not None and item.place.line == 1 for item in reports)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("torch==v2.8.0", "2.8.0"),
        ("torch==2.8.0-rc1", "2.8.0rc1"),
        ("torch===2.8.0", "2.8.0"),
        ("Torch (==2.8.0)", "2.8.0"),
        ("torch==2.8.0,!=2.8.1", "2.8.0"),
        ("--config-settings x=y\ntorch==2.8.0", "2.8.0"),
        ("torch \\\n==2.8.0 \\\n  --hash=sha256:aa", "2.8.0"),
    ],
)
def test_pin_is_read_as_pip_reads_it(text: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text(text + "\n", encoding="utf-8")
    assert workloads.requirements(tmp_path / "r.txt", python="3.12").pins == {"torch": version}

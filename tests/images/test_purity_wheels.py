"""The wheels of the table themselves, downloaded or from a folder: same file, same facts, same verdict.

With GOLDNODE_WHEELS=DIRECTORY[:DIRECTORY...], wheels come from there, and those that are not there are not
judged. Without it, pip downloads one at a time (8 GB in all), and each is deleted after its scan.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from tests.unit.inspect.wheel_table import (
    WheelRow,
    facts,
    files,
    recorded,
    refused,
    rows,
    scan_of,
)

pytestmark = [pytest.mark.images, pytest.mark.long]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.file)
def test_wheel_has_recorded_facts_and_verdict(row: WheelRow, tmp_path: Path) -> None:
    folders = os.environ.get("GOLDNODE_WHEELS")
    found = [] if folders is None else [Path(name) for name in folders.split(":")]
    if folders is None:
        download(row, tmp_path)
        found = [tmp_path]
    path = next((path for known, path in files(found, [row]) if known == row), None)
    if path is None:
        pytest.skip(f"{row.file} with this hash is in none of {folders}")
    view = scan_of(path)
    if folders is None:
        path.unlink()
    assert refused(view) == row.refused, row.because
    assert recorded(view) == facts()[row.file], "python -m tests.unit.inspect.wheel_table DIRECTORY"


def download(row: WheelRow, folder: Path) -> None:
    """Download the wheel that the row names, with its hash."""
    name, version, _, tags = parse_wheel_filename(row.file)
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{name}=={version} --hash=sha256:{row.sha256}\n")
    platforms = sorted({tag.platform for tag in tags} - {"any"})
    argv = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    argv += [
        "--only-binary=:all:",
        "--python-version=3.11",
        "--implementation=cp",
        "--require-hashes",
    ]
    argv += [f"--platform={platform}" for platform in platforms]
    argv += ["-d", str(folder), "-r", str(wanted)]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PIP_CONSTRAINT": os.devnull},
    )
    assert done.returncode == 0, done.stderr

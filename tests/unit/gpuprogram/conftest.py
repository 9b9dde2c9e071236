"""The packed runner, and a way to call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.simulators import accelerators

from goldnode.gpuprogram.smoke import pack

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """goldnode-smoke as it goes into images."""
    path = tmp_path_factory.mktemp("smoke") / pack.NAME
    path.write_bytes(pack.program())
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated GPU libraries, compiled once."""
    return accelerators.build(tmp_path_factory.mktemp("accelerators"))


@pytest.fixture
def run(program: Path, tmp_path: Path) -> Run:
    """Run the program with `--json` on a root of the test's own (tmp_path/root); gives the exit code and the record (empty without one)."""
    (tmp_path / "root").mkdir(exist_ok=True)

    def call(
        *words: str, image: Mapping[str, Any] | None = None, **environment: str
    ) -> tuple[int, dict[str, Any]]:
        if image is not None:
            place = tmp_path / "root/usr/lib/goldnode/image.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(image))
        argv = [
            sys.executable,
            "-I",
            str(program),
            "--json",
            "--root",
            str(tmp_path / "root"),
            *words,
        ]
        done = subprocess.run(
            argv,
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {
            "stderr": done.stderr
        }

    return call


def states(record: Mapping[str, Any], tier: str) -> dict[str, str]:
    """Test -> state of a tier."""
    return {test["name"]: test["state"] for test in record["tiers"][tier]["tests"]}


def one(record: Mapping[str, Any], tier: str, name: str) -> dict[str, Any]:
    """One test of a tier."""
    found: dict[str, Any] = next(
        test for test in record["tiers"][tier]["tests"] if test["name"] == name
    )
    return found

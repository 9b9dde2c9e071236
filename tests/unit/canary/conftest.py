"""The packed program, started as on a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from goldnode.canary import pack
from goldnode.documents.canary import CanaryDocument

Json = dict[str, Any]
Start = Callable[..., tuple[int, CanaryDocument]]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """goldnode-canary as one file."""
    target = tmp_path_factory.mktemp("canary") / pack.NAME
    pack.write(target)
    return target


def small(**more: Any) -> Json:
    """A request with arguments for seconds instead of minutes."""
    arguments = {
        "gemm": {"samples": 2, "seconds": 0.01},
        "memory_bandwidth": {"mib": 1, "samples": 2},
        "host_copies": {"mib": 1, "samples": 2},
        "launch_latency": {"samples": 20},
        "storage": {"mib": 8, "samples": 2, "files": 10},
    }
    return {"schema": "goldnode.canary-request/1", "arguments": arguments, "watch": False, **more}


@pytest.fixture
def start(program: Path, tmp_path: Path) -> Start:
    """Run the program with a request; return its exit status and its document."""

    def run(
        request: Json, *words: str, python: str = sys.executable, **environment: str
    ) -> tuple[int, CanaryDocument]:
        asked = tmp_path / "request.json"
        asked.write_text(json.dumps(request))
        command: Sequence[str] = [python, "-I", str(program), "--request", str(asked), *words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, **environment},
        )
        assert done.stdout, done.stderr
        return done.returncode, CanaryDocument.model_validate_json(done.stdout)

    return run

"""goldnode-canary as a single file: a zip archive that Python 3.9 or later runs.

It contains the runner, the libraries of goldnode-smoke that it shares, and NVML's binding with the reader of
`goldnode.node.device`. The archive is stored and not compressed, so that its digest depends on the sources alone.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

from goldnode.core.program_file import binding
from goldnode.gpuprogram.smoke.pack import BASE

RUNNER = Path(__file__).parent / "runner"
DEVICE = Path(__file__).parents[1] / "node/device"
NAME = "goldnode-canary"
START = b"#!/usr/bin/env -S python3 -I\n"
MAIN = b"from goldnode.canary.runner.program import main\n\nmain()\n"
PACKAGES = (
    "goldnode",
    "goldnode/canary",
    "goldnode/node",
)
# Of node/device: the reader of NVML and the names of its numbers.
DEVICE_MODULES = ("__init__", "collect", "names", "nvidia")


def sources() -> dict[str, bytes]:
    """Return archive name -> content of every file, sorted by name."""
    found = {
        f"goldnode/canary/runner/{path.name}": path.read_bytes() for path in RUNNER.glob("*.py")
    }
    found["goldnode/canary/runner/jobs.json"] = (RUNNER / "jobs.json").read_bytes()
    found |= {f"goldnode/gpuprogram/{path.name}": path.read_bytes() for path in BASE.glob("*.py")}
    found |= {
        f"goldnode/node/device/{name}.py": (DEVICE / f"{name}.py").read_bytes()
        for name in DEVICE_MODULES
    }
    found |= {f"{package}/__init__.py": b"" for package in PACKAGES}
    return dict(sorted({**found, **binding(), "__main__.py": MAIN}.items()))


@cache
def program() -> bytes:
    """Return the packed program. The same sources and the same NVML binding give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sources().items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return START + out.getvalue()


def digest() -> str:
    """Return the digest of the program, as results name it."""
    return "sha256:" + hashlib.sha256(program()).hexdigest()


def write(target: Path) -> None:
    """Write the program, executable, to a path."""
    target.write_bytes(program())
    target.chmod(0o755)

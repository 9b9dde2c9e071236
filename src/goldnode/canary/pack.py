"""goldnode-canary as a single file: a zip archive that Python 3.9 or later runs.

It contains the runner, the modules that call a GPU (`goldnode.gpuprogram`), and NVML's binding with
the reader of `goldnode.node.device`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from goldnode.core.program_file import binding
from goldnode.gpuprogram import pack

NAME = "goldnode-canary"
# Of node/device: the reader of NVML and the names of its numbers.
DEVICE_MODULES = ("__init__", "collect", "names", "nvidia")
JOBS = "goldnode/canary/runner/jobs.json"


def sources() -> dict[str, bytes]:
    """Return archive name -> content of every file, sorted by name."""
    files = {
        **pack.modules("goldnode/canary/runner"),
        **pack.modules("goldnode/gpuprogram"),
        **pack.modules("goldnode/node/device", DEVICE_MODULES),
        **binding(),
        JOBS: (pack.SOURCE / JOBS).read_bytes(),
    }
    return pack.contents(files, "goldnode.canary.runner.start.packed")


@cache
def program() -> bytes:
    """Return the packed program. The same sources and the same NVML binding give the same bytes."""
    return pack.packed(sources())


def digest() -> str:
    """Return the digest of the program, as results name it."""
    return "sha256:" + hashlib.sha256(program()).hexdigest()


def write(target: Path) -> None:
    """Write the program, executable, to a path."""
    pack.write(target, program())

"""One measured run of a command."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.converge.contenders import ROOT, clean


def run(command: Sequence[str], env: Mapping[str, str], directory: Path = ROOT) -> dict[str, float]:
    """Run a command to its end. Return seconds of wall time and CPU, and the MiB of its largest process."""
    with tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**clean(), **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        output.seek(0)
        text = output.read()
    if status != 0 or re.search(r"changed=[1-9]", text):
        raise SystemExit(f"{' '.join(command)} failed, or changed something:\n{text[-4000:]}")
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024}

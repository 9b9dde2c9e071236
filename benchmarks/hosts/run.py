"""One measured run of a command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.converge.contenders import ROOT, clean

# On a busy machine a login may take more than the ten seconds that Ansible gives it.
PATIENT = {"ANSIBLE_TIMEOUT": "60"}
# In the recap of Ansible, and in the results of pyinfra.
CHANGED = r"(changed|unreachable|failed)=[1-9]|\] Success"


# Linux counts the memory of the process that starts a command as that of the command, up to its exec. So a small one starts it.
STARTER = """
import json, resource, subprocess, sys
status = subprocess.run(sys.argv[2:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as out:
    json.dump([status, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024], out)
"""


def run(command: Sequence[str], env: Mapping[str, str], directory: Path = ROOT) -> dict[str, float]:
    """Run a command to its end. Return seconds of wall time and CPU, and the MiB of its largest process."""
    with tempfile.TemporaryFile("w+") as output, tempfile.NamedTemporaryFile("r") as used:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-S", "-c", STARTER, used.name, *command],
            cwd=directory,
            env={**clean(), **PATIENT, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=True,
        )
        wall = time.perf_counter() - began
        status, cpu, mib = json.load(used)
        output.seek(0)
        text = output.read()
    if status != 0 or re.search(CHANGED, text):
        file = ROOT / ".goldnode/benchmarks/failed.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        of_hosts = [line for line in text.splitlines() if re.search(CHANGED, line)]
        told = "\n".join([*of_hosts[:20], text[-4000:]])
        raise SystemExit(
            f"{' '.join(command)} ended with {status}, or changed something. Its whole output is in {file}:\n{told}"
        )
    return {"wall": wall, "cpu": cpu, "mib": mib}

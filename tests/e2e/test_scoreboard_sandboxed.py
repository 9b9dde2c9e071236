"""The fault scoreboard with the check in the sandbox of its units: every row gets the answer that it gets without one.

A systemd of Debian 12 in a container runs the rows. It has the unit's options as they are installed; the nodes of the rows are simulated.
"""

from __future__ import annotations

import re
import site
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.table import ROWS
from tests.simulators.hardware import build

from goldnode.core import docker_engine as engine
from goldnode.node.state.domains.program import READER
from goldnode.testing.lab import images

ROOT = Path(__file__).parents[2]
# Some minutes: each row checks its node five times.
pytestmark = [pytest.mark.lab, pytest.mark.long]

# A test of each row, one of each node before its fault, and two of the page.
EXPECTED = len(ROWS) + len({row.node for row in ROWS}) + 2
# As the lab starts its nodes, and with the capabilities that the units keep.
OPTIONS = (
    "--cap-add=SYS_ADMIN",
    "--cap-add=SYS_PTRACE",
    "--cap-add=SYSLOG",
    "--cap-add=DAC_READ_SEARCH",
    "--security-opt=seccomp=unconfined",
    "--cgroupns=host",
    "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw",
    "--tmpfs=/run",
    "--tmpfs=/run/lock",
    "--tmpfs=/tmp:exec",
    "--tmpfs=/dev/shm:exec",  # programs of the nodes run there
    "--env=container=docker",
)
# The container has no compiler: the library is made before.
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
exec cp /own/libnvidia-ml.so.1 "$2"
"""
UNIT = f"""[Service]
Type=oneshot
WorkingDirectory={ROOT}
Environment=PYTHONPATH={ROOT}:{ROOT / "src"}:{":".join(site.getsitepackages())}
Environment=PYTHONDONTWRITEBYTECODE=1 HOME=/tmp PATH=/own:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart={sys.base_prefix}/bin/python3 -m pytest -q -n0 -p no:cacheprovider --tb=line tests/faults/test_scoreboard.py
TimeoutStartSec=infinity
StandardOutput=file:/run/output
{READER}"""


def docker(*words: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def container(tmp_path: Path) -> Iterator[str]:
    image = images.ensure(engine.connect(), "debian12", "bare", say=print)
    name = f"goldnode-board-{uuid.uuid4().hex[:8]}"
    (tmp_path / "board.service").write_text(UNIT)
    build(tmp_path)
    (tmp_path / "cc").write_text(COMPILER)
    (tmp_path / "cc").chmod(0o755)
    places = {str(ROOT), sys.prefix, sys.base_prefix}
    mounts = [f"--volume={place}:{place}:ro" for place in places]
    unit = f"--volume={tmp_path}/board.service:/etc/systemd/system/board.service:ro"
    mounts += [unit, f"--volume={tmp_path}:/own:ro"]
    docker("run", "--detach", f"--name={name}", *OPTIONS, *mounts, image, "/lib/systemd/systemd")
    docker("exec", name, "sh", "-c", "until [ -S /run/dbus/system_bus_socket ]; do sleep 0.1; done")
    yield name
    docker("rm", "--force", name)


def test_each_row_has_its_answer_in_the_sandbox_of_the_check(container: str) -> None:
    docker("exec", container, "systemctl", "start", "--wait", "board.service", check=False)
    output = docker("exec", container, "cat", "/run/output", check=False)
    log = docker("exec", container, "journalctl", "--no-pager", "-o", "cat", "-u", "board.service")
    assert re.search(rf"^{EXPECTED} passed in ", output, re.MULTILINE), output + log

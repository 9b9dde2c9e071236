"""A private Slurm for tests: slurmctld and several slurmd on this host, each with a port and a directory of its own.

Jobs, drains, reservations and reasons are real. The nodes are one machine.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from goldnode.fleet.drain.slurm import slurm_rows

PROGRAMS = ("slurmctld", "slurmd", "munged", "scontrol", "squeue", "sbatch")
CONF = """\
ClusterName=test
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MailProg=/bin/true
RebootProgram=/bin/true
{more}
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


def missing() -> str | None:
    """Return why no cluster can run here; None if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{absent[0]} is not installed: apt-get install slurmctld slurmd slurm-client munge"
    return None if os.geteuid() == 0 else "slurmd has to be started by root"


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster. Its programs find it by SLURM_CONF."""

    directory: Path
    nodes: tuple[str, ...]

    @property
    def conf(self) -> str:
        """Return the configuration file."""
        return str(self.directory / "slurm.conf")

    def call(self, *argv: str) -> str:
        """Run a program of Slurm, and return its output."""
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SLURM_CONF": self.conf},
        )
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout

    def rows(self) -> dict[str, tuple[str, str]]:
        """Return state and reason of each node."""
        text = self.call("scontrol", "--all", "show", "node", "--oneliner")
        return {name: (found.state, found.reason) for name, found in slurm_rows(text)}

    def settled(self, node: str) -> tuple[str, str]:
        """Return state and reason of a node when its slurmd has answered: a resumed node registers again."""
        self.wait(lambda: "NOT_RESPONDING" not in self.rows()[node][0])
        return self.rows()[node]

    def update(self, node: str, *words: str) -> None:
        """Change a node, as an operator does."""
        self.call("scontrol", "update", f"NodeName={node}", *words)

    def job(self, node: str, seconds: int, limit: str) -> str:
        """Start a job on one node, and return its id when it runs."""
        words = (
            "--parsable",
            f"--nodelist={node}",
            f"--time={limit}",
            "--output=/dev/null",
            "--chdir=/tmp",
        )
        found = self.call("sbatch", *words, "--wrap", f"sleep {seconds}").strip()
        self.wait(
            lambda: (
                self.call("squeue", "--noheader", f"--jobs={found}", "--format=%T").strip()
                == "RUNNING"
            )
        )
        return found

    def wait(self, condition: object, seconds: float = 60.0) -> None:
        """Wait for a condition."""
        end = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < end, self.rows()
            time.sleep(0.2)

    def reset(self) -> None:
        """End all jobs, reservations and drains."""
        self.call("scancel", "--full", "--user=root")
        for line in self.call("scontrol", "show", "reservation", "--oneliner").splitlines():
            if line.startswith("ReservationName="):
                self.call("scontrol", "delete", line.split()[0])
        for name, (state, reason) in self.rows().items():
            if "DRAIN" in state or "DOWN" in state:
                self.update(name, "State=RESUME")
            if reason:
                self.update(name, "Reason=")
        self.wait(lambda: {state for state, _ in self.rows().values()} == {"IDLE"})


def _ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


@contextmanager
def cluster(
    count: int,
    more: str = "",
    address: str = "127.0.0.1",
    remote: Mapping[str, str] | None = None,
) -> Iterator[SlurmCluster]:
    """Run a cluster of `count` nodes named n1, n2, … until the end of the context.

    :param more: further lines of slurm.conf, in which {directory} is the directory of the cluster.
    :param address: of slurmctld, as the nodes reach it.
    :param remote: further nodes with their addresses, on which the caller starts slurmd.
    """
    directory = Path(
        tempfile.mkdtemp(prefix="goldnode-slurm-")
    )  # short: it is in the path of a socket
    names = tuple(f"n{number}" for number in range(1, count + 1))
    host = socket.gethostname().partition(".")[0]
    ports = _ports(count + 1)
    rows = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN"
        for name, port in zip(names, ports[1:], strict=True)
    ]
    rows += [
        f"NodeName={name} NodeHostname={name} NodeAddr={where} Port=6818 CPUs=1 State=UNKNOWN"
        for name, where in (remote or {}).items()
    ]
    for name in ("munge", "state", *(f"spool-{name}" for name in names)):
        (directory / name).mkdir()
    directory.chmod(0o755)
    (directory / "munge/key").write_bytes(os.urandom(128))
    (directory / "munge/key").chmod(0o600)
    found = SlurmCluster(directory, names)
    Path(found.conf).write_text(
        CONF.format(
            host=host,
            port=ports[0],
            user="root",
            directory=directory,
            address=address,
            nodes="\n".join(rows),
            more=more.format(directory=directory),
        )
    )
    munge = directory / "munge"
    programs: list[Sequence[str]] = [
        [
            "munged",
            "--foreground",
            "--force",
            f"--socket={munge}/socket",
            *(f"--{name}-file={munge}/{name}" for name in ("key", "pid", "log", "seed")),
        ],
        ["slurmctld", "-D", "-f", found.conf],
        *(["slurmd", "-D", "-N", name, "-f", found.conf] for name in names),
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for words in programs:
            with (directory / f"log-{len(running)}").open("wb") as log:
                running.append(
                    subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
            if len(running) == 1:
                found.wait((munge / "socket").exists)
        end = time.monotonic() + 60
        while True:
            try:
                rows_now = found.rows()
                states = {rows_now[name][0] for name in names}
            except AssertionError:
                states = set()
            if states == {"IDLE"}:
                break
            assert time.monotonic() < end, (states, (directory / "log-1").read_text()[-3000:])
            time.sleep(0.3)
        yield found
        found.call("scancel", "--full", "--user=root")
    finally:
        for process in reversed(running):  # munged last: the others need it until they have ended
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(directory, ignore_errors=True)

"""The suite as a Slurm job: started on an idle node only, and cancelled when another job waits for that node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from goldnode.canary.errors import CanaryError

# squeue(1): reasons of pending jobs that wait for nodes, and not for a person, a date or another
# job.
WAITING = frozenset({"Resources", "Priority", "ReqNodeNotAvail"})
IMMEDIATE = 10  # seconds within which Slurm must start the job, or refuse it
ANSWER = 3.0  # seconds for an answer of squeue


@dataclass(frozen=True)
class SlurmJob:
    """One job of the suite. Its name is unique, so that it can be found and cancelled.

    Jobs whose names begin with `family` are other members of the same run, and no work that
    arrives.
    """

    node: str
    partition: str | None = None
    minutes: int = 60
    name: str = field(
        default_factory=lambda: f"goldnode-canary-{os.getpid()}-{os.urandom(3).hex()}"
    )
    family: str = ""

    def command(self, program: Sequence[str]) -> tuple[str, ...]:
        """Return the srun command. Slurm ends it with SIGTERM, then KillWait seconds later with SIGKILL."""
        words = [
            "srun",
            f"--nodelist={self.node}",
            "--nodes=1",
            "--ntasks=1",
            "--exclusive",
            f"--immediate={IMMEDIATE}",
            f"--time={self.minutes}",
            f"--job-name={self.name}",
            "--unbuffered",
            "--chdir=/tmp",
        ]
        words += [f"--partition={self.partition}"] if self.partition else []
        return (*words, *program)

    def arrived(self) -> str:
        """Return which job waits for the node; empty without one. A question without an answer is empty, too."""
        for line in self._ask("--states=PENDING", "--format=%i|%r|%n|%N|%j").splitlines():
            job, reason, wanted, scheduled, name = [*line.split("|"), "", "", "", ""][:5]
            if (
                name.startswith(self.family or self.name)
                or reason.strip("()").split(",")[0] not in WAITING
            ):
                continue
            if not wanted and not scheduled:
                return f"job {job} waits for nodes ({reason})"
            if self.node in self._expanded(wanted or scheduled):
                return f"job {job} waits for {self.node} ({reason})"
        return ""

    def cancel(self) -> None:
        """Cancel the job, if it still exists."""
        subprocess.run(
            ["scancel", f"--name={self.name}"], capture_output=True, check=False, timeout=30
        )

    def _expanded(self, hosts: str) -> list[str]:
        if hosts == self.node:
            return [hosts]
        try:
            done = subprocess.run(
                ["scontrol", "show", "hostnames", hosts],
                capture_output=True,
                text=True,
                check=False,
                timeout=ANSWER,
            )
        except subprocess.TimeoutExpired:
            return []
        return done.stdout.split()

    @staticmethod
    def _ask(*words: str) -> str:
        try:
            done = subprocess.run(
                ["squeue", "--all", "--noheader", *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=ANSWER,
            )
        except FileNotFoundError:
            raise CanaryError(
                "squeue: not found on this machine",
                remedy="install the clients of Slurm (slurm-client)",
            ) from None
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout if done.returncode == 0 else ""

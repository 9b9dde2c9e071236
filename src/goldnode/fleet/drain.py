"""Taking a node out of service and back, by whatever schedules work on it. Run on the controller, through the site's own programs.

A node that somebody else had already drained or cordoned stays so afterwards: what is restored is the state that was found.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from goldnode.errors import GoldnodeError

Run = Callable[[Sequence[str]], str]


def run(argv: Sequence[str]) -> str:
    """Run a program of the site; its standard output. A failure is an error that shows what it said."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=3600)
    except FileNotFoundError:
        raise GoldnodeError(
            f"{argv[0]}: not found on this machine",
            remedy="Install the scheduler's client, or set goldnode_drain: none",
        ) from None
    except subprocess.TimeoutExpired:
        raise GoldnodeError(f"{' '.join(argv)}: no answer within an hour", remedy="Look at the scheduler, then run again") from None
    if done.returncode != 0:
        raise GoldnodeError(
            f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}",
            remedy="Put that right, then run again",
        )
    return done.stdout


class Drain(Protocol):
    """One way to drain. `drain` returns what has to be given to `resume`: whether the node was in service before."""

    def drain(self, node: str, reason: str) -> bool: ...

    def resume(self, node: str, was_in_service: bool) -> None: ...


@dataclass
class Nothing:
    """No scheduler: nobody to tell."""

    def drain(self, node: str, reason: str) -> bool:
        return True

    def resume(self, node: str, was_in_service: bool) -> None:
        return None


@dataclass
class Command:
    """The site's own programs, called with the node's name (and the reason); exit status 0 says done, 3 from `drain_command` says that it
    was out of service already."""

    drain_command: Sequence[str]
    resume_command: Sequence[str]

    def drain(self, node: str, reason: str) -> bool:
        try:
            done = subprocess.run([*self.drain_command, node, reason], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise GoldnodeError(f"{self.drain_command[0]}: not found", remedy="Correct goldnode_drain_command") from None
        if done.returncode not in (0, 3):
            raise GoldnodeError(
                f"{' '.join(self.drain_command)} {node} failed: {done.stderr.strip()}",
                remedy="Put that right, then run again",
            )
        return done.returncode == 0

    def resume(self, node: str, was_in_service: bool) -> None:
        if was_in_service:
            run([*self.resume_command, node])


@dataclass
class Slurm:
    """scontrol: state DRAIN, then wait until no job is left. Slurm shows a drained node with flags such as IDLE+DRAIN."""

    run: Run = run
    wait: float = 86400.0
    pause: float = 15.0
    sleep: Callable[[float], None] = field(default=time.sleep)

    def _state(self, node: str) -> set[str]:
        for word in self.run(["scontrol", "show", "node", node, "--oneliner"]).split():
            if word.startswith("State="):
                return set(word.removeprefix("State=").rstrip("*").split("+"))
        raise GoldnodeError(f"scontrol tells no state of node {node}", remedy="Check that the inventory name is the Slurm node name")

    def drain(self, node: str, reason: str) -> bool:
        in_service = "DRAIN" not in self._state(node)
        if in_service:
            self.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])
        waited = 0.0
        while self._state(node) & {"ALLOCATED", "MIXED", "COMPLETING"}:
            if waited >= self.wait:
                raise GoldnodeError(
                    f"node {node} still has jobs after {self.wait:g} s of draining",
                    remedy="Wait for them and run again; it stays drained",
                )
            self.sleep(self.pause)
            waited += self.pause
        return in_service

    def resume(self, node: str, was_in_service: bool) -> None:
        if was_in_service:
            self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


@dataclass
class Kubectl:
    """kubectl: cordon and drain; uncordon only what was not cordoned before."""

    run: Run = run

    def drain(self, node: str, reason: str) -> bool:
        found = json.loads(self.run(["kubectl", "get", "node", node, "-o", "json"]))
        in_service = not found.get("spec", {}).get("unschedulable", False)
        self.run(["kubectl", "annotate", "--overwrite", "node", node, f"goldnode/drained-for={reason}"])
        self.run(["kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3600s"])
        return in_service

    def resume(self, node: str, was_in_service: bool) -> None:
        self.run(["kubectl", "annotate", "node", node, "goldnode/drained-for-"])
        if was_in_service:
            self.run(["kubectl", "uncordon", node])


def choose(name: str, drain_command: Sequence[str] = (), resume_command: Sequence[str] = ()) -> Drain:
    """The drain called `none`, `command`, `slurm` or `kubectl`."""
    if name == "none":
        return Nothing()
    if name == "slurm":
        return Slurm()
    if name == "kubectl":
        return Kubectl()
    if name == "command" and drain_command and resume_command:
        return Command(drain_command, resume_command)
    if name == "command":
        raise GoldnodeError(
            "goldnode_drain: command needs goldnode_drain_command and goldnode_resume_command",
            remedy="Set both to lists of words",
        )
    raise GoldnodeError(f"goldnode_drain: {name} is not known", remedy="Use none, command, slurm or kubectl")

"""Taking a node out of service and back, by whatever schedules work on it. Run on the controller, through the site's own programs.

A node that somebody else had already drained or cordoned stays so afterwards: what is restored is the state that was found. A drain that a
run of our own has left when it was cut off is somebody else's too, but where the scheduler keeps the reason and it begins as the caller says.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from goldnode.errors import GoldnodeError, nearest

Run = Callable[[Sequence[str]], str]

NAMES = ("none", "command", "slurm", "kubectl")  # what `goldnode_drain` may be


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
    """One way to drain. `drain` returns what has to be given to `resume`: whether the node was in service before.

    `own`: with what a reason begins that a run of the caller alone gives; a node that is drained for such a one counts as in service.
    `stays`: why a node that was not stays drained, and what returns it.
    """

    def drain(self, node: str, reason: str, own: str | None = None) -> bool: ...

    def resume(self, node: str, was_in_service: bool) -> None: ...

    def stays(self, node: str) -> str: ...


@dataclass
class Nothing:
    """No scheduler: nobody to tell."""

    def drain(self, node: str, reason: str, own: str | None = None) -> bool:
        return True

    def resume(self, node: str, was_in_service: bool) -> None:
        return None

    def stays(self, node: str) -> str:
        return f"{node} is drained by nobody"


@dataclass
class Command:
    """The site's own programs, called with the node's name (and the reason); exit status 0 says done, 3 from `drain_command` says that it
    was out of service already."""

    drain_command: Sequence[str]
    resume_command: Sequence[str]

    def drain(self, node: str, reason: str, own: str | None = None) -> bool:
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

    def stays(self, node: str) -> str:
        return f"{node} was out of service before, as {self.drain_command[0]} says, and stays so. `{shlex.join([*self.resume_command, node])}` returns it"


@dataclass
class Slurm:
    """scontrol: state DRAIN, then wait until no job is left. Slurm shows a drained node with flags such as IDLE+DRAIN."""

    run: Run = run
    wait: float = 86400.0
    pause: float = 15.0
    sleep: Callable[[float], None] = field(default=time.sleep)

    def _show(self, node: str) -> tuple[set[str], str]:
        """State and reason; the reason is empty where there is none, and ends with who gave it and when."""
        text = self.run(["scontrol", "show", "node", node, "--oneliner"])
        state, reason = re.search(r"\bState=(\S+)", text), re.search(r"\bReason=(.*?)(?:\s+Comment=.*)?$", text, re.MULTILINE)
        if state is None:
            raise GoldnodeError(f"scontrol tells no state of node {node}", remedy="Check that the inventory name is the Slurm node name")
        return set(state.group(1).rstrip("*").split("+")), reason.group(1).strip() if reason else ""

    def drain(self, node: str, reason: str, own: str | None = None) -> bool:
        state, why = self._show(node)
        in_service = "DRAIN" not in state
        if in_service:
            self.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])
        waited = 0.0
        while self._show(node)[0] & {"ALLOCATED", "MIXED", "COMPLETING"}:
            if waited >= self.wait:
                raise GoldnodeError(
                    f"node {node} still has jobs after {self.wait:g} s of draining",
                    remedy="Wait for them and run again; it stays drained",
                )
            self.sleep(self.pause)
            waited += self.pause
        return in_service or bool(own and why.startswith(own))

    def resume(self, node: str, was_in_service: bool) -> None:
        if was_in_service:
            self.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])

    def stays(self, node: str) -> str:
        why = self._show(node)[1] or "no reason"
        return f"{node} was drained before (Slurm: {why}), and stays so. `scontrol update NodeName={node} State=RESUME` returns it"


@dataclass
class Kubectl:
    """kubectl: cordon and drain; uncordon only what was not cordoned before."""

    run: Run = run

    def drain(self, node: str, reason: str, own: str | None = None) -> bool:
        found = json.loads(self.run(["kubectl", "get", "node", node, "-o", "json"]))
        in_service = not found.get("spec", {}).get("unschedulable", False)
        self.run(["kubectl", "annotate", "--overwrite", "node", node, f"goldnode/drained-for={reason}"])
        self.run(["kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3600s"])
        return in_service

    def resume(self, node: str, was_in_service: bool) -> None:
        self.run(["kubectl", "annotate", "node", node, "goldnode/drained-for-"])
        if was_in_service:
            self.run(["kubectl", "uncordon", node])

    def stays(self, node: str) -> str:
        return f"{node} was cordoned before, and stays so. `kubectl uncordon {node}` returns it"


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
    raise GoldnodeError(f"goldnode_drain: {name} is not known", remedy=nearest(name, NAMES))

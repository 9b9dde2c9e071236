"""How ssh reaches a node: as the inventory defines it (address, user, port, key, become)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goldnode.core.data import ansible_environment
from goldnode.core.errors import GoldnodeError
from goldnode.core.extras import require
from goldnode.node.ground.text import clean

# Without a prompt, and a node that dies during a write is given up after 8 x 15 s.
SSH = (
    "ssh",
    "-o",
    "BatchMode=yes",
    "-o",
    "ServerAliveInterval=15",
    "-o",
    "ServerAliveCountMax=8",
    "-o",
    "ConnectTimeout=20",
)


@dataclass(frozen=True)
class SshNode:
    """A node that ssh reaches.

    `ssh` is the prefix of a remote command, `become` that of one that needs root.
    """

    name: str
    ssh: tuple[str, ...]
    become: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    def local_command(self, *command: str) -> list[str]:
        """Return the local command that runs a command on the node."""
        return [*self.ssh, shlex.join([*self.become, *command])]

    def run(
        self, *command: str, stdin: bytes | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command on the node. Exit status 255 means that ssh itself failed."""
        give: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        try:
            return subprocess.run(
                self.local_command(*command),
                capture_output=True,
                check=False,
                timeout=timeout,
                **give,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(
                command, 255, b"", f"no answer within {timeout:g} s".encode()
            )

    def output_of(self, *command: str, **more: Any) -> str:
        """Run a command on the node and return its stdout.

        Raises GoldnodeError with its error message if it fails.
        """
        done = self.run(*command, **more)
        if done.returncode:
            raise GoldnodeError(
                f"{self.name}: {last_line(done.stderr) or f'{command[0]} ended with {done.returncode}'}",
                remedy=REACH,
            )
        return done.stdout.decode("utf-8", "replace")


REACH = "check `ssh` to it, and its user and become in the inventory"


def last_line(text: bytes) -> str:
    """Return the last line of a message."""
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return clean(lines[-1].removeprefix("goldnode-node: ")) if lines else ""


def node(name: str, inventory: str | None, become: bool = False) -> SshNode:
    """Return how to reach a node: a host of the inventory, or an ssh destination without one.

    Raises GoldnodeError.
    """
    if inventory is None:
        return SshNode(
            name.rpartition("@")[2], (*SSH, "--", name), ("sudo", "-n") if become else ()
        )
    require("ansible")
    environment = {
        **ansible_environment(),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
    }
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-inventory")), "-i", inventory, "--host", name],
        # Disable vars plugins: the class document is not needed here.
        env={**environment, "ANSIBLE_VARS_PLUGINS": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        variables = json.loads(done.stdout)
    except ValueError:
        variables = None
    if done.returncode or not isinstance(variables, dict):
        raise GoldnodeError(
            f"the inventory has no host {name}: {last_line(done.stderr.encode())}",
            file=inventory,
            remedy="correct the name, or -i",
        )
    return reached(name, variables, become)


def reached(name: str, variables: Mapping[str, Any], become: bool = False) -> SshNode:
    """Return how ssh reaches a host with these inventory variables.

    Pure. Raises GoldnodeError for any connection but ssh.
    """
    kind = str(variables.get("ansible_connection", "ssh")).rpartition(".")[2]
    # `smart` is Ansible's own choice between the two; all of them are ssh to a node.
    if kind not in ("ssh", "smart", "paramiko_ssh", "paramiko"):
        raise GoldnodeError(
            f"{name} is reached by `{kind}`, and not by ssh",
            remedy="set ansible_connection: ssh for it",
        )

    def variable(*keys: str) -> str | None:
        return next(
            (str(variables[key]) for key in keys if variables.get(key) not in (None, "")), None
        )

    words = [*SSH]
    for option, value in (
        ("-p", variable("ansible_port", "ansible_ssh_port")),
        ("-l", variable("ansible_user", "ansible_ssh_user")),
        ("-i", variable("ansible_ssh_private_key_file", "ansible_private_key_file")),
    ):
        words += [option, value] if value else []
    for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        words += shlex.split(str(variables.get(key) or ""))
    root = become or str(variables.get("ansible_become", "")).lower() in ("true", "yes", "1")
    return SshNode(
        name,
        (*words, "--", variable("ansible_host", "ansible_ssh_host") or name),
        ("sudo", "-n") if root else (),
        variables,
    )

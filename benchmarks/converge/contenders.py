"""Who keeps the state, and how each of them is run and read: a command line, an environment, and whether it says that it changed anything."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.testing.lab.nodes import LabNode

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Ran:
    """One run: seconds of wall time, seconds of CPU of the controller's processes, and what was printed."""

    wall: float
    cpu: float
    output: str


@dataclass(frozen=True)
class Contender:
    """A way to keep the state. `remote` counts in the output of a run with `verbose` what was executed on nodes (None: not comparable)."""

    name: str
    title: str
    command: Sequence[str]
    env: Mapping[str, str]
    verbose: Sequence[str] = ()
    remote: str | None = None
    keeps: bool = True  # whether it keeps the state; a floor does not
    changed: str = r"changed=[1-9]"

    def run(self, *options: str) -> Ran:
        """Run it once to its end. Raises RuntimeError with what it printed when it fails."""
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [*self.command, *options],
            cwd=ROOT,
            env={**clean(), **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            raise RuntimeError(f"{self.title} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return Ran(
            wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout
        )

    def unchanged(self, ran: Ran) -> bool:
        """Whether the run says that it found everything as it should be."""
        return re.search(self.changed, ran.output) is None

    def executions(self) -> int | None:
        """What one run executes on all nodes together, from one more run; None where that has no meaning."""
        output = self.run(*self.verbose).output
        return None if self.remote is None else len(re.findall(self.remote, output))


def clean() -> dict[str, str]:
    """The environment without what the caller's shell sets for Ansible, goldnode and Python.

    With PYTHONDONTWRITEBYTECODE a checkout is compiled at each start, and the installed contenders are not.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ANSIBLE_", "GOLDNODE_", "PYTHON"))
    }
    return {
        **kept,
        "PATH": f"{BIN}:{kept['PATH']}",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOST_PATTERN_MISMATCH": "error",
    }


def contenders(
    nodes: Sequence[LabNode],
    inventory: Path,
    site: Mapping[str, str],
    state: Path,
    *,
    peers: Path,
    work: Path,
) -> list[Contender]:
    """Everybody, for these nodes. `site` is goldnode's environment, `state` the file of state.write, `peers` the virtual environment with
    pyinfra and mitogen, `work` a directory for files made here."""
    playbook = [str(BIN / "ansible-playbook"), "-i", str(inventory)]
    ours = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **site}
    plain = {"ANSIBLE_CONFIG": str(HERE / "ansible.cfg")}
    role = [*playbook, str(HERE / "conventional.yml"), "-e", f"state_file={state}"]
    mitogen = {
        "ANSIBLE_STRATEGY": "mitogen_linear",
        "ANSIBLE_STRATEGY_PLUGINS": str(_mitogen(peers, work)),
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
    }
    ssh = (["-vvv"], "SSH: EXEC")
    return [
        Contender("resident", "goldnode, resident engine", [*playbook, "site.yml"], ours, *ssh),
        Contender(
            "reference",
            "goldnode, module shipped",
            [*playbook, "site.yml", "-e", "goldnode_resident=false"],
            ours,
            *ssh,
        ),
        Contender(
            "pyinfra",
            title="pyinfra",
            command=pyinfra(
                {node.name: (node.port, node.key) for node in nodes}, state, peers, work
            ),
            env={},
            verbose=["-vv"],
            remote=r"(?m)^\s*\[[^\]]+\] >>> ",
            changed=r"\] Success",
        ),
        Contender("mitogen", "the role, mitogen_linear", role, {**plain, **mitogen}),
        Contender("conventional", "a role of builtin modules", role, plain, *ssh),
        Contender(
            "empty",
            "floor: an empty play",
            [*playbook, str(HERE / "empty.yml")],
            plain,
            *ssh,
            keeps=False,
        ),
        Contender(
            "ssh", "floor: `true` over an open ssh connection", _ssh(nodes, work), {}, keeps=False
        ),
    ]


def _mitogen(peers: Path, work: Path) -> Path:
    """The strategy plugins of mitogen, from a directory with nothing else of the peers' packages in it: its plugins put it on the path."""
    packages = next((peers / "lib").glob("python*/site-packages"))
    for name in ("mitogen", "ansible_mitogen"):
        link = work / "mitogen" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(packages / name)
    return work / "mitogen/ansible_mitogen/plugins/strategy"


def pyinfra(
    hosts: Mapping[str, tuple[int, Path]], state: Path, peers: Path, work: Path
) -> list[str]:
    """Return the command of pyinfra for hosts of this machine: their ssh ports and keys by name."""
    rows = [
        (name, {"ssh_hostname": "127.0.0.1", "ssh_port": port, "ssh_user": "root", "ssh_key": str(key),
                "ssh_strict_host_key_checking": "no", "ssh_known_hosts_file": "/dev/null"})
        for name, (port, key) in hosts.items()
    ]  # fmt: skip
    file = work / f"pyinfra{len(hosts)}.py"
    file.write_text(f"hosts = {rows!r}\n", encoding="utf-8")
    return [
        str(peers / "bin/pyinfra"),
        "-y",
        str(file),
        str(HERE / "deploy.py"),
        "--data",
        f"state={state}",
    ]


def _ssh(nodes: Sequence[LabNode], work: Path) -> list[str]:
    """`true` on every node at once, over connections that stay open between the runs."""
    socket = [
        "-o",
        "ControlMaster=auto",
        "-o",
        "ControlPersist=120s",
        "-o",
        f"ControlPath={work}/%C",
    ]
    lines = [
        " ".join(["ssh", *socket, *(f"'{word}'" for word in node.ssh("true")[1:]), "&"])
        for node in nodes
    ]
    return ["sh", "-c", "\n".join([*lines, "wait"])]

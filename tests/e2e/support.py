"""Helpers that run goldnode as a user does: ansible-playbook and the command line, with their output
captured.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from goldnode.testing.lab.nodes import LabNode

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RECAP = re.compile(
    r"^(\S+)\s*: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE
)


@dataclass(frozen=True)
class Run:
    """One run of ansible-playbook: exit status, everything printed, and what the recap says of each host."""

    rc: int
    output: str
    changed: dict[str, int] = field(default_factory=dict)
    unreachable: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    @property
    def executions(self) -> int:
        """Remote executions over ssh, as Ansible itself tells them with -vvv."""
        return len(re.findall(r"SSH: EXEC", self.output))


@dataclass(frozen=True)
class Site:
    """What a run is made with beside the inventory: a catalog, a site file, a place for locks."""

    catalog: Path | None = None
    site: Path | None = None
    locks: Path | None = None
    runs: Path | str | None = "off"  # where records of runs go

    def environment(self) -> dict[str, str]:
        """The environment variables that say so."""
        places = {
            "GOLDNODE_CATALOG": self.catalog,
            "GOLDNODE_SITE": self.site,
            "GOLDNODE_LOCKS": self.locks,
            "GOLDNODE_RUNS": self.runs,
        }
        return {name: str(place) for name, place in places.items() if place is not None}


def environment(site: Site) -> dict[str, str]:
    """What a user's shell would hold, and nothing of pytest's."""
    stored = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GOLDNODE_", "ANSIBLE_"))
    }
    return {
        **stored,
        "PATH": f"{BIN}:{stored['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOST_PATTERN_MISMATCH": "error",
        **site.environment(),
    }


def inventory(path: Path, hosts: Mapping[str, Iterable[LabNode]]) -> Path:
    """Write an inventory of lab nodes: class -> nodes. A node may stand in another class than the one it was started in."""
    from goldnode.testing.lab.nodes import SSH_OPTIONS

    children: dict[str, Any] = {}
    for group, nodes in hosts.items():
        children[group] = {
            "hosts": {
                node.name: {
                    "ansible_host": "127.0.0.1",
                    "ansible_port": node.port,
                    "ansible_ssh_private_key_file": str(node.key),
                }
                for node in nodes
            }
        }
    common = {"ansible_user": "root", "ansible_ssh_common_args": " ".join(SSH_OPTIONS)}
    path.mkdir(parents=True, exist_ok=True)
    (path / "hosts.yml").write_text(
        yaml.safe_dump({"all": {"vars": common, "children": children}}, sort_keys=False)
    )
    return path


def command(where: Path, *arguments: str, playbook: str = "site.yml") -> list[str]:
    """The command line of a run of site.yml, or of another playbook beside it."""
    return [str(BIN / "ansible-playbook"), "-i", str(where), str(ROOT / playbook), *arguments]


def site_yml(
    where: Path, *arguments: str, site: Site, timeout: float = 3600, playbook: str = "site.yml"
) -> Run:
    """Run site.yml, or another playbook beside it, on an inventory and wait."""
    done = subprocess.run(
        command(where, *arguments, playbook=playbook),
        cwd=ROOT,
        env=environment(site),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    recap = {found[1]: found for found in RECAP.finditer(done.stdout)}
    return Run(
        done.returncode,
        done.stdout,
        {host: int(found[3]) for host, found in recap.items()},
        {host: int(found[4]) for host, found in recap.items()},
        {host: int(found[5]) for host, found in recap.items()},
    )


def goldnode(*arguments: str, site: Site) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [str(BIN / "goldnode"), *arguments],
        cwd=ROOT,
        env=environment(site),
        capture_output=True,
        text=True,
        check=False,
    )


def succeeded(run: Run) -> Run:
    """The run, when it succeeded; otherwise what it printed is the failure's text."""
    assert run.rc == 0, run.output[-6000:]
    return run


@dataclass
class Services:
    """A node with real Slurm and Prometheus daemons in it, and how it is put into a class."""

    node: LabNode
    site: Site
    directory: Path

    def converge(self, group: str) -> None:
        succeeded(site_yml(inventory(self.directory / group, {group: [self.node]}), site=self.site))

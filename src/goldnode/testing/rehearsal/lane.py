"""The steps of a rehearsal: each runs commands as a person does, and compares the state that is read then."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from goldnode.classdoc.load import load_catalog
from goldnode.core.data import data
from goldnode.core.docker_engine import Say
from goldnode.core.site import load_site
from goldnode.lock.model import load_lock
from goldnode.testing.rehearsal.errors import RehearsalError
from goldnode.testing.rehearsal.tracker import kernel_changelog, tracker

CLASS = "rehearsal"
OWNER = "platform"
# Fixed in Debian 12 by 6.1.192-1 and in Debian 13 by 6.12.115-1, by the changelogs of both.
CVE, MODULE = "CVE-2026-72404", "tipc"
_LINES = 12  # of a command's output
_STACK = """\
stack: rehearsal
description: Debian 12 with a kernel alone
os: {{id: debian, version: "12", codename: bookworm, architecture: amd64}}
exercised: none
archives: [{archives}]
kernel: {{series: "6.1", flavour: amd64}}
driver: null
end_of_life: {{date: "2028-06-30", source: "https://wiki.debian.org/LTS"}}
"""
_CLASS = """\
class: rehearsal
description: A node in a container, with a simulated kernel
simulated: true
backend: cpu
stack: rehearsal
"""
_SITE = """\
catalog: catalog
locks: locks
fleet: {data: captures}
cve: {signing_key: key.pem, soak: {high: 5s}}
"""
_ANSIBLE = """\
[defaults]
inventory = inventory
interpreter_python = /usr/bin/python3
retry_files_enabled = false
nocows = true
library = {package}/ansible/modules
action_plugins = {package}/ansible/action
callback_plugins = {package}/ansible/callback
vars_plugins = {package}/ansible/vars
inventory_plugins = {package}/ansible/inventory
roles_path = {roles}
callbacks_enabled = goldnode_report
[ssh_connection]
pipelining = true
"""


class Machines(Protocol):
    """Nodes of a rehearsal."""

    def start(self, names: list[str], group: str) -> Path:
        """Start nodes, and return the file of their inventory."""

    def off(self, name: str) -> None: ...

    def on(self, name: str) -> None: ...

    def settle(self, names: list[str]) -> None:
        """Wait until nodes show the kernel that they boot."""


@dataclass
class CveRehearsal:
    """One rehearsal in a folder of its own. `names` are its nodes; the last one does not answer during the rollout."""

    folder: Path
    machines: Machines
    say: Say
    cve: str = CVE
    module: str = MODULE
    names: tuple[str, ...] = ("n1", "n2", "n3")
    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)

    # -- commands

    def run(self, *words: str, codes: Iterable[int] = (0,), show: bool = True) -> str:
        """Run a command of goldnode, or another one by its path, and return its output. Raises RehearsalError."""
        argv = [sys.executable, "-m", "goldnode.cli", *words]
        shown = f"goldnode {' '.join(words)}"
        if words[0].endswith("ansible-playbook"):
            argv = list(words)
            shown = " ".join(["ansible-playbook", Path(words[1]).name, *words[2:]])
        self.say(f"$ {shown}")
        done = subprocess.run(
            argv, cwd=self.folder, env=_environment(), capture_output=True, text=True, check=False
        )
        text = "\n".join(part for part in (done.stdout.strip(), done.stderr.strip()) if part)
        if done.returncode not in codes:
            tail = "\n".join(text.splitlines()[-_LINES:])
            raise RehearsalError(
                f"`{shown}` ended with {done.returncode}:\n{tail}",
                remedy=f"the nodes are left as they are; see {self.folder}",
            )
        if show:
            for line in text.splitlines()[:_LINES]:
                self.say(f"  {line}")
        return done.stdout

    def playbook(self, name: str, *words: str, codes: Iterable[int] = (0,)) -> None:
        """Run a playbook of goldnode on the nodes."""
        program = Path(sys.executable).with_name("ansible-playbook")
        self.run(str(program), str(data(name)), *words, codes=codes, show=False)

    def cve_command(self, step: str, *words: str, codes: Iterable[int] = (0, 1)) -> str:
        """Run a step of the lane with the data of the rehearsal."""
        given = ["--feed", f"debian=tracker.json@{dt.datetime.now(dt.UTC):%Y-%m-%d}"]
        return self.run("cve", step, self.cve, *given, *words, codes=codes)

    def collect(self, codes: Iterable[int] = (0,)) -> None:
        """Fetch and store the captures of all nodes."""
        self.playbook("report.yml", "-e", "goldnode_report_fresh=true", codes=codes)
        self.run("fleet", "ingest", show=False)

    # -- states

    def states(self) -> dict[str, str]:
        """Return node -> its state for the vulnerability, by the captures."""
        given = self.cve_command("show", "--module", self.module, "--format", "json")
        rows = json.loads(given)["vulnerabilities"][0]["rows"]
        pairs = [
            (name, row["state"]) for row in rows if row["kind"] == "node" for name in row["names"]
        ]
        return dict(reversed(pairs))  # the first row of a node is its worst

    def expect(self, what: str, got: object, wanted: object) -> None:
        """Compare what was read with what the step shows. Raises RehearsalError."""
        if got != wanted:
            raise RehearsalError(
                f"{what}: expected {wanted}, got {got}",
                remedy=f"the nodes are left as they are; see {self.folder}",
            )
        self.say(f"  as expected: {what}: {got}")

    def all_in(self, state: str) -> dict[str, str]:
        """Return the states of all nodes, if they have the same."""
        return dict.fromkeys(self.names, state)

    # -- steps

    def steps(self) -> Mapping[str, Callable[[], None]]:
        """Return the steps in order, by their titles."""
        return {
            "nodes and a lock with the old kernel": self.begin,
            "what is affected": self.show,
            "a mitigation ends with its last day": self.expire,
            "the mitigation on all nodes": self.mitigate,
            "the lock with the fix": self.prepare,
            f"the rollout, while {self.names[-1]} does not answer": self.roll_out,
            "the proof names what is left": self.prove_left,
            "the last node": self.last,
        }

    def go(self) -> None:
        """Run all steps. Raises RehearsalError."""
        for number, (title, step) in enumerate(self.steps().items(), 1):
            self.say(f"\n{number}. {title[0].upper()}{title[1:]}")
            began = self.clock()
            step()
            self.seconds[title] = self.clock() - began

    def begin(self) -> None:
        """Write the site, lock the older kernel, bring the nodes to it, and make the data."""
        for name in ("catalog/stacks", "catalog/classes", "locks", "newest", "inventory"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        package = Path(__file__).parents[2]
        texts = {
            "goldnode-site.yml": _SITE,
            "ansible.cfg": _ANSIBLE.format(package=package, roles=data("roles")),
            f"catalog/classes/{CLASS}.yml": _CLASS,
            f"inventory/{CLASS}.yml": yaml.safe_dump(
                {CLASS: {"vars": {"goldnode_accepted": [0, 3], "goldnode_owner": OWNER}}}
            ),
        }
        for name, text in texts.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", "ed25519", "-out", self.folder / "key.pem"],
            check=True,
            capture_output=True,
        )
        stack = self.folder / f"catalog/stacks/{CLASS}.yml"
        # The main archive has an older kernel than that of security.
        stack.write_text(_STACK.format(archives="debian"))
        self.run("lock", CLASS)
        stack.write_text(_STACK.format(archives="debian, debian-security"))
        self.run("lock", CLASS, show=False)
        self.run("lock", CLASS, "--upgrade", "--out", "newest", show=False)
        self.run("lock", "debian13_cpu", "--upgrade", "--out", "newest", show=False)
        self.feed()
        hosts = self.machines.start(list(self.names), CLASS)
        (self.folder / "inventory/hosts.yml").write_text(hosts.read_text())
        self.playbook("site.yml", "-e", "goldnode_reboot=true", "-e", "goldnode_reboot_batch=100%")
        self.machines.settle(list(self.names))
        self.collect()

    def feed(self) -> None:
        """Write data in the tracker's format, from the changelogs of the newest kernels."""
        with contextlib.chdir(self.folder):
            site, catalog = load_site(), load_catalog()
            logs = [
                (
                    codename,
                    "linux",
                    kernel_changelog(Path(f"newest/{name}.lock.yml"), catalog, site),
                )
                for codename, name in (("bookworm", CLASS), ("trixie", "debian13_cpu"))
            ]
        text = tracker(logs)
        fixed = json.loads(text)["linux"].get(self.cve, {}).get("releases", {})
        if "bookworm" not in fixed:
            raise RehearsalError(
                f"the changelog of the newest kernel does not name {self.cve}",
                remedy="name one that it has",
            )
        (self.folder / "tracker.json").write_text(text)
        versions = {name: row["fixed_version"] for name, row in fixed.items()}
        self.say(f"  {self.cve} is fixed in {versions}, by the changelogs of the packages")

    def show(self) -> None:
        """Show the nodes with the vulnerability."""
        self.expect("states of the nodes", self.states(), self.all_in("not-loaded"))

    def _mitigation(self) -> None:
        self.cve_command(
            "mitigate",
            *("--class", CLASS, "--deny", self.module, "--reason", "a rehearsal", "--owner", OWNER),
            *("--expires", f"{dt.datetime.now(dt.UTC) + dt.timedelta(days=7):%Y-%m-%d}", "--write"),
            codes=(0,),
        )
        self.playbook("site.yml")
        self.collect()

    def expire(self) -> None:
        """Apply the mitigation, and set its last day to a day that is past."""
        self._mitigation()
        self.expect("states with the mitigation", self.states(), self.all_in("denied"))
        path = self.folder / "vulnerabilities" / self.cve / "mitigation.yml"
        content = yaml.safe_load(path.read_text())
        content["expires"] = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        self.say("  the last day in mitigation.yml is now yesterday (SIMULATED: it was edited)")
        self.playbook("site.yml")
        self.collect()
        self.expect("states after the last day", self.states(), self.all_in("not-loaded"))

    def mitigate(self) -> None:
        """Apply the mitigation again."""
        self._mitigation()
        self.expect("states with the mitigation", self.states(), self.all_in("denied"))
        self.expect("step mitigate", self.lane()["mitigate"], "done")

    def lane(self) -> dict[str, str]:
        """Return step -> its state for the class."""
        given = json.loads(self.cve_command("lane", "--format", "json"))
        rows = {row["class"]: row["steps"] for row in given["classes"]}
        return {step["step"]: step["state"] for step in rows.get(CLASS, ())}

    def prepare(self) -> None:
        """Lock the kernel with the fix."""
        before = load_lock(self.folder / f"locks/{CLASS}.lock.yml").kernel_release
        self.cve_command("prepare", "--class", CLASS, "--write", codes=(0,))
        after = load_lock(self.folder / f"locks/{CLASS}.lock.yml").kernel_release
        self.say(f"  kernel of the lock: {before} -> {after}")
        self.expect("step prepare", self.lane()["prepare"], "done")

    def roll_out(self) -> None:
        """Roll the lock out. The last node does not answer, so that the rollout defers it."""
        self.cve_command("roll-out", "--class", CLASS, "--write")
        self.machines.off(self.names[-1])
        self.run(
            "rollout", "run", f"vulnerabilities/{self.cve}/rollout-{CLASS}.yml", "-i", "inventory"
        )
        self.machines.settle(list(self.names[:-1]))
        # Ansible ends with 4 for a node that it does not reach.
        self.collect(codes=(0, 4))
        moved = {**self.all_in("fixed"), self.names[-1]: "denied"}
        self.expect("states after the rollout", self.states(), moved)

    def proof(self) -> dict[str, Any]:
        """Write and sign the proof, and return it."""
        self.cve_command("prove", "-i", "inventory", "--write")
        path = self.folder / "vulnerabilities" / self.cve / "proof.json"
        proof: dict[str, Any] = json.loads(path.read_bytes())
        return proof

    def prove_left(self) -> None:
        """Show that the proof names the node that did not move."""
        left = [(row["name"], row["owner"]) for row in self.proof()["left"]]
        self.expect("left, with the owner", left, [(self.names[-1], OWNER)])

    def last(self) -> None:
        """Move the last node, prove, and remove the mitigation."""
        self.machines.on(self.names[-1])
        limit = ("--limit", self.names[-1])
        self.playbook("site.yml", *limit, "-e", "goldnode_reboot=true")
        self.machines.settle(list(self.names))
        self.collect()
        self.expect("states of the nodes", self.states(), self.all_in("fixed"))
        proof = self.proof()
        self.expect("proved, with nothing left", (proof["proved"], proof["left"]), (True, []))
        self.cve_command("mitigate", "--lift", "--write", codes=(0,))
        self.cve_command("lane", "--html", "lane.html", codes=(0,))


def _environment() -> dict[str, str]:
    """Return the environment of a command: without settings of goldnode and Ansible of the caller."""
    own = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GOLDNODE_", "ANSIBLE_")) or key == "GOLDNODE_CACHE"
    }
    return {**own, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "False"}

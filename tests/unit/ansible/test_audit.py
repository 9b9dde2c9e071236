"""`goldnode plan` over many nodes: what the sessions of one process find is what Ansible finds, host by host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.ssh_servers import ADDRESS, Behaviour, Servers, hashed, recorded, serving

from goldnode.classdoc.cache import ClassDocuments
from goldnode.core.data import PACKAGE, ansible_environment, data

CLASS = "cpu_only"


class Fleet:
    """Names of an inventory, each with a server of its own behaviour."""

    def __init__(self, servers: Servers, directory: Path) -> None:
        self.servers, self.directory = servers, directory
        self.known: list[str] = []
        self.hosts: dict[str, dict[str, Any]] = {}
        self.digest = str(ClassDocuments().document(CLASS)["digest"])
        self.known_file = directory / "known_hosts"

    def plan(self, **changes: Any) -> str:
        """Return a plan as the program of a node prints it."""
        return recorded(self.digest, **changes)

    def add(self, name: str, behaviour: Behaviour, *, key: str = "own", **variables: Any) -> int:
        """Add a host. `key`: the key of it that known_hosts has. Return its port."""
        port, [own] = self.servers.start(behaviour)
        line = f"[{ADDRESS}]:{port} {own}"
        if key == "hashed":
            line = hashed(line, self.directory)
        if key == "changed":
            line = (
                f"[{ADDRESS}]:{port} {self.servers.authority.export_public_key().decode().strip()}"
            )
        if key != "none":
            self.known.append(line)
        self.hosts[name] = {"ansible_host": ADDRESS, "ansible_port": port, **variables}
        return port

    def jump_through(self, name: str, port: int) -> None:
        """Have a host reached through the server on `port`, by a configuration of ssh that both ways read."""
        file = self.directory / "ssh_config"
        file.write_text(
            f"Host jump\n  HostName {ADDRESS}\n  Port {port}\n  User root\n  IdentityFile {self.servers.identity}\n"
            f"Host jump *\n  UserKnownHostsFile {self.known_file}\n",
            encoding="utf-8",
        )
        self.hosts[name]["ansible_ssh_common_args"] = f"-F {file} -J jump"

    def encrypt(self, name: str, variable: str, value: str, secret: bytes) -> None:
        """Give a host a variable that a vault has encrypted."""
        # Ansible takes a second to import; most tests here never need it.
        from ansible.parsing.vault import VaultLib, VaultSecret

        text = VaultLib([("default", VaultSecret(secret))]).encrypt(value).decode()
        lines = "".join(f"  {line}\n" for line in text.splitlines())
        file = self.directory / f"host_vars/{name}.yml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{variable}: !vault |\n{lines}", encoding="utf-8")

    def inventory(self) -> Path:
        """Write the inventory and known_hosts."""
        self.known_file.write_text("".join(f"{line}\n" for line in self.known), encoding="utf-8")
        common = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.servers.identity),
            # Ansible's own connections would outlive the test.
            "ansible_ssh_args": "-o ControlMaster=no",
            "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={self.known_file}",
        }
        group = {"hosts": self.hosts, "vars": common}
        file = self.directory / "hosts.yml"
        file.write_text(yaml.safe_dump({"all": {"children": {CLASS: group}}}), encoding="utf-8")
        return file

    def ask(self, *words: str, **environment: str) -> tuple[dict[str, Any], str, int]:
        """Return the plans as JSON, standard error and the exit status of `goldnode plan`."""
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("goldnode")),
                "plan",
                "-i",
                str(self.inventory()),
                "--format",
                "json",
                *words,
            ],
            env={**os.environ, **environment},
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout), done.stderr, done.returncode

    def play(self, *words: str, **environment: str) -> tuple[list[str], dict[str, Any], str]:
        """Return the recap, the hosts of the record, and the output of `site.yml --check`."""
        records = self.directory / f"records-{len(list(self.directory.glob('records-*')))}"
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                "-i",
                str(self.inventory()),
                str(data("site.yml")),
                "--check",
                *words,
            ],
            env={
                **os.environ,
                **ansible_environment(own=True),
                "GOLDNODE_RUNS": str(records),
                **environment,
            },
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        recap = re.findall(r"^\S+ +: ok=.*$", output, re.MULTILINE)
        [record] = records.glob("*.json")
        return recap, json.loads(record.read_text(encoding="utf-8"))["hosts"], output


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with serving(tmp_path) as servers:
        yield Fleet(servers, tmp_path)


def drift(fleet: Fleet) -> str:
    action: dict[str, Any] = {
        "part": "sanity",
        "kind": "file.write",
        "target": "/etc/goldnode/x",
        "reason": "want it; its content differs",
        "phase": "image",
        "before": "a\n",
        "after": "b\n",
        "reboot": None,
        "data": {},
    }
    line = f"{action['kind']} {action['target']}: {action['reason']}"
    parts = json.loads(fleet.plan())["parts"]
    return fleet.plan(actions=[action], parts={**parts, "sanity": [line]})


def lines(text: str) -> list[str]:
    """Return the notes of which hosts Ansible asked."""
    return [line for line in text.splitlines() if line.startswith("note: ")]


def assert_as_ansible(fleet: Fleet, **environment: str) -> tuple[Mapping[str, Any], list[str]]:
    """Assert that both ways give the same plans and exit status. Return the plans, and what the first way left to Ansible."""
    asked, errors, status = fleet.ask(**environment)
    by_ansible, _, status_of_ansible = fleet.ask(GOLDNODE_AUDIT="off", **environment)
    assert status == status_of_ansible
    if asked != by_ansible:
        # Ansible's own text for a host varies on a busy machine: then the answer of each is one that Ansible gives.
        again, _, _ = fleet.ask(GOLDNODE_AUDIT="off", **environment)
        both = (by_ansible["hosts"], again["hosts"])
        odd = {
            name: (row, *(one[name] for one in both))
            for name, row in asked["hosts"].items()
            if row not in [one[name] for one in both]
        }
        assert not odd
        assert {**asked, "hosts": {}} == {**by_ansible, "hosts": {}}
    return asked["hosts"], lines(errors)


def test_a_fleet_of_every_kind_gets_the_answers_of_ansible(fleet: Fleet) -> None:
    refusal = {"code": "dpkg-locked", "message": "dpkg is locked.", "remedy": "Wait."}
    fleet.add("good1", Behaviour(fleet.plan()))
    fleet.add("good2", Behaviour(fleet.plan()), key="hashed")
    fleet.add("drifted", Behaviour(drift(fleet)))
    fleet.add("refusing", Behaviour(fleet.plan(refusals=[refusal])))
    fleet.add("slow", Behaviour(fleet.plan(), seconds=1.5))
    fleet.add("changed", Behaviour(fleet.plan()), key="changed")
    fleet.add("unknown", Behaviour(fleet.plan()), key="none")
    fleet.add("odd", Behaviour("no plan\n", status=1))
    fleet.add("sudo", Behaviour(fleet.plan(), sudo="x"), ansible_become=True, ansible_user="admin")
    for name, word in (("right", "x"), ("wrong", "y")):
        become: dict[str, Any] = {
            "ansible_become": True,
            "ansible_become_password": word,
            "ansible_user": "admin",
        }
        fleet.add(name, Behaviour(fleet.plan(), sudo="x"), **become)
    fleet.hosts["closed"] = {"ansible_host": ADDRESS, "ansible_port": 1}
    hosts, notes = assert_as_ansible(fleet)
    assert {name: row["state"] for name, row in hosts.items()} == {
        "good1": "converged",
        "good2": "converged",
        "drifted": "to change",
        "refusing": "refused",
        "slow": "converged",
        "changed": "unreachable",
        "unknown": "unreachable",
        "odd": "failed",
        "sudo": "failed",
        "right": "converged",
        "wrong": "failed",
        "closed": "unreachable",
    }
    assert "has another key than before" in hosts["changed"]["message"]
    assert "Missing sudo password" in hosts["sudo"]["message"]
    assert "Incorrect sudo password" in hosts["wrong"]["message"]
    # What Ansible said of these was asked of Ansible.
    left = {name for name in hosts if any(name in line for line in notes)}
    assert left == {"changed", "unknown", "odd", "sudo", "closed"}


def assert_played_as_by_ansible(fleet: Fleet, **environment: str) -> tuple[list[str], set[str]]:
    """Assert that site.yml has the same recap and record in each of three ways. Return the recap, and the hosts that were left to Ansible."""
    recap_of_ansible, record_of_ansible, _ = fleet.play(GOLDNODE_AUDIT="off", **environment)
    assert len(recap_of_ansible) == len(fleet.hosts)
    left: list[set[str]] = []
    for way in ({}, {"GOLDNODE_AUDIT": "on"}):
        recap, record, output = fleet.play(**way, **environment)
        assert recap == recap_of_ansible
        assert record == record_of_ansible
        # Ansible warns of the strategy that goldnode sets only where it was asked for.
        assert ("strategy plugins not included in ansible.builtin" in output) is bool(way)
        left.append({name for name in fleet.hosts if any(name in line for line in lines(output))})
    assert left[0] == left[1]
    return recap_of_ansible, left[0]


def test_a_run_has_the_recap_and_the_record_of_ansible(fleet: Fleet) -> None:
    refusal = {"code": "dpkg-locked", "message": "dpkg is locked.", "remedy": "Wait."}
    good = [Behaviour(fleet.plan()) for _ in range(3)]
    for number, behaviour in enumerate(good):
        fleet.add(f"good{number}", behaviour, key=("own", "hashed")[number % 2])
    fleet.add("drifted", Behaviour(drift(fleet)))
    fleet.add("refusing", Behaviour(fleet.plan(refusals=[refusal])))
    fleet.add("changed", Behaviour(fleet.plan()), key="changed")
    become: dict[str, Any] = {
        "ansible_become": True,
        "ansible_become_password": "x",
        "ansible_user": "admin",
    }
    fleet.add("right", Behaviour(fleet.plan(), sudo="x"), **become)
    fleet.hosts["closed"] = {"ansible_host": ADDRESS, "ansible_port": 1}
    recap, left = assert_played_as_by_ansible(fleet)
    assert left == {"changed", "closed"}
    assert sum("ok=1 " in line and "changed=0" in line for line in recap) == 4
    # Each of the three runs has asked once.
    assert [len(behaviour.commands) for behaviour in good] == [3, 3, 3]


def test_a_jump_host_that_refuses_the_login_is_tried_by_ansible_once(fleet: Fleet) -> None:
    gate = Behaviour(users=("admin",))
    jump = fleet.add("jump", gate)
    del fleet.hosts["jump"]
    names = [f"inner{number}" for number in range(8)]
    for name in names:
        fleet.add(name, Behaviour(fleet.plan()))
        fleet.jump_through(name, jump)
    hosts, errors, _ = fleet.ask()
    assert {row["state"] for row in hosts["hosts"].values()} == {"unreachable"}
    messages = [hosts["hosts"][name]["message"] for name in names]
    assert sum("was not asked again for this host" in message for message in messages) == 7
    assert gate.failed == 2
    assert len(lines(errors)) == 1
    recap, _, _ = fleet.play()
    assert all("unreachable=1" in line for line in recap)
    assert gate.failed == 4


@pytest.mark.long
def test_fifty_names_behind_all_that_goes_wrong_get_the_answers_of_ansible(
    fleet: Fleet, tmp_path: Path
) -> None:
    for number in range(36):
        fleet.add(f"good{number:02}", Behaviour(fleet.plan()), key=("own", "hashed")[number % 2])
    fleet.add("drifted", Behaviour(drift(fleet)))
    for number in range(2):
        fleet.add(f"slow{number}", Behaviour(fleet.plan(), seconds=3))
    fleet.add("changed", Behaviour(fleet.plan()), key="changed")
    fleet.add("sudo", Behaviour(fleet.plan(), sudo="x"), ansible_become=True, ansible_user="admin")
    fleet.add("refusing-logins", Behaviour(fleet.plan(), users=("admin",)))
    fleet.add("dropping", Behaviour(fleet.plan(), drops=2))
    fleet.add("templated", Behaviour(fleet.plan()), ansible_user="{{ admin }}", admin="root")
    port = fleet.add("proxied", Behaviour(fleet.plan()))
    command = f"exec 3<>/dev/tcp/{ADDRESS}/{port}; cat <&3 & cat >&3"
    fleet.hosts["proxied"]["ansible_ssh_extra_args"] = f"-o 'ProxyCommand=bash -c \"{command}\"'"
    # Closed, no such name, and an address (of documentation, RFC 5737) from which nothing comes.
    fleet.hosts["closed"] = {"ansible_host": ADDRESS, "ansible_port": 1}
    fleet.hosts["nameless"] = {"ansible_host": "nameless.invalid"}
    fleet.hosts["dead"] = {"ansible_host": "192.0.2.1", "ansible_ssh_timeout": 2}
    gate = Behaviour()
    jump = fleet.add("jump", gate)
    gate.answer = fleet.plan()
    for number in range(2):
        # The path of Ansible takes its own connection to the jump host, with the options of that host.
        fleet.add(f"inner{number}", Behaviour(fleet.plan()))
        fleet.jump_through(f"inner{number}", jump)
    words = tmp_path / "vault"
    words.write_text("secret", encoding="utf-8")
    for name in ("vaulted1", "vaulted2"):
        fleet.add(name, Behaviour(fleet.plan(), users=(name,)))
        fleet.encrypt(name, "ansible_user", name, b"secret")
    assert len(fleet.hosts) == 53
    hosts, notes = assert_as_ansible(fleet, ANSIBLE_VAULT_PASSWORD_FILE=str(words))
    states = {name: row["state"] for name, row in hosts.items()}
    not_converged = {name: state for name, state in states.items() if state != "converged"}
    assert {name: state for name, state in not_converged.items() if name != "dropping"} == {
        "drifted": "to change",
        "changed": "unreachable",
        "sudo": "failed",
        "refusing-logins": "unreachable",
        "closed": "unreachable",
        "nameless": "unreachable",
        "dead": "unreachable",
    }
    left = {name for name in hosts if any(f" {name}" in line for line in notes)}
    assert left == {*not_converged, "proxied"} - {"drifted"}
    _, left = assert_played_as_by_ansible(fleet, ANSIBLE_VAULT_PASSWORD_FILE=str(words))
    assert {"closed", "proxied", "changed"} <= left


def test_a_large_fleet_is_asked_by_several_processes(fleet: Fleet, tmp_path: Path) -> None:
    for number in range(4):
        fleet.add(f"good{number}", Behaviour(fleet.plan()))
    fleet.hosts["closed"] = {"ansible_host": ADDRESS, "ansible_port": 1}
    tree = tmp_path / "answers"
    tree.mkdir()
    program = "import os; from goldnode.ansible import asking, audit; asking.PART = 2; "
    program += "os.sched_getaffinity = lambda process: {0, 1}; audit.main()"
    words = ["-i", str(fleet.inventory()), "all", "-m", "goldnode_state", "-a", "operation=plan"]
    subprocess.run(
        [sys.executable, "-c", program, *words, "--tree", str(tree)],
        env={**os.environ, **ansible_environment(own=True)},
        capture_output=True,
        check=False,
    )
    notes = json.loads((tmp_path / "asked.json").read_text(encoding="utf-8"))
    assert notes == {
        "asked": 4,
        "by_ansible": {"Connection refused": ["closed"]},
        "missing": False,
        "unknown": {},
    }
    # An answer to Ansible itself has a file of its own.
    assert {path.name for path in tree.iterdir()} == {"closed"}
    # One process for each of two parts, and its notes.
    assert len(list(tmp_path.glob("asked-by-*.json"))) == 1
    answered = [file.read_text(encoding="utf-8") for file in tmp_path.glob("answered-*")]
    assert sorted(text.count("\n") for text in answered) == [2, 2]


def test_without_asyncssh_ansible_asks_and_a_note_names_the_extra(
    fleet: Fleet, tmp_path: Path
) -> None:
    for number in range(4):
        fleet.add(f"good{number}", Behaviour(fleet.plan()))
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import sys\nsys.modules['asyncssh'] = None\n", encoding="utf-8"
    )
    found, errors, status = fleet.ask(PYTHONPATH=f"{hidden}{os.pathsep}{PACKAGE.parent}")
    assert {row["state"] for row in found["hosts"].values()} == {"converged"}
    assert status == 0
    assert lines(errors) == [
        "note: asyncssh is not installed, so Ansible asked each host in a process of its own: install goldnode[audit]."
    ]

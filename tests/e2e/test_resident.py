"""Planning with the program installed on the node: the same plan as from the module, and the module if
anything is wrong.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.converge import state
from tests.e2e.support import (
    BIN,
    RECAP,
    ROOT,
    Run,
    Site,
    environment,
    inventory,
    site_yml,
    succeeded,
)

from goldnode.node.state.domains.program import CLASS, PROGRAM
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]
RESIDENT = "goldnode: planned by the program on the node"
OTHER = "goldnode: the program on the node is not the one for this plan (exit status 10)"
OTHER_CLASS = OTHER.replace("10", "11")
PLAYBOOK = """\
- hosts: all
  gather_facts: false
  tasks:
    - goldnode_state: {operation: plan}
    - ansible.builtin.copy:
        content: "{{ ansible_facts['goldnode_plan'] | to_json }}"
        dest: "{{ playbook_dir }}/plan.json"
      delegate_to: localhost
      vars: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
"""


@pytest.fixture(scope="module")
def member(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[LabNode, Site, Path]:
    """A converged node with its site and inventory; each test leaves it converged."""
    node, site = make("resident", "e2e_r535", "debian12_r535")
    hosts = inventory(tmp_path_factory.mktemp("inventory"), {"e2e_r535": [node]})
    bare = succeeded(site_yml(hosts, "--check", "-vvv", site=site))
    assert OTHER in bare.output
    assert bare.executions == 2, "a node without the program costs one cheap execution more"
    succeeded(site_yml(hosts, site=site))
    return node, site, hosts


def plan(
    member: tuple[LabNode, Site, Path], where: Path, *options: str
) -> tuple[dict[str, Any], str]:
    """The plan as the controller has it in the end, and what -vvv tells."""
    _, site, hosts = member
    (where / "plan.yml").write_text(PLAYBOOK)
    done = subprocess.run(
        [
            str(BIN / "ansible-playbook"),
            "-i",
            str(hosts),
            str(where / "plan.yml"),
            "-vvv",
            *options,
        ],
        cwd=ROOT,
        env=environment(site),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    found: dict[str, Any] = json.loads((where / "plan.json").read_text())
    return found, done.stdout


@pytest.mark.parametrize(
    "damage",
    [
        "true",
        "apt-mark unhold libcuda1; rm /etc/apt/preferences.d/goldnode-stack; chmod 700 /usr/lib/goldnode/goldnode-node",
    ],
    ids=["converged", "drifted"],
)
def test_both_paths_give_the_same_plan(
    member: tuple[LabNode, Site, Path], tmp_path: Path, damage: str
) -> None:
    node, site, hosts = member
    node.shell(damage)
    by_program, reported = plan(member, tmp_path)
    assert RESIDENT in reported
    by_module, reported = plan(member, tmp_path, "-e", "goldnode_resident=false")
    assert RESIDENT not in reported
    assert by_program == by_module
    assert bool(by_program["actions"]) == (damage != "true")
    succeeded(site_yml(hosts, site=site))


@pytest.mark.parametrize(("path", "answer"), [(PROGRAM, OTHER), (CLASS, OTHER_CLASS)])
def test_altered_program_or_class_document_is_found_and_repaired(
    member: tuple[LabNode, Site, Path], tmp_path: Path, path: str, answer: str
) -> None:
    node, site, hosts = member
    node.shell(f"echo >> {path}")
    found, reported = plan(member, tmp_path)
    assert answer in reported
    assert [action["target"] for action in found["actions"]] == [path]
    succeeded(site_yml(hosts, site=site))
    assert RESIDENT in plan(member, tmp_path)[1]


def test_another_mirror_of_the_same_class_is_another_document(
    member: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    """The site is no part of the class's own digest, and what is on the node must not be planned by an earlier one."""
    node, site, hosts = member
    assert site.site is not None
    (tmp_path / "site.yml").write_text(
        site.site.read_text().replace("/debian\n", "/debian-elsewhere\n")
    )
    elsewhere = Site(site.catalog, tmp_path / "site.yml", site.locks)
    found, reported = plan((node, elsewhere, hosts), tmp_path)
    assert OTHER_CLASS in reported
    assert "/etc/apt/sources.list.d/goldnode-debian.sources" in [
        action["target"] for action in found["actions"]
    ]


# A program of a user's: it answers as one that finds nothing to do, and leaves a mark when it runs as root.
FOREIGN, RAN = "/home/mallory/goldnode-node", "/run/mallory-ran"
DAMAGE = {
    "the program is given away": (
        f"chown mallory {PROGRAM}",
        f"cat {FOREIGN} >{PROGRAM}",
        f"{PROGRAM}: owner is mallory (4711)",
    ),
    "the program is a link": (
        f"mv {PROGRAM} /home/mallory/kept && ln -s /home/mallory/kept {PROGRAM}",
        f"ln -sf {FOREIGN} /home/mallory/kept",
        f"{PROGRAM} is a link to '/home/mallory/kept'",
    ),
    "its directory is given away": (
        f"chown mallory {PROGRAM.rpartition('/')[0]}",
        f"rm -f {PROGRAM}; cp -p {FOREIGN} {PROGRAM}",
        f"{PROGRAM.rpartition('/')[0]}: owner is mallory (4711)",
    ),
}


def test_user_writable_program_is_reported_repaired_and_never_run(
    member: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    node, site, hosts = member
    node.shell("useradd --create-home --uid 4711 mallory")
    node.put({FOREIGN: f"#!/bin/sh\n[ $(id -u) != 0 ] || touch {RAN}\n".encode()})
    node.shell(f"chown -R mallory /home/mallory; chmod 755 {FOREIGN}")
    for what, (damage, abuse, reason) in DAMAGE.items():
        node.shell(
            f"systemctl stop goldnode-watch.timer; {damage}"
        )  # which would run it within five minutes
        done = node.run(PROGRAM, "check", "--no-write", "--format", "json", check=False)
        found = {row["id"]: row for row in json.loads(done.output)["findings"]}
        assert done.rc == 2, what
        assert reason in found["node.owner"]["got"], what
        node.shell(f"runuser -u mallory -- sh -c '{abuse}'")
        run = succeeded(
            site_yml(
                hosts,
                "-vvv",
                "-e",
                "sanity_verify=true",
                "-e",
                '{"sanity_accepted": [0, 1, 3]}',
                site=site,
            )
        )
        assert OTHER in run.output, what
        assert run.changed["resident"] > 0, what
        assert (
            node.run("stat", "-c", "%F %U:%G %a", PROGRAM).output.strip()
            == "regular file root:root 755"
        ), what
        assert node.run("test", "-e", RAN, check=False).rc == 1, (
            f"{what}: the user's program ran as root"
        )
    found, reported = plan(member, tmp_path)
    assert RESIDENT in reported
    assert found["actions"] == []
    node.shell("userdel --remove mallory")


@pytest.mark.long
def test_the_role_it_is_measured_against_keeps_the_same_state(
    member: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    """benchmarks/converge asserts this of all contenders; a new kind of state that the role does not know shows here."""
    node, site, hosts = member
    document = json.loads(node.read(CLASS))
    file, _ = state.write(document, tmp_path)
    here = ROOT / "benchmarks/converge"
    role = [
        str(BIN / "ansible-playbook"),
        "-i",
        str(hosts),
        str(here / "conventional.yml"),
        "-e",
        f"state_file={file}",
    ]

    def keep() -> Run:
        done = subprocess.run(
            role,
            cwd=ROOT,
            env={**environment(site), "ANSIBLE_CONFIG": str(here / "ansible.cfg")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Run(
            done.returncode,
            done.stdout,
            {found[1]: int(found[3]) for found in RECAP.finditer(done.stdout)},
        )

    assert succeeded(keep()).changed == {"resident": 0}
    node.shell("rm /etc/apt/preferences.d/goldnode-stack; apt-mark unhold libcuda1")
    assert succeeded(keep()).changed == {"resident": 2}
    assert succeeded(site_yml(hosts, site=site)).changed["resident"] == 0

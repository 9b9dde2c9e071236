"""site.yml and a class that must not reach a node: its hosts are refused on the controller, and nobody else's.

Nothing listens where the hosts should be, so that a host that is contacted is unreachable, and one that is not is not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.catalog.test_accept_reject import write

from goldnode.catalog.load import builtin_catalog

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent

B200 = "class: b200\nbackend: cuda\nstack: own\ngpu: {model: B200-SXM-180GB, count: 8}\n"
SITE = "archives: {debian: {url: http://d.example.org/debian}, debian-security: {url: http://d.example.org/security}}\n"
THERE: dict[str, Any] = {
    "ansible_connection": "ssh",
    "ansible_host": "127.0.0.1",
    "ansible_port": 1,
}


def play(
    where: Path, files: dict[str, str], groups: dict[str, Any], *options: str, site: str = SITE
) -> tuple[int, str, dict[str, Any]]:
    """site.yml over these groups of hosts that nobody listens for, with a catalog of `files`: exit status, what it prints, its record."""
    write(where / "catalog", files)
    write(where, {"hosts.yml": yaml.safe_dump(groups), "site.yml": site})
    stored = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GOLDNODE_", "ANSIBLE_"))
    }
    done = subprocess.run(
        [
            str(BIN / "ansible-playbook"),
            "-i",
            str(where / "hosts.yml"),
            str(ROOT / "site.yml"),
            *options,
        ],
        cwd=ROOT,
        env={
            **stored,
            "PATH": f"{BIN}:{stored['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "GOLDNODE_CATALOG": str(where / "catalog"),
            "GOLDNODE_SITE": str(where / "site.yml"),
            "GOLDNODE_RUNS": str(where / "runs"),
            "XDG_CACHE_HOME": str(where / "cache"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    records = list((where / "runs").glob("*.json"))
    assert records, done.stdout
    return done.returncode, done.stdout, json.loads(max(records).read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a run over two classes prints, and its record."""
    stack = (builtin_catalog() / "stacks/debian12_r580.yml").read_text(encoding="utf-8")
    stack = stack.replace("stack: debian12_r580", "stack: own").replace(
        "flavour: open", "flavour: proprietary"
    )
    groups = {
        name: {"hosts": dict.fromkeys(hosts, THERE)}
        for name, hosts in {"b200": ["n1", "n2"], "cpu_only": ["c1", "c2"]}.items()
    }
    groups["rack2"] = {"hosts": {"c2": {}}}
    files = {"classes/b200.yml": B200, "stacks/own.yml": stack}
    status, output, record = play(tmp_path_factory.mktemp("blocked"), files, groups)
    assert status != 0, output
    return output, record


def test_its_hosts_are_refused_and_not_contacted(run: tuple[str, dict[str, Any]]) -> None:
    output, record = run
    assert {name: host["outcome"] for name, host in record["hosts"].items()} == {
        "c1": "unreachable",
        "c2": "unreachable",
        "n1": "refused",
        "n2": "refused",
    }
    (refusal,) = record["hosts"]["n1"]["refusals"]
    assert refusal["code"] == "module-flavour"
    assert (
        "refused: n1, n2\n    [module-flavour] B200-SXM-180GB (Blackwell) needs the open kernel modules"
        in output
    )
    assert "class b200 is blocked, and nothing was touched:" in output


def test_warnings_are_reported_once_per_class_before_any_host(
    run: tuple[str, dict[str, Any]],
) -> None:
    output, _ = run
    assert output.count("class cpu_only, checked:") == output.count("class b200, checked:") == 1
    assert output.count("[os-support] standard support of Debian 12") == 2
    assert output.index("class cpu_only, checked:") < output.index(
        "TASK [Get the plan of every node]"
    )


def test_a_misspelt_group_gets_the_class_named(tmp_path: Path) -> None:
    files = {"classes/desk_only.yml": "class: desk_only\nbackend: cpu\nstack: debian12_cpu\n"}
    _, reported, _ = play(
        tmp_path, files, {"desk-only": {"hosts": {"h1": THERE}}, "others": {"hosts": {"h2": THERE}}}
    )
    reported = " ".join(reported.split())
    assert (
        'none of its groups (desk-only) is the name of a class in the catalog. Rename group "desk-only" to "desk_only"'
        in reported
    )
    assert (
        "groups (others) is the name of a class in the catalog. Put each host into a group that is named after its class"
        in reported
    )


def test_a_drain_that_would_fail_is_refused_with_the_plan(tmp_path: Path) -> None:
    """When the packages have changed it is too late; nobody is contacted. Names that are nearly goldnode's are told once."""
    hosts = {
        "n1": {**THERE, "goldnode_drain": "slrum"},
        "n2": {**THERE, "goldnode_lock_timeout": "ten"},
        "n3": THERE,
    }
    variables = {"goldnode_drian": "slurm"}
    status, output, record = play(
        tmp_path,
        {"classes/other.yml": "class: other\nbackend: cpu\nstack: debian12_cpu\n"},
        {"cpu_only": {"hosts": hosts, "vars": variables}},
    )
    assert status != 0
    assert {name: host["outcome"] for name, host in record["hosts"].items()} == {
        "n1": "failed",
        "n2": "failed",
        "n3": "unreachable",
    }
    words = " ".join(output.split())
    assert (
        'goldnode_drain of host n1 is "slrum", expected none, command, slurm or kubectl. Use "slurm".'
        in words
    )
    assert 'goldnode_lock_timeout of host n2 is "ten", expected seconds.' in words
    assert (
        words.count(
            'goldnode_drian (hosts n1, n2, n3) is not a variable of goldnode: use "goldnode_drain"'
        )
        == 1
    )

"""integrations/inventories with ansible-inventory: the answers of schedulers become hosts in the groups of classes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import inventory_loader
from tests import slurm
from tests.unit.inventory.answering import api_server

from goldnode.core.errors import InventoryError
from goldnode.inventory.fleet import nodes_of_class
from goldnode.inventory.listing import listed

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "integrations/inventories"
ANSWERS = Path(__file__).parent / "answers"


def source(directory: Path, name: str, program: Path | str, *more: str) -> Path:
    """Write a source file as the documentation shows it, with the path of its program; return it."""
    text = (SOURCES / name).read_text(encoding="utf-8")
    file = directory / name
    lines = more if any("program:" in line for line in more) else (f"program: [{program}]", *more)
    file.write_text("\n".join([text, *lines, ""]), encoding="utf-8")
    return file


def answering(directory: Path, answer: Path, wanted: str) -> Path:
    """Write a program that prints an answer to the wanted arguments, and fails for any other; return it."""
    program = directory / "program"
    program.write_text(
        f'#!/bin/sh\n[ "$*" = {shlex.quote(wanted)} ] || {{ echo "other arguments: $*" >&2; exit 1; }}\n'
        f"exec cat {shlex.quote(str(answer))}\n"
    )
    program.chmod(0o755)
    return program


def hosts(data: dict[str, Any], group: str) -> list[str]:
    return sorted(data.get(group, {}).get("hosts", ()))


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # ansible.cfg names the plugins
    inventory_loader.add_directory(str(ROOT / "src/goldnode/ansible/inventory"))


@pytest.mark.parametrize("file", sorted(SOURCES.iterdir()), ids=lambda file: file.name)
def test_documentation_shows_the_file(file: Path) -> None:
    page = (ROOT / "docs/how-to/inventories.md").read_text(encoding="utf-8")
    heading, _, body = file.read_text(encoding="utf-8").partition("\n")
    assert "docs/how-to/inventories.md" in heading
    assert f"```yaml\n# integrations/inventories/{file.name}\n{body}```" in page


def test_slurm_nodes_are_in_the_groups_of_their_features(tmp_path: Path) -> None:
    program = answering(tmp_path, ANSWERS / "scontrol.txt", "--all show node --oneliner")
    file = source(
        tmp_path, "slurm.yml", program, "groups: {cpu_only: \"slurm_partitions == ['all']\"}"
    )
    data = listed(str(file))
    assert hosts(data, "h100_sxm5_80gb") == ["n1", "n2"]
    assert hosts(data, "cpu_only") == hosts(data, "no_feature") == ["n3"]
    variables = data["_meta"]["hostvars"]["n1"]
    assert (variables["ansible_host"], variables["goldnode_drain"]) == ("127.0.0.1", "slurm")
    assert "{{" not in json.dumps(data)


def test_kubernetes_nodes_are_in_the_groups_of_their_labels(tmp_path: Path) -> None:
    program = answering(tmp_path, ANSWERS / "nodes.json", "get nodes --output=json")
    file = source(tmp_path, "kubernetes.yml", program)
    data = listed(str(file))
    assert hosts(data, "h100_sxm5_80gb") == ["gpu-1", "gpu-2"]
    assert hosts(data, "cpu_only") == ["cpu-1"]
    assert hosts(data, "ungrouped") == ["control-1"]
    assert data["_meta"]["hostvars"]["gpu-1"]["ansible_host"] == "192.0.2.11"
    assert [node.name for node in nodes_of_class(str(file), "h100_sxm5_80gb")] == ["gpu-1", "gpu-2"]


FAILURES = [
    ("exit 1", "", r"failed: exit status 1\. Run `"),
    ("echo one >&2; echo no controller >&2; exit 1", "", r"failed: no controller\. Run `"),
    ("echo other", "", r"line 1 of scontrol's answer has no NodeName: 'other'"),
    (
        "cat SCONTROL",
        "groups: {cpu_only: \"'x' in slurm_feature\"}",
        r"'slurm_feature' is undefined",
    ),
    (
        "cat SCONTROL",
        "program: [program-x]",
        r"program-x is not installed here\. Name one that is, with words",
    ),
]


@pytest.mark.parametrize(("script", "more", "message"), FAILURES)
def test_source_that_fails_is_an_error_with_its_reason(
    tmp_path: Path, script: str, more: str, message: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n".replace("SCONTROL", str(ANSWERS / "scontrol.txt")))
    program.chmod(0o755)
    file = source(tmp_path, "slurm.yml", program, more)
    with pytest.raises(AnsibleError, match=message):
        inventory_loader.get("goldnode_slurm").parse(InventoryData(), DataLoader(), str(file))


def test_reason_of_a_source_that_fails_reaches_the_commands_of_goldnode(tmp_path: Path) -> None:
    with pytest.raises(
        InventoryError, match=r"program-x is not installed here\. Name one that is, with words"
    ):
        listed(str(source(tmp_path, "slurm.yml", "program-x")))


def test_node_in_two_classes_is_refused_by_ansible_itself(tmp_path: Path) -> None:
    program = answering(tmp_path, ANSWERS / "scontrol.txt", "--all show node --oneliner")
    file = source(tmp_path, "slurm.yml", program, "groups: {cpu_only: true}")
    command = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(file), "--list"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    assert 'host "n1" is in the groups of two classes: cpu_only and h100_sxm5_80gb' in done.stderr


# Two sources in one directory: what a host is in, and what else is known about it.


def test_sources_of_one_directory_are_joined(tmp_path: Path) -> None:
    program = answering(tmp_path, ANSWERS / "scontrol.txt", "--all show node --oneliner")
    directory = tmp_path / "live"
    directory.mkdir()
    source(directory, "slurm.yml", program).rename(directory / "10-slurm.yml")
    (directory / "20-racks.yml").write_text("all:\n  hosts:\n    n1: {goldnode_rack: r1}\n")
    (directory / "30-cohorts.yml").write_text(
        "plugin: ansible.builtin.constructed\nstrict: true\n"
        "compose: {goldnode_cohort: \"(slurm_partitions | default(['none']))[0]\"}\n"
    )
    (node, _) = nodes_of_class(str(directory), "h100_sxm5_80gb")
    assert (node.name, node.rack, node.cohort) == ("n1", "r1", "h100")


@pytest.mark.long
@pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))
def test_nodes_of_a_real_slurmctld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with slurm.cluster(3, "PartitionName=h100 Nodes=n1,n2 Hidden=YES") as cluster:
        cluster.update("n1", "AvailableFeatures=h100_sxm5_80gb,gpu", "ActiveFeatures=gpu")
        cluster.update("n1", "Comment=Partitions=other {{ 1 / 0 }}")
        cluster.update(
            "n2", "AvailableFeatures=cpu_only", "State=DRAIN", "Reason=bad fan Gres=gpu:8"
        )
        monkeypatch.setenv("SLURM_CONF", cluster.conf)
        data = listed(str(source(tmp_path, "slurm.yml", "scontrol")))
    assert (hosts(data, "h100_sxm5_80gb"), hosts(data, "cpu_only"), hosts(data, "no_feature")) == (
        ["n1"],
        ["n2"],
        ["n3"],
    )
    found = data["_meta"]["hostvars"]
    assert found["n1"]["slurm_partitions"] == ["h100", "all"]
    assert (found["n2"]["slurm_gres"], found["n2"]["slurm_state"]) == ([], ["idle", "drain"])
    assert found["n1"]["ansible_host"] == "127.0.0.1"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_itself_asks_an_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {
        "name": "nodes",
        "singularName": "node",
        "namespaced": False,
        "kind": "Node",
        "verbs": ["list"],
    }
    answers = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [nodes]},
        "/api/v1/nodes": json.loads((ANSWERS / "nodes.json").read_text(encoding="utf-8")),
    }
    monkeypatch.setenv("HOME", str(tmp_path))  # kubectl caches what it has discovered
    with api_server(
        {path: json.dumps(answer).encode() for path, answer in answers.items()}
    ) as address:
        words = f"kubectl, --server={address}, --kubeconfig={os.devnull}"
        data = listed(str(source(tmp_path, "kubernetes.yml", words)))
    assert hosts(data, "h100_sxm5_80gb") == ["gpu-1", "gpu-2"]

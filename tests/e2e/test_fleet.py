"""Ten nodes in one run: four cannot converge, each for another reason, the rest do, and the report names the
reasons.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import documents
from tests.e2e.conftest import World
from tests.e2e.support import Run, Site, inventory, site_yml, succeeded

from goldnode.testing.lab.nodes import LabNode, NodeSpec

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]
HOOK = "/etc/initramfs-tools/hooks/zz-somebody"
# Ten containers one after the other need no more memory than one; ten transactions at once do.
FORKS = ("--forks", "3")


@dataclasses.dataclass
class Fleet:
    """Ten nodes and what became of them."""

    nodes: list[LabNode]
    site: Site
    hosts: Path
    runs: Path

    def run(self, *arguments: str) -> tuple[Run, dict[str, Any]]:
        """One run of site.yml and the record that it left."""
        known = set(self.runs.glob("*.json"))
        run = site_yml(self.hosts, *FORKS, *arguments, site=self.site)
        (record,) = set(self.runs.glob("*.json")) - known
        return run, documents.valid(record.read_text())

    def port(self, name: str, port: int) -> None:
        """Let the inventory say another port of a host."""
        document = yaml.safe_load((self.hosts / "hosts.yml").read_text())
        for group in document["all"]["children"].values():
            if name in group["hosts"]:
                group["hosts"][name]["ansible_port"] = port
        (self.hosts / "hosts.yml").write_text(yaml.safe_dump(document))


@pytest.fixture(scope="module")
def fleet(world: World, make: Make, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Node 0 is of a class with a GPU and has a job on it; 1 fails on somebody's hook; 8 is off; 9 is asked at a port that is closed."""
    place = tmp_path_factory.mktemp("fleet")
    first, site = make("ten-0", "e2e_r535", "debian12_r535", "debian12_cpu")
    nodes = [
        first,
        *world.lab.up(
            [NodeSpec(f"ten-{number}", "e2e_cpu", flavour="warm") for number in range(1, 10)]
        ),
    ]
    first.shell(
        "mknod /dev/nvidia0 c 1 3; systemd-run --unit=train sh -c 'exec sleep 3600 < /dev/nvidia0'"
    )
    nodes[1].put(
        {
            HOOK: b"#!/bin/sh\n[ \"$1\" = prereqs ] && exit 0\necho 'a hook of somebody else fails' >&2\nexit 1\n"
        },
        mode=0o755,
    )
    nodes[8].stop()
    hosts = inventory(place / "inventory", {"e2e_r535": nodes[:1], "e2e_cpu": nodes[1:]})
    made = Fleet(nodes, dataclasses.replace(site, runs=place / "runs"), hosts, place / "runs")
    with socket.socket() as closed:  # bound, so that nobody else takes it, and listening to nobody
        closed.bind(("127.0.0.1", 0))
        made.port("ten-9", closed.getsockname()[1])
        yield made
    for node in nodes:
        node.destroy()


def test_six_of_ten_converge_and_the_report_has_reasons_for_the_others(fleet: Fleet) -> None:
    run, record = fleet.run()
    assert run.rc != 0
    assert {name: host["outcome"] for name, host in record["hosts"].items()} == {
        "ten-0": "held",
        "ten-1": "failed",
        **{f"ten-{number}": "reboot pending" for number in range(2, 8)},
        "ten-8": "unreachable",
        "ten-9": "unreachable",
    }
    assert "node_class: file.write" not in run.output, "ten plans are not printed"
    report = run.output[run.output.index("goldnode: 10 hosts in ") :]
    for text in (
        "2 unreachable, 1 failed, 1 held, 6 reboot pending",
        "  unreachable: ten-8, ten-9\n    ssh: connect to host ADDRESS port N: Connection refused\n",
        "  failed: ten-1\n    in part kernel: the transaction failed; the kernel that ran before is still the default: "
        f"E: {HOOK} failed with return 1.\n",
        "  held: ten-0\n    [gpu-in-use] ",
        "sleep, unit train.service",
        "  reboot pending: ten-2, ten-3, ten-4, ten-5, ten-6, ten-7\n    Needs a reboot: ",
    ):
        assert text in report, report
    assert [run.changed[f"ten-{number}"] > 0 for number in range(10)] == [
        False,
        True,
        *[True] * 6,
        False,
        False,
    ]
    assert fleet.nodes[0].run("test", "-e", "/etc/goldnode", check=False).rc != 0, (
        "the held node was touched"
    )
    # What was changed, why, and for how long, resource by resource; and the same on the node, with the locks.
    parts = record["hosts"]["ten-2"]["parts"]
    (transaction,) = [row for row in parts["kernel"] if row["kind"] == "packages.transact"]
    assert transaction["changed"] is True
    assert transaction["seconds"] > 0
    assert transaction["reason"]
    failed = record["hosts"]["ten-1"]["parts"]["kernel"][-1]
    assert failed["changed"] is False
    assert "a hook of somebody else fails" in record["hosts"]["ten-1"]["error"]["message"]
    assert not any(row["changed"] for row in record["hosts"]["ten-1"]["parts"]["sanity"])
    history = [json.loads(text) for text in read_history(fleet.nodes[2])]
    assert [entry["part"] for entry in history] == list(parts)
    assert {entry["lock_digest"] for entry in history} == {record["hosts"]["ten-2"]["lock_digest"]}
    assert {entry["earlier_lock_digest"] for entry in history} == {None}
    last = json.loads(read_history(fleet.nodes[1])[-1])
    assert last["error"].startswith("the transaction failed")
    assert last["actions"][-1]["error"]


def read_history(node: LabNode) -> list[str]:
    """The records that a node keeps of what was applied to it, oldest first."""
    names = node.run("ls", "/var/lib/goldnode/history").output.split()
    return [node.read(f"/var/lib/goldnode/history/{name}") for name in sorted(names)]


def test_once_repaired_the_other_four_converge_and_the_six_are_left_alone(fleet: Fleet) -> None:
    fleet.nodes[0].shell("systemctl stop train; rm /dev/nvidia0")
    fleet.nodes[1].run("rm", HOOK)
    fleet.nodes[8].start()
    fleet.port("ten-9", fleet.nodes[9].port)
    history = read_history(fleet.nodes[2])
    run, record = fleet.run()
    succeeded(run)
    assert [run.changed[f"ten-{number}"] > 0 for number in range(10)] == [
        True,
        True,
        *[False] * 6,
        True,
        True,
    ]
    # The transaction that failed had brought the kernel already, so that its repair asks for no boot; a machine would see which one runs.
    assert record["counts"] == {"reboot pending": 9, "changed": 1}
    assert record["hosts"]["ten-1"]["outcome"] == "changed"
    assert read_history(fleet.nodes[2]) == history

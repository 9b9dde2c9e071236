"""The `numa` section: nodes, affinity, and how far GPUs and NICs are from each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.hardware import Scenario, tree
from tests.simulators.hardware.tree import HGX, Layout

from goldnode.node.ground.host import Host
from goldnode.node.probe import Context, numa, pci

NODES = "sys/devices/system/node"


def scenario(count: int = 8, *faults: str) -> Scenario:
    document = {
        "class": "a",
        "gpu": {"model": "H100-SXM5-80GB", "count": count},
        "driver": {"version": "535.1"},
    }
    return Scenario.of(document).with_faults(faults)


def read(root: Path) -> dict[str, Any]:
    context = Context(Host(str(root), live=True))
    context.captured.update(pci.read(context))
    found: dict[str, Any] = numa.read(context)["numa"]
    json.dumps(found)
    return found


def test_nodes_affinity_and_distances(tmp_path: Path) -> None:
    wanted = scenario()
    found = read(tree.write(wanted, tmp_path, layout=HGX))
    address = {name: place.rpartition("/")[2] for name, place in tree.places(wanted, HGX).items()}
    assert found["nodes"] == {
        "0": {"cpus": "0-47", "memory_mib": 515625, "distance": [10, 21]},
        "1": {"cpus": "48-95", "memory_mib": 515625, "distance": [21, 10]},
    }
    assert found["affinity"][address["gpu5"]] == {"node": 1, "cpus": "48-95"}
    assert found["affinity"][address["nvme0"]] == {"node": 0, "cpus": "0-47"}
    assert set(found["affinity"]) == {
        one for name, one in address.items() if not name.startswith(("other", "console"))
    }
    row = found["distances"][address["gpu0"]]
    assert [row[address[f"nic{number}"]] for number in range(8)] == ["same_switch"] * 2 + [
        "same_node"
    ] * 2 + ["other_node"] * 4
    assert len(found["distances"]) == 8


def test_interrupts_of_adapters_are_read_in_pairs(tmp_path: Path) -> None:
    wanted = scenario()
    layout = replace(HGX, faults={"nic1.irqs": "48-95"})
    found = read(tree.write(wanted, tmp_path, layout=layout))["interrupts"]
    places = tree.places(wanted, layout)
    address = {name: places[name].rpartition("/")[2] for name in ("nic0", "nic1", "nvme0")}
    assert found["default"] == f"{(1 << 96) - 1:x}"
    assert len(found["devices"]) == 8
    assert address["nvme0"] not in found["devices"]
    rows = found["devices"][address["nic0"]]
    assert (rows["node"], rows["count"]) == (0, 8)
    assert [row["cpus"] for row in rows["read"].values()] == ["1", "2", "3", "4", "6", "7"]
    assert {row["cpus"] for row in found["devices"][address["nic1"]]["read"].values()} == {"48-95"}


@pytest.mark.parametrize("nodes", [0, 1])
def test_interrupts_are_not_read_with_one_node(tmp_path: Path, nodes: int) -> None:
    found = read(tree.write(scenario(1), tmp_path, layout=Layout(nics=1, nodes=nodes)))
    assert found["interrupts"]["fault"] == "not_exposed"


@pytest.mark.parametrize(
    ("numbers", "chosen"),
    [
        ([], []),
        ([7], [7]),
        (list(range(7)), [1, 2, 3, 4, 5, 6]),
        (list(range(64)), [1, 2, 31, 32, 62, 63]),
    ],
)
def test_some_interrupts_of_many_are_read(numbers: list[int], chosen: list[int]) -> None:
    assert numa.some(numbers) == chosen


PLACES = [
    # paths and nodes of two functions, how far they are
    (["r", "u", "d1", "g"], ["r", "u", "d2", "n"], 0, 0, "same_switch"),
    (["r", "u", "d", "u2", "d3", "g"], ["r", "u", "e", "u3", "d4", "n"], 0, 0, "same_switch"),
    (["r", "g"], ["r", "n"], 0, 0, "same_root"),  # two functions of a card
    (["g"], ["n"], 0, 0, "same_root"),  # on the root bus of a virtual machine
    (["s", "g"], ["t", "n"], 0, 0, "same_node"),
    (["s", "g"], ["t", "n"], 0, 1, "other_node"),
    (["s", "g"], ["t", "n"], 0, None, None),
    (["s", "g"], ["t", "n"], None, None, None),
    (["r", "u", "d1", "g"], ["r", "u", "d2", "n"], None, None, "same_switch"),
]


@pytest.mark.parametrize(("one", "other", "node", "sibling", "expected"), PLACES)
def test_distance_is_symmetric_and_follows_the_path(
    one: list[str], other: list[str], node: int | None, sibling: int | None, expected: str | None
) -> None:
    missing = {"fault": "not_exposed", "text": "-1"}
    bus = {"s": "0000:10", "t": "0000:20"}
    rows = [
        {
            "path": path,
            "root_bus": bus.get(path[0], "0000:00"),
            "numa_node": missing if where is None else where,
        }
        for path, where in ((one, node), (other, sibling))
    ]
    there, back = numa.distance(*rows), numa.distance(*reversed(rows))
    assert there == back
    assert there == expected if expected else there["fault"] == "not_exposed"


def test_minus_one_is_not_node_zero(tmp_path: Path) -> None:
    wanted = scenario(2, "gpu*.numa_node=-1")
    found = read(
        tree.write(wanted, tmp_path, layout=Layout(nics=1, nodes=2, faults={"nic0.numa_node": "0"}))
    )
    gpu = wanted.gpus[0]["pci.address"]
    assert found["affinity"][gpu]["node"]["fault"] == "not_exposed"
    assert [one["fault"] for one in found["distances"][gpu].values()] == ["not_exposed"]


@pytest.mark.parametrize("node", ["1", "2"])
def test_moved_gpu_has_its_actual_numa_node(tmp_path: Path, node: str) -> None:
    wanted = scenario(8, f"gpu3.numa_node={node}")
    found = read(tree.write(wanted, tmp_path, layout=Layout(nodes=2)))
    assert found["affinity"][wanted.gpus[3]["pci.address"]]["node"] == int(node)


def test_a_kernel_without_nodes(tmp_path: Path) -> None:
    found = read(tree.write(scenario(1), tmp_path))
    assert found["nodes"]["fault"] == "not_exposed"
    assert found["affinity"]["0000:10:00.0"]["cpus"]["fault"] == "not_exposed"
    assert read(tmp_path / "nothing") == {**found, "affinity": {}, "distances": {}}


HOSTILE = [
    ("distance", "10 x", "distance"),
    ("distance", "", "distance"),
    ("distance", "²", "distance"),
    ("meminfo", "", "memory_mib"),
    ("meminfo", "Node 0 MemTotal: many kB", "memory_mib"),
    ("meminfo", "\x1b[2J" * 9999, "memory_mib"),
]


@pytest.mark.parametrize(("name", "text", "key"), HOSTILE)
def test_files_that_hold_nonsense(tmp_path: Path, name: str, text: str, key: str) -> None:
    root = tree.write(scenario(1), tmp_path, layout=Layout(nodes=2))
    (root / NODES / "node0" / name).write_text(text)
    (root / NODES / "node²").mkdir()
    (root / NODES / "nodes").mkdir()
    found = read(root)["nodes"]
    assert found["0"][key]["fault"] == "unread"
    assert list(found) == ["0", "1"]

"""What a capture says of interfaces and InfiniBand ports, from small directories that play sysfs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.roots import context, make

from goldnode.node.ground.host import Host
from goldnode.node.probe import Context, network
from goldnode.node.probe.values import Files, unread

NIC = "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0"


def interface(name: str, **values: str) -> dict[str, str]:
    """The files of one interface below a function of the PCI bus."""
    here = f"{NIC}/net/{name}"
    files = {
        f"{here}/{key}": value + "\n"
        for key, value in {"mtu": "9000", "operstate": "up", "address": "aa:bb", **values}.items()
    }
    files[f"{NIC}/numa_node"] = "1\n"
    return files


def tree(root: Path, **values: str) -> Path:
    """A node with eth0 on a PCI function, and a virtual veth0."""
    make(root, interface("eth0", **values), {"/sys/class/net/eth0": f"../../..{NIC}/net/eth0"})
    make(
        root,
        {},
        {
            f"{NIC}/net/eth0/device": "../..",
            f"{NIC}/driver": "../../../../bus/pci/drivers/mlx5_core",
        },
    )
    make(
        root,
        {"/sys/devices/virtual/net/veth0/mtu": "1500\n"},
        {"/sys/class/net/veth0": "../../devices/virtual/net/veth0"},
    )
    return root


def test_an_interface_of_hardware(tmp_path: Path) -> None:
    files = {
        "speed": "400000",
        "duplex": "full",
        "carrier_changes": "3",
        "statistics/rx_dropped": "17",
        "statistics/rx_packets": "1000",
    }
    got = network.read(context(tree(tmp_path, **files)))["network"]
    assert list(got) == ["eth0"]
    row = got["eth0"]
    assert (row["address"], row["driver"], row["numa_node"], row["mtu"]) == (
        "0000:18:00.0",
        "mlx5_core",
        1,
        9000,
    )
    assert (row["speed_mbps"], row["duplex"], row["state"], row["carrier_changes"]) == (
        400000,
        "full",
        "up",
        3,
    )
    assert (row["counters"]["rx_dropped"], row["counters"]["rx_packets"]) == (17, 1000)
    assert row["counters"]["tx_dropped"]["fault"] == "not_exposed"
    assert row["firmware"]["fault"] == "not_exposed"


def test_a_link_that_is_down_has_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = network.read(context(tree(tmp_path, speed="-1", duplex="unknown", operstate="down")))[
        "network"
    ]["eth0"]
    assert got["speed_mbps"]["fault"] == got["duplex"]["fault"] == "not_exposed"
    assert got["state"] == "down"
    real = Files.text
    monkeypatch.setattr(
        Files,
        "text",
        lambda self, name, most=65536: (
            unread("Invalid argument", 22)
            if name.endswith(("/speed", "/duplex"))
            else real(self, name)
        ),
    )
    got = network.read(context(tmp_path))["network"]["eth0"]
    assert got["speed_mbps"] == {
        "fault": "not_exposed",
        "text": "the link is down, or its driver knows no speed",
        "rc": 22,
    }
    assert got["duplex"]["fault"] == "not_exposed"


def test_a_driver_that_hangs_leaves_what_needs_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "link", lambda *_: __import__("time").sleep(60))
    monkeypatch.setattr(
        "goldnode.node.probe.reader_process.Asked.__init__.__defaults__", (1.0, 0.2)
    )
    got = network.read(context(tree(tmp_path)))["network"]["eth0"]
    assert got["mtu"] == 9000
    assert got["speed_mbps"]["fault"] == "unread"
    assert "no answer" in got["firmware"]["text"]


@pytest.mark.parametrize(
    ("document", "route", "want"),
    [
        ({"health": {"baseline": {"network": {"veth0": {"mtu": 1500}}}}}, "", ["eth0", "veth0"]),
        ({}, "veth0\t00000000\t010010AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", ["eth0", "veth0"]),
        ({}, "veth0\t0010AC00\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n", ["eth0"]),
        ({"health": {"baseline": {"network": ["torn"]}}}, "torn", ["eth0"]),
    ],
)
def test_virtual_interfaces_are_reported_where_they_matter(
    tmp_path: Path, document: dict[str, Any], route: str, want: list[str]
) -> None:
    make(tree(tmp_path), {"/proc/net/route": "Iface\tDestination\n" + route})
    assert list(network.read(context(tmp_path, document))["network"]) == want


def ib(root: Path, state: str = "4: ACTIVE\n") -> Path:
    """A node with mlx5_0."""
    here = "/sys/class/infiniband/mlx5_0"
    files = {
        "fw_ver": "28.39",
        "board_id": "MT_01",
        "node_guid": "a088:c203",
        "ports/1/state": state,
        "ports/1/phys_state": "5: LinkUp",
    }
    files |= {
        "ports/1/rate": "400 Gb/sec (4X NDR)",
        "ports/1/link_layer": "InfiniBand",
        "ports/1/counters/link_downed": "2",
    }
    files |= {
        "ports/1/counters/unicast_rcv_packets": "9",
        "ports/1/hw_counters/out_of_sequence": "5",
    }
    return make(
        root,
        {f"{here}/{name}": text + "\n" for name, text in files.items()},
        {f"{here}/device": f"../../../..{NIC}"},
    )


def test_infiniband_port_has_state_rate_and_counters(tmp_path: Path) -> None:
    got = network.read(context(ib(tree(tmp_path))))["infiniband"]["mlx5_0"]
    assert (got["address"], got["firmware"], got["board"], got["guid"]) == (
        "0000:18:00.0",
        "28.39",
        "MT_01",
        "a088:c203",
    )
    assert got["ports"]["1"] == {
        "state": "active",
        "physical": "linkup",
        "rate_gbps": 400,
        "layer": "infiniband",
        "counters": {"link_downed": 2},
        "hw_counters": {"out_of_sequence": 5},
    }


@pytest.mark.parametrize(
    ("text", "want"), [("2.5 Gb/sec (1X SDR)", 2.5), ("100 Gb/sec (4X EDR)", 100), (None, None)]
)
def test_infiniband_rate_is_parsed(text: str | None, want: float | None) -> None:
    assert network.rate(text) == want


@pytest.mark.parametrize("text", ["", "much"])
def test_a_rate_that_is_invalid_is_unread(text: str) -> None:
    assert network.rate(text)["fault"] == "unread"


def test_an_image_has_no_interfaces(tmp_path: Path) -> None:
    got = network.read(context(tree(tmp_path), live=False))
    assert got["network"]["fault"] == got["infiniband"]["fault"] == "not_exposed"


def test_this_machine_is_read_without_a_crash() -> None:
    got = network.read(Context(Host("/")))
    json.dumps(got)
    assert isinstance(got["network"], dict)


def test_a_driver_is_asked_for_its_firmware_and_reports_what_it_is() -> None:
    assert network.firmware("no-such-one")["fault"] == "not_exposed"
    assert network.firmware("lo")["fault"] in ("not_exposed", "unread")

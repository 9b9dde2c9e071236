"""Tests of the simulated sysfs and procfs, through goldnode's readers and by path."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulators.hardware import Scenario, tree
from tests.simulators.test_hardware import document

from goldnode.facts import host as facts
from goldnode.node.ground.host import Host
from goldnode.node.state.observe import functions, gpus


def amd(count: int = 8) -> Scenario:
    wanted = {**document("MI300X", count), "driver": {"version": None}}
    return Scenario.of(wanted)


def hops(root: Path, address: str) -> list[str]:
    """Return the PCI addresses from the GPU up to the root port, from the resolved path."""
    place = (root / "sys/bus/pci/devices" / address).resolve()
    return [part.name for part in [place, *place.parents] if part.name.count(":") == 2]


@pytest.mark.parametrize("devices", [tree.DEVICES, tree.DEVICES_OF_A_MOUNT])
def test_the_bus_has_the_gpus_of_the_class(tmp_path: Path, devices: str) -> None:
    root = tree.write(Scenario.of(document()), tmp_path, devices=devices)
    found = gpus(Host(str(root)), functions(Host(str(root))))
    assert len(found) == 8
    assert {gpu["id"] for gpu in found} == set(facts.gpu("A100-SXM4-40GB").pci_ids)
    assert {gpu["driver"] for gpu in found} == {"nvidia"}
    assert hops(root, str(found[0]["address"])) == ["0000:10:00.0", "0000:0f:01.0"]
    assert (root / "sys/bus/pci/goldnode-simulator").exists()
    assert "535.309.01  SIMULATED" in (root / "proc/driver/nvidia/version").read_text()


def test_nothing_leads_out_of_the_tree(tmp_path: Path) -> None:
    for scenario, place in (
        (Scenario.of(document()), tmp_path / "nvidia"),
        (amd(), tmp_path / "amd"),
    ):
        root = tree.write(scenario, place)
        links = [path for path in root.rglob("*") if path.is_symlink()]
        assert links
        assert [
            str(path)
            for path in links
            if not path.exists() or not path.resolve().is_relative_to(root)
        ] == []


def test_faults_are_on_the_bus_too(tmp_path: Path) -> None:
    scenario = Scenario.of(document()).with_faults(
        [
            "gpu3.absent=1",
            "gpu0.pcie.width=8",
            "gpu1.pcie.port_generation=3",
            "gpu2.pcie.width=error:lost",
        ]
    )
    root = tree.write(scenario, tmp_path)
    addresses = [str(gpu["address"]) for gpu in gpus(Host(str(root)), functions(Host(str(root))))]
    assert len(addresses) == 7
    assert scenario.gpus[3]["pci.address"] not in addresses
    bus = root / "sys/bus/pci/devices"
    width = [
        (bus / address / "current_link_width").read_text().strip() for address in addresses[:3]
    ]
    assert width == ["8", "16", "16"]
    assert (bus / hops(root, addresses[1])[1] / "max_link_speed").read_text() == "8.0 GT/s PCIe\n"
    assert (bus / addresses[1] / "max_link_speed").read_text() == "16.0 GT/s PCIe\n"


def test_nvml_and_the_bus_agree(tmp_path: Path) -> None:
    scenario = Scenario.of(document())
    root = tree.write(scenario, tmp_path)
    for gpu in scenario.gpus:
        place = root / "sys/bus/pci/devices" / gpu["pci.address"]
        assert (place / "device").read_text().strip() == f"0x{gpu['pci.device_id'][:4]}"
        assert (place / "current_link_width").read_text().strip() == gpu["pcie.width"]
        assert (
            gpu["uuid"]
            in (root / "proc/driver/nvidia/gpus" / gpu["pci.address"] / "information").read_text()
        )


def test_amd_boards_have_their_power_cap_and_level(tmp_path: Path) -> None:
    root = tree.write(amd(), tmp_path)
    found = gpus(Host(str(root)), functions(Host(str(root))))
    assert len(found) == 8
    assert {gpu["driver"] for gpu in found} == {"amdgpu"}
    cards = sorted((root / "sys/class/drm").iterdir())
    assert len(cards) == 8
    device = cards[0] / "device"
    assert device.resolve().name == found[0]["address"]
    assert (device / "power_dpm_force_performance_level").read_text() == "auto\n"
    (monitor,) = (device / "hwmon").iterdir()
    watts = facts.gpu("MI300X").power_limit_default_w or 0
    assert [
        int((monitor / name).read_text())
        for name in ("power1_cap", "power1_cap_max", "power1_cap_min")
    ] == [
        watts * 10**6,
        watts * 10**6,
        0,
    ]
    assert (
        "gfx_target_version 90402\n"
        in (root / "sys/class/kfd/kfd/topology/nodes/1/properties").read_text()
    )
    assert (root / "sys/class/kfd/kfd/topology/nodes/1/name").read_text() == "gfx942\n"


def link(root: Path, address: str) -> list[str]:
    """Return current and maximum speed, then current and maximum width, of a PCI function."""
    place = root / "sys/bus/pci/devices" / address
    return [
        (place / name).read_text().split()[0]
        for name in ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
    ]


def test_a_pair_of_gpus_shares_a_switch_with_its_nics(tmp_path: Path) -> None:
    layout = tree.HGX
    scenario = Scenario.of(document())
    root = tree.write(scenario, tmp_path, layout=layout)
    where = tree.places(scenario, layout)
    assert all((root / place).is_dir() for place in where.values())
    address = {name: place.rpartition("/")[2] for name, place in where.items()}
    above = {name: hops(root, address[name])[1:] for name in address}
    assert {len(above[f"gpu{index}"]) for index in range(8)} == {3}
    assert [
        above["gpu0"][1:] == above[name][1:] for name in ("gpu1", "nic0", "nic1", "gpu2", "nic2")
    ] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert len({above[f"gpu{index}"][1] for index in range(8)}) == 4
    assert len(list((root / "sys/bus/pci/devices").iterdir())) > 340
    assert len({place.rpartition("/")[2] for place in where.values()}) == len(where)
    assert (root / "sys/devices/system/node/node1/cpulist").read_text() == "48-95\n"


def test_hops_have_faults_of_their_own(tmp_path: Path) -> None:
    faults = [
        "gpu0.pcie.switch_generation=3",
        "gpu2.pcie.root_width=8",
        "gpu5.pcie.port_width=8",
        "gpu6.aer.port.correctable=1000",
    ]
    scenario = Scenario.of(document()).with_faults(
        [*faults, "gpu7.pcie.port_now_width=4", "gpu7.pci.gone=1", "gpu6.pci.power_state=D3cold"]
    )
    root = tree.write(
        scenario,
        tmp_path,
        layout=tree.Layout(per_switch=2, nics=4, nodes=2, faults={"nic3.pcie.width": "8"}),
    )
    gpus = [gpu["pci.address"] for gpu in scenario.gpus]
    up = {index: hops(root, gpus[index]) for index in range(8)}
    assert [link(root, hop) for hop in up[0]] == [
        ["16.0", "16.0", "16", "16"],
        ["16.0", "32.0", "16", "16"],
        ["8.0", "8.0", "16", "16"],
        ["8.0", "32.0", "16", "16"],
    ]
    assert [link(root, hop)[2:] for hop in up[3]] == [
        ["16", "16"],
        ["16", "16"],
        ["8", "16"],
        ["8", "8"],
    ]
    assert [link(root, hop)[2:] for hop in up[5][:2]] == [["8", "16"], ["8", "8"]]
    assert [link(root, hop)[2:] for hop in up[4][:2]] == [["16", "16"], ["16", "16"]]
    bus = root / "sys/bus/pci/devices"
    assert "RxErr 1000\n" in (bus / up[6][1] / "aer_dev_correctable").read_text()
    assert (bus / gpus[6] / "power_state").read_text() == "D3cold\n"
    assert (bus / gpus[7] / "config").read_bytes() == b"\xff" * 256
    assert link(root, up[7][1])[2:] == ["4", "16"]
    assert link(root, "0000:29:00.0")[2:] == ["8", "16"]


def test_bridges_in_the_package_are_between_board_and_slot(tmp_path: Path) -> None:
    scenario = amd().with_faults(["gpu1.pcie.width=8"])
    root = tree.write(scenario, tmp_path, layout=tree.Layout(per_switch=2, bridges=True))
    up = hops(root, scenario.gpus[1]["pci.address"])
    ids = [(root / "sys/bus/pci/devices" / hop / "device").read_text().strip() for hop in up]
    assert ids == ["0x74a1", "0x1501", "0x1500", "0xc030", "0xc030", "0x352a"]
    assert [link(root, hop)[2] for hop in up] == ["16", "16", "8", "8", "16", "16"]

"""The simulated sysfs and procfs, read by goldnode's own readers and by path."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulators.hardware import Scenario, tree
from tests.simulators.test_hardware import document

from goldnode.compat import facts
from goldnode.node.host import Host
from goldnode.node.state.observe import gpus


def amd(count: int = 8) -> Scenario:
    wanted = {**document("MI300X", count), "driver": {"version": None}}
    return Scenario.of(wanted)


def hops(root: Path, address: str) -> list[str]:
    """PCI addresses from the GPU up, as a walk over the resolved path finds them."""
    place = (root / "sys/bus/pci/devices" / address).resolve()
    return [part.name for part in [place, *place.parents] if part.name.count(":") == 2]


@pytest.mark.parametrize("devices", [tree.DEVICES, tree.DEVICES_OF_A_MOUNT])
def test_the_bus_has_the_gpus_of_the_class(tmp_path: Path, devices: str) -> None:
    root = tree.write(Scenario.of(document()), tmp_path, devices=devices)
    found = gpus(Host(str(root)))
    assert len(found) == 8
    assert {gpu["id"] for gpu in found} == set(facts.gpu("A100-SXM4-40GB").pci_ids)
    assert {gpu["driver"] for gpu in found} == {"nvidia"}
    assert hops(root, str(found[0]["address"])) == ["0000:10:00.0", "0000:0f:01.0"]
    assert (root / "sys/bus/pci/goldnode-simulator").exists()
    assert "535.309.01  SIMULATED" in (root / "proc/driver/nvidia/version").read_text()


def test_nothing_leads_out_of_the_tree(tmp_path: Path) -> None:
    for scenario, place in ((Scenario.of(document()), tmp_path / "nvidia"), (amd(), tmp_path / "amd")):
        root = tree.write(scenario, place)
        links = [path for path in root.rglob("*") if path.is_symlink()]
        assert links
        assert [str(path) for path in links if not path.exists() or not path.resolve().is_relative_to(root)] == []


def test_faults_are_on_the_bus_too(tmp_path: Path) -> None:
    scenario = Scenario.of(document()).with_faults(
        ["gpu3.absent=1", "gpu0.pcie.width=8", "gpu1.pcie.port_generation=3", "gpu2.pcie.width=error:lost"]
    )
    root = tree.write(scenario, tmp_path)
    addresses = [str(gpu["address"]) for gpu in gpus(Host(str(root)))]
    assert len(addresses) == 7
    assert scenario.gpus[3]["pci.address"] not in addresses
    bus = root / "sys/bus/pci/devices"
    width = [(bus / address / "current_link_width").read_text().strip() for address in addresses[:3]]
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
        assert gpu["uuid"] in (root / "proc/driver/nvidia/gpus" / gpu["pci.address"] / "information").read_text()


def test_amd_boards_have_their_power_cap_and_level(tmp_path: Path) -> None:
    root = tree.write(amd(), tmp_path)
    found = gpus(Host(str(root)))
    assert len(found) == 8
    assert {gpu["driver"] for gpu in found} == {"amdgpu"}
    cards = sorted((root / "sys/class/drm").iterdir())
    assert len(cards) == 8
    device = cards[0] / "device"
    assert device.resolve().name == found[0]["address"]
    assert (device / "power_dpm_force_performance_level").read_text() == "auto\n"
    (monitor,) = (device / "hwmon").iterdir()
    watts = facts.gpu("MI300X").power_limit_default_w or 0
    assert [int((monitor / name).read_text()) for name in ("power1_cap", "power1_cap_max", "power1_cap_min")] == [
        watts * 10**6,
        watts * 10**6,
        0,
    ]
    assert "gfx_target_version 90402\n" in (root / "sys/class/kfd/kfd/topology/nodes/1/properties").read_text()
    assert (root / "sys/class/kfd/kfd/topology/nodes/1/name").read_text() == "gfx942\n"

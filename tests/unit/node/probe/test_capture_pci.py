"""The `pci` section: hops, links, counters, and a bus that does not behave."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.hardware import Scenario, tree
from tests.simulators.hardware.tree import HGX, Layout

from goldnode.facts import pci_bridges
from goldnode.node.ground.host import Host
from goldnode.node.probe import Context, pci
from goldnode.node.probe.values import is_fault

BUS = "sys/bus/pci/devices"
INNER = list(pci_bridges.on_package())
PAIR = Layout(per_switch=2, nics=8, bridges=True)


def scenario(
    model: str = "H100-SXM5-80GB", count: int = 8, faults: tuple[str, ...] = ()
) -> Scenario:
    document = {
        "class": "a",
        "gpu": {"model": model, "count": count},
        "driver": {"version": "535.1"},
        "platform": {"nvswitch": True},
    }
    return Scenario.of(document).with_faults(faults)


def read(root: Path, inner: list[str] | None = None) -> dict[str, Any]:
    context = Context(
        Host(str(root), live=True), {"health": {"on_package": inner}} if inner else {}
    )
    found = pci.read(context)
    json.dumps(found)
    return found


def gpu(number: int) -> str:
    return f"0000:{0x10 + 8 * number:02x}:00.0"


def test_a_server_with_eight_gpus_and_four_switches(tmp_path: Path) -> None:
    found = read(tree.write(scenario(), tmp_path, layout=HGX))
    section = found["pci"]
    kinds = [one["kind"] for one in section.values()]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "gpu": 8,
        "nic": 8,
        "nvme": 10,
        "nvswitch": 4,
        "port": 40,
    }
    assert list(section) == sorted(section)
    one = section[gpu(3)]
    assert one["path"] == ["0000:1d:01.0", "0000:1e:00.0", "0000:1f:08.0", gpu(3)]
    assert [one[key] for key in ("pci_id", "class", "driver", "root_bus", "numa_node", "power_state", "enabled", "gone", "edge")] == [
        "10de:2330", "030200", "nvidia", "0000:1d", 0, "D0", True, False, gpu(3),
    ]  # fmt: skip
    assert one["link"] == {"gen": 5, "max_gen": 5, "width": 16, "max_width": 16}
    assert one["aer"] == {"correctable": 0, "nonfatal": 0, "fatal": 0, "counters": {}}
    assert one["bars"] == [1 << 24, 1 << 37, 0, 1 << 25, 0, 0]
    assert one["limits"] == {
        "gen": 5, "width": 16, "gbps": 504.112, "at": gpu(3), "declared_by": "device", "link": ["0000:1f:08.0", gpu(3)],
        "now": {"gen": 5, "width": 16, "gbps": 504.112, "at": gpu(3)},
    }  # fmt: skip
    assert section["0000:1f:08.0"]["path"] == []
    assert [row["address"] for row in found["nvswitches"]] == [
        f"0000:f{number}:00.0" for number in range(2, 6)
    ]
    assert found["nvswitches"][0] == {
        "address": "0000:f2:00.0",
        "pci_id": "10de:22a3",
        "driver": "nvidia-nvswitch",
    }
    assert not any("on_package" in one for one in section.values())


HOPS = [
    # fault, GPU, (gen, width, at, declared_by)
    ("gpu3.pcie.width=8", 3, (5, 8, gpu(3), "link")),
    ("gpu3.pcie.width_max=8", 3, (5, 8, gpu(3), "device")),
    ("gpu3.pcie.port_width=8", 3, (5, 8, "0000:1f:08.0", "slot")),
    ("gpu3.pcie.port_generation=4", 3, (4, 16, "0000:1f:08.0", "slot")),
    ("gpu3.pcie.switch_generation=4", 3, (4, 16, "0000:1e:00.0", "device")),
    ("gpu3.pcie.switch_generation=4", 2, (4, 16, "0000:1e:00.0", "device")),
    ("gpu3.pcie.switch_generation=4", 4, (5, 16, gpu(4), "device")),
    ("gpu3.pcie.root_generation=3", 3, (3, 16, "0000:1d:01.0", "slot")),
    ("gpu3.pcie.root_width=8", 2, (5, 8, "0000:1d:01.0", "slot")),
    ("gpu3.pcie.switch_now_width=4", 3, (5, 4, "0000:1e:00.0", "link")),
    ("gpu3.pcie.port_now_width=1", 3, (5, 1, gpu(3), "link")),
    # A link that idles at Gen 1 limits nothing.
    ("gpu3.pcie.generation=1", 3, (5, 16, gpu(3), "device")),
    ("gpu3.pcie.port_now_generation=1", 3, (5, 16, gpu(3), "device")),
]


@pytest.mark.parametrize(("fault", "number", "expected"), HOPS)
def test_the_hop_that_limits_is_named(
    tmp_path: Path, fault: str, number: int, expected: tuple[int, int, str, str]
) -> None:
    section = read(tree.write(scenario(faults=(fault,)), tmp_path, layout=Layout(per_switch=2)))[
        "pci"
    ]
    limits = section[gpu(number)]["limits"]
    assert tuple(limits[key] for key in ("gen", "width", "at", "declared_by")) == expected
    assert "unknown" not in limits
    if "generation=1" in fault:
        assert limits["now"] == {"gen": 1, "width": 16, "gbps": 32.0, "at": gpu(3)}


@pytest.mark.parametrize("model", ["MI300X", "Flex 170"])
def test_links_within_a_package_do_not_count_as_the_slot(tmp_path: Path, model: str) -> None:
    root = tree.write(scenario(model, 4, ("gpu1.pcie.width=8",)), tmp_path, layout=PAIR)
    section = read(root, INNER)["pci"]
    one = section[gpu(1)]
    bridge, inner = one["path"][-3:-1]
    assert [section[hop].get("on_package") for hop in one["path"]] == [
        None,
        None,
        None,
        None,
        True,
        True,
    ]
    assert one["edge"] == bridge
    assert section[bridge]["link"]["width"] == 8
    assert (one["limits"]["width"], one["limits"]["at"]) == (8, bridge)
    assert section[gpu(0)]["limits"]["width"] == 16
    assert section[gpu(0)]["limits"]["link"][1] == section[gpu(0)]["edge"]
    # Without the list nothing is said to be in a package.
    bare = read(root)["pci"][gpu(0)]
    assert bare["edge"] == gpu(0)
    assert bare["limits"]["gbps"] == (504.112 if model == "MI300X" else 2.0)
    assert section[inner]["kind"] == "port"


def test_bandwidth_is_the_kernels() -> None:
    """Figures of "available PCIe bandwidth" in kernel logs of real machines."""
    reported = {
        (1, 1): 2.0,
        (1, 4): 8.0,
        (2, 1): 4.0,
        (3, 2): 15.752,
        (3, 4): 31.504,
        (3, 8): 63.008,
        (3, 16): 126.016,
        (4, 4): 63.012,
        (4, 8): 126.024,
        (4, 16): 252.048,
    }
    reported[5, 8] = 252.056
    assert {link: pci.bandwidth(*link) for link in reported} == reported


def test_a_link_that_the_kernel_found_limited(tmp_path: Path) -> None:
    """The kernel of a real machine: "63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:00:03.1 (capable of 252.056 Gb/s
    with 32.0 GT/s PCIe x8 link)", of a card with Intel's bridges 8086:e2ff and 8086:e2f0."""
    root = tree.write(
        scenario(
            "Flex 170",
            1,
            ("gpu0.pcie.width_max=8", "gpu0.pcie.generation_max=5", "gpu0.pcie.port_generation=3"),
        ),
        tmp_path,
        layout=PAIR,
    )
    limits = read(root, INNER)["pci"][gpu(0)]["limits"]
    path = read(root)["pci"][gpu(0)]["path"]
    assert (limits["gbps"], limits["at"], limits["declared_by"]) == (63.008, path[-4], "slot")
    assert limits["link"] == path[-4:-2]


def test_counters_of_both_ends(tmp_path: Path) -> None:
    faults = (
        "gpu3.aer.correctable=1000",
        "gpu3.aer.port.fatal=2",
        "gpu2.aer.switch.nonfatal=7",
        "gpu2.aer.root.correctable=1",
    )
    root = tree.write(scenario(faults=faults), tmp_path, layout=Layout(per_switch=2))
    (root / BUS / "0000:1d:01.0/aer_rootport_total_err_cor").write_text("12\n")
    section = read(root)["pci"]
    top, switch, port, device = section[gpu(3)]["path"]
    assert section[device]["aer"] == {
        "correctable": 1000,
        "nonfatal": 0,
        "fatal": 0,
        "counters": {"correctable.RxErr": 1000},
    }
    assert section[port]["aer"] == {
        "correctable": 0,
        "nonfatal": 0,
        "fatal": 2,
        "counters": {"fatal.DLP": 2},
    }
    assert section[switch]["aer"]["nonfatal"] == 7
    assert section[top]["aer"]["correctable"] == 1
    assert section[top]["aer_reported"]["correctable"] == 12
    assert section[gpu(2)]["aer"]["counters"] == {}


AER = [
    # The example of the kernel's own document has names of several words, and no total.
    (
        "Receiver Error 2\nBad TLP 0\nBad DLLP 1\n",
        3,
        {"correctable.Receiver Error": 2, "correctable.Bad DLLP": 1},
    ),
    ("RxErr 5\nTOTAL_ERR_COR 5\n", 5, {"correctable.RxErr": 5}),
    ("RxErr 0\nTOTAL_ERR_COR 0\n", 0, {}),
    ("TOTAL_ERR_COR 0\nRxErr 4\n", 0, {"correctable.RxErr": 4}),
    ("RxErr 0\n", 0, {}),
    (f"RxErr {'9' * 30}\nTOTAL_ERR_COR {'9' * 30}\n", None, {}),
    ("", None, {}),
    ("\x1b[31m\n", None, {}),
]


@pytest.mark.parametrize(("text", "total", "counters"), AER)
def test_counters_as_kernels_write_them(
    tmp_path: Path, text: str, total: int | None, counters: dict[str, int]
) -> None:
    root = tree.write(scenario(count=1), tmp_path)
    (root / BUS / gpu(0) / "aer_dev_correctable").write_text(text)
    aer = read(root)["pci"][gpu(0)]["aer"]
    assert aer["counters"] == counters
    assert (
        aer["correctable"] == total
        if total is not None
        else aer["correctable"]["fault"] == "unread"
    )


LINKS = [
    ("current_link_width", "0", "width"),
    ("current_link_width", "63", "width"),
    ("current_link_width", "255", "width"),
    ("current_link_width", "3", "width"),
    ("current_link_width", "-16", "width"),
    ("current_link_width", "16 lanes", "width"),
    ("current_link_width", "²", "width"),
    ("current_link_speed", "Unknown", "gen"),
    ("current_link_speed", "Unknown speed", "gen"),
    ("current_link_speed", "", "gen"),
    ("current_link_speed", "nan GT/s", "gen"),
    ("current_link_speed", "1e400 GT/s", "gen"),
    ("max_link_speed", "Unknown", "max_gen"),
    ("max_link_width", "255", "max_width"),
]


@pytest.mark.parametrize(("name", "text", "key"), LINKS)
def test_invalid_link_value_is_unread(tmp_path: Path, name: str, text: str, key: str) -> None:
    root = tree.write(scenario(count=1), tmp_path)
    (root / BUS / gpu(0) / name).write_text(text)
    link = read(root)["pci"][gpu(0)]["link"]
    assert link[key]["fault"] == "unread"
    assert sorted(other for other in link if other != key and is_fault(link[other])) == []


def test_speeds_as_older_kernels_write_them(tmp_path: Path) -> None:
    root = tree.write(scenario(count=1), tmp_path)
    for text, generation in (
        ("2.5 GT/s", 1),
        ("5 GT/s", 2),
        ("8 GT/s", 3),
        ("16 GT/s", 4),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
    ):
        (root / BUS / gpu(0) / "current_link_speed").write_text(text + "\n")
        assert read(root)["pci"][gpu(0)]["link"]["gen"] == generation


def test_a_device_that_is_off_the_bus(tmp_path: Path) -> None:
    root = tree.write(
        scenario(faults=("gpu3.pci.gone=1", "gpu5.pci.power_state=D3cold")),
        tmp_path,
        layout=Layout(per_switch=2),
    )
    section = read(root)["pci"]
    assert [section[gpu(number)]["gone"] for number in (2, 3)] == [False, True]
    assert (
        section[gpu(3)]["link"]["width"]["fault"]
        == section[gpu(3)]["link"]["gen"]["fault"]
        == "unread"
    )
    # Nobody wakes a sleeping device to look.
    assert section[gpu(5)]["gone"] == {"fault": "unread", "text": "the device sleeps (D3cold)"}
    assert (
        section[gpu(5)]["link"]["width"]
        == section[gpu(5)]["link"]["gen"]
        == section[gpu(5)]["gone"]
    )
    assert section[gpu(5)]["link"]["max_width"] == 16
    # The port above still knows what it came up with.
    assert "unknown" not in section[gpu(3)]["limits"]
    (root / BUS / section[gpu(3)]["path"][-2] / "current_link_width").write_text("0\n")
    assert read(root)["pci"][gpu(3)]["limits"]["unknown"] == [gpu(3)]


def test_a_virtual_machine_has_no_links(tmp_path: Path) -> None:
    root = tree.write(scenario(count=2, faults=("gpu*.pci.links=0", "gpu*.numa_node=-1")), tmp_path)
    one = read(root)["pci"][gpu(0)]
    for key in ("link", "aer", "limits", "numa_node"):
        assert one[key]["fault"] == "not_exposed", key
    # Straight on the root bus, as a machine without ports has it.
    place = root / "sys/devices/pci0000:00/0000:00:05.0"
    shutil.copytree(root / BUS / gpu(0), place)
    (root / BUS / "0000:00:05.0").symlink_to(os.path.relpath(place, root / BUS))
    one = read(root)["pci"]["0000:00:05.0"]
    assert (one["path"], one["root_bus"], one["edge"], one["limits"]["fault"]) == (
        ["0000:00:05.0"],
        "0000:00",
        None,
        "not_exposed",
    )


def test_a_server_console_is_no_gpu(tmp_path: Path) -> None:
    section = read(tree.write(scenario(count=1), tmp_path, layout=Layout(others=3)))["pci"]
    assert sorted(section) == ["0000:0f:01.0", gpu(0)]


def test_virtual_functions_are_distinguished(tmp_path: Path) -> None:
    root = tree.write(scenario(count=1), tmp_path, layout=Layout(nics=2))
    (root / BUS / "0000:b3:00.0/physfn").symlink_to("../../0000:b0:01.0/0000:b1:00.0")
    section = read(root)["pci"]
    assert section["0000:b3:00.0"]["virtual_of"] == "0000:b1:00.0"
    assert section["0000:b3:00.0"]["link"]["fault"] == "not_exposed"
    assert "limits" not in section["0000:b3:00.0"]
    assert "virtual_of" not in section["0000:b1:00.0"]


def test_a_device_that_goes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree.write(scenario(count=2), tmp_path)
    context = Context(Host(str(root), live=True))
    names = sorted(path.name for path in (root / BUS).iterdir())
    shutil.rmtree((root / BUS / gpu(0)).resolve())  # listed, then gone
    ids = pci.identities(context.files, names, {})
    assert sorted(pci.sections(context.files, ids, [])["pci"]) == ["0000:17:01.0", gpu(1)]
    # Gone between its first file and the next ones.
    stored = dict.fromkeys((gpu(0), gpu(1)), ("10de:2330", "030200"))
    monkeypatch.setattr(
        pci, "identity", lambda bus, address: stored.get(address, ("8086:352a", "060400"))
    )
    ids = pci.identities(context.files, names, {})
    one = pci.sections(context.files, ids, [])["pci"][gpu(0)]
    assert (
        one["link"]["fault"] == one["numa_node"]["fault"] == one["gone"]["fault"] == "not_exposed"
    )


HOSTILE = [
    ("modalias", b"pci:v" + b"\xff" * 60, None),
    ("modalias", b"", None),
    ("modalias", b"A" * 100000, None),
    ("numa_node", b"\x00\x1b[2J", "numa_node"),
    ("numa_node", b"9" * 5000, "numa_node"),
    ("enable", b"yes", "enabled"),
    ("resource", b"0x1 0x2", "bars"),
    ("resource", b"not a line of three", "bars"),
    ("config", b"\xff", "gone"),
    ("config", b"", "gone"),
]


@pytest.mark.parametrize(("name", "content", "key"), HOSTILE)
def test_files_that_hold_nonsense(
    tmp_path: Path, name: str, content: bytes, key: str | None
) -> None:
    root = tree.write(scenario(count=1), tmp_path)
    (root / BUS / gpu(0) / name).write_bytes(content)
    one = read(root)["pci"][gpu(0)]
    assert one["pci_id"] == "10de:2330"  # modalias is not the only place
    if key == "bars" and content == b"0x1 0x2":
        assert one[key] == [2]
    elif key:
        assert one[key]["fault"] == "unread"
        assert one[key]["text"].isprintable()


def test_links_that_lead_nowhere_or_in_circles(tmp_path: Path) -> None:
    root = tree.write(scenario(count=1), tmp_path)
    bus = root / BUS
    (bus / "0000:aa:00.0").symlink_to("0000:aa:00.0")
    (bus / "0000:ab:00.0").symlink_to("../../../nowhere")
    (bus / "0000:ac:00.0").mkdir()
    (bus / "0000:ac:00.0/modalias").write_text((bus / gpu(0) / "modalias").read_text())
    (bus / "not an address").mkdir()
    (bus / "..:..:....").mkdir()
    (bus / gpu(0) / "driver").unlink()
    (bus / gpu(0) / "driver").symlink_to("driver")
    section = read(root)["pci"]
    assert sorted(section) == ["0000:0f:01.0", gpu(0), "0000:ac:00.0"]
    assert section["0000:ac:00.0"]["path"] == ["0000:ac:00.0"]
    assert section[gpu(0)]["driver"] == "driver"


def test_a_domain_of_a_controllers_own(tmp_path: Path) -> None:
    """Behind Intel's VMD: /sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0."""
    root = tree.write(scenario(count=1), tmp_path, layout=Layout(nvmes=1))
    place = root / "sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0"
    shutil.copytree((root / BUS / "0000:90:01.0").resolve(), place, symlinks=True)
    (place / "0000:91:00.0").rename(place / "10000:e1:00.0")
    for name, where in (("10000:e0:06.0", place), ("10000:e1:00.0", place / "10000:e1:00.0")):
        (root / BUS / name).symlink_to(os.path.relpath(where, root / BUS))
    one = read(root)["pci"]["10000:e1:00.0"]
    assert (one["path"], one["root_bus"], one["limits"]["width"]) == (
        ["10000:e0:06.0", "10000:e1:00.0"],
        "10000:e0",
        4,
    )


def test_a_node_without_a_bus(tmp_path: Path) -> None:
    assert read(tmp_path)["pci"]["fault"] == "not_exposed"
    (tmp_path / BUS).mkdir(parents=True)
    assert read(tmp_path) == {"pci": {}, "nvswitches": []}


@pytest.mark.parametrize(
    "document",
    [
        {"health": None},
        {"health": []},
        {"health": {"on_package": "1002:1501"}},
        {"health": {"on_package": [1]}},
    ],
)
def test_a_class_document_may_be_anything(tmp_path: Path, document: Any) -> None:
    root = tree.write(scenario(count=1), tmp_path)
    assert gpu(0) in pci.read(Context(Host(str(root), live=True), document))["pci"]

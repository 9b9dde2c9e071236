"""Intel's GPUs from sysfs: the files of xe, of i915, and of i915 as it was before GTs had folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.hardware import Scenario, tree
from tests.simulators.hardware.tree import Layout

from goldnode.node.ground.host import Host
from goldnode.node.probe import Context, intel, pci

BUS = "sys/bus/pci/devices"
FIRST = "0000:10:00.0"


def scenario(count: int = 2, *faults: str, model: str = "Max 1550") -> Scenario:
    document = {"class": "a", "gpu": {"model": model, "count": count}, "driver": {"version": None}}
    return Scenario.of(document).with_faults(faults)


def read(root: Path) -> list[dict[str, Any]]:
    context = Context(Host(str(root), live=True), {})
    context.captured.update(pci.read(context))
    found = intel.read_gpus(context)
    json.dumps(found)
    return found


def bare(tmp_path: Path, driver: str, files: dict[str, str], faults: tuple[str, ...] = ()) -> Path:
    """One card with the files of the bus, and these."""
    root = tree.write(scenario(1, f"gpu0.pci.driver={driver}", *faults), tmp_path)
    place = (root / BUS / FIRST).resolve()
    for folder in ("tile0", "hwmon", "drm"):
        for path in sorted((place / folder).rglob("*"), key=lambda path: -len(path.parts)):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text + "\n")
    return root


def test_xe_cards_are_read_with_their_own_limits_and_throttle(tmp_path: Path) -> None:
    wanted = scenario(
        2,
        "gpu1.throttle.pl1=1",
        "gpu1.throttle.thermal=1",
        "gpu1.clock.max=1200",
        "gpu1.power_limit=300000",
    )
    one, other = read(tree.write(wanted, tmp_path, layout=Layout(bridges=True)))
    assert [one[key] for key in ("address", "vendor", "pci_id", "driver", "lost")] == [
        FIRST,
        "intel",
        "8086:0bd5",
        "xe",
        False,
    ]
    assert one["memory"]["source"] == "bar2"
    assert one["clocks"] == {
        "current": {"graphics_mhz": 0},
        "max": {"graphics_mhz": 1600},
        "application": {"graphics_mhz": 1600},
    }
    assert one["throttle"] == {"active": [], "kinds": []}
    assert one["temperature"]["gpu_c"] == 35
    assert other["throttle"] == {"active": ["pl1", "thermal"], "kinds": ["power", "thermal"]}
    assert other["clocks"]["application"] == {"graphics_mhz": 1200}
    assert other["power"]["limit_w"] == 300
    assert other["power"]["default_w"] == one["power"]["limit_w"]


FREQ = "tile0/gt0/freq0"
THROTTLE = [
    # files below freq0/throttle, the reasons
    ({"status": "0", "reason_pl1": "0"}, ([], [])),
    ({"status": "1", "reason_pl1": "1", "reason_thermal": "0"}, (["pl1"], ["power"])),
    (
        {"reason_prochot": "1", "reason_ratl": "1", "reason_vr_thermalert": "1"},
        (["prochot", "ratl", "vr_thermalert"], ["thermal"]),
    ),
    # A platform that names its reasons otherwise (Crescent Island, the kernel's xe_gt_throttle.c).
    (
        {"status": "1", "reason_soc_avg_thermal": "1", "reason_mem_thermal": "1"},
        (["mem_thermal", "soc_avg_thermal"], ["thermal"]),
    ),
    (
        {"status": "1", "reason_psys_pl1": "1", "reason_iccmax": "1"},
        (["iccmax", "psys_pl1"], ["power"]),
    ),
    # One that nobody has seen yet counts as well, and so does a status of which no reason is shown.
    ({"status": "1", "reason_of_next_year": "1"}, (["of_next_year"], ["other"])),
    ({"status": "1", "reason_pl1": "0"}, (["status"], ["other"])),
    ({"reason_pl1": "yes"}, "unread"),
    ({"status": "0"}, "not_exposed"),
]


@pytest.mark.parametrize(("files", "expected"), THROTTLE)
def test_throttle_reasons_are_read_or_a_fault(
    tmp_path: Path, files: dict[str, str], expected: Any
) -> None:
    (one,) = read(
        bare(
            tmp_path,
            "xe",
            {f"{FREQ}/throttle/{name}": text for name, text in files.items()}
            | {f"{FREQ}/act_freq": "0"},
        )
    )
    got = one["throttle"]
    assert (
        (got["active"], got["kinds"]) == expected
        if isinstance(expected, tuple)
        else got["fault"] == expected
    )


def test_reasons_of_all_tiles_and_media(tmp_path: Path) -> None:
    files = {
        f"{gt}/freq0/throttle/{name}": "0"
        for gt in ("tile0/gt0", "tile0/gt1", "tile1/gt0")
        for name in ("status", "reason_pl1")
    }
    files.update(
        {
            "tile1/gt0/freq0/throttle/reason_pl1": "1",
            "tile0/gt1/freq0/throttle/reason_thermal": "1",
            "tile0/gt0/freq0/max_freq": "1600",
        }
    )
    (one,) = read(bare(tmp_path, "xe", files))
    assert one["throttle"] == {"active": ["pl1", "thermal"], "kinds": ["power", "thermal"]}
    assert one["clocks"]["application"]["graphics_mhz"] == 1600


def test_i915_files_give_memory_clocks_and_power(tmp_path: Path) -> None:
    files = {
        "drm/card1/gt/gt0/rps_act_freq_mhz": "1450",
        "drm/card1/gt/gt0/rps_max_freq_mhz": "2000",
        "drm/card1/gt/gt0/rps_RP0_freq_mhz": "2050",
        "drm/card1/gt/gt0/throttle_reason_status": "1",
        "drm/card1/gt/gt0/throttle_reason_pl1": "1",
        "drm/card1/gt/gt0/throttle_reason_thermal": "0",
        "drm/card1/lmem_total_bytes": str(16 << 30),
        "drm/renderD128/dev": "226:128",
        "hwmon/hwmon4/power1_max": "120000000",
        "hwmon/hwmon4/power1_rated_max": "150000000",
    }
    (one,) = read(bare(tmp_path, "i915", files))
    assert one["memory"] == {"total_mib": 16384, "source": "driver"}
    assert one["clocks"] == {
        "current": {"graphics_mhz": 1450},
        "max": {"graphics_mhz": 2050},
        "application": {"graphics_mhz": 2000},
    }
    assert one["throttle"] == {"active": ["pl1"], "kinds": ["power"]}
    assert one["power"] == {"limit_w": 120, "default_w": 150}
    assert one["temperature"]["gpu_c"]["fault"] == "not_exposed"


def test_i915_of_older_kernels(tmp_path: Path) -> None:
    files = {
        "drm/card0/gt_act_freq_mhz": "300",
        "drm/card0/gt_max_freq_mhz": "2000",
        "drm/card0/gt_RP0_freq_mhz": "2050",
    }
    (one,) = read(bare(tmp_path, "i915", files))
    assert one["clocks"]["max"]["graphics_mhz"] == 2050
    assert one["throttle"]["fault"] == one["power"]["fault"] == "not_exposed"


MEMORY = [
    # fault of the tree, files, (total in MiB, source)
    (f"gpu0.pci.bar2={1 << 34}", {}, (16384, "bar2")),
    (
        f"gpu0.pci.bar2={1 << 28}",
        {},
        ("not_exposed", None),
    ),  # a window of 256 MiB, as without resizable BAR
    ("gpu0.pci.bar2=0", {}, ("not_exposed", None)),
    (
        f"gpu0.pci.bar2={1 << 34}",
        {"tile0/physical_vram_size_bytes": str(12 << 30)},
        (12288, "driver"),
    ),
    (
        "gpu0.pci.bar2=0",
        {
            "tile0/physical_vram_size_bytes": str(64 << 30),
            "tile1/physical_vram_size_bytes": str(64 << 30),
        },
        (131072, "driver"),
    ),
    (f"gpu0.pci.bar2={1 << 34}", {"tile0/physical_vram_size_bytes": "much"}, (16384, "bar2")),
]


@pytest.mark.parametrize(("fault", "files", "expected"), MEMORY)
def test_memory_is_read_with_its_source_or_a_fault(
    tmp_path: Path, fault: str, files: dict[str, str], expected: tuple[Any, str | None]
) -> None:
    (one,) = read(bare(tmp_path, "xe", files, (fault,)))
    total = one["memory"]["total_mib"]
    assert (
        total["fault"] if isinstance(total, dict) else total,
        one["memory"].get("source"),
    ) == expected


SENSORS = [
    (
        {"temp2_input": "61000", "temp2_crit": "100000", "temp3_input": "72000"},
        {"gpu_c": 61, "memory_c": 72, "slowdown_c": 100, "margin_c": 39},
    ),
    (
        {
            "temp1_label": "vram",
            "temp1_input": "50500",
            "temp2_label": "pkg",
            "temp2_input": "40000",
        },
        {"gpu_c": 40, "memory_c": 50.5},
    ),
    ({"temp1_input": "45000"}, {"gpu_c": 45}),
    ({"temp2_input": "hot"}, {}),
]


@pytest.mark.parametrize(("files", "expected"), SENSORS)
def test_sensors_give_the_expected_temperatures(
    tmp_path: Path, files: dict[str, str], expected: dict[str, float]
) -> None:
    (one,) = read(
        bare(tmp_path, "xe", {f"hwmon/hwmon2/{name}": text for name, text in files.items()})
    )
    assert {
        name: value for name, value in one["temperature"].items() if not isinstance(value, dict)
    } == expected


def test_a_card_for_a_virtual_machine_and_one_that_is_gone(tmp_path: Path) -> None:
    root = bare(tmp_path, "vfio-pci", {}, ("gpu0.pci.gone=1",))
    (one,) = read(root)
    assert (one["driver"], one["lost"]) == ("vfio-pci", True)
    assert (
        one["throttle"]["fault"] == one["clocks"]["max"]["graphics_mhz"]["fault"] == "not_exposed"
    )


def test_other_vendors_are_not_intels(tmp_path: Path) -> None:
    assert read(tree.write(scenario(1, model="MI300X"), tmp_path)) == []
    assert read(tmp_path / "nothing") == []

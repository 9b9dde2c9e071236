"""AMD's GPUs from sysfs. Formats: the amdgpu driver's sources in the kernel, and files of real machines where a case says so."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.hardware import Scenario, tree
from tests.simulators.hardware.tree import Layout

from goldnode.node.device import amd as policy
from goldnode.node.ground.host import Host
from goldnode.node.probe import Context, amd, pci
from goldnode.node.probe.folder import Folder
from goldnode.node.probe.values import Files, error_fault

BUS = "sys/bus/pci/devices"
FIRST = "0000:10:00.0"


def scenario(count: int = 2, *faults: str) -> Scenario:
    document = {
        "class": "a",
        "gpu": {"model": "MI300X", "count": count},
        "driver": {"version": None},
    }
    return Scenario.of(document).with_faults(faults)


def read(root: Path) -> list[dict[str, Any]]:
    context = Context(Host(str(root), live=True))
    context.captured.update(pci.read(context))
    found = amd.read_gpus(context)
    json.dumps(found)
    return found


def test_eight_boards_are_read_with_all_values(tmp_path: Path) -> None:
    wanted = scenario(8)
    root = tree.write(wanted, tmp_path, layout=Layout(per_switch=2, bridges=True))
    found = read(root)
    assert [one["address"] for one in found] == [gpu["pci.address"] for gpu in wanted.gpus]
    one = found[3]
    assert [one[key] for key in ("index", "vendor", "pci_id", "subsystem_id", "name", "driver", "lost", "performance_level")] == [
        None, "amd", "1002:74a1", "1002:74a1", "MI300X", "amdgpu", False, "auto",
    ]  # fmt: skip
    assert one["uuid"] == wanted.gpus[3]["unique_id"]
    assert one["memory"] == {"total_mib": 196608, "used_mib": 0, "bar1_mib": 196608}
    assert one["power"] == {"limit_w": 750, "default_w": 750, "min_w": 0, "max_w": 750, "draw_w": 0}
    assert one["clocks"] == {
        "current": {"graphics_mhz": 500, "memory_mhz": 900},
        "max": {"graphics_mhz": 2100, "memory_mhz": 1300},
    }
    assert one["temperature"] == {
        "gpu_c": 35,
        "slowdown_c": 100,
        "shutdown_c": 105,
        "memory_c": 35,
        "margin_c": 65,
    }
    assert one["ras"] == {
        block: {"ue": 0, "ce": 0} for block in ("gfx", "mmhub", "sdma", "umc", "xgmi_wafl")
    }
    assert one["ecc"] == {"volatile": {"corrected": 0, "uncorrected": 0}}
    assert one["bad_pages"] == {"retired": 0, "pending": 0, "unreservable": 0}
    assert one["partition"] == {"compute": "SPX", "memory": "NPS1"}
    assert one["xgmi"]["links"] == 7
    assert one["throttle"] == {
        "residency": {
            "prochot": 0,
            "ppt": 0,
            "socket_thermal": 0,
            "vr_thermal": 0,
            "hbm_thermal": 0,
            "cycles": 1000000,
        }
    }
    assert one["pcie"] == {"replay": 0}


def test_settings_are_what_the_policy_reads(tmp_path: Path) -> None:
    root = tree.write(
        scenario(3, "gpu1.performance_level=high", "gpu2.power_limit=600500"), tmp_path
    )
    (root / BUS / "0000:18:00.0/unique_id").unlink()
    (root / BUS / FIRST / "product_name").unlink()
    foreign = list(policy.read(str(root))["gpus"].values())
    mine = [one["settings"] for one in read(root)]
    # A uuid that is not there is the address for both; a fault may say itself in other words, its code is the same.
    for one in (foreign[0], mine[0]):
        assert one["name"].pop("text")
    foreign[1]["uuid"] = (
        mine[1]["uuid"] if isinstance(foreign[1]["uuid"], dict) else foreign[1]["uuid"]
    )
    assert mine == foreign
    assert mine[2]["power"]["limit"] == 600.5
    assert mine[1]["uuid"] == "0000:18:00.0"


FAULTS = [
    ("gpu0.amd.ras.umc.ue=2", ("ecc", "volatile", "uncorrected"), 2),
    ("gpu0.amd.ras.gfx.ce=5", ("ras", "gfx", "ce"), 5),
    ("gpu0.amd.bad_pages.R=3", ("bad_pages", "retired"), 3),
    ("gpu0.amd.bad_pages.P=1", ("bad_pages", "pending"), 1),
    ("gpu0.amd.bad_pages.F=1", ("bad_pages", "unreservable"), 1),
    ("gpu0.amd.partition.compute=CPX", ("partition", "compute"), "CPX"),
    ("gpu0.amd.partition.memory=NPS4", ("partition", "memory"), "NPS4"),
    ("gpu0.amd.links=6", ("xgmi", "links"), 6),
    ("gpu0.amd.throttle.socket_thermal=77", ("throttle", "residency", "socket_thermal"), 77),
    ("gpu0.amd.junction=104", ("temperature", "margin_c"), -4),
    ("gpu0.power_limit=500000", ("power", "limit_w"), 500),
    ("gpu0.memory.total=103079215104", ("memory", "total_mib"), 98304),
    ("gpu0.performance_level=manual", ("performance_level",), "manual"),
    ("gpu0.pcie.replays=9", ("pcie", "replay"), 9),
    ("gpu0.pci.gone=1", ("lost",), True),
    ("gpu0.pci.driver=vfio-pci", ("driver",), "vfio-pci"),
]


@pytest.mark.parametrize(("fault", "where", "expected"), FAULTS)
def test_fault_of_one_gpu_is_reported_for_that_gpu_only(
    tmp_path: Path, fault: str, where: tuple[str, ...], expected: object
) -> None:
    values = []
    for one in read(tree.write(scenario(2, fault), tmp_path)):
        value: Any = one
        for key in where:
            value = value[key]
        values.append(value)
    assert values[0] == expected
    assert values[1] != expected


CLOCKS = [
    # text, (current, max) in MHz
    ("0: 500Mhz\n1: 1000Mhz *\n2: 1700Mhz\n", (1000, 1700)),
    (
        "S: 19Mhz *\n0: 615Mhz\n1: 800Mhz\n2: 888Mhz\n",
        (19, 888),
    ),  # asleep, as Radeons of the RX 7000 write it
    ("S: 19Mhz *\n", (19, "unread")),  # a sleep is no level
    ("0: 132Mhz *\n1: 2100Mhz *\n", (2100, 2100)),
    ("0: 500Mhz\n1: 1000Mhz\n", ("not_exposed", 1000)),
    ("0: 1300MHz *\n", (1300, 1300)),
    ("", ("unread", "unread")),
    ("0: Mhz *\n1: ²Mhz *\n2: 99999999999999Mhz\n\x1b[31m\n", ("unread", "unread")),
]


@pytest.mark.parametrize(("text", "expected"), CLOCKS)
def test_clock_levels_give_current_and_highest_or_a_fault(
    tmp_path: Path, text: str, expected: tuple[object, object]
) -> None:
    root = tree.write(scenario(1), tmp_path)
    (root / BUS / FIRST / "pp_dpm_sclk").write_text(text)
    clocks = read(root)[0]["clocks"]
    got = [clocks[name]["graphics_mhz"] for name in ("current", "max")]
    assert tuple(value["fault"] if isinstance(value, dict) else value for value in got) == expected


def test_nothing_that_is_missing_is_made_up(tmp_path: Path) -> None:
    """A function that amdgpu does not drive has the bus's files alone; so has one whose driver died."""
    root = tree.write(scenario(1), tmp_path)
    place = (root / BUS / FIRST).resolve()
    stored = {path.name for path in place.iterdir()} & {
        "config",
        "modalias",
        "class",
        "vendor",
        "device",
        "resource",
        "numa_node",
    }
    for path in sorted(place.rglob("*"), key=lambda path: -len(path.parts)):
        if path.is_symlink() or path.is_file():
            if path.parent != place or path.name not in stored:
                path.unlink()
        else:
            path.rmdir()
    (root / "sys/class/drm/card0").unlink()
    one = read(root)[0]
    faults = [
        one[key]["fault"]
        for key in (
            "name",
            "uuid",
            "serial",
            "vbios",
            "power",
            "throttle",
            "temperature",
            "bad_pages",
            "ras",
            "performance_level",
        )
    ]
    assert set(faults) == {"not_exposed"}
    assert (
        one["memory"]["total_mib"]["fault"]
        == one["ecc"]["volatile"]["uncorrected"]["fault"]
        == "not_exposed"
    )
    assert one["clocks"]["max"]["graphics_mhz"]["fault"] == "not_exposed"
    assert one["settings"]["power"]["limit"]["rc"] == 3
    assert one["driver"] is None


def test_xgmi_error_file_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """amdgpu_xgmi_show_error clears the chip's status, and complains in the kernel's log where counters are off; on an MI300 it is EINVAL
    (ROCm/rocm-systems issue 11468)."""
    root = tree.write(scenario(1), tmp_path)
    asked: list[str] = []
    bare = Folder.data

    def data(self: Folder, name: str, most: int = 4096) -> Any:
        asked.append(name)
        return bare(self, name, most)

    monkeypatch.setattr(Folder, "data", data)
    assert "error" not in read(root)[0]["xgmi"]
    assert "unique_id" in asked
    assert "xgmi_error" not in asked


def test_an_error_of_the_system_is_not_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a GPU is reset its files answer EPERM."""
    root = tree.write(scenario(1), tmp_path)
    bare = Folder.data

    def data(self: Folder, name: str, most: int = 4096) -> Any:
        return (
            error_fault(OSError(errno.EPERM, ""))
            if name == "gpu_metrics" or name.startswith("ras/")
            else bare(self, name, most)
        )

    monkeypatch.setattr(Folder, "data", data)
    one = read(root)[0]
    assert (
        one["throttle"]
        == one["bad_pages"]
        == one["ras"]["umc"]
        == {"fault": "unread", "text": "Operation not permitted", "rc": 1}
    )
    assert one["ecc"]["volatile"]["uncorrected"]["rc"] == 1


def test_a_file_of_many_pages_is_read_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sysfs gives a page of a binary attribute at a time: 157 of 300 bad pages by the first read."""
    root = tree.write(scenario(1, "gpu0.amd.bad_pages.R=300"), tmp_path)
    bare = os.read
    monkeypatch.setattr(os, "read", lambda handle, most: bare(handle, min(most, 4096)))
    assert read(root)[0]["bad_pages"]["retired"] == 300


def test_partitions_are_no_gpus_of_their_own(tmp_path: Path) -> None:
    """In CPX the driver makes eight DRM cards and eight KFD nodes of one function."""
    root = tree.write(scenario(1, "gpu0.amd.partition.compute=CPX"), tmp_path)
    for part in range(1, 8):
        card = root / f"sys/devices/platform/amdgpu_xcp_{part}/drm/card{part}"
        card.mkdir(parents=True)
        (root / f"sys/class/drm/card{part}").symlink_to(card)
        node = root / f"sys/class/kfd/kfd/topology/nodes/{part + 1}"
        (node / "io_links/0").mkdir(parents=True)
        (node / "properties").write_text("location_id 4096\ndomain 0\n")
        (node / "io_links/0/properties").write_text("type 11\n")
    (one,) = read(root)
    assert one["xgmi"]["links"] == 7


RAS = [
    ("umc_err_count", "ue: 1\nce: 2\n", {"ue": 1, "ce": 2}),
    ("umc_err_count", "ue: 1\nce: 2\nde: 3\n", {"ue": 1, "ce": 2, "de": 3}),
    ("umc_err_count", "ue: 1\n", "unread"),
    ("umc_err_count", "", "unread"),
    ("umc_err_count", "ue: -1\nce: x\n", "unread"),
    ("umc_err_count", f"ue: {'9' * 25}\nce: 0\n", "unread"),
    ("umc_err_count", "Query failed\n", "unread"),
]


@pytest.mark.parametrize(("name", "text", "expected"), RAS)
def test_error_counters_and_their_sum_are_read_or_unread(
    tmp_path: Path, name: str, text: str, expected: object
) -> None:
    root = tree.write(scenario(1), tmp_path)
    (root / BUS / FIRST / "ras" / name).write_text(text)
    one = read(root)[0]
    got = one["ras"]["umc"]
    assert (got.get("fault") or got) == expected
    # The sum over the blocks is unknown when one of them is.
    total = one["ecc"]["volatile"]["uncorrected"]
    assert total == 1 if isinstance(expected, dict) else total["fault"] == "unread"


def test_error_counters_of_newer_kernels(tmp_path: Path) -> None:
    root = tree.write(scenario(1), tmp_path)
    ras = root / BUS / FIRST / "ras"
    for path in ras.glob("*_err_count"):
        path.unlink()
    (ras / "aca_umc").write_text("ue: 4\nce: 5\nde: 6\n")
    assert read(root)[0]["ras"] == {"umc": {"ue": 4, "ce": 5, "de": 6}}


PAGES = [
    (
        "0x027f5d43 : 0x00001000 : R\n0x027f5d4b : 0x00001000 : P\n",
        {"retired": 1, "pending": 1, "unreservable": 0},
    ),
    ("", {"retired": 0, "pending": 0, "unreservable": 0}),
    ("0x027f5d43 : 0x00001000 : Q\n", "unread"),
    ("\x1b[2J\n", "unread"),
    ("R\n", "unread"),
]


@pytest.mark.parametrize(("text", "expected"), PAGES)
def test_bad_pages_are_counted_or_unread(tmp_path: Path, text: str, expected: object) -> None:
    root = tree.write(scenario(1), tmp_path)
    (root / BUS / FIRST / "ras/gpu_vram_bad_pages").write_text(text)
    got = read(root)[0]["bad_pages"]
    assert (got.get("fault") or got) == expected


def table(
    form: int, content: int, size: int, values: dict[int, tuple[int, int]], fill: int = 0xFF
) -> bytes:
    """gpu_metrics as the driver makes it: ones (soft_gpu_metrics is filled so), the header, and values at their offsets (width, number)."""
    data = bytearray([fill]) * size
    data[:4] = size.to_bytes(2, "little") + bytes([form, content])
    for offset, (width, number) in values.items():
        data[offset : offset + width] = number.to_bytes(width, "little")
    return bytes(data)


def residency(offset: int) -> dict[int, tuple[int, int]]:
    return {offset + 4 * place: (4, value) for place, value in enumerate((900, 1, 2, 3, 4, 5))}


COUNTED = {
    "residency": {
        "prochot": 1,
        "ppt": 2,
        "socket_thermal": 3,
        "vr_thermal": 4,
        "hbm_thermal": 5,
        "cycles": 900,
    }
}
QUIET: dict[str, Any] = {"status": 0, "active": [], "kinds": []}
TABLES = [
    (table(1, 0, 80, {68: (4, 0)}), QUIET),
    (table(1, 1, 96, {68: (4, 0)}), QUIET),
    (table(1, 2, 104, {68: (4, 6)}), "bits"),
    (table(1, 3, 120, {68: (4, 6), 112: (8, 0)}), QUIET),
    (
        table(1, 3, 120, {68: (4, 1), 112: (8, 1 << 36 | 1)}),
        {"status": 1 << 36 | 1, "active": ["ppt0", "temp_hotspot"], "kinds": ["power", "thermal"]},
    ),
    (
        table(1, 3, 120, {112: (8, 1 << 60 | 1 << 16)}),
        {
            "status": 1 << 60 | 1 << 16,
            "active": ["tdc_gfx", "bit60"],
            "kinds": ["current", "other"],
        },
    ),
    (
        table(1, 3, 120, {68: (4, 0)}),
        QUIET,
    ),  # the common status is not filled in, the chip's own is
    (table(1, 3, 120, {}), "not_exposed"),
    # An MI300 of the first drivers: "Throttle status is not reported through metrics now", and is 0 always.
    (table(1, 4, 288, {40: (4, 0)}), "not_exposed"),
    (table(1, 5, 360, {104: (4, 0)}), "not_exposed"),
    (table(1, 6, 384, residency(104)), COUNTED),
    (table(1, 6, 1664, residency(32)), COUNTED),
    (table(1, 6, 500, residency(32)), "not_exposed"),
    (table(1, 7, 2208, residency(40)), COUNTED),
    (table(1, 8, 2400, residency(40)), COUNTED),
    (table(1, 9, 400, {}), "not_exposed"),  # attributes one after the other
    (table(2, 3, 152, {}), "not_exposed"),  # a processor with graphics
    (table(3, 0, 264, {}), "not_exposed"),
    (table(1, 8, 2400, {})[:100], "unread"),
    (table(1, 8, 40, {}), "unread"),
    (b"", "unread"),
    (b"\xff\xff", "unread"),
    (b"\0\0\1\3" + bytes(200), "unread"),
    (table(1, 9, 9000, {})[:4096], "not_exposed"),
]


@pytest.mark.parametrize(("data", "expected"), TABLES)
def test_gpu_metrics_give_throttle_or_a_fault(data: bytes, expected: object) -> None:
    got = amd.throttle(data)
    if expected == "bits":
        assert got["status"] == 6
        assert got["active"]["fault"] == "not_exposed"
    else:
        assert (got.get("fault") or got) == expected


def test_a_residency_that_the_chip_does_not_report(tmp_path: Path) -> None:
    got = amd.throttle(table(1, 8, 2400, {40: (4, 900), 48: (4, 2)}))["residency"]
    assert got["cycles"] == 900
    assert got["ppt"] == 2
    assert got["prochot"]["fault"] == "not_exposed"
    del tmp_path


def test_sizes_are_those_of_the_kernels_structures() -> None:
    """The offsets by which the table above is built, computed from the structures as the compiler lays them out."""
    import ctypes as c

    u8, u16, u32, u64 = c.c_uint8, c.c_uint16, c.c_uint32, c.c_uint64

    def made(*fields: tuple[str, Any]) -> Any:
        return type("Made", (c.Structure,), {"_fields_": [("header", u32), *fields]})

    temps = [("temps", u16 * 6), ("busy", u16 * 3), ("power", u16)]
    clocks = [("average", u16 * 7), ("current", u16 * 7), ("status", u32), ("fan", u16)]
    tail = [("link", u16 * 2), ("padding", u16), ("acc", u32 * 2), ("hbm", u16 * 4)]
    third = made(
        *temps,
        ("energy", u64),
        ("clock", u64),
        *clocks,
        *tail,
        ("stamp", u64),
        ("volts", u16 * 4),
        ("common", u64),
    )
    assert (third.status.offset, third.common.offset, c.sizeof(third)) == (68, 112, 120)
    zeroth = made(("clock", u64), *temps, ("energy", u32), *clocks, ("link", u8 * 2))
    assert (zeroth.status.offset, c.sizeof(zeroth)) == (68, 80)
    start = [("temps", u16 * 3), ("power", u16), ("busy", u16 * 2)]
    counters: list[tuple[str, Any]] = [("cycles", u32), ("residency", u32 * 5)]
    link = [
        ("lock", u32),
        ("links", u16 * 4),
        ("acc", u32 * 2),
        ("pcie", u64 * 5),
        ("nak", u32 * 2),
        ("xgmi", u64 * 16),
    ]
    freq = [("stamp", u64), ("gfx", u16 * 8), ("others", u16 * 12), ("uclk", u16), ("last", u16)]
    old = made(
        *start,
        ("vcn", u16 * 4),
        ("jpeg", u16 * 32),
        ("energy", u64),
        ("clock", u64),
        *counters,
        ("status", u32),
        *link,
        *freq,
    )
    assert (old.cycles.offset, c.sizeof(old)) == (104, 384)
    part: Any = type(
        "Part",
        (c.Structure,),
        {"_fields_": [("a", u32 * 8), ("b", u16 * 32), ("c", u16 * 4), ("d", u64 * 8)]},
    )
    new = made(
        *start,
        ("energy", u64),
        ("clock", u64),
        *counters,
        *link,
        *freq,
        ("parts", part * 8),
        ("end", u32),
    )
    assert (new.cycles.offset, c.sizeof(new)) == (32, 1664)
    eighth = made(*start, ("most", u64), ("energy", u64), ("clock", u64), *counters, *link)
    assert eighth.cycles.offset == 40


def test_without_the_bus_there_is_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    context = Context(Host(str(tmp_path)))
    assert amd.read_gpus(context) == []
    with Folder(Files(str(tmp_path)), "/nowhere") as folder:
        assert (folder.names("hwmon"), folder.target("driver"), folder.there("x")) == (
            [],
            None,
            False,
        )
        assert amd.filled(folder, "unique_id")["fault"] == "not_exposed"

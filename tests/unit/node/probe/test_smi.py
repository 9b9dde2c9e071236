"""Outputs of `nvidia-smi -q -x` of real machines as captures: what they say is told, and nothing else.

fixtures/smi/*.xml hold the facts of outputs found in public repositories; each names its source. Serials and UUIDs are ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from goldnode.node.ground.errors import NodeError
from goldnode.node.probe import command, smi

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures/smi").glob("*.xml"))
IDLE: dict[str, Any] = {"throttle.active": ["gpu_idle"], "throttle.mask": 1}
NONE = "not_exposed"  # in the place of a value: the fault that is expected there
GONE = "no key"

# What the XML says of its first GPU, read off it by hand.
EXPECTED: dict[str, dict[str, Any]] = {
    "a100_40gb_570": {
        "name": "NVIDIA A100-SXM4-40GB", "pci_id": "10de:20b0", "address": "0000:06:00.0", "memory.total_mib": 40960, "memory.bar1_mib": 65536,
        "pcie.gen.current": 4, "pcie.gen.max": 4, "pcie.width.current": 16, "pstate": 0, "persistence_mode": True, "ecc.current": True,
        "remapped_rows.pending": False, "remapped_rows.histogram.max": 640, "recovery_action": "none", "power.limit_w": 400,
        "power.draw_w": 49.68, "clocks.application.graphics_mhz": 1095, "clocks.max.sm_mhz": 1410, "temperature.gpu_c": 33,
        "temperature.margin_c": NONE, "temperature.slowdown_c": 89, "temperature.memory_c": 34, "mig.current": False, "mig.instances": [],
        "fabric": NONE, "ecc.sram.threshold_exceeded": False, "gsp_firmware": "570.148.08", "architecture": "Ampere", **IDLE,
    },
    "a100_80gb_535": {
        "pci_id": "10de:20b2", "memory.total_mib": 81920, "memory.used_mib": 50, "mig.current": True, "mig.instances": NONE,
        "remapped_rows": NONE, "power.limit_w": 500, "power.draw_w": 67.03, "clocks.application.graphics_mhz": 1275, "recovery_action": GONE,
        "throttle.active": [], "throttle.mask": 0, "utilization": NONE, "ecc.sram": {"corrected": 0},
    },
    "a100_mig_510": {
        "pci_id": "10de:20b0", "memory.total_mib": 40960, "mig.current": True, "remapped_rows": NONE, "ecc.volatile.uncorrected": NONE,
        "ecc.aggregate.uncorrected": 0, "power.enforced_w": 400, "power.draw_w": 66.92, "throttle.active": [], "fabric": GONE,
    },
    "a10g_515": {
        "name": "NVIDIA A10G", "memory.total_mib": 23028, "pcie.gen.current": 1, "pcie.gen.max": 4, "pcie.gen.device_max": GONE,
        "pcie.width.current": 8, "pcie.width.max": 16, "pstate": 8, "power.limit_w": 300, "power.draw_w": 25.58,
        "remapped_rows.failure": False, "remapped_rows.histogram.max": 192, "retired_pages": NONE, "temperature.slowdown_c": 95, "mig": NONE, **IDLE,
    },
    "b200_580": {
        "name": "NVIDIA B200", "pci_id": "10de:2901", "memory.total_mib": 183359, "pcie.gen.current": 5, "pcie.gen.device_max": 5,
        "persistence_mode": False, "remapped_rows.histogram.max": 3840, "power.limit_w": 1000, "power.draw_w": 195.68,
        "clocks.max.sm_mhz": 1965, "temperature.margin_c": 49, "temperature.slowdown_c": GONE, "fabric.state": "completed",
        "fabric.status": "Success", "throttle.violation_ns.power": 770461242000, "architecture": "Blackwell", **IDLE,
    },
    "gb200_580": {
        "name": "NVIDIA GB200", "pci_id": "10de:2941", "memory.total_mib": 189471, "pcie.gen.current": 5, "pcie.gen.max": 5,
        "pcie.gen.device_max": 6, "power.limit_w": 1200, "power.draw_w": 165.93, "throttle.violation_ns.power": 2354613000,
        "repair.channel_pending": False, "fabric.health.summary": "healthy", **IDLE,
    },
    "gb300_580": {
        "name": "NVIDIA GB300", "pci_id": "10de:31c2", "address": "0008:06:00.0", "memory.total_mib": 284208, "pcie.gen.current": 6,
        "power.limit_w": 1400, "clocks.max.sm_mhz": 2070, "remapped_rows.histogram.max": 5952, "fabric.state": "completed",
    },
    "gtx1660ti_418": {
        "name": "Graphics Device", "pci_id": "10de:2184", "memory.total_mib": 5912, "ecc": NONE, "mig": GONE, "recovery_action": GONE,
        "power.draw_w": 8.93, "clocks.application": NONE, "serial": NONE, "gsp_firmware": GONE, "pstate": 8,
    },
    "h100_580": {
        "name": "NVIDIA H100 80GB HBM3", "pci_id": "10de:2330", "address": "0000:53:00.0", "memory.total_mib": 81559, "memory.bar1_mib": 131072,
        "pcie.gen.current": 5, "pcie.width.current": 16, "pcie.replay": 150, "power.limit_w": 700, "power.enforced_w": 700,
        "power.draw_w": 68.57, "clocks.current.sm_mhz": 345, "clocks.max.sm_mhz": 1980, "temperature.margin_c": 58, "temperature.memory_c": 37,
        "remapped_rows.histogram.max": 2560, "fabric.state": "completed", "fabric.clique": 0,
        "throttle.violation_ns.power": 7015662857000, "vbios": "96.00.99.00.01", "index": 0, "lost": False, **IDLE,
    },
    "l40s_595": {
        "name": "NVIDIA L40S", "pci_id": "10de:26b9", "memory.total_mib": 46068, "pcie.width.current": 8, "pcie.width.max": 16,
        "clocks.application": NONE, "clocks.max.sm_mhz": 2520, "mig": NONE, "fabric": NONE, "power.draw_w": 65.64,
        "throttle.violation_ns.hw_power_brake": 0,
    },
    "p100_510": {
        "name": "Tesla P100-PCIE-16GB", "pci_id": "10de:15f8", "ecc.aggregate.corrected": 3, "ecc.aggregate.uncorrected": 0,
        "ecc.dram.volatile_uncorrected": 0, "ecc.sram": GONE, "remapped_rows": NONE, "retired_pages.double_bit": 0, "retired_pages.pending": False,
        "power.limit_w": 250, "clocks.application.graphics_mhz": 1189,
    },
    "p2000_525": {
        "name": "Quadro P2000", "pci_id": "10de:1c30", "pcie.width.current": 8, "ecc": NONE, "power.draw_w": 4.61, "persistence_mode": True,
        "clocks.application.graphics_mhz": 1075, **IDLE,
    },
    "rtx2080_windows_516": {
        "name": "NVIDIA GeForce RTX 2080", "persistence_mode": NONE, "power.max_w": 350, "power.default_w": 275, "clocks.max.sm_mhz": 3060,
        "pcie.width.current": 8,
    },
    "rtx3060_570": {
        "name": "NVIDIA GeForce RTX 3060", "memory.total_mib": 12288, "recovery_action": "none", "power.max_w": 190, "power.draw_w": 11.6,
        "ecc": NONE, "remapped_rows": NONE, "pcie.gen.current": 1,
    },
    "rtx3080_595": {
        "name": "NVIDIA GeForce RTX 3080", "pstate": 2, "clocks.current.sm_mhz": 1950, "clocks.application": NONE, "throttle.active": [],
        "throttle.violation_ns.power": 0, "power.draw_w": 139.62,
    },
    "rtx4000_sff_ada_595": {
        "pci_id": "10de:27b0", "ecc.current": False, "ecc.volatile.uncorrected": NONE, "throttle.violation_ns.power": 4251825415000,
        "remapped_rows.histogram.max": 96, "power.draw_w": 8.81,
    },
    "rtx4090_535": {
        "name": "NVIDIA GeForce RTX 4090", "pcie.gen.max": 3, "pcie.gen.device_max": 4, "ecc.current": False, "power.max_w": 600,
        "power.draw_w": 26.84, "temperature.margin_c": 43, "recovery_action": GONE,
    },
    "t4_515": {
        "name": "Tesla T4", "pci_id": "10de:1eb8", "memory.total_mib": 15360, "memory.used_mib": 1032, "pcie.width.current": 8,
        "retired_pages.pending": False, "retired_pages.single_bit": 0, "remapped_rows": NONE, "power.draw_w": 26.78,
    },
    "t4_595": {
        "name": "Tesla T4", "ecc.aggregate.corrected": 1, "ecc.aggregate.uncorrected": 0, "power.draw_w": 33.51, "clocks.application": NONE,
        "recovery_action": "none",
    },
}  # fmt: skip


def at(value: Any, path: str) -> Any:
    """The value at a dotted path; GONE where there is none, the kind of fault where there is one."""
    for part in path.split("."):
        if isinstance(value, dict) and "fault" in value:
            return value["fault"]
        if not isinstance(value, dict) or part not in value:
            return GONE
        value = value[part]
    return value["fault"] if isinstance(value, dict) and "fault" in value else value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything known."""
    if isinstance(value, dict):
        if "fault" in value:
            return
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, path)
    else:
        yield path, value


def load(path: Path) -> dict[str, Any]:
    return command.load(str(path))


def test_each_expectation_has_a_fixture_with_its_origin() -> None:
    assert sorted(EXPECTED) == [path.stem for path in FIXTURES]
    for path in FIXTURES:
        assert re.search(
            r"<!-- Facts of one output of nvidia-smi: \S+/\S+ \w+ \S+\.xml \([\w.-]+\)",
            path.read_text(),
        ), path


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_capture_of_smi_xml_has_its_gpus_and_values(path: Path) -> None:
    found = load(path)
    assert found["source"] == "nvidia-smi-xml"
    text = path.read_text()
    assert len(found["gpus"]) == text.count("<gpu id=")
    assert f"<driver_version>{found['driver']['reported']}</driver_version>" in text
    reported = {key: at(found["gpus"][0], key) for key in EXPECTED[path.stem]}
    assert reported == EXPECTED[path.stem]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_no_value_is_reported_that_the_xml_does_not_have(path: Path) -> None:
    """Each number and each text stands in an element; sums are of the counts, and a mask is of the bits that are active."""
    elements = {e.get("id"): e for e in ElementTree.parse(path).getroot().findall("gpu")}  # noqa: S314 - our own file
    for gpu in load(path)["gpus"]:
        element = next(
            e for key, e in elements.items() if key and key.lower().endswith(gpu["address"])
        )
        texts = [(e.text or "").strip() for e in element.iter() if len(e) == 0]
        numbers: set[float] = set()
        numbers |= {float(match[1]) for text in texts if (match := re.match(r"P(\d+)$", text))}
        numbers |= {
            float(match[0])
            for text in texts
            if (match := re.match(r"-?\d+(\.\d+)?(?=[ x%]|$)", text))
        }
        for key, value in leaves(gpu):
            if key in ("index", "vendor", "lost") or key.endswith(
                ("address", "pci_id", "subsystem_id")
            ):
                continue
            if key == "throttle.mask":
                assert bin(value).count("1") == len(gpu["throttle"]["active"])
            elif key.startswith("throttle.violation_ns"):
                assert value / 1000 in numbers, key
            elif isinstance(value, bool):
                assert any(
                    text.lower() in ("yes", "no", "enabled", "disabled", "0", "1") for text in texts
                ), key
            elif isinstance(value, int | float):
                assert value in numbers, f"{key}: {value}"
            else:
                assert any(
                    value.replace("_", " ") in text.lower().replace("_", " ") or value in text
                    for text in texts
                ) or key.startswith(("throttle.active", "fabric.health")), f"{key}: {value}"


@pytest.mark.parametrize(
    "output",
    [
        "N/A",
        "[N/A]",
        "Unknown Error",
        "[Unknown Error]",
        "GPU is lost",
        "[GPU requires reset]",
        "ERR!",
        "",
        "½",
    ],
)
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_nothing_is_known_of_a_gpu_of_which_nothing_is_reported(path: Path, output: str) -> None:
    """Every text of the first GPU replaced by one that stands for no value: then the capture has none, whatever the element was called."""
    root = ElementTree.parse(path).getroot()  # noqa: S314 - our own file
    gpu = root.find("gpu")
    assert gpu is not None
    for element in gpu.iter():
        if len(element) == 0:
            element.text = output
    gpu.set("id", "")
    for other in root.findall("gpu")[1:]:
        root.remove(other)
    found = smi.parse(ElementTree.tostring(root), "x")["gpus"][0]
    empty = {"mig.instances"}
    known = {
        key: value
        for key, value in leaves(found)
        if key not in ("index", "vendor", "lost") and key not in empty
    }
    if output in ("½", ""):  # texts are any text
        known = {key: value for key, value in known.items() if value != output and key != "address"}
    assert known == {}
    assert found["lost"] == (output in ("GPU is lost", "[GPU requires reset]"))
    outcome = "not_exposed" if output in ("N/A", "[N/A]") else "unread"
    assert at(found, "memory") == at(found, "persistence_mode") == at(found, "power") == outcome


# -- renamed and reformatted


def one(inner: str, head: str = "") -> dict[str, Any]:
    text = f'<nvidia_smi_log>{head}<attached_gpus>1</attached_gpus><gpu id="00000000:18:00.0">{inner}</gpu></nvidia_smi_log>'
    gpu: dict[str, Any] = smi.parse(text.encode(), "x")["gpus"][0]
    return gpu


@pytest.mark.parametrize(
    ("output", "flag"),
    [("Yes", True), ("1", True), ("No", False), ("0", False), ("N/A", NONE), ("maybe", "unread")],
)
def test_flags_of_either_notation(output: str, flag: Any) -> None:
    rows = "<remapped_row_corr>3</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>"
    gpu = one(
        f"<remapped_rows>{rows}<remapped_row_pending>{output}</remapped_row_pending><remapped_row_failure>{output}</remapped_row_failure></remapped_rows>"
    )
    assert (at(gpu, "remapped_rows.pending"), at(gpu, "remapped_rows.failure")) == (flag, flag)
    assert at(gpu, "remapped_rows.uncorrectable") == 1


@pytest.mark.parametrize(
    ("output", "action"),
    [("None", "none"), ("Reset", "gpu_reset"), ("GPU Reset", "gpu_reset"), ("Reboot", "node_reboot"), ("Drain P2P", "drain_p2p"),
     ("Drain and Reset", "drain_and_reset"), ("N/A", NONE), ("Dance", "unread")],
)  # fmt: skip
def test_recovery_action_is_mapped_or_unread(output: str, action: str) -> None:
    assert (
        at(one(f"<gpu_recovery_action>{output}</gpu_recovery_action>"), "recovery_action") == action
    )


def test_before_there_was_a_recovery_action_a_wanted_reset_is_one() -> None:
    status = "<gpu_reset_status><reset_required>{}</reset_required><drain_and_reset_recommended>{}</drain_and_reset_recommended></gpu_reset_status>"
    assert at(one(status.format("Yes", "No")), "recovery_action") == "gpu_reset"
    assert at(one(status.format("No", "Yes")), "recovery_action") == "drain_and_reset"
    assert at(one(status.format("No", "No")), "recovery_action") == GONE, (
        "two flags do not say that nothing is wanted"
    )


def test_throttling_by_its_old_name_and_its_new() -> None:
    for prefix in ("clocks_throttle_reason", "clocks_event_reason"):
        rows = f"<{prefix}_hw_slowdown>Active</{prefix}_hw_slowdown><{prefix}_sw_thermal_slowdown>Active</{prefix}_sw_thermal_slowdown>"
        gpu = one(f"<{prefix}s>{rows}<{prefix}_gpu_idle>Not Active</{prefix}_gpu_idle></{prefix}s>")
        assert gpu["throttle"] == {"mask": 0x28, "active": ["hw_slowdown", "sw_thermal_slowdown"]}
    broken = one(
        "<clocks_event_reasons><clocks_event_reason_hw_slowdown>Unknown Error</clocks_event_reason_hw_slowdown>"
        "<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle></clocks_event_reasons>"
    )
    assert at(broken, "throttle.mask") == "unread", (
        "a mask of which a bit is not known is not known"
    )
    assert at(broken, "throttle.active") == ["gpu_idle"]


def test_a_sum_of_which_a_part_could_not_be_read_does_not_count() -> None:
    text = (
        "<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Disabled</pending_ecc></ecc_mode><ecc_errors><volatile>"
        "<sram_correctable>1</sram_correctable><dram_correctable>2</dram_correctable>"
        "<sram_uncorrectable_parity>N/A</sram_uncorrectable_parity><sram_uncorrectable_secded>1</sram_uncorrectable_secded>"
        "<dram_uncorrectable>{}</dram_uncorrectable></volatile></ecc_errors>"
    )
    assert one(text.format("4"))["ecc"]["volatile"] == {"corrected": 3, "uncorrected": 5}
    assert at(one(text.format("Unknown Error")), "ecc.volatile.uncorrected") == "unread"
    assert at(one(text.format("4")), "ecc.pending") is False


def test_with_i_a_place_in_the_list_is_no_number() -> None:
    found = smi.parse(
        b'<nvidia_smi_log><attached_gpus>8</attached_gpus><gpu id="00000000:18:00.0"/></nvidia_smi_log>',
        "x",
    )
    assert (found["gpus"][0]["index"], found["gpu_count"]) == (None, 8)


# -- what is none


BOMB = (
    b"<!DOCTYPE x [<!ENTITY a '"
    + b"a" * 100
    + b"'><!ENTITY b '&a;&a;&a;'>]><nvidia_smi_log><timestamp>&b;</timestamp></nvidia_smi_log>"
)


@pytest.mark.parametrize(
    ("data", "output"),
    [
        (b"==============NVSMI LOG==============\n\nTimestamp : x\n", "names no GPU"),
        (
            b"Sun Nov 22\n| NVIDIA-SMI 550.127.05    Driver Version: 550.127.05 |\n",
            "the table of nvidia-smi",
        ),
        (b"", "is empty"),
        (b"\x7fELF", "neither JSON nor XML"),
        (b"<html><body/></html>", "its XML is <html>"),
        (BOMB, "declares XML entities"),
        (BOMB.replace(b"ENTITY", b"entity"), "declares XML entities"),
        (BOMB.decode().encode("utf-16"), "declares XML entities"),
        (b'<?xml version="1.0" encoding="utf-7"?><nvidia_smi_log>+ADw-</nvidia_smi_log', "cut off"),
        (b"<a>" * 100000, "not XML"),
        (b'{"schema": "goldnode.capture/1", "gpus": [', "not JSON"),
        (b'{"schema": "goldnode.verdict/1"}', "not goldnode.capture/1"),
        (b"[]", "not goldnode.capture/1"),
        (b"[" * 100000, "not JSON"),
    ],
)
def test_load_refuses_a_file_that_is_no_record_and_names_the_fault(
    tmp_path: Path, data: bytes, output: str
) -> None:
    record = tmp_path / "record"
    record.write_bytes(data)
    with pytest.raises(NodeError, match=re.escape(output)):
        command.load(str(record))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_cut_off_output_is_refused(tmp_path: Path, share: float) -> None:
    data = FIXTURES[0].read_bytes()
    (tmp_path / "cut.xml").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(NodeError, match="cut off"):
        load(tmp_path / "cut.xml")


def test_an_output_redirected_by_powershell_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_bytes(FIXTURES[0].read_text().encode("utf-16"))
    assert load(tmp_path / "x.xml")["gpus"] == load(FIXTURES[0])["gpus"]


def test_a_file_that_is_too_large_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MOST", 100)
    with pytest.raises(NodeError, match="larger than"):
        load(FIXTURES[0])
    with pytest.raises(NodeError, match="cannot be read"):
        command.load(str(tmp_path / "none"))

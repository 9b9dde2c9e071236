"""The text of `nvidia-smi -q` says the same as its XML: each title lands where the XML's element does.

fixtures/smi-text/h100_580.txt is made up: its layout is that of driver 560, its values are ours.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests import documents

from goldnode.node.ground.errors import NodeError
from goldnode.node.probe import command, smi, smitext

HERE = Path(__file__).parents[1] / "fixtures"
TEXT = HERE / "smi-text/h100_580.txt"


def at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


EXPECTED = {
    "address": "0000:53:00.0", "pci_id": "10de:2330", "subsystem_id": "10de:16c1", "minor": 7, "vbios": "96.00.A5.00.01",
    "persistence_mode": True, "compute_mode": "exclusive_process", "pstate": 0, "mig.current": False, "mig.pending": True,
    "pcie.gen.current": 4, "pcie.gen.max": 5, "pcie.gen.device_max": 5, "pcie.width.current": 8, "pcie.width.max": 16, "pcie.replay": 6,
    "memory.total_mib": 81559, "memory.used_mib": 1234, "memory.bar1_mib": 131072, "utilization.gpu": 97,
    "ecc.current": True, "ecc.pending": True, "ecc.volatile.corrected": 3, "ecc.volatile.uncorrected": 2,
    "ecc.aggregate.corrected": 4, "ecc.aggregate.uncorrected": 5, "ecc.sram.threshold_exceeded": False,
    "remapped_rows.correctable": 1, "remapped_rows.uncorrectable": 2, "remapped_rows.pending": True, "remapped_rows.failure": False,
    "remapped_rows.histogram.max": 2558, "remapped_rows.histogram.high": 2, "retired_pages.fault": "not_exposed",
    "power.limit_w": 650, "power.enforced_w": 600, "power.default_w": 700, "power.min_w": 200, "power.max_w": 700, "power.draw_w": 650.25,
    "clocks.current.sm_mhz": 1755, "clocks.max.graphics_mhz": 1980, "clocks.application.graphics_mhz": 1755,
    "clocks.application_default.graphics_mhz": 1980, "throttle.mask": 0x4C, "temperature.gpu_c": 71, "temperature.margin_c": 16,
    "temperature.memory_c": 80, "fabric.state": "in_progress", "processes": [], "gsp_firmware": "580.178.04", "index": 0,
}  # fmt: skip


def test_the_text_is_read() -> None:
    found = documents.valid(json.dumps(command.load(str(TEXT))))
    assert found["source"] == "nvidia-smi-text"
    assert found["driver"] == {"vendor": "nvidia", "reported": "580.178.04", "cuda": "13.0"}
    gpu = found["gpus"][0]
    assert {path: at(gpu, path) for path in EXPECTED} == EXPECTED


def test_every_element_of_the_table_is_one_that_the_xml_reader_reads() -> None:
    """Else a reading of the text would be lost without a word. Elements without a reader are named here."""
    used = Path(smi.__file__).read_text(encoding="utf-8")
    for title, path in smitext.PATHS.items():
        last = path.split("/")[-1]
        folder, name = path.split("/")[0], last
        known = (
            last in used
            or folder
            in ("clocks_event_reasons", "clocks_throttle_reasons", "clocks_event_reasons_counters")
            or name.startswith("row_remapper_histogram_")
            or name == "video_clock"
        )
        assert known, f"{title}: <{path}> is not read"


def test_titles_of_a_section_do_not_leak_into_the_next() -> None:
    text = TEXT.read_text().replace("    MIG Mode\n", "    Unknown Mode\n")
    gpu = smitext.parse(text.encode(), "x")["gpus"][0]
    assert "mig" not in gpu
    assert gpu["ecc"]["current"] is True


def test_two_gpus_are_two() -> None:
    head, _, body = TEXT.read_text().partition("GPU 00000000:53:00.0\n")
    second = body.replace("53:00.0", "54:00.0").replace("0000000077", "0000000078")
    text = f"{head}GPU 00000000:53:00.0\n{body}\nGPU 00000000:54:00.0\n{second}".replace(
        "Attached GPUs                             : 1",
        "Attached GPUs                             : 2",
    )
    gpus = smitext.parse(text.encode(), "x")["gpus"]
    assert [(gpu["index"], gpu["address"]) for gpu in gpus] == [
        (0, "0000:53:00.0"),
        (1, "0000:54:00.0"),
    ]


def test_several_logs_in_one_file_are_refused() -> None:
    with pytest.raises(NodeError, match="more than one log"):
        smitext.parse(TEXT.read_bytes() * 2, "x")


@pytest.mark.parametrize("seed", range(40))
def test_damaged_text_ends_in_a_capture_or_in_an_error(seed: int) -> None:
    drawn = random.Random(seed)  # noqa: S311 - test input
    lines = TEXT.read_text().splitlines(keepends=True)
    for _ in range(20):
        place = drawn.randrange(len(lines))
        what = drawn.randrange(4)
        if what == 0:
            del lines[place]
        elif what == 1:
            lines.insert(place, drawn.choice(lines))
        elif what == 2:
            lines[place] = lines[place][drawn.randrange(8) :]
        else:
            lines[place] = lines[place].replace(
                " : ", drawn.choice([": ", " :", " = ", " : \x00\xff "])
            )
    try:
        found = smitext.parse("".join(lines).encode(), "x")
    except NodeError:
        return
    documents.valid(json.dumps(found))


@pytest.mark.parametrize(
    "tags", [("kmd_version", "cuda_umd_version"), ("driver_version", "cuda_version")]
)
def test_the_driver_has_its_version_under_both_names(tags: tuple[str, str]) -> None:
    """Since 610 the old names are deprecated; they end with CUDA 14.0."""
    root = ElementTree.fromstring(  # noqa: S314 - our own text
        f"<nvidia_smi_log><{tags[0]}>615.23</{tags[0]}><{tags[1]}>13.4</{tags[1]}></nvidia_smi_log>"
    )
    assert smi.captured(root)["driver"] == {
        "vendor": "nvidia",
        "reported": "615.23",
        "cuda": "13.4",
    }


def test_banks_of_rubin_are_read() -> None:
    root = ElementTree.fromstring(  # noqa: S314 - our own text
        "<nvidia_smi_log><gpu id='0'><remapped_banks><bank_remapper_pending>Yes</bank_remapper_pending>"
        "<bank_remapper_histogram><bank_remapper_histogram_none>2 group(s)</bank_remapper_histogram_none>"
        "</bank_remapper_histogram></remapped_banks></gpu></nvidia_smi_log>"
    )
    assert smi.captured(root)["gpus"][0]["remapped_banks"] == {"pending": True, "none": 2}

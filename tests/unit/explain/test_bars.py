"""Windows of PCI devices without a place, and what `goldnode explain` makes of one text as a whole."""

from __future__ import annotations

import time

import pytest

from goldnode.explain.answer import explain
from goldnode.explain.bars import unassigned

FAILED = "[   15.2] amdgpu 0000:c5:00.0: probe with driver amdgpu failed with error -12"
NEW = "[    4.1] pci 0000:c5:00.0: BAR 5 [mem size 0x00080000]: can't assign; no space"
OLD = "[    4.1] pci 0000:c5:00.0: BAR 0: no space for [mem size 0x400000000 64bit pref]"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (NEW, "BAR 5 (512 KiB, must lie below 4 GiB)"),
        (OLD, "BAR 0 (16 GiB, may lie above 4 GiB)"),
        (
            "pci c5:00.0: BAR 2 [mem size 0x00200000 64bit]: failed to assign",
            "BAR 2 (2 MiB, must lie below 4 GiB)",
        ),
    ],
)
def test_window_has_its_size_and_place(line: str, name: str) -> None:
    assert [bar.name for bar in unassigned([line, line])] == [name]


@pytest.mark.parametrize(
    "line",
    [
        "pci 0000:c5:00.0: BAR 4 [io  size 0x0100]: can't assign; no space",
        "pci 0000:c5:00.0: VF BAR 5 [mem size 0x00080000]: failed to assign",
        "pci 0000:c5:00.0: BAR 0 [mem 0x61000000000-0x61fffffffff 64bit pref]: assigned",
    ],
)
def test_window_that_has_a_place_or_is_not_needed_is_none(line: str) -> None:
    assert unassigned([line]) == []


def test_device_that_did_not_start_is_connected_with_its_window() -> None:
    answers = {row.id: row for row in explain(f"{NEW}\n{FAILED}").answers}
    assert answers["bar-unassigned"].subject == "0000:c5:00.0"
    assert "BAR 5" in answers["driver.probe_failed"].causes[0]


def test_window_of_another_device_does_not_explain_the_failure() -> None:
    answers = {row.id: row for row in explain(f"{NEW.replace('c5:', 'ca:')}\n{FAILED}").answers}
    assert answers["bar-unassigned"].subject is None
    assert answers["driver.probe_failed"].causes == ()


PLUGIN = "main.go:246] inotify: /var/lib/kubelet/device-plugins/kubelet.sock created, restarting."
REGISTERED = "server.go:154] Registered device plugin for 'nvidia.com/gpu' with Kubelet"


def test_later_line_withdraws_a_symptom_and_an_earlier_one_does_not() -> None:
    healed = explain(f"{PLUGIN}\n{REGISTERED}")
    assert not healed.answers
    assert not healed.similar
    assert [row.id for row in explain(f"{REGISTERED}\n{PLUGIN}").answers] == [
        "device-plugin-saw-kubelet-start"
    ]


AER = "pcieport 0000:00:1b.0: PCIe Bus Error: severity=Correctable,\n  type=Physical Layer, (Receiver ID)"
LOST = "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus."


def test_corrected_errors_are_no_longer_harmless_beside_a_lost_gpu() -> None:
    alone = {row.id: row for row in explain(AER).answers}["pcie.aer"]
    beside = {row.id: row for row in explain(f"{AER}\n{LOST}").answers}["pcie.aer"]
    assert (alone.effect, beside.effect) == ("none", None)
    assert "power" in str(beside.causes)
    assert not explain(AER).unread


def test_xid_without_an_address_is_read_in_a_kernel_line() -> None:
    text = "NVRM: Xid: 154, GPU recovery action changed to 0x2 (Node Reboot Required)"
    assert [(row.id, row.effect) for row in explain(text).answers] == [("xid.154", "drain")]


@pytest.mark.parametrize(
    ("action", "effect"),
    [
        ("from 0x2 (Node Reboot Required) to 0x0 (None)", "none"),
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", "drain"),
        ("to 0xff (Another)", "degraded"),
    ],
)
def test_quoted_xid_154_means_what_its_line_asks_for(action: str, effect: str) -> None:
    answer = explain(f"monitor: Xid 154, GPU recovery action changed {action}").answers[0]
    assert (answer.id, answer.effect) == ("xid.154", effect)


def test_fault_of_the_iommu_below_its_limit_is_undecided() -> None:
    line = "nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]"
    answer = explain(line).answers[0]
    assert (answer.id, answer.effect) == ("iommu.fault", None)
    assert "iommu=pt" in str(answer.fix)


@pytest.mark.parametrize(
    ("kernel", "package"),
    [("linux-headers-6.19.6-tkg", True), ("linux-image-6.12-amd64", True), ("6.12-amd64", False)],
)
def test_package_in_the_place_of_a_kernel_is_named(kernel: str, package: bool) -> None:
    text = f"Error! Your kernel headers for kernel {kernel} cannot be found at /lib/modules/{kernel}/build"
    answer = explain(text).answers[0]
    assert ("name of a package" in answer.title) is package


def test_commands_behind_their_prompt_and_additions_of_apt_are_not_left() -> None:
    text = "\n".join(
        [
            "user@node1:~$ sudo apt-get update",
            "E: Failed to fetch http://mirror.example.com/x  File has unexpected size (1 != 2). Mirror sync in progress?",
            "   Hashes of expected file:",
            "    - SHA1:9307bbc70e6918708b960f0cb867fa5ea9fdbb52 [weak]",
            "E: Some index files failed to download. They have been ignored, or old ones used instead.",
        ]
    )
    explanation = explain(text)
    assert [row.id for row in explanation.answers] == ["archive-out-of-step"]
    assert not explanation.unread


@pytest.mark.parametrize(
    ("number", "wanted"), [(122, "imex-not-running"), (81, "dcgm-health-number")]
)
def test_number_of_a_dcgm_error_has_its_name(number: int, wanted: str) -> None:
    answer = explain(f"DCGM detected issues in health check system with error code {number}")
    assert [row.id for row in answer.answers] == [wanted]
    assert "DCGM_FR_" in str(answer.answers[0].versions)


@pytest.mark.parametrize("part", ["a@", "a.", "1", "a"])
def test_line_of_a_hundred_thousand_signs_takes_no_time(part: str) -> None:
    begun = time.process_time()
    explain(part * (100_000 // len(part)))
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "part", ["nvidia ", "vGPU ", "dracut: ", "systemd-repart: ", "efivar", "PV "]
)
def test_line_of_words_that_messages_begin_with_takes_no_time(part: str) -> None:
    begun = time.process_time()
    explain(part * (200_000 // len(part)))
    assert time.process_time() - begun < 15


def test_message_in_a_long_line_is_found_and_no_beginning_of_a_line_in_its_middle() -> None:
    filling = "a=1 " * 2_000
    answers = explain(f"{filling}modprobe: FATAL: nvidia: Exec format error {filling}").answers
    assert [row.id for row in answers] == ["driver-gone-after-kernel"]
    assert not explain(f"{'b' * 1_000}error: out of memory.{filling}").answers


def test_lines_beside_an_error_are_no_answer_and_not_left() -> None:
    beside = "    Product Name                      : NVIDIA A10"
    assert not explain(beside).answers
    assert not explain(f"NVRM: osInitNvMapping: *** Cannot attach gpu\n{beside}").unread

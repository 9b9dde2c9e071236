"""What the class's policy sets on the GPUs, read from NVML by a reader of its own (nvml.py).

On simulated GPUs the checks run as on real ones; the summary says that they were simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.nodes.nvml import COMPUTE_MODES, gpus, unexposed
from tests.nodes.reader import Document, Node, not_here


@pytest.fixture(scope="module")
def ask(node: Node) -> Callable[[], list[Document]]:
    """Asks NVML once for all tests of a host. A failure or a skip is each test's own."""
    stored: list[list[Document]] = []

    def once() -> list[Document]:
        if not stored:
            stored.append(gpus(node))
        return stored[0]

    return once


@pytest.fixture
def nvml(
    node: Node, ask: Callable[[], list[Document]], record_property: Callable[[str, object], None]
) -> Callable[[], list[Document]]:
    """What NVML says of the GPUs; notes for the summary where they are simulated."""

    def reported() -> list[Document]:
        found = ask()
        if node.host.file("/opt/goldnode-simulator").exists:
            record_property("simulated", True)
        return found

    return reported


@pytest.fixture
def boards(node: Node, nvml: Callable[[], list[Document]]) -> Callable[[str], list[Document]]:
    """The NVIDIA GPUs for which the policy says something of `key`; NVML is not asked where it says nothing."""

    def declared(key: str) -> list[Document]:
        gpu, policy = node.document["gpu"], node.document["policy"]
        parts = [policy, *policy.get("overrides", ())]
        # `sharing` stands for a compute mode.
        output = any(key in part for part in parts) or (
            key == "compute_mode" and policy.get("sharing") in ("exclusive", "mps")
        )
        if not gpu or gpu["vendor"] != "nvidia" or not output:
            return []
        return [board for board in nvml() if key in board["wanted"]]

    return declared


def wrong(
    boards: list[Document], want: Callable[[Document], Any], have: Callable[[Document], Any]
) -> list[str]:
    """One line per GPU that is not as declared."""
    return [
        f"GPU {b['index']} {b['uuid']}: want {want(b)}, have {have(b)}"
        for b in boards
        if want(b) != have(b)
    ]


def test_nvml_lists_the_gpus_of_the_class(node: Node, nvml: Callable[[], list[Document]]) -> None:
    gpu = node.document["gpu"]
    if gpu is None or gpu["vendor"] != "nvidia":
        return
    found = nvml()
    assert len(found) == gpu["count"]
    assert sorted({board["pci_id"] for board in found} - set(gpu["pci_ids"])) == []
    assert len({board["uuid"] for board in found}) == len(found), "two GPUs with one UUID"


def test_persistence_mode(boards: Callable[[str], list[Document]]) -> None:
    assert (
        wrong(
            boards("persistence_mode"),
            lambda b: int(b["wanted"]["persistence_mode"]),
            lambda b: b["persistence_mode"],
        )
        == []
    )


def test_power_limit(boards: Callable[[str], list[Document]]) -> None:
    """NVML has milliwatts."""
    assert (
        wrong(
            boards("power_limit_watts"),
            lambda b: b["wanted"]["power_limit_watts"] * 1000,
            lambda b: b["power_limit_mw"],
        )
        == []
    )


def test_clocks(boards: Callable[[str], list[Document]]) -> None:
    locked = [
        board for board in boards("clocks") if board["wanted"]["clocks"].get("mode") == "locked"
    ]
    bound = [board for board in boards("clocks") if board not in locked]
    hidden = [board for board in bound if any(map(unexposed, board["application_clocks"]))]
    readable = [board for board in bound if board not in hidden]

    def want(board: Document) -> list[int]:
        clocks, have = board["wanted"]["clocks"], board["application_clocks"]
        return [clocks.get("graphics_mhz", have[0]), clocks.get("memory_mhz", have[1])]

    assert wrong(readable, want, lambda b: b["application_clocks"]) == []
    if locked:
        not_here("locked clocks: the driver has no getter")
    if hidden:
        not_here("application clocks: this driver has no getter for them")


def test_ecc(boards: Callable[[str], list[Document]]) -> None:
    """Current and pending: one that differs waits for a reboot."""
    found = boards("ecc")
    assert (
        wrong(
            [b for b in found if not unexposed(b["ecc"])],
            lambda b: [int(b["wanted"]["ecc"])] * 2,
            lambda b: b["ecc"],
        )
        == []
    )
    if any(unexposed(board["ecc"]) for board in found):
        not_here("the ECC mode: the driver does not expose it for this GPU")


def test_compute_mode(boards: Callable[[str], list[Document]]) -> None:
    found = boards("compute_mode")
    assert (
        wrong(
            found, lambda b: COMPUTE_MODES[b["wanted"]["compute_mode"]], lambda b: b["compute_mode"]
        )
        == []
    )


def test_mig(boards: Callable[[str], list[Document]]) -> None:
    """The mode now and after a reset; the GPU instances by profile, each with compute instances."""
    found = boards("mig")
    absent = [
        board
        for board in found
        if unexposed(board["mig"]) and not board["wanted"]["mig"]["enabled"]
    ]
    rest = [board for board in found if board not in absent]  # a board without MIG has it off
    assert wrong(rest, lambda b: [int(b["wanted"]["mig"]["enabled"])] * 2, lambda b: b["mig"]) == []
    laid = [board for board in rest if board["wanted"]["mig"].get("profiles")]
    assert (
        wrong(laid, lambda b: sorted(b["wanted"]["mig"]["profiles"]), lambda b: b["instances"])
        == []
    )
    assert [
        f"GPU {b['index']}: {b['mig_devices']} MIG devices"
        for b in laid
        if b["mig_devices"] < len(b["instances"])
    ] == []


def test_amd_power_cap_and_performance_level(node: Node) -> None:
    """From sysfs; the cap is in microwatts. Connectors (card0-DP-1) and the console's card have no such files."""
    gpu, policy = node.document["gpu"], node.document["policy"]
    if (
        not gpu
        or gpu["vendor"] != "amd"
        or not {"power_limit_watts", "performance_level"} & set(policy)
    ):
        return
    if node.document["simulated"]:
        not_here("AMD boards are simulated as files alone, which no node shows")
    node.machine_only("the GPUs of the class cannot be seen")
    rows = node.out(
        "for d in /sys/class/drm/card*/device; do "
        "[ -e $d/power_dpm_force_performance_level ] && [ -e $(echo $d/hwmon/hwmon*/power1_cap) ] || continue; "
        "echo $(cat $d/vendor $d/device $d/power_dpm_force_performance_level $d/hwmon/hwmon*/power1_cap); done"
    ).splitlines()
    boards = [row.split() for row in rows]
    boards = [board for board in boards if f"{board[0][2:]}:{board[1][2:]}" in gpu["pci_ids"]]
    assert len(boards) == gpu["count"], rows
    for level, cap in (board[2:] for board in boards):
        assert level == policy.get("performance_level", level)
        assert int(cap) == policy.get("power_limit_watts", int(cap) // 10**6) * 10**6

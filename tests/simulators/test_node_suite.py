"""Tests of the node suite's NVML reader and GPU policy checks on simulated GPUs: each check passes once and
fails once.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.nodes import test_gpu_policy as suite
from tests.nodes.nvml import gpus
from tests.nodes.reader import Node
from tests.simulators.hardware import Scenario, tree, write
from tests.simulators.test_hardware import document

POLICY: dict[str, Any] = {
    "persistence_mode": True,
    "power_limit_watts": 300,
    "clocks": {"graphics_mhz": 1200, "memory_mhz": 1215},
    "ecc": True,
    "compute_mode": "exclusive_process",
}
SET = {
    "persistence_mode": "1",
    "power_limit": "300000",
    "application_clock.0": "1200",
    "application_clock.2": "1215",
    "compute_mode": "3",
}
MIG = {
    "mig_current": "1",
    "mig_pending": "1",
    "gi.1": "9,4,4",
    "gi.1.ci.0": "2,3",
    "gi.2": "9,0,4",
    "gi.2.ci.0": "2,3",
}


class Here:
    """The local machine as a testinfra host, with the simulated library of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, command: str, *arguments: str) -> Any:
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.directory),
            "GOLDNODE_SIMULATOR": str(self.directory),
        }
        command = command.replace("/sys/", f"{self.directory}/sys/")
        argv = command % tuple(map(shlex.quote, arguments)) if arguments else command
        done = subprocess.run(  # noqa: S602
            argv, shell=True, env=env, capture_output=True, text=True, check=False
        )
        return SimpleNamespace(
            rc=done.returncode, stdout=done.stdout, stderr=done.stderr, command=argv
        )

    def file(self, _: str) -> Any:
        return SimpleNamespace(exists=True)


class Suite:
    """One simulated node with two GPUs, and a method for each check of the suite."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def node(self, policy: dict[str, Any], state: dict[str, str], *faults: str) -> Node:
        write(Scenario.of(document(count=2)).with_faults(faults), self.directory)
        stored = ("mig_current", "mig_pending", "ecc_current", "ecc_pending")
        for name, rows in (
            ("state", {k: v for k, v in state.items() if k in stored}),
            ("run/state", {"x.booted": "1", **{k: v for k, v in state.items() if k not in stored}}),
        ):
            path = self.directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                "".join(
                    f"gpu{gpu}.{key}={value}\n" for gpu in range(2) for key, value in rows.items()
                )
            )
        declared = {
            "gpu": {"vendor": "nvidia", "count": 2, "pci_ids": ["10de:20b0"]},
            "policy": policy,
            "simulated": True,
            "kernel": {"release": ""},
            "driver": None,
            "packages": [],
        }
        return Node(Here(self.directory), declared)

    @staticmethod
    def boards(node: Node) -> Callable[[str], list[Any]]:
        return lambda key: [board for board in gpus(node) if key in board["wanted"]]


@pytest.fixture
def made(library: Path, tmp_path: Path) -> Suite:
    (tmp_path / library.name).symlink_to(library)
    return Suite(tmp_path)


CHECKS = [
    "test_persistence_mode",
    "test_power_limit",
    "test_clocks",
    "test_ecc",
    "test_compute_mode",
]


def test_a_node_as_declared_passes(made: Suite) -> None:
    node = made.node(POLICY, SET)
    for check in CHECKS:
        getattr(suite, check)(made.boards(node))
    suite.test_nvml_lists_the_gpus_of_the_class(node, lambda: gpus(node))


@pytest.mark.parametrize(
    ("check", "state"),
    [
        ("test_persistence_mode", {"persistence_mode": "0"}),
        ("test_power_limit", {"power_limit": "400000"}),
        ("test_clocks", {"application_clock.0": "1410"}),
        ("test_clocks", {"application_clock.2": "1000"}),
        ("test_ecc", {"ecc_pending": "0"}),
        ("test_ecc", {"ecc_current": "0", "ecc_pending": "1"}),
        ("test_compute_mode", {"compute_mode": "0"}),
    ],
)
def test_each_drift_is_seen(made: Suite, check: str, state: dict[str, str]) -> None:
    node = made.node(POLICY, {**SET, **state})
    with pytest.raises(AssertionError, match="GPU 0"):
        getattr(suite, check)(made.boards(node))


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ({"mig": {"enabled": False}}, MIG),
        ({"mig": {"enabled": True}}, {}),
        ({"mig": {"enabled": True, "profiles": ["3g.20gb", "4g.20gb"]}}, MIG),
        (
            {"mig": {"enabled": True, "profiles": ["3g.20gb", "3g.20gb"]}},
            {k: v for k, v in MIG.items() if k != "gi.2.ci.0"},
        ),
    ],
)
def test_another_mig_layout_is_seen(
    made: Suite, policy: dict[str, Any], state: dict[str, str]
) -> None:
    with pytest.raises(AssertionError, match="GPU 0"):
        suite.test_mig(made.boards(made.node(policy, state)))


def test_the_declared_mig_layout_passes(made: Suite) -> None:
    suite.test_mig(
        made.boards(made.node({"mig": {"enabled": True, "profiles": ["3g.20gb", "3g.20gb"]}}, MIG))
    )
    suite.test_mig(made.boards(made.node({"mig": {"enabled": False}}, {})))


@pytest.mark.parametrize(
    ("policy", "fault", "reason"),
    [
        (
            {"clocks": {"graphics_mhz": 1200, "mode": "locked"}},
            "gpu0.temperature.0=30",
            "locked clocks: the driver has no getter",
        ),
        (
            {"clocks": {"graphics_mhz": 1200}},
            "gpu*.application_clock.0=error:not_supported",
            "no getter",
        ),
        ({"ecc": True}, "gpu*.ecc_current=error:not_supported", "does not expose"),
    ],
)
def test_setting_without_a_getter_is_skipped_as_not_verified(
    made: Suite, policy: dict[str, Any], fault: str, reason: str
) -> None:
    node = made.node(policy, SET, fault)
    with pytest.raises(pytest.skip.Exception, match=f"not verified here: .*{reason}"):
        (suite.test_clocks if "clocks" in policy else suite.test_ecc)(made.boards(node))


@pytest.mark.parametrize(
    "fault",
    ["init=error:driver_not_loaded", "gpu1.all=error:lost", "gpu1.uuid=@gpu0.uuid", "count=1"],
)
def test_an_nvml_that_does_not_answer_fails(made: Suite, fault: str) -> None:
    node = made.node(POLICY, SET, fault)
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        suite.test_nvml_lists_the_gpus_of_the_class(node, lambda: gpus(node))


def test_overrides_are_for_their_gpus(made: Suite) -> None:
    node = made.node(
        {
            **POLICY,
            "overrides": [
                {"uuid": "GPU-none", "power_limit_watts": 1},
                {"pci_ids": ["10de:20b0"], "ecc": False},
            ],
        },
        SET,
    )
    assert [(b["wanted"]["power_limit_watts"], b["wanted"]["ecc"]) for b in gpus(node)] == [
        (300, False)
    ] * 2
    assert (
        gpus(made.node({"sharing": "mps"}, SET))[0]["wanted"]["compute_mode"] == "exclusive_process"
    )


@pytest.mark.parametrize(
    ("policy", "fault", "right"),
    [
        ({"power_limit_watts": 750, "performance_level": "auto"}, "gpu0.serial=x", True),
        ({"power_limit_watts": 750}, "gpu1.power_limit=600000", False),
        ({"performance_level": "high"}, "gpu0.serial=x", False),
        ({"power_limit_watts": 750}, "gpu1.absent=1", False),
    ],
)
def test_amd_boards_are_read_from_sysfs(
    tmp_path: Path, policy: dict[str, Any], fault: str, right: bool
) -> None:
    declared = {**document("MI300X", 2), "driver": {"version": None}}
    tree.write(Scenario.of(declared).with_faults([fault]), tmp_path)
    gpu = {"vendor": "amd", "count": 2, "pci_ids": ["1002:74a1"]}
    node = Node(
        Here(tmp_path),
        {
            "gpu": gpu,
            "policy": policy,
            "simulated": False,
            "kernel": {"release": ""},
            "driver": None,
            "packages": [],
        },
    )
    node.__dict__["container"] = "none"
    if right:
        suite.test_amd_power_cap_and_performance_level(node)
    else:
        with pytest.raises(AssertionError):
            suite.test_amd_power_cap_and_performance_level(node)

"""The list of known bad combinations: each row can be judged, its ranges are what its words say, and nothing is told twice."""

from __future__ import annotations

from typing import Any

import pytest

from goldnode.compat import check, known_bad
from goldnode.compat.model import CompatHost, Workload
from goldnode.facts import host as facts

ROWS = {row.id: row for row in known_bad.rows()}


def reported(host: CompatHost | None, workload: Workload | None = None) -> dict[str, str]:
    """Severity by row."""
    return {finding.row or "": finding.severity for finding in known_bad.findings(host, workload)}


def nvidia(gpu: str | None = None, **stated: Any) -> CompatHost:
    return CompatHost(
        "class it", **{"vendor": "nvidia", "gpus": (facts.gpu(gpu),) if gpu else (), **stated}
    )


def test_every_row_has_only_known_conditions_or_never() -> None:
    known = {*known_bad.HOST, *known_bad.WORKLOAD, *known_bad.BOTH, "also", "never"}
    for row in ROWS.values():
        assert row.match
        for part in row.match:
            assert set(part) <= known, row.id
            assert part.keys() - {"also"}, row.id
            assert "never" not in part or part.keys() == {"never"}, row.id
        assert row.rule is None or row.rule in check.registry(), row.id
    used = {key for row in ROWS.values() for part in row.match for key in part}
    assert known - used == set(), "conditions that no row has"


@pytest.mark.parametrize(
    ("version", "wanted", "holds"),
    [
        ("6.1.80", [">=6.8", ">=6.1.76 <6.2"], True),
        ("6.1.70", [">=6.8", ">=6.1.76 <6.2"], False),
        ("6.5", [">=6.8", ">=6.1.76 <6.2"], False),
        ("595.71.05", "595", True),
        ("550.163.01", "=550.163.01", True),
        ("535.161.7", "=535.161.07", True),
        ("575", "<580", True),
        ("9.10.2.21", ">9.10.2 <9.17", False),
        ("9.11.0", ">9.10.2 <9.17", True),
        ("580", "<580.173.02", True),
    ],
)
def test_version_is_in_range_when_one_range_holds(version: str, wanted: Any, holds: bool) -> None:
    assert known_bad.in_range(version, wanted) is holds


@pytest.mark.parametrize(
    ("host", "workload", "row", "severity"),
    [
        (
            nvidia(branch="525", driver="525.60.13", gpu="A100-SXM4-80GB"),
            None,
            "xid119-525",
            "block",
        ),
        (nvidia(branch="525", driver="525.105.17", gpu="A100-SXM4-80GB"), None, "xid119-525", None),
        (nvidia(toolkit="1.17.7", toolkit_mode="cdi"), None, "ctk-1.17.7", "block"),
        (
            nvidia(toolkit="1.18.0", engine="containerd", engine_version="1.7.24"),
            None,
            "ctk-1.18.0",
            "block",
        ),
        (
            nvidia(toolkit="1.18.0", engine="docker", engine_version="26.1.5"),
            None,
            "ctk-1.18.0",
            None,
        ),
        (nvidia(toolkit="1.20.0", toolkit_mode="legacy"), None, "nvml-unknown-error", "unknown"),
        (nvidia(toolkit="1.20.0", toolkit_mode="cdi"), None, "nvml-unknown-error", None),
        (nvidia(gpu="GH200-144G-HBM3e", branch="580"), None, "gh200-boot", "unknown"),
        (
            nvidia(gpu="GH200-144G-HBM3e", branch="580", cmdline=("quiet",)),
            None,
            "gh200-boot",
            "warn",
        ),
        (
            nvidia(
                gpu="GH200-144G-HBM3e",
                cmdline=("init_on_alloc=0", "memhp_default_state=online_movable"),
            ),
            None,
            "gh200-boot",
            None,
        ),
        (nvidia(gpu="GB200", branch="580", cmdline=("quiet",)), None, "grace-boot", "warn"),
        (nvidia(gpu="GB300", cmdline=("init_on_alloc=0",)), None, "grace-boot", None),
        (nvidia(gpu="GH200-144G-HBM3e", page_kib=4), None, "grace-pages", "warn"),
        (nvidia(gpu="GB200", page_kib=16), None, "grace-pages", "warn"),
        (nvidia(gpu="GB200", page_kib=64), None, "grace-pages", None),
        (nvidia(gpu="GB200"), None, "grace-pages", None),
        (nvidia(gpu="H100-SXM5-80GB", page_kib=4), None, "grace-pages", None),
        (
            nvidia(branch="580", kernel="6.12.94-rt1-amd64", archives=("debian",)),
            None,
            "preempt-rt",
            "block",
        ),
        (
            nvidia(
                branch="580", kernel="6.12.94+deb13-rt-amd64", archives=("debian", "nvidia-cuda")
            ),
            None,
            "preempt-rt",
            None,
        ),
        (
            nvidia(
                branch="535",
                driver="535.54.03",
                kernel="6.1.0-56-amd64",
                driver_package="535.54.03-1+x",
            ),
            None,
            "kernel-6.8-old",
            None,
        ),
        (
            nvidia(branch="535", driver="535.104.05", kernel="6.1.0-56-amd64"),
            None,
            "kernel-6.8-old",
            "unknown",
        ),
        (
            nvidia(
                branch="550",
                driver="550.163.01",
                kernel="6.17.1-amd64",
                driver_package="550.163.01-4~bpo13+1",
            ),
            None,
            "kernel-6.17",
            None,
        ),
        (
            nvidia(
                branch="550",
                driver="550.163.01",
                kernel="6.17.1-amd64",
                driver_package="550.163.01-2",
            ),
            None,
            "kernel-6.17",
            "block",
        ),
        (
            nvidia(gpu="GeForce-RTX-4090", branch="535"),
            Workload("image x", cuda="13.0", forward_compat=True),
            "fwd-geforce",
            "block",
        ),
        (
            nvidia(gpu="GeForce-RTX-4090", branch="535"),
            Workload("image x", cuda="13.0"),
            "fwd-geforce",
            "unknown",
        ),
        (
            nvidia(gpu="GeForce-RTX-4090", branch="580"),
            Workload("image x", cuda="13.0", forward_compat=True),
            "fwd-geforce",
            None,
        ),
        (
            nvidia(gpu="A100-SXM4-80GB"),
            Workload("image x", cuda="13.0", forward_compat=True),
            "fwd-geforce",
            None,
        ),
        (
            nvidia(gpu="V100-SXM2-32GB"),
            Workload("r", frameworks={"torch": "2.11.0+cu128"}),
            "torch-volta",
            "block",
        ),
        (
            nvidia(gpu="V100-SXM2-32GB"),
            Workload("r", frameworks={"torch": "2.11.0"}),
            "torch-volta",
            "unknown",
        ),
        (  # pip takes the build of the package index, which is cu130
            nvidia(gpu="V100-SXM2-32GB"),
            Workload("r", kind="requirements", frameworks={"torch": "2.11.0"}),
            "torch-volta",
            "block",
        ),
        (
            nvidia(gpu="V100-SXM2-32GB"),
            Workload("r", frameworks={"torch": "2.11.0+cu126"}),
            "torch-volta",
            None,
        ),
        (None, Workload("image rocm/pytorch", rocm="7.2.1"), "rocm-7.2.1-roctracer", "warn"),
        (None, Workload("image x", cuda="13.0"), "cuda13-old-arch", None),
    ],
)
def test_known_bad_row_has_the_expected_severity(
    host: CompatHost | None, workload: Workload | None, row: str, severity: str | None
) -> None:
    assert reported(host, workload).get(row) == severity


def test_a_row_that_its_rule_found_is_reported_once() -> None:
    host = nvidia(gpu="B200-SXM-180GB", branch="535", driver="535.309.01", flavour="proprietary")
    assert {"b200-too-old", "proprietary-on-blackwell"} <= reported(host).keys()
    assert {finding.row for finding in check.check(host)} & {
        "b200-too-old",
        "proprietary-on-blackwell",
    } == set()


def test_rule_that_needs_a_lock_is_not_reported_without_one() -> None:
    host = nvidia(gpu="A100-SXM4-80GB", branch="525")
    assert reported(host)["xid119-525"] == "unknown"
    assert "xid119-525" not in reported(
        nvidia(gpu="A100-SXM4-80GB", branch="525", unlocked="it has no lock")
    )

"""Rules over the node: what is refused, with which figures, and what is to be done instead."""

from __future__ import annotations

from typing import Any

import pytest

from goldnode.compat import check, facts
from goldnode.compat.model import Finding, Host


def host(**stated: Any) -> Host:
    """An NVIDIA host as stated; `gpu` is a model's name."""
    gpus = tuple(facts.gpu(name) for name in stated.pop("gpu", "").split(" + ") if name)
    return Host("class it", gpus=gpus, **{"vendor": "nvidia", **stated})


def found(rule: str, **stated: Any) -> list[Finding]:
    """What `rule` says of that host."""
    return [finding for finding in check.check(host(**stated)) if finding.rule == rule]


@pytest.mark.parametrize(
    ("rule", "stated", "severity", "says"),
    [
        pytest.param(
            "module-flavour",
            {"gpu": "B200-SXM-180GB", "branch": "570", "driver": "570.211.01", "flavour": "proprietary"},
            "block",
            ("B200-SXM-180GB (Blackwell) needs the open kernel modules", "driver 570.211.01", "use a stack with the open modules"),
            id="b200-proprietary",
        ),
        pytest.param(
            "gpu-driver",
            {"gpu": "B200-SXM-180GB", "branch": "535", "driver": "535.309.01", "flavour": "open"},
            "block",
            ("needs driver 570.133.20 or later", "has driver 535.309.01", "branches 580, 595, 610, 615"),
            id="b200-too-old",
        ),
        pytest.param(
            "gpu-driver",
            {"gpu": "V100-SXM2-32GB", "branch": "590", "flavour": "proprietary"},
            "block",
            ("branch 590 supports Turing and later", "V100-SXM2-32GB is Volta", "use driver branch 580, the last for Volta"),
            id="volta-dropped",
        ),
        pytest.param(
            "kernel-driver",
            {"gpu": "A100-SXM4-40GB", "branch": "550", "driver": "550.163.01", "flavour": "open", "kernel": "6.12.117+deb13-amd64"},
            "block",
            ("550.163.01 (open) on kernel 6.12.117 was seen to fail", "use kernel 6.12.94", "580.178.04"),
            id="a100-kernel-without-module",
        ),
        pytest.param(
            "kernel-driver",
            {"gpu": "A100-SXM4-40GB", "branch": "615", "driver": "615.71.09", "flavour": "open", "kernel": "7.2.12-amd64"},
            "unknown",
            ("no source says", "580.178.04"),
            id="unknown-build",
        ),
    ],
)
def test_refused(rule: str, stated: dict[str, Any], severity: str, says: tuple[str, ...]) -> None:
    (finding,) = found(rule, **stated)
    assert finding.severity == severity
    told = f"{finding.message} | {finding.remedy}"
    for part in says:
        assert part in told
    assert finding.sources or severity == "unknown"


@pytest.mark.parametrize(
    ("rule", "stated"),
    [
        ("module-flavour", {"gpu": "B200-SXM-180GB", "branch": "580", "flavour": "open"}),
        ("gpu-driver", {"gpu": "B200-SXM-180GB", "branch": "570", "driver": "570.133.20"}),
        ("gpu-driver", {"gpu": "GH200-120GB (96GB HBM3)", "branch": "545", "driver": "545.29.06"}),
        ("kernel-driver", {"branch": "550", "driver": "550.163.01", "flavour": "proprietary", "kernel": "6.12.94+deb13-amd64"}),
        ("kernel-driver", {"branch": "535", "driver": "535.309.01", "flavour": "proprietary", "kernel_version": "6.1.192"}),
    ],
)
def test_fits(rule: str, stated: dict[str, Any]) -> None:
    assert found(rule, **stated) == []

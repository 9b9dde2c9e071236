"""Rules over the node: what is refused, with which figures, and what is to be done instead; what is accepted and by whom."""

from __future__ import annotations

import dataclasses
import datetime as dt
import subprocess
import sys
from typing import Any

import pytest

from goldnode.compat import check, rules_host, rules_parts
from goldnode.compat.model import Acceptance, CompatFinding, CompatHost, StackWaiver, Workload
from goldnode.core.errors import EditedLockError
from goldnode.facts import host as facts

DAY = dt.date(2026, 11, 21)
WAIVER = StackWaiver("tests", "the owner", dt.date(2027, 1, 1), ("it",))


def host(**stated: Any) -> CompatHost:
    """An NVIDIA host as stated; `gpu` is a model's name, or several with + between them."""
    gpus = tuple(facts.gpu(name) for name in stated.pop("gpu", "").split(" + ") if name)
    return CompatHost(
        "class it",
        gpus=gpus,
        **{"vendor": "nvidia", "on": DAY, "name": "it", "stack": "s", **stated},
    )


def found(rule: str, **stated: Any) -> list[CompatFinding]:
    """What `rule` says of that host."""
    return [finding for finding in check.check(host(**stated)) if finding.rule == rule]


A100 = {"gpu": "A100-SXM4-40GB"}
B200 = {"gpu": "B200-SXM-180GB"}
R535 = {"branch": "535", "driver": "535.309.01", "flavour": "proprietary"}
R550 = {"branch": "550", "driver": "550.163.01", "flavour": "proprietary"}
R580 = {"branch": "580", "driver": "580.178.04", "flavour": "open"}
NVIDIA = {"archives": ("debian", "nvidia-cuda")}
DOCKER20 = {"engine": "docker", "engine_version": "20.10.24+dfsg1-1+deb12u1"}
DOCKER26 = {"engine": "docker", "engine_version": "26.1.5+dfsg1-9"}
EOL = {"end_of_life": dt.date(2026, 6, 30), "end_of_life_source": "dds615"}

REFUSED: list[tuple[str, str, dict[str, Any], str, tuple[str, ...]]] = [
    # GPU and driver
    ("b200-proprietary", "module-flavour", B200 | {"branch": "570", "driver": "570.211.01", "flavour": "proprietary"}, "block",
     ("B200-SXM-180GB (Blackwell) needs the open kernel modules", "driver 570.211.01", "use a stack with the open modules")),
    ("volta-open", "module-flavour", {"gpu": "V100-SXM2-32GB", **R580},
     "block", ("does not work with the open", "the proprietary modules")),
    ("gh200-proprietary", "module-flavour", {"gpu": "GH200-144G-HBM3e", "branch": "570", "flavour": "proprietary"},
     "block", ("needs the open",)),
    ("no-proprietary-615", "module-flavour", A100 | {"branch": "615", "flavour": "proprietary"}, "block", ("has no proprietary",)),
    ("no-open-470", "module-flavour", A100 | {"branch": "470", "flavour": "open"}, "block", ("no open kernel modules, the first is 515",)),
    ("b200-too-old", "gpu-driver", B200 | {"branch": "535", "driver": "535.309.01", "flavour": "open"}, "block",
     ("needs driver 570.133.20 or later", "has driver 535.309.01", "branches 580, 595, 610, 615")),
    ("b200-first-570", "gpu-driver", B200 | {"branch": "570", "driver": "570.86.15", "flavour": "open"}, "block", ("570.133.20",)),
    ("b300-branch-only", "gpu-driver", {"gpu": "B300-SXM6-AC", "branch": "570"}, "block", ("580.82.07", "driver branch 570")),
    ("volta-dropped", "gpu-driver", {"gpu": "V100-SXM2-32GB", "branch": "590", "flavour": "proprietary"}, "block",
     ("branch 590 supports Turing and later", "V100-SXM2-32GB is Volta", "use driver branch 580, the last for Volta")),
    ("branch-unknown", "gpu-driver", A100 | {"branch": "999"}, "unknown", ("999 is not in the facts",)),
    ("mixed-impossible", "gpu-mix", {"gpu": "V100-SXM2-32GB + B200-SXM-180GB"}, "block", ("no driver serves both", "different nodes")),
    ("mixed", "gpu-mix", {"gpu": "A100-SXM4-40GB + H100-SXM5-80GB"}, "warn", ("A100-SXM4-40GB (Ampere)", "H100-SXM5-80GB (Hopper)")),
    # kernel and driver
    ("a100-kernel-seen-to-fail", "kernel-driver", A100 | R550 | {"flavour": "open", "kernel": "6.12.117+deb13-amd64"}, "block",
     ("550.163.01 (open) on kernel 6.12.117 was seen to fail", "use kernel 6.12.94", "580.178.04")),
    ("a100-kernel-stable-update", "kernel-driver", A100 | R550 | {"flavour": "open", "kernel": "6.12.110+deb13-amd64"},
     "block", ("since 6.12.107", "6.12.94")),
    ("a100-kernel-too-new", "kernel-driver", A100 | R535 | {"kernel": "7.0.3-amd64", "driver": "535.274.02"}, "block", ("535.309.01",)),
    ("older-than-a-failing-one", "kernel-driver", A100 | R550 | {"kernel": "6.17.1-amd64", "driver": "550.144.03"}, "block",
     ("is older than 550.163.01, which is known to fail",)),
    ("not-patched-for-it", "kernel-driver", A100 | R550 | {"kernel": "7.2.12+deb13-amd64", "driver_package": "550.163.01-4~bpo13+1"}, "block",
     ("does not build",)),
    ("patched-but-not-for-a-later-update", "kernel-driver",
     A100 | R550 | {"flavour": "open", "kernel": "6.12.110+deb13-amd64", "driver_package": "550.163.01-4~bpo13+1"}, "block", ("since 6.12.107",)),
    ("unknown-build", "kernel-driver", A100 | {"branch": "615", "driver": "615.71.09", "flavour": "open", "kernel": "7.2.12-amd64"}, "unknown",
     ("no source says", "580.178.04")),
    ("which-update", "kernel-driver", A100 | R535 | {"driver": "535.104.05", "kernel": "6.1.0-18-amd64"}, "unknown", ()),
    ("ofed", "other-modules", R580 | {"modules": {"mlx5_core": "24.10"}, "kernel": "6.12.94+deb13-amd64"}, "unknown",
     ("no source says whether module mlx5_core 24.10 builds on kernel 6.12.94 beside driver 580.178.04",)),
    # OS
    ("kernel-of-no-release", "os-kernel", {"os": "debian 12", "kernel": "6.8.12-amd64"}, "unknown", ("6.1.176 (stable)",)),
    ("os-not-known", "os-kernel", {"os": "debian 99", "kernel": "6.8.12-amd64"}, "unknown", ("no source says which kernels Debian 99",)),
    ("kernel-behind", "os-kernel", {"os": "debian 13", "kernel": "6.12.94+deb13-amd64"}, "warn", ("6.12.94 lacks the fixes of 6.12.117",)),
    ("late-support", "os-support", {"os": "debian 12"}, "warn", ("2026-07-11", "2028-06-30")),
    ("no-support", "os-support", {"os": "debian 12", "on": dt.date(2028, 7, 1)}, "block", ("gets no fixes since 2028-06-30",)),
    ("debian-has-no-580", "driver-packages", R580 | {"os": "debian 12", "archives": ("debian", "debian-security")}, "block",
     ("none of branch 580", "535.309.01", "nvidia-cuda")),
    ("no-repository", "driver-packages", R580 | NVIDIA | {"os": "debian 10"}, "block", ("no directory for Debian 10",)),
    ("wrong-metapackage", "driver-packages", R580 | NVIDIA | {"os": "debian 13", "packages": ("cuda-drivers",)}, "block",
     ("cuda-drivers contains the proprietary",)),
    ("wrong-branch", "driver-packages", R580 | NVIDIA | {"os": "debian 13", "packages": ("nvidia-open-595",)},
     "block", ("is of branch 595", "nvidia-open-580")),
    ("ubuntu-after-the-renaming", "driver-packages",
     {"branch": "595", "flavour": "open", "os": "ubuntu 24.04", "archives": ("ubuntu", "nvidia-cuda"), "packages": ("nvidia-open-595",)}, "warn",
     ("nvidia-driver-pinning-595", "from 590 on")),
    # NVSwitch
    ("fm-absent", "fabric-manager", A100 | R580 | {"nvswitch": True, "platform": "hgx"}, "block", ('platform "hgx" has NVSwitch', "802")),
    ("fm-other-version", "fabric-manager", A100 | R580 | {"nvswitch": True, "fabric_manager": "580.173.02", "fabric_manager_package": "nvidia-fabricmanager"},
     "block", ("580.173.02", "580.178.04")),
    ("fm-name-580", "fabric-manager", R580 | {"fabric_manager_package": "nvidia-fabricmanager-580"},
     "block", ('is called "nvidia-fabricmanager"',)),
    ("fm-name-570", "fabric-manager", {"branch": "570", "fabric_manager_package": "nvidia-fabricmanager"},
     "block", ("nvidia-fabricmanager-570",)),
    # containers
    ("toolkit-below-the-floor", "toolkit-floor", {"toolkit": "1.17.7"},
     "block", ("CVE-2025-23266", "CVE-2026-24260", "use 1.19.1 or later")),
    ("toolkit-last-unsafe", "toolkit-floor", {"toolkit": "1.19.0"}, "block", ("is affected by CVE-2026-24260",)),
    ("cdi-on-docker-20", "toolkit-cdi", {"toolkit": "1.20.0", "toolkit_mode": "cdi", **DOCKER20}, "block", ("docker 20.10.24", "26.1.0")),
    ("legacy-on-docker-20", "toolkit-cdi", {"toolkit": "1.20.0", "toolkit_mode": "legacy", **DOCKER20},
     "warn", ("legacy mode", "Debian 13 has docker 26.1.5")),
    ("cdi-on-an-old-podman", "toolkit-cdi", {"toolkit": "1.18.2", "engine": "podman", "engine_version": "4.3.1"}, "unknown", ("not known",)),
    # support and security
    ("below-the-floor", "security-floor", R535 | {"driver": "535.288.01"},
     "block", ("is below 535.309.01", "5821", "use 535.309.01 or later")),
    ("below-580", "security-floor", R580 | {"driver": "580.173.02"}, "block", ("is below 580.178.04", "bulletin 5861")),
    ("unfixed", "security-floor", R535, "warn", ("no version of driver branch 535", "580 (580.178.04)")),
    ("newer-than-bulletins", "security-floor", {"branch": "620"}, "unknown", ("newer than all that were read",)),
    ("new-feature-branch", "driver-branch", A100 | {"branch": "590", "tier": "production"},
     "block", ("is a new feature branch (NFB)", "580 (LTSB)")),
    ("ended", "end-of-life", R535 | EOL, "block", ("since 2026-06-30", "has no waiver", "choose a supported stack")),
    ("waiver-foreign", "end-of-life", R535 | EOL | {"waiver": dataclasses.replace(WAIVER, classes=("other",))},
     "block", ("for other only",)),
    ("waiver-expired", "end-of-life", R535 | EOL | {"waiver": WAIVER, "on": dt.date(2027, 1, 2)},
     "block", ("expired on 2027-01-01", "the owner renew")),
    ("geforce-open-535", "geforce-open", {"gpu": "GeForce-RTX-4090", "branch": "535", "driver": "535.309.01", "flavour": "open"}, "block",
     ("alpha quality", "proprietary modules, or a branch after 535")),
    ("edited-lock", "lock-integrity", R580 | {"unlocked": "x", "lock_fault": EditedLockError("it was edited", file="s.lock.yml", remedy="r")},
     "block", ("cannot be used: s.lock.yml: it was edited", "| r")),
    ("no-lock", "no-lock", R580 | {"driver": None, "unlocked": "it has no lock"}, "unknown", ("it has no lock", "goldnode lock s")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "stated", "severity", "expected"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
def test_rule_is_reported(
    rule: str, stated: dict[str, Any], severity: str, expected: tuple[str, ...]
) -> None:
    (finding,) = found(rule, **stated)
    assert finding.severity == severity
    reported = f"{finding.message} | {finding.remedy}"
    for part in expected:
        assert part in reported
    assert finding.fatal == (severity == "block")
    assert finding.remedy
    assert not finding.remedy.endswith(".")


FITS = [
    ("module-flavour", B200 | R580),
    ("module-flavour", {"gpu": "V100-SXM2-32GB", "branch": "580", "flavour": "proprietary"}),
    ("gpu-driver", B200 | {"branch": "570", "driver": "570.133.20"}),
    ("gpu-driver", B200 | {"branch": "570"}),
    ("gpu-driver", {"gpu": "GH200-120GB (96GB HBM3)", "branch": "545", "driver": "545.29.06"}),
    ("gpu-driver", {"gpu": "V100-SXM2-32GB", "branch": "580"}),
    ("gpu-mix", {"gpu": "A100-SXM4-40GB + A100-SXM4-80GB"}),
    ("kernel-driver", R550 | {"kernel": "6.12.94+deb13-amd64"}),
    ("kernel-driver", R535 | {"kernel": "6.1.0-56-amd64", "kernel_version": "6.1.192"}),
    ("kernel-driver", R550 | {"kernel": "6.17.1-amd64", "driver_package": "550.163.01-4~bpo13+1"}),
    ("kernel-driver", R550 | {"kernel": "7.0.3-amd64", "driver_package": "550.163.01-5.1"}),
    ("kernel-driver", {"branch": "580", "kernel": "6.12", "unlocked": "no lock"}),
    ("other-modules", {"modules": {}}),
    ("os-kernel", {"os": "debian 13", "kernel": "6.12.117+deb13-amd64"}),
    ("os-kernel", {"os": "ubuntu 24.04", "kernel": "6.8.0-45-generic"}),
    ("os-support", {"os": "debian 13"}),
    ("driver-packages", R535 | {"os": "debian 12", "archives": ("debian", "debian-security")}),
    (
        "driver-packages",
        R580
        | NVIDIA
        | {"os": "debian 12", "packages": ("nvidia-open-580", "nvidia-driver-pinning-580")},
    ),
    (
        "driver-packages",
        R580 | {"os": "debian 12", "archives": ("debian",), "driver_package": "580.178.04-1"},
    ),
    (
        "fabric-manager",
        R580
        | {
            "nvswitch": True,
            "fabric_manager_package": "nvidia-fabricmanager",
            "fabric_manager": "580.178.04",
        },
    ),
    (
        "fabric-manager",
        R535 | {"nvswitch": True, "fabric_manager_package": "nvidia-fabricmanager-535"},
    ),
    ("fabric-manager", R580 | {"nvswitch": True, "simulated": True}),
    ("toolkit-floor", {"toolkit": "1.19.1"}),
    ("toolkit-cdi", {"toolkit": "1.20.0", "toolkit_mode": "cdi", **DOCKER26}),
    ("toolkit-cdi", {"toolkit": "1.18.2", "engine": "podman", "engine_version": "5.4.2"}),
    ("security-floor", R580),
    ("end-of-life", R580 | {"end_of_life": DAY}),
    ("no-lock", R580),
]


@pytest.mark.parametrize(("rule", "stated"), FITS)
def test_rule_has_no_finding_for_a_host_that_fits(rule: str, stated: dict[str, Any]) -> None:
    assert found(rule, **stated) == []


def amd(sku: str, **stated: Any) -> list[CompatFinding]:
    host = CompatHost("class it", vendor="amd", gpus=(facts.gpu(sku),), **stated)
    return [finding for finding in check.check(host) if finding.rule == "amdgpu"]


def test_amd_driver_findings_follow_gpu_kernel_and_release() -> None:
    (own,) = amd("MI300X", kernel="6.12.117+deb13-amd64")
    assert own.severity == "unknown"
    assert "the kernel's own amdgpu of kernel 6.12.117" in own.message
    (old,) = amd("MI355X", amdgpu="6.4", os="ubuntu 24.04", kernel="6.8.0-45-generic")
    assert (old.severity, "needs amdgpu 30.10.0 or later" in old.message) == ("block", True)
    (older,) = amd("MI350P", amdgpu="30.30.3", os="ubuntu 24.04", kernel="6.8.0-45-generic")
    assert "needs amdgpu 31.40 or later" in older.message
    assert amd("MI355X", amdgpu="30.10.0", os="ubuntu 24.04", kernel="6.8.0-45-generic") == []
    assert amd("MI300X", amdgpu="30.30.3", os="debian 13", kernel="6.12.117") == []
    assert [
        item.severity for item in amd("MI300X", amdgpu="30.30.3", os="debian 11", kernel="5.10.0")
    ] == ["unknown"]
    assert (
        "with kernel 6.8"
        in amd("MI300X", amdgpu="30.30.3", os="ubuntu 24.04", kernel="6.11.0-1-generic")[0].message
    )


# What was accepted


def test_a_waiver_in_force_is_shown_and_covers_what_follows_from_the_end() -> None:
    findings = {item.rule: item for item in check.check(host(waiver=WAIVER, **R535, **EOL))}
    for rule in ("end-of-life", "security-floor"):
        assert findings[rule].accepted == "tests (the owner, until 2027-01-01)"
        assert not findings[rule].fatal
    assert findings["end-of-life"].severity == "block"


def test_a_stack_alone_is_not_waived_for_another_site() -> None:
    waiver = dataclasses.replace(WAIVER, classes=("other",))
    findings = {
        item.rule: item
        for item in check.check(dataclasses.replace(host(waiver=waiver, **R535, **EOL), name=None))
    }
    assert findings["end-of-life"].accepted is None
    assert "its waiver is for other only" in findings["end-of-life"].message


def test_simulated_hardware_needs_no_waiver() -> None:
    (finding,) = found("end-of-life", simulated=True, **R535, **EOL)
    assert "simulated" in (finding.accepted or "")


def test_unknown_finding_is_fatal_or_accepted_as_the_class_decides() -> None:
    stated = {"modules": {"mlx5_core": "24.10"}, **R580}
    for unknown, fatal, accepted in (
        ("warn", False, False),
        ("block", True, False),
        ("accept", False, True),
    ):
        (finding,) = found("other-modules", unknown=unknown, **stated)
        assert finding.severity == "unknown"
        assert (finding.fatal, finding.accepted is not None) == (fatal, accepted)


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        ({}, True),
        ({"subject": "class it"}, True),
        ({"subject": "it"}, True),
        ({"subject": "other"}, False),
        ({"rule": "kernel-driver"}, False),
        ({"expires": DAY}, True),
        ({"expires": dt.date(2026, 11, 20)}, False),
    ],
)
def test_accepted_by_the_class(change: dict[str, Any], accepted: bool) -> None:
    item = dataclasses.replace(
        Acceptance("security-floor", "a reason", "me", dt.date(2027, 1, 1)), **change
    )
    (finding,) = found("security-floor", accept=(item,), **(R535 | {"driver": "535.288.01"}))
    assert (finding.accepted is not None, finding.fatal) == (accepted, not accepted)
    assert accepted is (finding.accepted == f"a reason (me, until {item.expires})")


def test_findings_are_sorted_by_severity_blocks_first() -> None:
    findings = check.check(
        host(
            **A100,
            **(R550 | {"kernel": "6.12.117+deb13-amd64", "flavour": "open", "unknown": "warn"}),
            modules={"x": "1"},
        )
    )
    assert [item.severity for item in findings] == sorted(
        (item.severity for item in findings), key=["block", "unknown", "warn"].index
    )
    assert findings[0].fatal


def test_the_doubts_of_facts_are_shown() -> None:
    (inferred,) = found("gpu-driver", gpu="B100", branch="535")
    assert inferred.doubt == "inferred from the architecture: min_driver_branch"
    (b200,) = found("gpu-driver", **B200, branch="535")
    assert b200.doubt is None, "what its row holds in doubt is its PCIe generation"
    (ended,) = found("end-of-life", branch="610", driver="610.57.04", flavour="open", **EOL)
    assert "computes NFB end of life" in (ended.doubt or "")
    (flavour,) = found("module-flavour", **A100, branch="615", flavour="proprietary")
    assert "sources disagree" in (flavour.doubt or "")
    (built,) = found("kernel-driver", **A100, **R550, kernel="7.0.3-amd64")
    assert "a distribution's patched package may build" in (built.doubt or "")


# Several hosts


def cohort(*hosts: CompatHost, **workloads: list[Workload]) -> dict[str, CompatFinding]:
    named = {f"class {name}": loads for name, loads in workloads.items()}
    return {item.rule: item for item in rules_host.check_cohorts(hosts, named)}


def test_cohort_has_findings_only_for_known_differences() -> None:
    one = CompatHost(
        "class a",
        vendor="nvidia",
        branch="580",
        driver="580.178.04",
        cohort="c",
        stack="x",
        gpus=(facts.gpu("A100-SXM4-40GB"),),
    )
    same = dataclasses.replace(one, subject="class b", gpus=(facts.gpu("A100-SXM4-80GB"),))
    assert cohort(one, same) == {}
    assert cohort(one, dataclasses.replace(same, driver="580.173.02", cohort="other")) == {}
    mixed = cohort(
        one, dataclasses.replace(same, driver="580.173.02", gpus=(facts.gpu("H100-SXM5-80GB"),))
    )
    assert mixed["cohort-driver"].severity == "block"
    assert (
        "driver 580.173.02 (class b); driver 580.178.04 (class a)" in mixed["cohort-driver"].message
    )
    assert mixed["cohort-mix"].severity == "warn"
    assert mixed["cohort-driver"].subject == "cohort c"
    assert (
        cohort(one, dataclasses.replace(same, driver=None, stack="y"))["cohort-driver"].severity
        == "unknown"
    )
    assert cohort(one, dataclasses.replace(same, driver=None)) == {}, "one stack has one lock"
    old, new = Workload("image o", nccl="2.21.5"), Workload("image n", nccl="2.27.7")
    assert cohort(one, same, a=[new], b=[new]) == {}
    assert cohort(one, same, a=[new]) == {}, "nothing is known of the other"
    assert (
        "2.21.5 (class b); 2.27.7 (class a)"
        in cohort(one, same, a=[new], b=[old])["cohort-nccl"].message
    )


# The rules themselves


def test_every_rule_can_be_explained() -> None:
    for rule in check.registry().values():
        assert rule.title
        assert rule.explanation
        for file, keys in rule.facts.items():
            assert facts.origins(file, list(keys)), rule.id


def test_each_rule_of_nodes_is_in_the_table() -> None:
    tested = {row[1] for row in REFUSED} | {"amdgpu", "known-bad"}
    assert {rule.id for rule in rules_host.RULES} == tested


def test_rules_of_what_few_nodes_have_are_imported_for_these_alone() -> None:
    script = (
        "import sys\n"
        "from goldnode.compat.check import check, rules_of_nodes\n"
        "from goldnode.compat.model import CompatHost\n"
        "for host in (CompatHost('a'), CompatHost('b', parts={'ucx': '1.18.1'}), CompatHost('c', vendor='intel')):\n"
        "    check(host, [])\n"
        "    print(rules_of_nodes(), *sorted(name for name in sys.modules if name.startswith('goldnode.compat.')\n"
        "          and name.endswith(('parts', 'coexistence', 'intel'))))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    few = len(rules_host.RULES)
    assert out == [
        f"{few}",
        f"{few + len(rules_parts.RULES)} goldnode.compat.parts goldnode.compat.rules_parts",
        f"{few + len(rules_parts.RULES) + 1} goldnode.compat.parts goldnode.compat.rules_intel goldnode.compat.rules_parts",
    ]

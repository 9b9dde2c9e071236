"""Real lines of kernel logs about everything but GPUs (tests/cases/logs/host.yml), read and judged; oopses, taint and services in detail."""

from __future__ import annotations

from typing import Any

import pytest
from tests.case_tables import table

from goldnode.facts import health, xid
from goldnode.node.probe import events, logs
from goldnode.node.state.finding import MISMATCH, Finding
from goldnode.node.verdict.events import judge

CASES = table("logs/host.yml")
DOCUMENT: dict[str, Any] = {
    "xid": xid.table(),
    "health": {"limits": {name: row.value for name, row in health.limits().items()}},
}
WORST = ("none", "degraded", "drain")


def judged(lines: list[str], **capture: Any) -> list[Finding]:
    """Return what is wrong on a node with these lines."""
    section = {**events.parsed("\n".join(lines)), "boot_id": "boot-1"}
    whole = {"source": "live", "uptime": 1e6, "gpus": [], "gpu_error": None, "events": section}
    found = judge(DOCUMENT, {**whole, **capture}, {})[0]
    return [finding for finding in found if finding.outcome == MISMATCH]


def worst(findings: list[Finding]) -> str:
    return max([finding.severity for finding in findings], key=WORST.index, default="none")


@pytest.mark.parametrize("case", CASES, ids=[case["source"] for case in CASES])
def test_a_real_log_gets_its_verdict(case: dict[str, Any]) -> None:
    bad = judged(case["lines"], **case.get("capture", {}))
    assert worst(bad) == case["answer"], bad
    if "findings" in case:
        assert [[finding.id, finding.subject] for finding in bad] == case["findings"]
    # Nothing is lost by what whole logs are searched for.
    data = "\n".join(case["lines"]).encode()
    assert logs.parse(logs.candidates(data)) == logs.parse(case["lines"])


OOPS = [
    "[  100.1] BUG: unable to handle page fault for address: 0000100000000010",
    "[  100.1] Oops: 0000 [#1] PREEMPT SMP NOPTI",
]


@pytest.mark.parametrize(
    ("lines", "module", "severity"),
    [
        (["[  100.2] RIP: 0010:_nv043160rm+0x1c/0x90 [nvidia]"], "nvidia", "drain"),
        (["[  100.2] RIP: 0010:x+0x1/0x9", "[  100.2]  ? _nv01rm+0x1c/0x90 [nvidia]"], "nvidia", "drain"),
        (["[  100.2] RIP: 0010:uvm_x+0x1/0x9 [nvidia_uvm]"], "nvidia_uvm", "drain"),
        (["[  100.2] RIP: 0010:ll_x+0x1/0x9 [lustre]"], "lustre", "degraded"),
        (["[  100.2] RIP: 0010:memset_erms+0x9/0x20"], None, "degraded"),
        (["[  900.2] RIP: 0010:x+0x1/0x9 [nvidia]"], None, "degraded"),  # another trace
    ],
)  # fmt: skip
def test_the_module_of_an_oops_decides(lines: list[str], module: str | None, severity: str) -> None:
    (row,) = logs.parse([*OOPS, *lines])
    assert (row["kind"], row["count"], row["parameters"].get("module")) == ("oops", 1, module)
    (finding,) = judged([*OOPS, *lines])
    assert (finding.id, finding.severity) == ("kernel.oops", severity)


@pytest.mark.parametrize(
    "line",
    [
        "Oops: 0002 [#1] PREEMPT SMP NOPTI",
        "Oops: Oops: 0000 [#2] SMP NOPTI",
        "general protection fault, probably for non-canonical address 0xdead000000000122: 0000 [#1] PREEMPT SMP",
        "invalid opcode: 0000 [#1] SMP",
        "Internal error: Oops: 0000000096000004 [#1] SMP",
        "kernel BUG at mm/slub.c:305!",
    ],
)
def test_every_form_of_an_oops_is_one(line: str) -> None:
    (finding,) = judged([f"[    5.1] {line}"])
    assert finding.id == "kernel.oops"


def test_taint_shows_what_the_log_has_lost_and_nothing_twice() -> None:
    def kernel(flags: str) -> dict[str, Any]:
        return {"kernel": {"taint_flags": flags}}

    assert not judged([], os=kernel("POE"))
    assert not judged([], os={"kernel": {"taint_flags": {"fault": "unread", "text": "x"}}})
    assert [item.id for item in judged([], os=kernel("PDOEL"))] == ["kernel.oops", "kernel.lockup"]
    assert [item.id for item in judged(OOPS, os=kernel("D"))] == ["kernel.oops"]
    assert [item.id for item in judged([], os=kernel("M"))] == ["machine.mce"]


def killed(name: str, memcg: str | None = None, text: str = "Out of memory") -> list[str]:
    first = (
        f"oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg={memcg},task={name},pid=7,uid=0"
    )
    last = f"{text}: Killed process 7 ({name}) total-vm:1kB, anon-rss:1kB"
    return [first, last] if memcg else [last]


@pytest.mark.parametrize(
    ("lines", "subject"),
    [
        (killed("slurmd"), "slurmd"),
        (killed("slurmd", "/system.slice/slurmd.service"), "slurmd.service"),
        (killed("nvidia-persiste"), "nvidia-persiste"),
        (killed("goldnode-node"), "goldnode-node"),
        (killed("dcgm", "/system.slice/nvidia-dcgm.service"), "nvidia-dcgm.service"),
        (killed("slurmd", "/system.slice/slurmd.service", "Memory cgroup out of memory"), "slurmd.service"),
        (killed("python3"), None),
        (killed("python3", "/system.slice/slurmstepd.scope/job_1/step_0/user/task_0"), None),
        (killed("python3", "/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope"), None),
        (killed("containerd", "/kubepods.slice/x.scope", "Memory cgroup out of memory"), None),
        (killed("systemd", "/user.slice/user-1000.slice/user@1000.service/init.scope"), None),
    ],
)  # fmt: skip
def test_a_killed_service_is_the_nodes_fault_and_a_killed_job_is_not(
    lines: list[str], subject: str | None
) -> None:
    found = judged(lines)
    assert [(item.id, item.subject) for item in found] == (
        [("memory.oom", subject)] if subject else []
    )


def test_a_dimm_is_named_and_each_has_its_finding() -> None:
    lines = [
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#2_DIMM#1 (channel:2 slot:1)",
        "EDAC MC1: 3 CE single-symbol chipkill ECC on unknown memory (node: 0 DIMM location: N1 DIMM_B2 page:0x9 offset:0x2)",
        "EDAC MC1: 1 UE UE overwrote CE on any memory ( page:0x0 offset:0x0 grain:8)",
    ]
    rows = logs.parse(lines)
    assert [row["parameters"].get("subject") for row in rows] == [
        "CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        "CPU_SrcID#0_MC#0_Chan#2_DIMM#1",
        "N1 DIMM_B2",
        None,
    ]
    assert [item.subject for item in judged(lines)] == [
        "CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        "CPU_SrcID#0_MC#0_Chan#2_DIMM#1",
        "MC1",
    ]


def test_firmware_names_the_part_of_a_fatal_error() -> None:
    (finding,) = judged(
        [
            "[   50.1] {1}[Hardware Error]: event severity: fatal",
            "[   50.1] {1}[Hardware Error]:  fru_text: Card03, ChnA, DIMM0",
        ]
    )
    assert (finding.id, finding.severity) == ("machine.mce", "drain")
    assert "Card03, ChnA, DIMM0" in str(finding.got)


def test_a_machine_check_at_start_is_of_the_previous_boot_and_a_later_one_is_not() -> None:
    text = "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 5: bea0000000000108"
    (finding,) = judged([f"[    0.4] {text}"])
    assert (finding.id, finding.severity) == ("machine.previous_boot", "degraded")
    (finding,) = judged([f"[ 4000.4] {text}"])
    assert (finding.id, finding.severity) == ("machine.mce", "drain")
    (finding,) = judged(
        [
            "[    0.4] mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: be00000000800400"
        ]
    )
    assert finding.id == "machine.mce"


# Level of printk in the kernel's source, and a line of a fault.
LEVELS = [
    (6, "BTRFS info (device sda1): forced readonly"),  # btrfs_info
    (6, "pcieport 0000:17:01.0: pciehp: Slot(108): Link Down"),  # ctrl_info
    (5, "megaraid_sas 0000:18:00.0: FW in FAULT state Fault code:0xfff0000"),  # dev_notice
    (4, "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)"),
    (4, "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc' as unstable because the skew is too large:"),
    (3, "Out of memory: Killed process 963 (containerd) total-vm:1561184kB, anon-rss:51596kB"),
    (2, "EXT4-fs (dm-17): Remounting filesystem read-only"),
]  # fmt: skip


@pytest.mark.parametrize(("level", "line"), LEVELS)
def test_a_fault_is_found_in_the_ring_at_the_level_that_the_kernel_gives_it(
    level: int, line: str
) -> None:
    ring = f"6,1,1,-;Linux version 6.12.0\n6,2,2,-;BTRFS info: has skinny extents\n{level},3,3,-;{line}\n"
    assert len(logs.parse(logs.candidates(ring.encode()))) == 1

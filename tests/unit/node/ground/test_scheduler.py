"""The reader of a scheduler's node, on recorded answers of three releases of Slurm and on texts of persons; changes that report a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests import slurm

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.drain.protocol import DrainCaller
from goldnode.fleet.drain.slurm import SlurmDrainer, slurm_rows
from goldnode.node.gate import effects
from goldnode.node.ground import drained, scheduler
from goldnode.node.ground.host import Host, Result
from goldnode.node.ground.scheduler import HookError

RUN = drained.reason("0a1b2c3d", "ctl", "2026-11-27T16:00:00Z", "roll out driver")
GATE = "goldnode: gpu.count: 7 (want 8)"
# The text before the state, and after it, in the answers of slurm-wlm of Debian 12, 13 and sid of 2026-11-27.
BEFORE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=1 CPUTot=1 CPULoad=7.74 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=(null) NodeAddr=127.0.0.1 NodeHostName=vm Port=42255 Version={} OS=Linux 6.18.44 #1 SMP "
    "PREEMPT_DYNAMIC @0  RealMemory=1 AllocMem=0 FreeMem=12646 Sockets=1 Boards=1 State="
)
AFTER = " ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=all  BootTime=2026-11-27T16:51:12 "
RELEASES = {
    "22.05.8": f"{AFTER}CfgTRES=cpu=1,mem=1M,billing=1 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsTemp=n/s",
    "24.11.5": f"{AFTER}ResumeAfterTime=None CfgTRES=cpu=1,mem=1M,billing=1 AllocTRES= CurrentWatts=0 AveWatts=0 ",
    "26.05.5": f"{AFTER}ResumeAfterTime=None SuspendTime=INFINITE CfgTRES=cpu=1,mem=1M AllocTRES= CurrentWatts=0 AveWatts=0",
}
TEXTS = "Comment=rack 7 Reason=none State=IDLE Extra=slot=3 x"  # a person may write all of this
AUTHOR = "[root@2026-11-27T17:17:06]"
# The state, what follows it; flags and reason.
ANSWERS: list[tuple[str, str, tuple[str, ...], str]] = [
    ("IDLE", "", ("IDLE",), ""),
    ("IDLE", f" {TEXTS}", ("IDLE",), ""),
    ("IDLE+DRAIN", f" Reason={RUN} {AUTHOR}", ("IDLE", "DRAIN"), RUN),
    ("IDLE+DRAIN", f" Reason={RUN} {AUTHOR} {TEXTS}", ("IDLE", "DRAIN"), RUN),
    ("IDLE+DRAIN", f" Reason={GATE} {AUTHOR} Comment=mail [ann@example.net]", ("IDLE", "DRAIN"), GATE),
    ("IDLE+DRAIN", f" Reason={GATE} {AUTHOR} Extra=x", ("IDLE", "DRAIN"), GATE),
    ("IDLE+NOT_RESPONDING", f" Reason={GATE} {AUTHOR} Extra=x", ("IDLE", "NOT_RESPONDING"), GATE),
    ("DOWN*+DRAIN", f" Reason=bad [x] fan, mail [a@b] first {AUTHOR}", ("DOWN", "DRAIN"), "bad [x] fan, mail [a@b] first"),
    ("UNKNOWN+DRAIN", f" Reason=Prolog error {AUTHOR}", ("UNKNOWN", "DRAIN"), "Prolog error"),
    ("DOWN+DRAIN+REBOOT_ISSUED", f" Reason={RUN} : reboot issued {AUTHOR}", ("DOWN", "DRAIN", "REBOOT_ISSUED"), RUN),
    ("DOWN+DRAIN", f" Reason={RUN} : reboot issued : reboot complete {AUTHOR}", ("DOWN", "DRAIN"), RUN),
    ("MIXED+PLANNED", " Reason=no author Comment=y", ("MIXED", "PLANNED"), "no author"),
    ("IDLE+DRAIN", " Reason=seconds [root@1795642787] Comment=y", ("IDLE", "DRAIN"), "seconds"),
]  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("state", "rest", "flags", "reason"), ANSWERS)
def test_scontrol_line_of_each_release_gives_state_and_reason(
    release: str, state: str, rest: str, flags: tuple[str, ...], reason: str
) -> None:
    line = f"{BEFORE.format(release)}{state}{RELEASES[release]}{rest}\n"
    (row,) = scheduler.nodes(f"{line}\n")
    assert row == ("n1", "vm", flags, reason)
    assert row.drained is ("DRAIN" in flags)
    assert row.in_service is not row.drained
    # Runs and rollouts read the same.
    ((_, seen),) = slurm_rows(line)
    assert (seen.in_service, seen.state) == (row.in_service, "+".join(flags))
    assert seen.held == (drained.mark(RUN) if row.drained and reason == RUN else None)
    # Slurm 24.11 keeps the reason of a drain that has ended: it is no note that a run gives back.
    assert seen.reason == ("" if row.in_service and reason == GATE else reason)


class Cluster(Host):
    """A node with a scontrol that has the given states, one for each question, and refuses each change."""

    def __init__(self, root: Path, *states: str) -> None:
        super().__init__(str(root), live=True)
        self.states = list(states)
        self.write("/usr/bin/scontrol", b"")
        self.write("/proc/sys/kernel/hostname", b"n1\n")

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.commands.append(argv)
        if argv[1] == "show":
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            if not state:
                return Result(
                    argv, 1, "", "slurm_load_node error: Unable to contact slurm controller"
                )
            return Result(
                argv, 0, f"NodeName=n1 State={state} {TEXTS.replace('Reason=none', '')}\n", ""
            )
        return Result(argv, 1, "", "slurm_update error: Invalid node state specified")


Change = Callable[[Host, scheduler.SchedulerNode], None]
CHANGES: list[tuple[str, Change, str, str, bool]] = [
    ("resume that Slurm has made", scheduler.resume, f"UNKNOWN+DRAIN Reason={GATE}", "UNKNOWN", True),
    ("resume, and the reason stays", scheduler.resume, f"UNKNOWN+DRAIN Reason={GATE}", f"IDLE Reason={GATE}", True),
    ("resume that failed", scheduler.resume, f"IDLE+DRAIN Reason={GATE}", f"IDLE+DRAIN Reason={GATE}", False),
    ("resume, and no answer", scheduler.resume, f"IDLE+DRAIN Reason={GATE}", "", False),
    ("drain that Slurm has made", lambda h, row: scheduler.drain(h, row, GATE), "IDLE", f"IDLE+DRAIN Reason={GATE}", True),
    ("drain by another meanwhile", lambda h, row: scheduler.drain(h, row, GATE), "IDLE", "IDLE+DRAIN Reason=fan", False),
    ("reason", lambda h, row: scheduler.explain(h, row, GATE), "IDLE+DRAIN Reason=x", f"IDLE+DRAIN Reason={GATE}", True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "change", "before", "after", "done"), CHANGES, ids=[row[0] for row in CHANGES]
)
def test_after_a_failure_the_state_of_the_node_decides(
    tmp_path: Path, what: str, change: Change, before: str, after: str, done: bool
) -> None:
    node = Cluster(tmp_path / "n", before, after)
    row = scheduler.own_node(node)
    assert row is not None
    if done:
        change(node, row)
    else:
        with pytest.raises(HookError, match="ended with 1: slurm_update error: Invalid node state"):
            change(node, row)


@pytest.mark.parametrize(("state", "stays"), [("IDLE+DRAIN", True), ("IDLE", False)])
def test_a_run_gives_back_a_node_of_which_the_resume_reports_a_failure(
    state: str, stays: bool
) -> None:
    lines = [
        f"NodeName=n1 State=UNKNOWN+DRAIN Reason={RUN} {AUTHOR} {TEXTS}",
        f"NodeName=n1 State={state} {TEXTS}",
    ]

    def run(argv: list[str]) -> str:
        if argv[1] == "show":
            return lines.pop(0) if len(lines) > 1 else lines[0]
        raise GoldnodeError("scontrol update failed: Invalid node state specified")

    slurm_drainer = SlurmDrainer(run=run)  # type: ignore[arg-type]
    if stays:
        with pytest.raises(GoldnodeError, match="Invalid node state"):
            slurm_drainer.resume("n1", DrainCaller(take_over=True))
    else:
        assert slurm_drainer.resume("n1", DrainCaller(take_over=True)).changed


@pytest.mark.skipif(slurm.missing() is not None, reason=slurm.missing() or "")
def test_gate_drains_takes_over_and_resumes_on_a_real_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate's drain and return, and a run's drain that it takes over, on a node with a comment."""
    node = Host("/")
    with slurm.cluster(1) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.conf)
        monkeypatch.setattr(
            node, "text", lambda name: "n1\n" if name.endswith("hostname") else None
        )
        cluster.update("n1", f"Comment={TEXTS.removeprefix('Comment=')}")
        cluster.update("n1", "State=DRAIN", f"Reason={RUN}")
        row = scheduler.own_node(node)
        assert row is not None
        assert (row.drained, row.reason) == (True, RUN)
        scheduler.drain(node, row, GATE)
        assert cluster.rows()["n1"] == ("IDLE+DRAIN", GATE)
        assert effects.resume_reason(node, effects.OWN)
        assert not effects.resume_reason(node, effects.OWN)
        state, reason = cluster.settled("n1")
        assert (state, reason) == ("IDLE", "")

"""What schedulers run on a node, as they run it: plain shell against the files of a check, with a scontrol that only remembers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.node.serve.test_metrics import CAPTURE, finding, verdict

from goldnode.node.gate import gate
from goldnode.node.ground import drained, verdict_files
from goldnode.node.ground.host import Host
from goldnode.node.serve import metrics
from goldnode.node.state import shims
from goldnode.node.state.domains import units
from goldnode.node.verdict import check

INTEGRATIONS = Path(__file__).parents[3] / "integrations"
SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]

SCONTROL = """#!/bin/sh
# Keeps one node in files; `fail` lets every call fail.
cd "$SCONTROL" || exit 1
echo "$*" >> calls
[ ! -e fail ] || exit 1
case $1 in
show)
    why=$(cat reason)
    # Texts of persons, as Slurm shows them at the end.
    echo "NodeName=n1 Arch=x86_64 State=$(cat state) Boards=1${why:+ Reason=$why} Comment=was State=DRAIN Reason=none" ;;
update)
    [ ! -e refuses ] || exit 1
    for word; do
        case $word in
        State=DRAIN) echo IDLE+DRAIN > state ;;
        State=RESUME) echo IDLE > state; echo > reason ;;
        Reason=*) echo "${word#Reason=} [root@2026-11-22T10:00:00]" > reason ;;
        esac
    done
    [ ! -e late ] || exit 1
    ;;
esac
"""


# Seconds since boot of the node. Not this machine's: one that has just booted has no verdict that is too old.
UPTIME = 100_000.0


class Node:
    """Files of a node, and Slurm's record of it."""

    def __init__(self, root: Path, shell: str) -> None:
        self.root, self.shell = root, shell
        for name in ("run", "state", "slurm", "bin"):
            (root / name).mkdir()
        (root / "bin/scontrol").write_text(SCONTROL)
        (root / "bin/scontrol").chmod(0o755)
        self.slurm("IDLE", "")
        self.gate("drain", [])
        self.checked()

    def slurm(self, state: str, reason: str) -> None:
        (self.root / "slurm/state").write_text(f"{state}\n")
        (self.root / "slurm/reason").write_text(f"{reason}\n")

    def gate(self, mode: str, reasons: list[str]) -> None:
        opened = mode == "report" or not reasons
        text = gate.sentence([gate.Reason("x", reason) for reason in reasons])
        (self.root / "run/gate.reason").write_text(f"goldnode gate: {text}\n" if reasons else "")
        (self.root / "state/gate.mode").write_text(f"{mode}\n")
        (self.root / "run/pass").unlink(missing_ok=True)
        if opened:
            (self.root / "run/pass").write_text(f"{UPTIME:.0f} 900\n")

    def checked(self, age: float = 5, code: Any = 0, text: str | None = None) -> None:
        found = verdict(finding("gpu.count", "mismatch"), code=code) | {
            "uptime": UPTIME - age,
            "status": check.STATUS.get(code, "drain"),
        }
        host = Host(str(self.root / "node"))
        gate.save(host, found, json.dumps(found))
        written = host.text(verdict_files.STATUS) or ""
        (self.root / "run/status").write_text(written if text is None else text)

    def run(self, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = self.root / "program"
        (self.root / "uptime").write_text(f"{UPTIME} 0.00\n")
        program.write_text(text.replace("/proc/uptime", str(self.root / "uptime")))
        shell = [self.shell, "sh"] if self.shell == "busybox" else [self.shell]
        places = {
            "GOLDNODE_RUN": "run",
            "GOLDNODE_STATE": "state",
            "GOLDNODE_PATH": "bin",
            "SCONTROL": "slurm",
        }
        env = {
            **os.environ,
            **{key: str(self.root / name) for key, name in places.items()},
            "SLURMD_NODENAME": "n1",
        }
        return subprocess.run(
            [*shell, str(program), *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def health(self) -> tuple[str, str]:
        """Run the health check program; Slurm's state and reason afterwards."""
        done = self.run(shims.SLURM)
        assert done.returncode == 0, done.stderr
        state, reason = (
            (self.root / "slurm" / name).read_text().strip() for name in ("state", "reason")
        )
        return state, re.sub(r" \[root@.*", "", reason)

    @property
    def calls(self) -> int:
        path = self.root / "slurm/calls"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(params=SHELLS)
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path, request.param)


def test_the_files_in_integrations_are_what_nodes_get() -> None:
    assert (INTEGRATIONS / "slurm/slurm-health").read_text() == shims.SLURM
    assert (INTEGRATIONS / "kubernetes/npd-plugin").read_text() == shims.NPD
    for name in ("slurm/slurm-health", "kubernetes/npd-plugin", "kubernetes/labels"):
        assert (INTEGRATIONS / name).stat().st_mode & 0o111


LATE = (
    "goldnode: health check: the last verdict is too old; see systemctl status goldnode-watch.timer"
)


def test_while_checks_are_made_the_gate_alone_acts(node: Node) -> None:
    for reasons in ([], ["gpu.count: 7 (want 8)"]):
        node.gate("drain", reasons)
        node.checked(code=2 if reasons else 0)
        assert node.health() == ("IDLE", "")
    node.slurm("IDLE+DRAIN", "goldnode: gpu.count: 7 (want 8)")
    node.gate("drain", [])
    assert node.health() == ("IDLE+DRAIN", "goldnode: gpu.count: 7 (want 8)"), (
        "the gate takes back what the gate has done"
    )
    assert node.calls == 0


def test_a_checker_that_stopped_drains_once_and_resumes(node: Node) -> None:
    node.checked(age=verdict_files.LIMIT + 60)
    assert node.health() == ("IDLE+DRAIN", LATE)
    calls = node.calls
    assert node.health() == ("IDLE+DRAIN", LATE)
    assert node.calls == calls, "it is told once"
    node.checked(code=2)
    node.gate("drain", ["gpu.count: 7 (want 8)"])
    assert node.health() == ("IDLE+DRAIN", LATE), "checks are made again, and find the node bad"
    node.gate("drain", [])
    assert node.health() == ("IDLE", "")
    assert not (node.root / "state/slurm-health").exists()


@pytest.mark.parametrize("what", ["missing", "torn", "of another boot"])
def test_no_verdict_drains_too(node: Node, what: str) -> None:
    if what == "missing":
        for path in (node.root / "run").iterdir():
            path.unlink()
    elif what == "torn":
        node.checked(text="- 3")
    else:
        node.checked(age=-100000)
    state, reason = node.health()
    assert (state, reason.startswith("goldnode: health check: no verdict since this boot")) == (
        "IDLE+DRAIN",
        True,
    )


@pytest.mark.parametrize("text", [f"{UPTIME - 2_000:.0f} 900\n", "", "none\n"])
def test_pass_of_an_earlier_verdict_resumes_nothing(node: Node, text: str) -> None:
    """A check writes its verdict before the gate acts on it. In between, a bad node was resumed for a moment."""
    node.checked(age=verdict_files.LIMIT + 100)
    assert node.health()[0] == "IDLE+DRAIN"
    node.checked(code=2)
    (node.root / "run/pass").write_text(text)
    assert node.health() == ("IDLE+DRAIN", LATE)
    node.gate("drain", ["gpu.count: 7"])
    assert node.health() == ("IDLE+DRAIN", LATE)
    node.checked()
    node.gate("drain", [])
    assert node.health() == ("IDLE", "")


def test_node_drained_by_a_person_stays_drained(node: Node) -> None:
    node.slurm("IDLE+DRAIN", "bad fan")
    node.checked(age=verdict_files.LIMIT + 60)
    assert node.health() == ("IDLE+DRAIN", "bad fan")
    node.checked()
    assert node.health() == ("IDLE+DRAIN", "bad fan")
    # A person takes over a drain of ours.
    node.slurm("IDLE", "")
    node.checked(age=verdict_files.LIMIT + 60)
    assert node.health()[1] == LATE
    node.slurm("IDLE+DRAIN", "bad fan")
    node.checked()
    assert node.health() == ("IDLE+DRAIN", "bad fan")
    assert not (node.root / "state/slurm-health").exists()


def test_nothing_is_resumed_while_a_run_has_the_node(node: Node) -> None:
    node.checked(age=verdict_files.LIMIT + 60)
    assert node.health()[1] == LATE
    node.checked()
    record = node.root / "state/drain.json"
    record.write_text("{}")
    assert node.health() == ("IDLE+DRAIN", LATE)
    old = time.time() - drained.LEASE - 120
    os.utime(record, (old, old))
    assert node.health() == ("IDLE", "")


@pytest.mark.parametrize("fails", ["late", "refuses"])
def test_an_update_that_reports_a_failure_is_settled_by_the_state_of_the_node(
    node: Node, fails: str
) -> None:
    """scontrol can be cut off, or end with 1, after Slurm has drained the node: it must be resumed all the same."""
    node.checked(age=verdict_files.LIMIT + 60)
    (node.root / "slurm" / fails).touch()
    assert node.health()[0] == ("IDLE+DRAIN" if fails == "late" else "IDLE")
    (node.root / "slurm" / fails).unlink()
    assert node.health() == ("IDLE+DRAIN", LATE), "once, or now"
    node.checked()
    assert node.health() == ("IDLE", "")
    assert list((node.root / "state").glob("slurm-health*")) == []


def test_node_resumed_by_a_person_stays_until_the_next_stale_verdict(node: Node) -> None:
    node.checked(age=verdict_files.LIMIT + 60)
    node.health()
    node.slurm("IDLE", "")
    assert node.health() == ("IDLE", "")
    node.checked()
    assert node.health() == ("IDLE", "")
    node.checked(age=verdict_files.LIMIT + 60)
    assert node.health()[0] == "IDLE+DRAIN", "the next time is another time"


@pytest.mark.parametrize("mode", ["report", "block"])
def test_a_class_that_does_not_drain_is_left_alone(node: Node, mode: str) -> None:
    node.gate(mode, [])
    node.checked(age=verdict_files.LIMIT + 60)
    assert node.health() == ("IDLE", "")
    assert node.calls == 0


def test_a_class_that_drains_no_more_takes_its_drain_back(node: Node) -> None:
    node.checked(age=verdict_files.LIMIT + 60)
    node.health()
    node.gate("report", [])
    assert node.health() == ("IDLE", "")


def test_a_controller_that_does_not_answer_is_tried_again(node: Node) -> None:
    node.checked(age=verdict_files.LIMIT + 60)
    (node.root / "slurm/fail").touch()
    assert node.health() == ("IDLE", "")
    (node.root / "slurm/fail").unlink()
    assert node.health()[0] == "IDLE+DRAIN"
    node.checked()
    (node.root / "slurm/fail").touch()
    assert node.health()[0] == "IDLE+DRAIN"
    (node.root / "slurm/fail").unlink()
    assert node.health()[0] == "IDLE"


# -- node-problem-detector


@pytest.mark.parametrize(
    ("code", "reasons", "rc", "text"),
    [
        (0, [], 0, "goldnode: healthy"),
        (1, [], 0, "goldnode: degraded"),
        (2, ["gpu.count: 7 (want 8)", "another"], 1, "goldnode: gpu.count: 7 (want 8)"),
        (2, [], 1, "goldnode: drain"),
        (3, [], 2, "goldnode: could not check"),
        (4, ["gpu.ids: A100"], 1, "goldnode: not of its class: gpu.ids: A100"),
        (7, [], 2, "goldnode: could not check"),
        (None, [], 2, "goldnode: could not check"),
        (2, ["\x1b[31mé" + "x" * 300], 1, "goldnode: "),
    ],
)
def test_plugin_prints_one_short_line_with_its_exit_code(
    node: Node, code: Any, reasons: list[str], rc: int, text: str
) -> None:
    node.gate("report", reasons)
    node.checked(code=code)
    done = node.run(shims.NPD)
    assert (done.returncode, done.stderr) == (rc, "")
    assert done.stdout.startswith(text)
    assert done.stdout.count("\n") == 1
    assert len(done.stdout.rstrip("\n").encode()) <= 80
    assert done.stdout.rstrip("\n").isprintable()


def test_the_plugin_does_not_know_what_no_one_has_checked(node: Node) -> None:
    cases: list[dict[str, Any]] = [
        {"age": verdict_files.LIMIT + 60},
        {"age": -1000},
        {"text": "{"},
        {"text": ""},
        {},
    ]
    for case in cases:
        node.checked(**case)
        if not case:
            (node.root / "run/status").unlink()
        done = node.run(shims.NPD)
        assert (done.returncode, done.stderr) == (2, "")
        assert 10 < len(done.stdout) <= 81


def test_its_configuration_keeps_to_the_contract() -> None:
    config = json.loads((INTEGRATIONS / "kubernetes/node-problem-detector.json").read_text())
    assert config["pluginConfig"]["max_output_length"] == 80
    assert (
        {rule["condition"] for rule in config["rules"]}
        == {row["type"] for row in config["conditions"]}
        == {"GPUNodeSanity"}
    )
    assert config["rules"][0]["path"] == "/usr/lib/goldnode/npd-plugin"


@pytest.mark.parametrize(
    "text", [shims.SLURM, shims.NPD, units.MOTD_TEXT], ids=["slurm", "npd", "motd"]
)
def test_no_shell_program_reads_json(text: str) -> None:
    assert ".json" not in text.replace("/drain.json", "")  # whose age alone counts
    assert 'sed -n "' not in text


def test_a_verdict_that_cannot_be_written_leaves_no_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, found = Host(str(tmp_path)), verdict(code=0) | {"uptime": None}
    gate.save(host, found, "{}")
    assert (host.text(verdict_files.STATUS) or "").split()[:2] == ["-", "0"]

    def full(self: Host, name: str, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Host, "write", full)
    with pytest.raises(OSError, match="No space"):
        gate.save(host, found, "{}")
    assert not host.exists(verdict_files.STATUS)
    assert not host.exists(verdict_files.VERDICT)


# -- labels


def test_labels_are_what_kubernetes_takes(node: Node) -> None:
    labels = (INTEGRATIONS / "kubernetes/labels").read_text()
    reported = verdict(**{"class": "h100_sxm5", "class_digest": "sha256:" + "ab" * 32})
    (node.root / "run/metrics.prom").write_text(
        metrics.text(reported, {**CAPTURE, "driver": {"loaded": "580.82 -x/", "cuda": "13.0"}})
    )
    assert node.run(labels).stdout.splitlines() == [
        "goldnode/class=h100_sxm5",
        "goldnode/class-hash=abababababab",
        "goldnode/driver=580.82_-x",
        "goldnode/cuda=13.0",
    ]
    (node.root / "run/metrics.prom").write_text(
        metrics.text({**reported, "class": 'x"}\\' + "y" * 100}, None)
    )
    patch = json.loads(node.run(labels, "--patch").stdout)["metadata"]["labels"]
    assert set(patch) == {
        "goldnode/class",
        "goldnode/class-hash",
        "goldnode/driver",
        "goldnode/cuda",
    }
    assert patch["goldnode/cuda"] is None
    assert all(
        value is None or re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)
        for value in patch.values()
    )
    (node.root / "run/metrics.prom").unlink()
    assert set(json.loads(node.run(labels, "--patch").stdout)["metadata"]["labels"].values()) == {
        None
    }
    assert node.run(labels).stdout == ""


def test_the_rights_are_those_that_labels_need() -> None:
    rows = list(yaml.safe_load_all((INTEGRATIONS / "kubernetes/labels.yaml").read_text()))
    role = next(row for row in rows if row["kind"] == "ClusterRole")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    pod = next(row for row in rows if row["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    yaml.safe_load((INTEGRATIONS / "kubernetes/node-problem-detector.yaml").read_text())

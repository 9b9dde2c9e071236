"""Gate on a systemd node: its three modes, and how a node returns to service.

systemd is real; docker.service is a stand-in that only sleeps.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests import documents
from tests.e2e.support import ROOT, Site, environment, inventory, site_yml, succeeded

from goldnode.node.gate import journal
from goldnode.node.ground import gate_files, verdict_files
from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]
PROGRAM = "/usr/lib/goldnode/goldnode-node"
# The finding of severity drain that the tests make and mend: the initramfs of the locked kernel is away.
INITRD = "/boot/initrd.img-6.1.0-902-amd64"
DOCKER = b"""[Unit]
Description=A stand-in for docker.service that only sleeps
Requires=docker.socket
After=docker.socket
StartLimitBurst=3
StartLimitIntervalSec=60
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""
SOCKET = b"""[Unit]
Description=The socket of the stand-in for docker.service
[Socket]
ListenStream=/run/docker.sock
[Install]
WantedBy=sockets.target
"""
HOOK = b"""#!/bin/sh
echo "${0##*/} $*" >> /var/log/hooks
"""


class Gated:
    """One node that goes through the three modes, as the tests below follow each other."""

    def __init__(self, node: LabNode, site: Site, directory: Path) -> None:
        self.node, self.site, self.directory = node, site, directory

    def converge(self, mode: str) -> None:
        hosts = inventory(self.directory / mode, {f"e2e_gate_{mode}": [self.node]})
        succeeded(site_yml(hosts, site=self.site))

    def watch(self) -> None:
        """What the timer does every few minutes."""
        self.node.run("systemctl", "start", "goldnode-watch.service")

    def spoil(self) -> None:
        self.node.run("mv", INITRD, "/root/initrd")

    def repair(self) -> None:
        self.node.run("mv", "/root/initrd", INITRD)

    def boot(self) -> None:
        self.node.restart()

    def docker(self) -> str:
        """State of the stand-in, once systemd is through with its jobs."""
        for _ in range(300):
            if not self.node.run("systemctl", "list-jobs", "--no-legend").output.strip():
                break
            time.sleep(0.1)
        return self.node.run("systemctl", "is-active", "docker.service", check=False).output.strip()

    def status(self) -> str:
        """Return what systemd shows of docker.service, with the reason of the gate's last refusal."""
        # journald takes messages after it has acknowledged them: late, on a busy machine.
        self.node.run("journalctl", "--sync")
        return self.node.run(
            "systemctl", "status", "--no-pager", "-n", "20", "docker.service", check=False
        ).output

    def refused_for(self, reason: str) -> None:
        """Fail unless systemd shows `reason` as one of those for which the gate refused a start."""
        status = self.status()
        assert re.search(f"goldnode gate: .*{re.escape(reason)}", status), status

    def passes(self) -> bool:
        return self.node.run("test", "-e", gate_files.PASS, check=False).rc == 0

    def state(self) -> dict[str, object]:
        return json.loads(self.node.read(gate_files.STATE))  # type: ignore[no-any-return]

    def login(self) -> str:
        """What a person sees who logs in by ssh."""
        # `-tt` without a command is a login with a terminal, which is what pam_motd answers to.
        done = subprocess.run(
            [*self.node.ssh()[:1], "-tt", *self.node.ssh()[1:]],
            input="exit\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout


@pytest.fixture(scope="module")
def gated(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Gated:
    node, site = make("gated", "e2e_gate_report", "e2e_plain")
    directory = tmp_path_factory.mktemp("gated")
    path = directory / "site.yml"
    text = yaml.safe_load((site.site or Path()).read_text())
    path.write_text(
        yaml.safe_dump(
            {
                **text,
                "gate": {
                    "drain": ["/usr/local/sbin/drain-node"],
                    "resume": ["/usr/local/sbin/resume-node"],
                },
            }
        )
    )
    found = Gated(node, Site(site.catalog, path, site.locks), directory)
    node.put(
        {
            "/usr/lib/systemd/system/docker.service": DOCKER,
            "/usr/lib/systemd/system/docker.socket": SOCKET,
        }
    )
    node.put({f"/usr/local/sbin/{name}-node": HOOK for name in ("drain", "resume")}, 0o755)
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "enable", "--now", "docker.socket", "docker.service")
    found.converge("report")
    return found


def test_the_units_are_sound_and_the_watch_runs(gated: Gated) -> None:
    node = gated.node
    names = node.shell("ls /etc/systemd/system/goldnode-*").output.split()
    assert len(names) >= 3
    done = node.run("systemd-analyze", "verify", "--recursive-errors=no", *names, check=False)
    assert (done.rc, done.output) == (0, "")
    assert node.run("systemctl", "is-active", "goldnode-watch.timer").output.strip() == "active"
    assert node.run("systemctl", "is-enabled", "goldnode-watch.timer").output.strip() == "enabled"
    assert "goldnode-watch.service" in node.run("systemctl", "list-timers", "--no-pager").output
    verdict = documents.valid(node.read(verdict_files.VERDICT))
    documents.valid(node.read(gate_files.STATE))
    documents.valid(node.run("goldnode-node", "capture").output)
    documents.valid(node.read("/etc/goldnode/class.json"))
    outcomes = {finding["id"]: finding["outcome"] for finding in verdict["findings"]}
    assert (outcomes["gate"], outcomes["units.loaded"], outcomes["watch.timer"]) == (
        "match",
        "match",
        "match",
    )
    gated.watch()
    assert json.loads(node.read(verdict_files.VERDICT))["passive"] is True


def journal_entries(node: LabNode, event: str) -> list[dict[str, str]]:
    """Return the entries of one kind as journalctl finds them by their MESSAGE_ID."""
    node.run("journalctl", "--sync")
    text = node.run("journalctl", "-o", "json", f"MESSAGE_ID={journal.EVENTS[event].id}").output
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_a_fresh_node_has_its_metrics_and_the_journal_its_transitions(gated: Gated) -> None:
    # The module's fixture ran site.yml; the watch has not been waited for.
    text = gated.node.read("/run/goldnode/metrics.prom")
    assert re.search(r'^goldnode_info\{.*class="e2e_gate_report"', text, re.MULTILINE)
    assert "goldnode_verdict_holds 1" in text
    gated.spoil()
    gated.watch()
    gated.repair()
    gated.watch()
    statuses = [
        (entry["GOLDNODE_STATUS_BEFORE"], entry["GOLDNODE_STATUS"])
        for entry in journal_entries(gated.node, "node.verdict")
    ]
    assert statuses[0][0] == "none", "the first check of the boot"
    assert [after for _, after in statuses[-2:]] == ["drain", "could_not_check"], (
        "spoilt, and put right"
    )
    last = journal_entries(gated.node, "node.verdict")[-1]
    assert last["GOLDNODE_STATUS_BEFORE"] == "drain"
    assert (last["SYSLOG_IDENTIFIER"], last["GOLDNODE_CLASS"], last["_UID"]) == (
        "goldnode",
        "e2e_gate_report",
        "0",
    )


def test_report_starts_what_it_reports(gated: Gated) -> None:
    assert (gated.passes(), gated.docker()) == (True, "active")
    gated.spoil()
    gated.watch()
    assert json.loads(gated.node.read(verdict_files.VERDICT))["exit_code"] == 2
    assert (gated.passes(), gated.state()["open"]) == (True, True)
    assert "boot.initramfs" in str(gated.state()["reasons"])
    gated.node.run("systemctl", "restart", "docker.service")
    assert gated.docker() == "active"
    assert re.search(
        r"goldnode: class e2e_gate_report, verdict: drain \(exit code 2\)", gated.login()
    )
    gated.repair()


def test_the_cached_verdict_counts_for_its_time(gated: Gated) -> None:
    node = gated.node
    gated.watch()
    asked = node.run(PROGRAM, "check", "--cached", "--quiet", check=False)
    assert (asked.rc, "verdict: could_not_check" in asked.output) == (3, True)
    text = node.read(verdict_files.VERDICT)
    verdict = json.loads(text)
    node.shell(
        f'sed -i \'s/^ "uptime": .*/ "uptime": {verdict["uptime"] - verdict_files.LIMIT - 60},/\' {verdict_files.VERDICT}'
    )
    late = node.run(PROGRAM, "check", "--cached", check=False)
    assert (late.rc, "s old, and holds for" in late.output) == (3, True)
    gated.watch()
    node.run("rm", verdict_files.VERDICT)
    assert "no verdict of this boot" in node.run(PROGRAM, "check", "--cached", check=False).output
    gated.watch()


def test_block_refuses_a_start_and_stops_nothing(gated: Gated) -> None:
    node = gated.node
    gated.converge("block")
    assert (gated.passes(), gated.docker()) == (True, "active")
    sound = node.run(
        "systemd-analyze", "verify", "--recursive-errors=no", "docker.service", check=False
    )
    assert (sound.rc, sound.output) == (0, ""), "the drop-in, as systemd reads it"
    started = node.run("systemctl", "show", "-p", "ExecMainStartTimestamp", "docker.service").output
    gated.spoil()
    gated.watch()
    assert (gated.passes(), gated.docker()) == (False, "active")
    assert (
        node.run("systemctl", "show", "-p", "ExecMainStartTimestamp", "docker.service").output
        == started
    )
    node.run("systemctl", "restart", "docker.service", check=False)
    assert gated.docker() == "inactive"
    assert (
        "goldnode gate: boot.initramfs: missing (want initrd.img-6.1.0-902-amd64)" in gated.status()
    )
    assert "the gate is closed: boot.initramfs: missing" in gated.login()
    (closed,) = journal_entries(node, "gate.closed")
    assert (closed["GOLDNODE_MODE"], closed["PRIORITY"]) == ("block", "4")
    assert "boot.initramfs: missing" in closed["GOLDNODE_REASON"]


def test_block_keeps_out_at_boot_and_lets_in_when_the_cause_is_gone(gated: Gated) -> None:
    gated.boot()
    assert (gated.passes(), gated.docker()) == (False, "inactive")
    gated.refused_for("boot.initramfs: missing")
    assert (
        gated.node.run("systemctl", "is-active", "goldnode-sanity.service").output.strip()
        == "active"
    )
    # Whoever asks for it through its socket, or again and again by hand, runs into systemd's start limits; the gate clears them.
    gated.node.run(
        "python3", "-c", "import socket; socket.socket(socket.AF_UNIX).connect('/run/docker.sock')"
    )
    for _ in range(6):
        gated.node.run("systemctl", "start", "docker.service", check=False)
    assert gated.docker() == "inactive"
    assert (
        gated.node.run("systemctl", "is-active", "docker.socket", check=False).output.strip()
        == "failed"
    )
    gated.repair()
    gated.watch()
    assert (gated.passes(), gated.docker()) == (True, "active")
    assert gated.node.run("systemctl", "is-active", "docker.socket").output.strip() == "active"
    gated.boot()
    assert gated.docker() == "active", "a good node starts its runtime at boot"


def test_the_node_suite_agrees(gated: Gated) -> None:
    """testinfra's readers, which share nothing with the program's."""
    done = subprocess.run(
        [
            str(ROOT / "scripts/verify"),
            "-i",
            str(gated.directory / "block"),
            "-k",
            "gate or passive or roots",
        ],
        cwd=ROOT,
        env=environment(gated.site),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert re.search(r"^[1-9][0-9]* verified, 0 failed", done.stdout, re.MULTILINE), done.stdout[
        -1000:
    ]


@pytest.mark.parametrize(("decide", "undo"), [("mask", "unmask"), ("disable", "enable")])
def test_masked_or_disabled_engine_stays_down_when_gate_opens(
    gated: Gated, decide: str, undo: str
) -> None:
    node = gated.node
    gated.spoil()
    gated.watch()
    node.run("systemctl", "restart", "docker.service", check=False)
    assert gated.docker() == "inactive"
    node.run("systemctl", decide, "docker.service")
    gated.repair()
    gated.watch()
    assert (gated.passes(), gated.docker()) == (True, "inactive")
    assert (
        "docker.service stays down"
        in node.run("journalctl", "-b", "--no-pager", "-u", "goldnode-watch.service").output
    )
    node.run("systemctl", undo, "docker.service")
    node.run("systemctl", "start", "docker.service")
    assert gated.docker() == "active"


def test_a_broken_checker_blocks_where_the_class_blocks(gated: Gated) -> None:
    node = gated.node
    node.shell(f"cp -a {PROGRAM} /root/program; echo garbage > {PROGRAM}")
    gated.boot()
    assert (gated.passes(), gated.docker()) == (False, "inactive")
    gated.refused_for("no verdict since this boot")
    node.shell(f"cp -a /root/program {PROGRAM}")
    gated.watch()
    assert gated.docker() == "active"


def test_a_checker_that_stopped_is_noticed(gated: Gated) -> None:
    node = gated.node
    at, limit = node.read(gate_files.PASS).split()
    node.shell(f"echo {int(at) - int(limit) - 60} {limit} > {gate_files.PASS}")
    node.run("systemctl", "restart", "docker.service", check=False)
    assert gated.docker() == "inactive"
    gated.refused_for("the last verdict is too old")
    gated.watch()
    assert gated.docker() == "active"


def test_drain_reports_once_and_takes_back_only_its_own(gated: Gated) -> None:
    node = gated.node
    gated.converge("drain")
    assert not node.run(
        "sh", "-c", "ls /etc/systemd/system/docker.service.d", check=False
    ).output.startswith("goldnode")
    node.run("systemctl", "restart", "docker.service")
    gated.spoil()
    for _ in range(2):
        gated.watch()
    gated.boot()
    gated.watch()
    assert gated.docker() == "active", "drain keeps no runtime down"
    hooks = node.read("/var/log/hooks").splitlines()
    assert hooks == [
        "drain-node goldnode: boot.initramfs: missing (want initrd.img-6.1.0-902-amd64)"
    ]
    gated.repair()
    for _ in range(2):
        gated.watch()
    assert node.read("/var/log/hooks").splitlines()[1:] == [
        "resume-node goldnode: the node is what its class says again"
    ]
    node.shell(
        "printf '#!/bin/sh\\nexit 3\\n' > /usr/local/sbin/drain-node"
    )  # drained already, by somebody else
    gated.spoil()
    gated.watch()
    gated.repair()
    gated.watch()
    assert len(node.read("/var/log/hooks").splitlines()) == 2


def test_a_broken_checker_in_report_mode(gated: Gated) -> None:
    node = gated.node
    gated.converge("report")
    node.shell(f"cp -a {PROGRAM} /root/program; echo garbage > {PROGRAM}")
    gated.boot()
    assert gated.docker() == "active"
    node.shell(f"cp -a /root/program {PROGRAM}")


def test_a_second_run_reloads_nothing(gated: Gated) -> None:
    node = gated.node
    gated.converge("report")
    count = node.run("journalctl", "-b", "--no-pager").output.count("Reloading")
    hosts = inventory(gated.directory / "again", {"e2e_gate_report": [node]})
    run = succeeded(site_yml(hosts, site=gated.site))
    assert run.changed["gated"] == 0
    assert node.run("journalctl", "-b", "--no-pager").output.count("Reloading") == count

"""A mitigation by a kernel parameter and a word of the command line on a node in a container: written, and removed after its end.

SACK Panic (CVE-2019-11477) is one whose advisory asked for `net.ipv4.tcp_sack=0`. A container has the kernel of its host, so
goldnode sets and judges no value of it here, and states that. `test_boot_entry.py` shows both in force, on an emulated machine.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.conftest import World
from tests.e2e.support import BIN, Run, environment, inventory, site_yml, succeeded
from tests.unit.cve.samples import tracker

pytestmark = [pytest.mark.lab, pytest.mark.long]

CVE, CLASS, STACK = "CVE-2019-11477", "e2e_cpu", "debian12_cpu"
VALUE = "/proc/sys/net/ipv4/tcp_sack"
FILE = "/etc/sysctl.d/90-goldnode.conf"
CMDLINE = "/etc/default/grub.d/91-goldnode-cmdline.cfg"
ITEM, DAY, WORDS = (
    "policy.host.sysctl.net.ipv4.tcp_sack",
    "policy.host.mitigations",
    "policy.host.cmdline",
)


def test_parameter_of_a_mitigation_is_applied_judged_and_removed(
    world: World, tmp_path: Path
) -> None:
    node, site = world.node("mitigated", CLASS), world.site("mitigated")
    world.publish()
    world.lock(site, node, STACK)
    assert site.site is not None
    hosts = inventory(tmp_path / "hosts", {CLASS: [node]})
    home = site.site.parent
    row = {"status": "resolved", "fixed_version": "99.1-1", "urgency": "high"}
    (home / "tracker.json").write_text(tracker({"linux": {CVE: {"bookworm": row}}}))

    def converge() -> Run:
        return succeeded(site_yml(hosts, site=site))

    def findings() -> dict[str, tuple[str, str]]:
        done = node.run("/usr/lib/goldnode/goldnode-node", "check", "--format", "json", check=False)
        document: dict[str, Any] = json.loads(done.output[done.output.index("{") :])
        return {row["id"]: (row["outcome"], str(row["got"])) for row in document["findings"]}

    def mitigate(*words: str) -> str:
        argv = [str(BIN / "goldnode"), "cve", "mitigate", CVE, "--feed", "debian=tracker.json"]
        done = subprocess.run(
            [*argv, *words],
            cwd=home,
            env=environment(site),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    converge()
    assert node.read(VALUE).strip() == "1"
    assert ITEM not in findings()

    last = f"{dt.datetime.now(dt.UTC) + dt.timedelta(days=3):%Y-%m-%d}"
    mitigate(
        *(
            "--no-nodes",
            "--class",
            CLASS,
            "--sysctl",
            "net.ipv4.tcp_sack=0",
            "--boot",
            "slub_debug=F",
        ),
        *(
            "--reason",
            "the advisory asks for it",
            "--owner",
            "platform",
            "--expires",
            last,
            "--write",
        ),
    )
    converge()
    assert "net.ipv4.tcp_sack = 0" in node.read(FILE)
    assert "slub_debug=F" in node.read(CMDLINE)
    assert (findings()[ITEM][0], findings()[DAY][0]) == ("not_verified_here", "match")
    # No boot has the word: the container has the command line of its host's kernel.
    assert findings().get(WORDS, ("absent", ""))[0] != "match"
    assert node.read(VALUE).strip() == "1", "the kernel is that of the host"
    assert converge().changed["mitigated"] == 0

    # After its last day: the check of the node reports it by the node's own clock, and the next run removes it.
    path = home / "vulnerabilities" / CVE / "mitigation.yml"
    content = yaml.safe_load(path.read_text())
    content["expires"] = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    converge()
    # || true: cat fails where no file is left, which is right. That they were there is asserted above.
    left = node.shell("cat /etc/sysctl.d/*goldnode* /etc/default/grub.d/*goldnode* || true").output
    assert "tcp_sack" not in left
    assert "slub_debug" not in left
    assert not {ITEM, DAY, WORDS} & set(findings())
    node.destroy()

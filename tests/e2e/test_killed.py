"""Each step of an apply, with the whole run killed at it: the next run continues, and the last one converges.

One node is killed at every step in turn, so each run starts from the state an earlier one left behind.
test_standins.py kills single programs, test_power_cut.py cuts the power, test_removal.py kills a removal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.support import Site, inventory, site_yml, succeeded

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]

# Everything that a run has started on the node. The brackets keep a pattern from matching the shell that holds it.
VICTIMS = r"goldnode-nod[e] answer|^apt-ge[t] |/usr/bin/apt-ge[t] |dpk[g] |dkm[s] |mkinitramf[s]|update-initramf[s]|/info/.*[.](pre|pos)|^make "
KILL = f"pkill -KILL -f '{VICTIMS}'"

# The steps of an apply in their order; docs/how-to/rollback.md tells what each leaves behind. A step is at work when a program is called with
# arguments that match a pattern of grep, when a test of the shell succeeds, or when a file is there.
CALLED, SEEN, WRITTEN = "called", "seen", "written"
STEPS = [
    ("class document", WRITTEN, "/etc/goldnode/class.json"),
    ("sources", WRITTEN, "/etc/apt/sources.list.d/goldnode-debian.sources"),
    ("pins and fence", WRITTEN, "/etc/apt/preferences.d/goldnode-stack"),
    ("indexes", CALLED, "apt-get: update$"),
    ("simulation", CALLED, "apt-get: -s "),
    ("download", CALLED, "apt-get:--download-only"),
    ("unpack", SEEN, "pgrep -f 'dpk[g] .*--unpack'"),
    ("configure", SEEN, "pgrep -f 'dpk[g] .*--configure'"),
    ("maintainer script", SEEN, "pgrep -f '/info/.*[.](postins[t]|preins[t])'"),
    ("module build", CALLED, "dkms:build|install"),
    ("depmod", CALLED, "depmod:."),
    ("initramfs", CALLED, "mkinitramfs:."),
    ("holds", CALLED, "apt-mark:^hold"),
    ("units", CALLED, "systemctl:^start"),
]


def trap(node: LabNode, what: str, how: str, sign: str) -> None:
    """Have the node kill everything of the run, once, when the step is at work. /run/killed says that it was."""
    node.shell("rm -rf /run/killed; rm -f /usr/local/sbin/*")
    if how == CALLED:
        program, _, pattern = sign.partition(":")
        real = node.shell(f"command -v {program} || echo /usr/sbin/{program}").output.strip()
        script = f"""#!/bin/sh
echo "$*" | grep -qE -e '{pattern}' && mkdir /run/killed 2>/dev/null && {{ {KILL}; kill -KILL $PPID $$; }}
exec {real} "$@"
"""
        node.put({f"/usr/local/sbin/{program}": script.encode()}, mode=0o755)
    else:
        if (
            how == WRITTEN
        ):  # milliseconds count: the first process of the engine is found before the file is; the rest of them dies after it
            find = "pid=$(pgrep -f 'goldnode-nod[e] answer' | head -1)"
            inner = f'while [ -n "$pid" ] && [ -d /proc/$pid ]; do [ -e {sign} ] && kill -KILL $pid && mkdir /run/killed && {{ {KILL}; exit 0; }}; done'
            loop = f"for i in $(seq 15000); do {find}; {inner}; sleep 0.01; done"
        else:
            loop = f"for i in $(seq 15000); do {sign} >/dev/null && {{ mkdir /run/killed; {KILL}; exit 0; }}; sleep 0.01; done"
        node.put({"/root/watch": f"#!/bin/sh\n{loop}\n".encode()}, mode=0o755)
        node.shell("systemd-run --collect --unit=watch /root/watch")
    assert node.run("test", "-e", "/run/killed", check=False).rc != 0, what


def test_killed_at_every_step_one_after_the_other(make: Make, tmp_path: Path) -> None:
    node, site = make("killed-on", "e2e_r535", "debian12_r535")
    hosts = inventory(tmp_path, {"e2e_r535": [node]})
    for what, how, sign in STEPS:
        trap(node, what, how, sign)
        run = site_yml(hosts, site=site)
        # || true: the watch of an earlier step may have ended by itself; what it did is asserted, not that it ran.
        node.shell("systemctl stop watch.service 2>/dev/null || true")
        assert node.run("test", "-e", "/run/killed", check=False).rc == 0, (
            f"{what}: was never at work\n{run.output[-3000:]}"
        )
        assert run.rc != 0, f"{what}: the run did not notice that it was killed"
    node.shell("rm -rf /run/killed /root/watch; rm -f /usr/local/sbin/*")
    succeeded(site_yml(hosts, site=site))
    assert (
        node.run(
            "modinfo", "-k", "6.1.0-902-amd64", "-F", "version", "nvidia-current"
        ).output.strip()
        == "535.309.01"
    )
    assert node.run("dpkg", "--audit").output == ""
    assert succeeded(site_yml(hosts, site=site)).changed["killed-on"] == 0

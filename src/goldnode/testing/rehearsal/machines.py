"""Nodes of a rehearsal: containers with systemd, whose kernel is simulated.

A container has the kernel of its host. Here it shows the newest kernel that is installed in it, from boot to boot, in
/proc/sys/kernel/osrelease and version, and the health check labels the node as simulated.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from docker.errors import DockerException

from goldnode.core import docker_engine
from goldnode.core.docker_engine import Say
from goldnode.node.ground.host import SIMULATED_KERNEL
from goldnode.testing.lab.nodes import Lab, LabError, NodeSpec
from goldnode.testing.rehearsal.errors import RehearsalError

BOOT = "/opt/goldnode-rehearsal/boot"
UNIT = "/etc/systemd/system/simulated-kernel.service"
# An initramfs of a container is read and never booted: without drivers, it is made in seconds.
SMALL = "/etc/initramfs-tools/conf.d/rehearsal"
_BOOT = f"""\
#!/bin/sh
# goldnode: shows the newest installed kernel as the one that runs. SIMULATED: a container has its host's.
set -e
release=$(ls /boot | sed -n 's/^vmlinuz-//p' | sort -V | tail -n 1)
[ -n "$release" ] || exit 0
version=$(dpkg-query -W -f '${{Version}}' "linux-image-$release")
mkdir -p {SIMULATED_KERNEL}
echo "$release" >{SIMULATED_KERNEL}/osrelease
echo "#1 SMP PREEMPT_DYNAMIC Debian $version (SIMULATED)" >{SIMULATED_KERNEL}/version
for name in osrelease version; do
    mountpoint -q /proc/sys/kernel/$name || mount --bind {SIMULATED_KERNEL}/$name /proc/sys/kernel/$name
done
"""
_UNIT = f"""\
[Unit]
Description=SIMULATED kernel of a rehearsal of goldnode
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target
ConditionVirtualization=container

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={BOOT}

[Install]
WantedBy=sysinit.target
"""
_SHOWN = """\
release=$(ls /boot | sed -n 's/^vmlinuz-//p' | sort -V | tail -n 1)
[ -n "$release" ] && [ "$(cat /proc/sys/kernel/osrelease)" = "$release" ]
"""
SETTLED, PAUSE = 600.0, 1.0  # seconds
REAL = "packages, apt, systemd, modprobe's configuration, ssh, Ansible, locks, captures, rollout, signatures"
SIMULATED = (
    "which kernel runs (the newest that is installed), and its boot (the container restarts)"
)


class LabMachines:
    """Containers of a lab. `directory` holds their keys."""

    def __init__(self, name: str, directory: Path, say: Say) -> None:
        self.lab = Lab(name, docker_engine.connect(), state=directory, say=say)

    def start(self, names: list[str], group: str) -> Path:
        """Start the nodes with a simulated kernel, and return the file of their inventory."""
        specs = [NodeSpec(name, group, flavour="warm") for name in names]
        for node in self.lab.up(specs):
            node.put({SMALL: b"MODULES=list\n", UNIT: _UNIT.encode()})
            node.put({BOOT: _BOOT.encode()}, 0o755)
            node.run("systemctl", "enable", "-q", "simulated-kernel.service")
        return self.lab.inventory / "hosts.yml"

    def off(self, name: str) -> None:
        """Let a node not answer ssh. A container that is stopped may lose its port to another program."""
        # Sessions outlive the service, and a connection that Ansible keeps would still answer.
        self.lab.node(name).shell("systemctl stop ssh.service; pkill -KILL -x sshd || true")

    def on(self, name: str) -> None:
        """Let a node answer ssh again."""
        node = self.lab.node(name)
        node.run("systemctl", "start", "ssh.service")
        node.wait()

    def settle(self, names: list[str]) -> None:
        """Wait until nodes run and show their simulated kernel: a restart is over when ssh answers, and may not have begun before.

        Raises RehearsalError after ten minutes.
        """
        end = time.monotonic() + SETTLED
        for name in names:
            while self.lab.node(name).state != "running" or not self._shows_newest(name):
                if time.monotonic() > end:
                    raise RehearsalError(
                        f"{name} does not show its simulated kernel after {SETTLED:g} s",
                        remedy=f"see `docker logs` and `systemctl status simulated-kernel` of {name}",
                    )
                time.sleep(PAUSE)

    def _shows_newest(self, name: str) -> bool:
        with suppress(LabError, DockerException):
            return self.lab.node(name).run("sh", "-c", _SHOWN, check=False).rc == 0
        return False  # it restarts right now

    def end(self) -> None:
        """Remove all that was made."""
        self.lab.down()

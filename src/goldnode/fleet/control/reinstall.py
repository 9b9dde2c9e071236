"""A node is installed again from the network: its order is raised and signed, and its BMC boots it from there, once.

The installer does the rest (:mod:`goldnode.node.install`), and leaves a record of the order on the disk. That record is the proof:
a node that only has booted again shows the one of before. The same work gives an order once, so that a controller that takes over
waits for an installation that is under way.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from goldnode.core.errors import GoldnodeError
from goldnode.core.site import SiteInstall, load_site
from goldnode.disks.netboot import InstallAgain, heads, load_plan, order_again
from goldnode.evidence.signatures import load_signer
from goldnode.fleet.control import bmc
from goldnode.fleet.control.bmc import Bmc, PowerTimes
from goldnode.fleet.nodes.reach import SshNode, last_line
from goldnode.fleet.shared import denylist
from goldnode.node.install.target import MIB, RECORD, SECTOR, recorded

LIMIT = 2400.0  # seconds from power on until the installed node answers
PAUSE = 5.0
# The record is on the disk of the root: no partition has it.
_READ = rf"""
part=$(findmnt -nvo SOURCE /) || exit 1
disk=$(lsblk -nsro NAME,TYPE "$part" | sed -n 's/ disk$//p' | head -n 1)
[ -n "$disk" ] || exit 1
dd if="/dev/$disk" bs={MIB - RECORD} skip={RECORD // (MIB - RECORD)} count=1 status=none | head -c {SECTOR}
"""


class ReinstallError(GoldnodeError):
    """A node was not installed again, or it is not known whether it was."""


@dataclass(frozen=True)
class Reinstaller:
    """Installations of a site.

    :param resolve: returns the file that a name of the site file means.
    :param bmc_of: returns the BMC of a node; raises GoldnodeError for a site without BMCs.
    """

    site: SiteInstall
    resolve: Callable[[str], Path]
    bmc_of: Callable[[str], Bmc]
    reach: Callable[[str], SshNode]
    times: PowerTimes = field(default_factory=PowerTimes)
    limit: float = LIMIT
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    stopped: Callable[[], bool] = lambda: False  # no further wait for an installation

    def check(self, node: str, class_: str, channel: str | None = None) -> None:
        """Raise GoldnodeError if the plan does not install a node as a member of its class. Changes nothing.

        :param channel: whose image is installed; None: that of the plan. A denied build is refused.
        """
        path, place = self.resolve(self.site.plan), self.resolve(self.site.to)
        machine = load_plan(path).machines.get(node)
        if machine is None or machine.class_ != class_:
            what = f"installs it as {machine.class_}" if machine is not None else "does not have it"
            raise ReinstallError(
                f"{node} is of class {class_}, and the plan of installations {what}",
                file=path,
                remedy="correct the plan, and run `goldnode disks netboot`",
            )
        channel = channel or machine.channel
        build = heads(place, class_).get(channel)
        if build is None:
            raise ReinstallError(
                f"{channel} of class {class_} points to no build",
                file=place,
                remedy="promote one: `goldnode disks promote`",
            )
        denylist.check(denylist.read(load_site().deny_list()), class_, build)

    def order(self, wish: InstallAgain) -> tuple[int, bool]:
        """Raise and sign the order of a node. Return its number, and whether this call has raised it. Raises GoldnodeError."""
        plan = load_plan(self.resolve(self.site.plan))
        signer = load_signer(self.resolve(self.site.key))
        return order_again(plan, self.resolve(self.site.to), signer, wish)

    def install(self, wish: InstallAgain) -> str:
        """Install a node again, and return what was installed once it answers. Raises GoldnodeError.

        Everything on the node is lost. The caller has taken it out of service.
        """
        number, raised = self.order(wish)
        record = self.record(wish.node)
        if record is not None and record.get("erase") == number:
            return _done(record)
        if raised or record is not None:
            bmc.netboot(self.bmc_of(wish.node), self.times, self.sleep, self.clock)
        else:  # another controller has begun, and the installer may be at work
            bmc.ensure_on(self.bmc_of(wish.node), self.times, self.sleep, self.clock)
        return self._installed(wish.node, number)

    def record(self, node: str) -> Mapping[str, Any] | None:
        """Return the record on the disk that a node runs from, empty without one; None while the node does not answer."""
        done = self._ask(self.reach(node))
        return None if done.returncode else recorded(done.stdout)

    def _ask(self, target: SshNode) -> subprocess.CompletedProcess[bytes]:
        return target.run("sh", "-c", _READ, timeout=60)

    def _installed(self, node: str, number: int) -> str:
        target = self.reach(node)
        if self.site.accept_host_key:
            forget_host_key(target)
            words = (target.ssh[0], "-o", "StrictHostKeyChecking=accept-new", *target.ssh[1:])
            target = replace(target, ssh=words)
        end = self.clock() + self.limit
        while self.clock() < end and not self.stopped():
            self.sleep(PAUSE)
            done = self._ask(target)
            said = last_line(done.stderr)
            if done.returncode == 0:
                record = recorded(done.stdout)
                if record.get("erase") == number:
                    return _done(record)
                raise ReinstallError(
                    f"{node} runs from its disk, and order `erase: {number}` was not carried out",
                    remedy="see its console: the installer shows why, or its firmware did not boot from the network",
                )
            if done.returncode == 255 and "Host key verification failed" in said:
                raise ReinstallError(
                    f"{node} answers with another ssh host key, as a node that was installed does",
                    remedy="enter its new key as known, or set ladder.install.accept_host_key in the site file",
                )
        raise ReinstallError(
            f"{node} does not answer {self.limit:g} s after it was booted from the network",
            remedy="see its console: the installer shows why",
        )


def _done(record: Mapping[str, Any]) -> str:
    return f"{record.get('image')} is installed (erase: {record.get('erase')})"


def forget_host_key(target: SshNode) -> None:
    """Remove the host keys of a node from the files in which its ssh looks for them."""
    asked = subprocess.run(
        [target.ssh[0], "-G", *target.ssh[1:]], capture_output=True, text=True, check=False
    )
    rows = dict(line.split(" ", 1) for line in asked.stdout.splitlines() if " " in line)
    name, port = rows.get("hostkeyalias") or rows.get("hostname", target.name), rows.get("port")
    if "hostkeyalias" not in rows and port not in (None, "22"):
        name = f"[{name}]:{port}"
    for text in shlex.split(rows.get("userknownhostsfile", "")):
        path = Path(text).expanduser()
        if path.is_file():
            subprocess.run(
                ["ssh-keygen", "-R", name, "-f", str(path)], capture_output=True, check=False
            )

"""The rungs of the ladder on a node: services, GPUs and modules over ssh, boots by scheduler or ssh, power by the BMC.

Each rung looks again before it acts: the node is out of service for the ladder, and nothing runs on it.
"""

from __future__ import annotations

import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.core.site import SiteLadder
from goldnode.disks.netboot import InstallAgain
from goldnode.facts import ladder as facts
from goldnode.fleet.control import bmc
from goldnode.fleet.control.bmc import PowerTimes
from goldnode.fleet.control.ladder import RefusedRungError
from goldnode.fleet.control.reinstall import Reinstaller
from goldnode.fleet.nodes import disk_update
from goldnode.fleet.nodes.disk_update import chosen_image
from goldnode.fleet.nodes.reach import SshNode, last_line
from goldnode.fleet.rollout.ladder import RepairCase
from goldnode.node.ground import boot

LOGGER = logging.getLogger("goldnode.ladder")
SLOT = 2400.0  # seconds for all tries of an image
BOOT = 1800.0  # seconds until a node that boots answers
PAUSE = 5.0
# Services of the driver that hold GPUs open and are no work: stopped for a reset or a reload, and started after it.
HOLDERS = (
    "nvidia-persistenced.service",
    "nvidia-dcgm.service",
    "nvidia-fabricmanager.service",
    "dcgm-exporter.service",
    "nvidia-powerd.service",
)
# Order in which they can be unloaded.
MODULES = ("nvidia_peermem", "nvidia_fs", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
# Names the processes that have a GPU open, MIG clients included: each opens a device of the driver.
_USERS = r"""
users() {
  for fd in /proc/[0-9]*/fd/*; do
    case $(readlink "$fd" 2>/dev/null) in
      /dev/nvidia[0-9]*|/dev/nvidia-uvm|/dev/nvidia-caps/*)
        pid=${fd#/proc/}; pid=${pid%%/*}; echo "$pid $(cat /proc/"$pid"/comm 2>/dev/null)" ;;
    esac
  done | sort -u
}
"""
# Stops what is active of the services above, and writes down which, so that an interrupted rung can be restored.
_STOP = r"""
set -u
record=/run/goldnode/ladder-services
mkdir -p /run/goldnode
: >>"$record"
for unit in HOLDERS; do
  if systemctl is-active --quiet "$unit"; then echo "$unit" >>"$record"; sync "$record"; systemctl stop "$unit" || exit 10; fi
done
"""
_START = r"""
status=0
start() {
  record=/run/goldnode/ladder-services
  if [ -e "$record" ]; then
    for unit in $(sort -u "$record"); do systemctl start "$unit" || { echo "$unit does not start"; status=11; }; done
    [ "$status" != 0 ] || rm -f "$record"
  fi
}
"""
_REFUSE = r"""
busy=$(users)
if [ -n "$busy" ]; then start; echo "in use by: $(echo "$busy" | tr '\n' ';' | head -c 300)"; exit 20; fi
"""
# Without -i all GPUs of the node are reset in one call: those that share NVLink or NVSwitch have to be. It is drained anyhow.
_RESET = r"""
out=$(timeout 300 nvidia-smi --gpu-reset 2>&1); reset=$?
start
echo "$out" | tail -n 2
[ "$reset" = 0 ] || exit 12
exit "$status"
"""
_RELOAD = r"""
for module in MODULES; do
  if [ -d /sys/module/$module ]; then modprobe -r $module 2>/run/goldnode/ladder-modprobe || { left=$(cat /run/goldnode/ladder-modprobe); break; }; fi
done
modprobe nvidia && { modprobe nvidia_uvm 2>/dev/null || :; } || { start; echo "the driver does not load"; exit 13; }
start
[ -z "${left:-}" ] || { echo "$left"; exit 14; }
exit "$status"
"""


def _script(*parts: str) -> str:
    text = "\n".join((_START, *parts))
    return text.replace("HOLDERS", " ".join(HOLDERS)).replace("MODULES", " ".join(MODULES))


GPU_RESET = _script(_USERS, _STOP, _REFUSE, _RESET)
MODULE_RELOAD = _script(_USERS, _STOP, _REFUSE, _RELOAD)
RESTORE = _script("modprobe nvidia 2>/dev/null || :", "start", 'exit "$status"')
REFUSED = 20  # status of a script that found work


@dataclass(frozen=True)
class RungTools:
    """Tools of a site for the rungs: how nodes are reached, and which scheduler boots them.

    :param guard: returns why the node may not be touched now; empty if it may. Asked right before the effect.
    """

    site: SiteLadder
    reach: Callable[[str], SshNode]
    guard: Callable[[RepairCase], str]
    resolve: Callable[[str], Path]
    class_: Callable[[str], str]
    slurm: Mapping[str, str] = field(default_factory=dict)  # node -> its name in Slurm
    times: PowerTimes = field(default_factory=PowerTimes)
    boot_limit: float = BOOT
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def act(self, case: RepairCase) -> str:
        """Carry out the rung of a case. Raises RefusedRungError before any effect, and GoldnodeError."""
        why = self.guard(case)
        if why:
            raise RefusedRungError(f"{case.node}: {why}")
        work = {
            "service-restart": self._services,
            "gpu-reset": self._gpu,
            "module-reload": self._modules,
            "reboot": self._reboot,
            "power-cycle": self._power,
            "slot-write": self._slot,
            "reinstall": self._install,
        }[case.rung]
        return work(case)

    def restore(self, case: RepairCase) -> str:
        """Restore what an interrupted rung may have taken down."""
        if case.rung in ("power-cycle", "reinstall"):
            # An installation goes on by itself: its order is valid until it was carried out.
            bmc.ensure_on(self._bmc(case.node), self.times, self.sleep, self.clock)
            return "interrupted; the node is on"
        if case.rung in ("gpu-reset", "module-reload"):
            self._run(case.node, RESTORE, 300.0)
            return "interrupted; the services of the driver run"
        return "interrupted"

    # -- rungs

    def _services(self, case: RepairCase) -> str:
        way = facts.way(case.finding)
        units = [shlex.quote(unit) for unit in (way.units if way is not None else ())]
        # `systemctl restart` fails for the whole list if one unit is not installed.
        text = self._run(
            case.node,
            f"""
            for unit in {" ".join(units)}; do
              systemctl cat "$unit" >/dev/null 2>&1 || continue
              systemctl restart "$unit" || {{ systemctl --no-pager -n 0 status "$unit" | head -n 3 | tail -n 1; exit 15; }}
              sleep 2
              systemctl is-active --quiet "$unit" || {{ echo "$unit does not stay active"; exit 16; }}
              echo "$unit restarted"
            done
            """,
            300.0,
        )
        if not text:
            raise GoldnodeError(f"{case.node} has none of {', '.join(units)}")
        return text

    def _gpu(self, case: RepairCase) -> str:
        return self._run(case.node, GPU_RESET, 900.0) or "reset"

    def _modules(self, case: RepairCase) -> str:
        return self._run(case.node, MODULE_RELOAD, 900.0) or "reloaded"

    def _reboot(self, case: RepairCase) -> str:
        before = self._boot(case.node)
        name = self.slurm.get(case.node)
        if name is not None and before is None:
            # A node that ssh does not reach may still obey its scheduler.
            self._local(["scontrol", "reboot", "ASAP", "nextstate=DOWN", name])
        else:
            # The connection may break before the answer: the id of the boot shows what happened.
            self.reach(case.node).run("systemctl", "reboot", timeout=60)
        return self._booted(case.node, before)

    def _booted(self, node: str, before: str | None) -> str:
        end = self.clock() + self.boot_limit
        while self.clock() < end:
            self.sleep(PAUSE)
            now = self._boot(node)
            if now is not None and now != before:
                return f"booted: {now}"
        raise GoldnodeError(f"{node} does not answer {self.boot_limit:g} s after the order to boot")

    def _boot(self, node: str) -> str | None:
        """Return the identity of the present boot of a node, as its check has it; None while it does not answer."""
        done = self.reach(node).run(
            "cat", "/proc/1/stat", "/proc/sys/kernel/random/boot_id", timeout=60
        )
        stat, _, boot_id = done.stdout.decode("utf-8", "replace").strip().rpartition("\n")
        if done.returncode or not boot_id:
            return None
        return boot.identity(boot_id, stat) or boot_id

    def _power(self, case: RepairCase) -> str:
        before = self._boot(case.node)
        bmc.cycle(self._bmc(case.node), self.times, self.sleep, self.clock)
        return f"power cycled; {self._booted(case.node, before)}"

    def _slot(self, case: RepairCase) -> str:
        image = chosen_image(f"{self.class_(case.node)}:{self.site.channel}", None)
        target = self.reach(case.node)
        with disk_update.program(target) as there:
            after = disk_update.write(there, image, LOGGER.info)
        slot, name = str(after["next"]), image.disk.name
        disk_update.restart(target, slot, image=name, limit=SLOT, say=LOGGER.info)
        return f"slot {slot} has {name}, and it is booted"

    def _install(self, case: RepairCase) -> str:
        if self.site.install is None:
            raise RefusedRungError("ladder.install of the site file is not given")
        self._bmc(case.node)
        own = Reinstaller(
            self.site.install,
            self.resolve,
            self._bmc,
            self.reach,
            times=self.times,
            sleep=self.sleep,
            clock=self.clock,
        )
        try:
            own.check(case.node, self.class_(case.node))
        except GoldnodeError as problem:
            raise RefusedRungError(str(problem)) from problem
        return own.install(
            InstallAgain(case.node, f"repair {case.opened_at:.0f}/{case.changed_at:.0f}")
        )

    # -- calls

    def _bmc(self, node: str) -> bmc.Bmc:
        if self.site.bmc is None:
            raise RefusedRungError("ladder.bmc of the site file is not given")
        return bmc.bmc_of(self.site.bmc, node, self.resolve)

    def _run(self, node: str, script: str, limit: float) -> str:
        done = self.reach(node).run("sh", "-c", script, timeout=limit)
        said = " ".join(done.stdout.decode("utf-8", "replace").split())[-400:]
        if done.returncode == REFUSED:
            raise RefusedRungError(f"{node}: {said}")
        if done.returncode:
            raise GoldnodeError(f"{node}: {said or last_line(done.stderr) or done.returncode}")
        return said

    @staticmethod
    def _local(words: Sequence[str]) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise GoldnodeError(f"{words[0]}: {done.stderr.strip() or done.returncode}")

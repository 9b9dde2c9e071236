"""The faults of `goldnode game-day`: a row each, with what makes it, what takes it back and who must see it.

A fault is harmless if no job and no later boot can meet it. Each is in the running state or in /run where that is
possible, so that a boot ends it; the two others are taken back by the unit that a boot starts
(:mod:`goldnode.fleet.nodes.game_day`). `tests/e2e/test_game_day.py` makes them on a node with systemd.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from goldnode.node.ground.json_lines import as_dict
from goldnode.node.state.kinds import DRAIN, kind
from goldnode.node.verdict.deltas import MEMORY

# Of the files and units of a game day. goldnode's own prefix is not used: site.yml removes units that have it and that no class declares.
NAME = "game-day"
LABEL = "# goldnode game day: removed by game-day-end.service"
_STATE = MEMORY.rpartition("/")[0]
_RULES = f"/run/modprobe.d/zz-{NAME}.conf"
_SYSCTL = f"/run/sysctl.d/zz-{NAME}.conf"
_DROP_IN = "/run/systemd/system/goldnode-sanity.service.d"
_PROGRAM = "/usr/local/sbin/goldnode-node"
_LOG_UNIT = f"{NAME}-log-line.service"


@dataclass(frozen=True)
class SurveyedNode:
    """Report of a node before the fault: its documents, and the properties that decide whether a fault is possible.

    `mtu`: interface -> bytes. `programs`: paths of goldnode-node that are not goldnode's own.
    """

    class_document: Mapping[str, Any]
    verdict: Mapping[str, Any]
    gate: Mapping[str, Any]
    uptime: float
    container: bool = False
    held: tuple[str, ...] = ()
    mtu: Mapping[str, int] = field(default_factory=dict)
    programs: tuple[str, ...] = ()
    active: tuple[str, ...] = ()  # units that are active, of those that a fault stops
    holders: tuple[str, ...] = ()  # processes that have a GPU open
    busy: str | None = None  # record of a game day on the node
    armed: bool = False  # its end is armed

    def policy(self, *keys: str) -> Any:
        """Return a declared setting of the class; None if it declares none."""
        value: Any = self.class_document.get("policy")
        for key in keys:
            value = as_dict(value).get(key)
        return value


# A shell script for the node, or the reason why this node cannot have the fault.
Script = Callable[[SurveyedNode], str]
Obstacle = Callable[[SurveyedNode], str | None]


@dataclass(frozen=True)
class GameDayFault:
    """One fault: `make` and `undo` are scripts of sh, and `undo` may run twice and without `make`.

    `findings` are ids, one of which the check must report, with `text` in subject, reading or remedy. `silent`: it
    stops the check itself, which shows by the age of the verdict alone.
    """

    name: str
    about: str
    harmless: str
    findings: tuple[str, ...]
    text: Script
    obstacle: Obstacle
    make: Script
    undo: Script
    ends_with_boot: bool = True
    silent: bool = False


def _file(path: str, *lines: str) -> str:
    """Return the script that writes a labelled file, which must not exist yet."""
    content = "".join(f"{line}\n" for line in (LABEL, *lines))
    folder = path.rpartition("/")[0]
    return f"test ! -e {path}\nmkdir -p {folder}\nprintf %s {shlex.quote(content)} >{path}\nchmod 644 {path}"


# The kernel's log


def _no_log(node: SurveyedNode) -> str | None:
    if node.container:
        return "a container shows the kernel's log of its host"
    return None


def _exhaust(node: SurveyedNode) -> str:
    # `tail` of a file without line ends stores all that it reads, and reaches the limit of its own unit in a moment.
    return (
        f"systemctl reset-failed {_LOG_UNIT} 2>/dev/null || :\n"
        f"systemd-run -q --wait --unit={_LOG_UNIT} -p MemoryMax=16M -p MemorySwapMax=0 -p TimeoutSec=60 "
        "/usr/bin/tail /dev/zero >/dev/null 2>&1 || :\n"
        "journalctl --sync\n"
        f"journalctl -k -b -o cat -g 'oom-kill:.*{_LOG_UNIT}' -n 1 >/dev/null"
    )


def _acknowledge(node: SurveyedNode) -> str:
    # The check first: what a check has stored is what counts as known.
    return (
        f"systemctl reset-failed {_LOG_UNIT} 2>/dev/null || :\n"
        "systemctl start goldnode-watch.service || :\n"
        f"/usr/lib/goldnode/goldnode-node ack --id memory.oom --subject {_LOG_UNIT} "
        "--by 'goldnode game-day' --reason 'made by a game day' >/dev/null"
    )


# Packages


def _package(node: SurveyedNode) -> str:
    """Return the package whose hold is removed: the first of the stack by name; empty if none is held."""
    own = {str(row.get("name")) for row in node.class_document.get("packages") or ()}
    return min(own & set(node.held), default="")


def _no_hold(node: SurveyedNode) -> str | None:
    return None if _package(node) else "apt holds no package of its stack"


# The driver's module


def _module(node: SurveyedNode) -> str:
    return str(as_dict(node.class_document.get("driver")).get("module") or "")


def _no_module(node: SurveyedNode) -> str | None:
    return None if _module(node) else "its class declares no driver"


# The file system below the state of the check


def _fill(node: SurveyedNode) -> str:
    # The copy has the files as they are: a full disk has them too. What is written meanwhile goes with it.
    copy = f"/run/{NAME}-disk"
    return (
        f"! mountpoint -q {_STATE}\n"
        f"size=$(( $(du -sk {_STATE} | cut -f1) + 256 ))\n"
        f"mkdir -p {copy}\nmount -t tmpfs -o size=${{size}}k,mode=755 goldnode-{NAME} {copy}\n"
        f"cp -a {_STATE}/. {copy}/\n"
        f"chown --reference={_STATE} {copy}; chmod --reference={_STATE} {copy}\n"
        f"mount --move {copy} {_STATE} 2>/dev/null || {{ mount --bind {copy} {_STATE}; umount {copy}; }}\n"
        f"dd if=/dev/zero of={_STATE}/.{NAME} bs=4k 2>/dev/null || :"
    )


def _unmount(node: SurveyedNode) -> str:
    copy = f"/run/{NAME}-disk"
    kind = f"findmnt -n -o SOURCE --mountpoint {_STATE} 2>/dev/null"
    return (
        f'for try in 1 2 3 4 5; do [ "$({kind})" = goldnode-{NAME} ] || break; umount {_STATE} || sleep 1; done\n'
        f'[ "$({kind})" != goldnode-{NAME} ]\n'
        f"! mountpoint -q {copy} || umount {copy}\n"
        f"[ ! -d {copy} ] || rmdir {copy}"
    )


# Network


def _link(node: SurveyedNode) -> tuple[str, int] | None:
    """Return a declared interface with its declared MTU, which it has now."""
    baseline = as_dict(as_dict(node.class_document.get("baseline")).get("network"))
    for name, row in sorted(baseline.items()):
        declared = as_dict(row).get("mtu")
        if isinstance(declared, int) and node.mtu.get(name) == declared and declared > 1400:
            return name, declared
    return None


def _no_link(node: SurveyedNode) -> str | None:
    if node.container:
        return "a container shows the network of its host, which the check does not judge"
    return None if _link(node) else "its class declares no MTU (baseline.network) that it has now"


def _set_mtu(lower: int) -> Script:
    def script(node: SurveyedNode) -> str:
        name, declared = _link(node) or ("", 0)
        return f"ip link set dev {shlex.quote(name)} mtu {declared - lower}"

    return script


# GPU policy

_NVML = """\
import ctypes, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def call(name, *arguments):
    code = getattr(nvml, name)(*arguments)
    if code:
        sys.exit(f"{name}: NVML error {code}")
call("nvmlInit_v2")
gpu = ctypes.c_void_p()
call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(gpu))
"""


def _clock(node: SurveyedNode) -> bool:
    return isinstance(node.policy("clocks", "graphics_mhz"), int) and isinstance(
        node.policy("clocks", "memory_mhz"), int
    )


def _no_policy(node: SurveyedNode) -> str | None:
    if _clock(node) or isinstance(node.policy("power_limit_watts"), int):
        return None
    return "its class declares neither clocks nor a power limit (policy)"


def _set_policy(lower: bool) -> Script:
    """Return the script that sets the declared value on GPU 0, or one below it."""

    def script(node: SurveyedNode) -> str:
        if _clock(node):
            memory = node.policy("clocks", "memory_mhz")
            graphics = node.policy("clocks", "graphics_mhz")
            text = f"clock = {graphics}\n"
            if lower:
                text += (
                    "count = ctypes.c_uint(512)\nclocks = (ctypes.c_uint * 512)()\n"
                    f'call("nvmlDeviceGetSupportedGraphicsClocks", gpu, ctypes.c_uint({memory}), '
                    "ctypes.byref(count), clocks)\n"
                    "clock = max([row for row in clocks[: count.value] if row < clock] or [clock])\n"
                )
            text += (
                f'call("nvmlDeviceSetApplicationsClocks", gpu, ctypes.c_uint({memory}), '
                "ctypes.c_uint(clock))\n"
            )
        else:
            watts = node.policy("power_limit_watts") - int(lower)
            text = (
                f'call("nvmlDeviceSetPowerManagementLimit", gpu, ctypes.c_uint({watts * 1000}))\n'
            )
        return f"python3 -I -S - <<'GAME_DAY_NVML'\n{_NVML}{text}GAME_DAY_NVML"

    return script


# Units


def _no_timer(node: SurveyedNode) -> str | None:
    timer = "goldnode-watch.timer"
    return None if timer in node.active else f"{timer} is not active"


def _override(node: SurveyedNode) -> str:
    script = _file(f"{_DROP_IN}/{NAME}.conf", "[Service]", "ExecStart=", "ExecStart=/bin/true")
    return f"{script}\nsystemctl daemon-reload"


# Kernel parameters


def _parameter(node: SurveyedNode) -> str | None:
    """Return a line of sysctl.d that contradicts the policy of the class; None if it declares no such value."""
    host = as_dict(node.policy("host"))
    if host.get("hugepages"):
        return "vm.nr_hugepages = 0"
    if isinstance(host.get("numa_balancing"), bool):
        return f"kernel.numa_balancing = {int(not host['numa_balancing'])}"
    return None


def _no_parameter(node: SurveyedNode) -> str | None:
    if _parameter(node) is None:
        return "its class declares no kernel parameter (policy.host)"
    return None


# A second program


def _no_path(node: SurveyedNode) -> str | None:
    return f"{_PROGRAM} exists" if _PROGRAM in node.programs else None


def _second_program(node: SurveyedNode) -> str:
    text = f'#!/bin/sh\n{LABEL}\nexec /usr/lib/goldnode/goldnode-node "$@"\n'
    return f"test ! -e {_PROGRAM}\nprintf %s {shlex.quote(text)} >{_PROGRAM}\nchmod 755 {_PROGRAM}"


def _removed(path: str, more: str = "") -> Script:
    """Return the script that removes a file of a game day, and nothing else of that name."""
    return lambda node: (
        f"! grep -qsF {shlex.quote(LABEL)} {path} || rm -f {path}\n"
        f"[ ! -e {path} ] || ! grep -qF {shlex.quote(LABEL)} {path}{more}"
    )


def _always(text: str) -> Script:
    return lambda node: text


def _never(node: SurveyedNode) -> str | None:
    return None


FAULTS: tuple[GameDayFault, ...] = (
    GameDayFault(
        "log-line",
        "the kernel ends a process of the game day's own unit at its memory limit of 16 MiB, and logs it",
        "the limit is that of a unit which has nothing else in it; the node's memory is not used up",
        ("memory.oom",),
        text=_always(_LOG_UNIT),
        obstacle=_no_log,
        make=_exhaust,
        undo=_acknowledge,
    ),
    GameDayFault(
        "hold",
        "apt no longer holds one package of the stack",
        "the pins of the stack still refuse another version, and nothing is installed",
        ("stack.holds",),
        text=_package,
        obstacle=_no_hold,
        make=lambda node: f"apt-mark unhold {_package(node)} >/dev/null",
        undo=lambda node: f"apt-mark hold {_package(node)} >/dev/null",
        ends_with_boot=False,
    ),
    GameDayFault(
        "module-denied",
        "a line of /run/modprobe.d keeps the driver's module from being loaded by its alias",
        "the loaded module stays, and /run is empty after a boot",
        ("driver.modprobe",),
        text=_always(_RULES),
        obstacle=_no_module,
        make=lambda node: _file(_RULES, f"blacklist {_module(node)}"),
        undo=_removed(_RULES),
    ),
    GameDayFault(
        "disk-full",
        f"{_STATE} is on a full file system in memory, with a copy of its files",
        "the real directory is below it, unchanged, and comes back whole; counters of that time are lost",
        ("memory.state",),
        text=_always(""),
        obstacle=_never,
        make=_fill,
        undo=_unmount,
    ),
    GameDayFault(
        "link-mtu",
        "an interface of the class's baseline has an MTU 100 bytes below the declared one",
        "packets get smaller and none is lost by it; the link stays up",
        ("net.mtu",),
        text=lambda node: (_link(node) or ("", 0))[0],
        obstacle=_no_link,
        make=_set_mtu(100),
        undo=_set_mtu(0),
    ),
    GameDayFault(
        "gpu-policy",
        "GPU 0 has application clocks one step, or a power limit 1 W, below what the class declares",
        "the GPU works as before, by a percent slower",
        ("policy.clocks.graphics_mhz", "policy.power_limit_watts"),
        text=_always(""),
        obstacle=_no_policy,
        make=_set_policy(lower=True),
        undo=_set_policy(lower=False),
    ),
    GameDayFault(
        "timer-stopped",
        "the timer of the health check is stopped: the check no longer runs",
        "nothing but the check stops; its last verdict counts for 15 minutes, and a boot starts the timer",
        ("watch.timer",),
        text=_always(""),
        obstacle=_no_timer,
        make=_always("systemctl stop goldnode-watch.timer"),
        undo=_always("systemctl start goldnode-watch.timer"),
        silent=True,
    ),
    GameDayFault(
        "unit-drop-in",
        "a drop-in of /run makes the boot check do nothing",
        "the boot check does not run before the next boot, and /run is empty after it",
        ("units.effective",),
        text=_always(f"{_DROP_IN}/{NAME}.conf"),
        obstacle=_never,
        make=_override,
        undo=_removed(
            f"{_DROP_IN}/{NAME}.conf",
            f"\nrmdir {_DROP_IN} 2>/dev/null || :\nsystemctl daemon-reload",
        ),
    ),
    GameDayFault(
        "sysctl",
        "a file of /run/sysctl.d contradicts a kernel parameter of the class",
        "systemd-sysctl reads it at a boot only, and /run is empty then; the running value stays",
        ("policy.host.overrides",),
        text=_always(_SYSCTL),
        obstacle=_no_parameter,
        make=lambda node: _file(_SYSCTL, _parameter(node) or ""),
        undo=_removed(_SYSCTL),
    ),
    GameDayFault(
        "second-program",
        f"{_PROGRAM} precedes goldnode's own program in root's PATH",
        "it starts goldnode's own program, with the same arguments",
        ("units.path",),
        text=_always(_PROGRAM),
        obstacle=_no_path,
        make=_second_program,
        undo=_removed(_PROGRAM),
        ends_with_boot=False,
    ),
)
BY_NAME: Mapping[str, GameDayFault] = {fault.name: fault for fault in FAULTS}


def alerts_of(fault: GameDayFault) -> frozenset[str]:
    """Return the alerts of integrations/prometheus that a fault can make fire on its node."""
    if fault.silent:
        return frozenset({"GoldnodeStale", "GoldnodeFinding"})
    row = kind(fault.findings[0])
    if row is not None and row.severity == DRAIN:
        return frozenset({"GoldnodeDrain", "GoldnodeGateClosed", "GoldnodeFinding"})
    return frozenset({"GoldnodeDegraded", "GoldnodeFinding"})

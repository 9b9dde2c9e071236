"""Domain of GPU settings: persistence, clocks, power, ECC, compute mode, MIG, sharing.

`seen.gpu_settings` is {} if the class declares none of these. Otherwise it has these keys:

* vendor: nvidia or amd
* error: the reason why nothing could be read, or null
* gpus: as :mod:`goldnode.node.device` returns them
* record: uuid -> field -> {value, rc, text, parts?, at}, the results of the setters since the driver was
  loaded. It is used where the driver has no getter: always for locked clocks, and for application clocks on
  branches that dropped them.
* persistenced: {exec: ExecStart of its unit or null, arguments: those of the running daemon, or null}
* mps: {installed, active, job: systemd is about to start it}, if the class shares GPUs by MPS
"""

from __future__ import annotations

import os

from ...device.child import ask
from ...ground.host import PROGRAM, Host, Json, boot_identity
from ...ground.json_lines import as_list
from ...ground.typed import NamedTuple
from .. import modes
from ..actions import link, stop_unit
from ..finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD, Finding, place
from ..gpumodel import AUTO
from ..model import BOOT, DEVICE, Action, Note, Observed, Refusal, Waiting, declared
from ..observe import SIMULATOR, load_json
from ..remedy import PERSON, POLICY, REBOOT, Remedy
from .files import Wanted
from .program import COMMON, DEVICES, MAKE
from .units import gpu_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

    from ...ground.document import ClassDocument


PART = "gpu_policy"
# Order of setting. Persistence comes first, or the driver resets the rest when its last client exits. Then
# come the settings that may reset a GPU.
ORDER = (
    "persistence_mode",
    "ecc",
    "mig",
    "performance_level",
    "power_limit_watts",
    "clocks",
    "compute_mode",
)
DRAIN = ("ecc", "mig")
RECORD = "/run/goldnode/policy.json"
RECORD_SCHEMA = "goldnode.policy/1"
MODULES = {"nvidia": "nvidia", "amd": "amdgpu"}
SIMULATED_MEMORY = "/run/goldnode-simulator/state"
# Of a setting without a getter, where no setter has run.
UNRECORDED = "not set since the driver was loaded"
# NVML_ERROR_NOT_SUPPORTED and NVML_ERROR_FUNCTION_NOT_FOUND: the driver does not support the setting.
ABSENT = (3, 13)

UNIT = "/etc/systemd/system/goldnode-policy.service"
WANTS = "/etc/systemd/system/multi-user.target.wants/goldnode-policy.service"
RULES = "/etc/udev/rules.d/90-goldnode-policy.rules"
DAEMON = "nvidia-persistenced"
DROP_IN = "/etc/systemd/system/nvidia-persistenced.service.d/goldnode.conf"
MPS_NAME = "goldnode-mps.service"
MPS_UNIT = f"/etc/systemd/system/{MPS_NAME}"
MPS_WANTS = "/etc/systemd/system/multi-user.target.wants/goldnode-mps.service"
MPS_PROGRAM = "/usr/bin/nvidia-cuda-mps-control"
PERSISTENCED = tuple(
    f"{where}/nvidia-persistenced.service"
    for where in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
)

# It sets GPUs (ADMIN, RAWIO; MKNOD: devices of MIG), swap, and links (NET_ADMIN), and writes sysctls and sysfs. It
# reads the open files of other processes (PTRACE), to wait for users of a GPU. `strict` would keep swapoff(2) from
# swap files, which the kernel opens for writing.
SANDBOX = f"""\
{COMMON}CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_MKNOD CAP_NET_ADMIN CAP_SYS_ADMIN CAP_SYS_PTRACE
CapabilityBoundingSet=CAP_SYS_RAWIO
ProtectSystem=full
ProtectHome=yes
ProtectKernelLogs=yes
ProtectClock=yes
PrivateTmp=yes
PrivateMounts=yes
DeviceAllow=char-* rwm
DeviceAllow=block-* rw
RestrictAddressFamilies=AF_UNIX AF_NETLINK
SystemCallFilter=@system-service @swap
SystemCallFilter=~@resources
"""
# A container shows the GPUs and kernel of its host, so the unit sets nothing there, except on simulated GPUs.
# Not RemainAfterExit: a restart, and a start by the rule below, must set everything again.
UNIT_TEXT = """\
# goldnode: set the policy of the node class at every boot and after each load of the GPU driver
[Unit]
Description=goldnode policy of the node class
ConditionPathExists=/etc/goldnode/class.json
ConditionVirtualization=|!container
ConditionPathExists=|{simulator}
{wants}After=local-fs.target systemd-modules-load.service nvidia-persistenced.service \
nvidia-fabricmanager.service
Before=goldnode-sanity.service docker.service containerd.service slurmd.service kubelet.service

[Service]
Type=oneshot
ExecStartPre={make}
ExecStartPre={devices}
ExecStart={program} policy apply --defer
TimeoutStartSec=600
{sandbox}
[Install]
WantedBy=multi-user.target
"""

# --no-block: udev's worker must not wait for the GPUs.
RULES_TEXT = """# goldnode: settings of a GPU are lost when its driver is reloaded
ACTION=="add", SUBSYSTEM=="module", KERNEL=="{module}", \
RUN+="/bin/systemctl --no-block restart goldnode-policy.service"
"""

# The daemon opens the driver, so do not start it without one. Either sign of the driver is enough: some
# packages do not create the device node, but the daemon itself can. A daemon without a device was observed to
# announce its shutdown and then never exit. The installation of its package, docker and the policy wait for
# it, so the stop timeout is short. The kernel releases the devices in any case.
DROP_IN_TEXT = """# goldnode: enable persistence when the daemon starts, under the user of its package
[Unit]
ConditionPathExists=|/dev/nvidiactl
ConditionPathExists=|/proc/driver/nvidia/version

[Service]
TimeoutStopSec=15s
{start}"""

MPS_TEXT = f"""# goldnode: share the GPUs through the Multi-Process Service
[Unit]
Description=NVIDIA MPS control daemon of the node class
After=goldnode-policy.service
Before=goldnode-sanity.service docker.service containerd.service slurmd.service kubelet.service

[Service]
ExecStart={MPS_PROGRAM} -f
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""


def unit_text(wants: str) -> str:
    """Return the unit. `wants`: its line `Wants=`, or nothing."""
    return UNIT_TEXT.format(
        wants=wants,
        program=PROGRAM,
        simulator=SIMULATOR,
        make=MAKE,
        devices=DEVICES,
        sandbox=SANDBOX,
    )


# -- declaration


def keys(policy: Mapping[str, Any]) -> List[str]:
    """Return the GPU settings that a policy, or an override, declares, in the order of setting."""
    return [key for key in ORDER if key in policy]


def declares(document: ClassDocument) -> bool:
    """Return whether the class declares any GPU settings."""
    policy = document.get("policy") or {}
    return bool(
        document.get("gpu") and (keys(policy) or "sharing" in policy or policy.get("overrides"))
    )


def has_unit(document: ClassDocument) -> bool:
    """Return whether anything must be set at every boot, on the GPUs or on the host (domain tuning)."""
    return declares(document) or bool((document.get("policy") or {}).get("host"))


def vendor(document: ClassDocument) -> str:
    """Return the vendor of the class's GPUs."""
    return declared(document["gpu"])["vendor"]


def fits(override: Mapping[str, Any], gpu: Mapping[str, Any]) -> bool:
    """Return whether an override applies to this GPU."""
    if "uuid" in override:
        return bool(gpu.get("uuid") == override["uuid"])
    if "indexes" in override:
        return gpu.get("index") in override["indexes"]
    return gpu.get("pci_id") in override.get("pci_ids", ())


def effective(document: ClassDocument, gpu: Mapping[str, Any]) -> Json:
    """Return the wanted settings of one GPU: the class's, overridden by its model, its index, then by its UUID.

    Clocks are merged, anything else is replaced.
    """
    policy: Mapping[str, Any] = document["policy"]
    values: Json = {key: policy[key] for key in keys(policy)}
    mode = {"exclusive": "exclusive_process", "mps": "exclusive_process", "none": "default"}.get(
        policy.get("sharing", "")
    )
    if mode:
        # An explicit compute_mode takes precedence over the one that `sharing` implies.
        values.setdefault("compute_mode", mode)
    overrides = [override for override in policy.get("overrides", ()) if fits(override, gpu)]
    # False sorts first: overrides by model, then the more specific ones by index and by UUID.
    for override in sorted(overrides, key=lambda row: ("uuid" in row, "indexes" in row)):
        for key in keys(override):
            values[key] = (
                {**values.get(key, {}), **override[key]} if key == "clocks" else override[key]
            )
    return values


def items(document: ClassDocument) -> List[str]:
    """Return the names of the declared items, as in finding ids: persistence_mode, clocks.graphics_mhz …"""
    names = []
    declared_by_class: Mapping[str, Any] = document["policy"]
    policies = [declared_by_class, *declared_by_class.get("overrides", ())]
    for key in ORDER:
        declared = [policy[key] for policy in policies if key in policy]
        if key == "clocks":
            names += [
                f"clocks.{part}"
                for part in ("graphics_mhz", "memory_mhz")
                if any(part in clocks for clocks in declared)
            ]
        elif declared:
            names.append(key)
    return names + (["sharing"] if "sharing" in document["policy"] else [])


# -- observe


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Query the GPUs' settings if they are this node's, and read the results of the setters. Reads only."""
    if not declares(document):
        return
    settings_seen: Json = {"vendor": vendor(document), "error": None, "gpus": {}, "record": {}}
    if vendor(document) == "nvidia":
        settings_seen["persistenced"] = persistenced(host)
    if elsewhere(document, seen) is None:
        answer = ask(host, {"do": "read", "vendor": vendor(document), "root": host.root})
        settings_seen["error"] = answer.get("error")
        gpus = answer.get("gpus", {})
        settings_seen["gpus"] = {key: {"index": int(key), **gpus[key]} for key in gpus}
        record = load_json(host, RECORD) or {}
        if record.get("driver_load") == driver_load(host):
            settings_seen["record"] = record.get("set", {})
        if document["policy"].get("sharing") == "mps":
            shown = host.run("systemctl", "show", MPS_NAME, "-p", "ActiveState,Job").out
            rows = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
            settings_seen["mps"] = {
                "installed": host.exists(MPS_PROGRAM),
                "active": rows.get("ActiveState") == "active",
                "job": bool(rows.get("Job")),
            }
    seen.gpu_settings = settings_seen


def elsewhere(document: ClassDocument, seen: Observed) -> Optional[str]:
    """Return why the node's GPUs are not visible here, or None if they are."""
    if seen.live and seen.simulated:
        return None
    where = place(seen)
    if where is None and document["simulated"]:
        return "the class declares simulated GPUs, and none are installed here"
    return where


def driver_load(host: Host) -> str:
    """Return an identifier that changes with each boot and each load of the driver, which reset all settings.

    sysfs assigns a new inode number to each directory that it creates, so a reloaded module has a
    different one. The simulated driver records the time of its load.
    """
    if host.exists(SIMULATOR):
        lines = (host.text(SIMULATED_MEMORY) or "").splitlines()
        loads = [line for line in lines if line.startswith("booted=")]
    else:
        names = [f"/sys/module/{module}" for module in MODULES.values()]
        loads = [str(os.stat(host.located(name)).st_ino) for name in names if host.exists(name)]
    return "/".join([str(boot_identity(host)), *loads])


def persistenced(host: Host) -> Json:
    """Return how the package starts the persistence daemon, and how the running one was started."""
    text = next(
        (text for text in (host.text(name) for name in PERSISTENCED) if text is not None), ""
    )
    starts = [
        line.partition("=")[2].strip()
        for line in text.splitlines()
        if line.startswith("ExecStart=")
    ]
    arguments = None
    if host.live:
        for name in host.glob("/proc", "[0-9]*"):
            # The kernel truncates comm to fifteen characters.
            if (host.text(f"{name}/comm") or "").strip() == "nvidia-persiste":
                arguments = (host.text(f"{name}/cmdline") or "").split("\0")[:-1]
    return {"exec": starts[-1] if starts else None, "arguments": arguments}


def is_fault(value: Any) -> bool:
    """Return whether a value is an error in place of a reading."""
    return isinstance(value, dict) and "rc" in value


def name_of(index: str, gpu: Mapping[str, Any]) -> str:
    """Return the name of a GPU in messages."""
    return f"GPU {index} ({gpu['uuid']})" if isinstance(gpu.get("uuid"), str) else f"GPU {index}"


# -- one item of one GPU


class Judged(NamedTuple):
    """Comparison of one item of one GPU: outcome, and the wanted and the observed value as text."""

    outcome: str
    want: str
    have: str


def say(item: str, value: Any) -> str:
    """Format a value for a person."""
    if item == "power_limit_watts":
        return f"{value} W"
    if item.startswith("clocks."):
        return f"{value} MHz"
    if item == "mig" and value["enabled"] and "profiles" in value:
        return f"on with {', '.join(sorted(value['profiles']))}"
    if item == "mig":
        value = bool(value["enabled"])
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def judge_value(
    item: str,
    want: Any,
    gpu: Mapping[str, Any],
    record: Mapping[str, Any],
    mode: str = "application",
) -> Judged:
    """Compare one item of one GPU with the wanted value."""
    wanted = say(item, want)
    if is_fault(gpu):
        return Judged(UNREAD, wanted, _fault(gpu))
    if item.startswith("clocks."):
        return judge_clock(item.partition(".")[2], want, gpu, record, mode)
    have = gpu.get("power", {}).get("limit") if item == "power_limit_watts" else gpu.get(item)
    if have is None:
        return Judged(NOT_EXPOSED, wanted, "not exposed by this driver")
    if is_fault(have):
        return Judged(NOT_EXPOSED if have["rc"] in ABSENT else UNREAD, wanted, _fault(have))
    if item in DRAIN:
        return judge_mode(item, want, have)
    if have == want:
        return Judged(MATCH, wanted, wanted)
    reported = record.get(item)
    note = ""
    if reported and reported["value"] == want and reported["rc"] in ABSENT:
        note = f"; the driver cannot set it ({reported['text']})"
    return Judged(MISMATCH, wanted, say(item, have) + note)


def _fault(value: Mapping[str, Any]) -> str:
    return f"{value['text']} (return code {value['rc']})"


def judge_mode(item: str, want: Any, have: Mapping[str, Any]) -> Judged:
    """Compare ECC or MIG: the active mode, and the mode after the next boot."""
    wanted = say(item, want)
    on = want if item == "ecc" else want["enabled"]
    there: Any = have["current"]
    if item == "mig":
        there = {
            "enabled": have["current"],
            **({"profiles": have["instances"]} if have["current"] and have["instances"] else {}),
        }
    same = have["current"] == on and (
        item == "ecc"
        or not on
        or "profiles" not in want
        or sorted(have["instances"]) == sorted(want["profiles"])
    )
    if have["pending"] != have["current"]:
        return Judged(
            MISMATCH,
            wanted,
            f"{say(item, there)}, {'on' if have['pending'] else 'off'} from the next boot",
        )
    return Judged(MATCH if same else MISMATCH, wanted, wanted if same else say(item, there))


def judge_clock(
    part: str, want: int, gpu: Mapping[str, Any], record: Mapping[str, Any], mode: str
) -> Judged:
    """Compare a clock by its getter if the driver has one, otherwise by the result of its setter."""
    wanted = f"{want} MHz"
    if mode == "application":
        have = gpu["clocks"]["application"][part.partition("_")[0]]
        if not is_fault(have):
            reported = record.get("clocks")
            if have == want:
                return Judged(MATCH, wanted, wanted)
            note = ""
            if (
                reported
                and reported["value"].get(part) == want
                and reported["parts"][part]["rc"] in ABSENT
            ):
                note = f"; the driver cannot set it ({reported['parts'][part]['text']})"
            return Judged(MISMATCH, wanted, f"{have} MHz{note}")
        # Only a missing getter is replaced by the record. Any other error is a failed read.
        if have["rc"] not in ABSENT:
            return Judged(UNREAD, wanted, _fault(have))
    reported = record.get("clocks")
    if (
        reported is None
        or reported["value"].get(part) != want
        or reported["value"]["mode"] != mode
        or part not in reported["parts"]
    ):
        return Judged(MISMATCH, wanted, UNRECORDED)
    result = reported["parts"][part]
    outcome = f"set at {reported['at']}"
    if result["rc"] != 0:
        outcome = f"tried at {reported['at']}: {_fault(result)}"
    # Success of the setter does not prove the current value, so this is never a match.
    return Judged(NOT_EXPOSED if result["rc"] in (0, *ABSENT) else MISMATCH, wanted, outcome)


def settings(
    document: ClassDocument, seen: Observed
) -> Iterator[Tuple[str, Mapping[str, Any], str, Any]]:
    """Yield (index, GPU, key, wanted value) for each declared setting, in the order of setting."""
    for key in ORDER:
        for index, gpu in sorted(
            seen.gpu_settings.get("gpus", {}).items(), key=lambda row: int(row[0])
        ):
            wanted = effective(document, gpu)
            if key in wanted:
                yield index, gpu, key, wanted[key]


def clock_target(gpu: Mapping[str, Any], want: Mapping[str, Any]) -> Json:
    """Return the request for `clocks` to the driver.

    Application clocks are set as a pair. The one that the class leaves open stays
    unchanged, or becomes the highest.
    """
    mode = want.get("mode", "application")
    target: Json = {"mode": mode}
    for name in ("graphics", "memory"):
        value = want.get(f"{name}_mhz")
        if value is None and mode == "application":
            choices = (gpu["clocks"]["application"][name], gpu["clocks"]["max"][name])
            value = next((choice for choice in choices if not is_fault(choice)), None)
        if value is not None:
            target[f"{name}_mhz"] = value
    return target


def judged(
    gpu: Mapping[str, Any], key: str, want: Any, record: Mapping[str, Any]
) -> Iterator[Tuple[str, Judged]]:
    """Yield (item, comparison) for one setting. Clocks are two items, anything else is one."""
    if key != "clocks":
        yield key, judge_value(key, want, gpu, record)
        return
    for part in ("graphics_mhz", "memory_mhz"):
        if part in want:
            yield (
                f"clocks.{part}",
                judge_value(
                    f"clocks.{part}", want[part], gpu, record, want.get("mode", "application")
                ),
            )


# -- plan


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the units and the udev rule, if the class declares GPU settings. Pure."""
    if not has_unit(document):
        return []
    gpus = declares(document)
    persistence = (
        gpus and vendor(document) == "nvidia" and bool(document["policy"].get("persistence_mode"))
    )
    wants = "Wants=nvidia-persistenced.service\n" if persistence else ""
    files = [
        Wanted(
            UNIT,
            unit_text(wants),
            PART,
            "the policy is set at every boot",
        )
    ]
    if gpus:
        rules = RULES_TEXT.format(module=MODULES[vendor(document)])
        files.append(
            Wanted(RULES, rules, PART, "the policy is set again whenever the driver is loaded")
        )
    if gpus and document["policy"].get("sharing") == "mps":
        files.append(Wanted(MPS_UNIT, MPS_TEXT, PART, "the GPUs are shared by MPS"))
    return files


def daemon(document: ClassDocument, seen: Observed, part: str) -> List[Wanted]:
    """Return the persistence daemon's drop-in. Pure.

    It is written before the package is installed, which starts the daemon at once, without a
    device.
    """
    if not document.get("gpu") or vendor(document) != "nvidia":
        return []
    start = (seen.gpu_settings.get("persistenced") or {}).get("exec")
    if not start and not any(package["name"] == DAEMON for package in document["packages"]):
        return []
    text = ""
    if (
        start
        and declares(document)
        and document["policy"].get("persistence_mode")
        and start != without_refusal(start)
    ):
        text = f"ExecStart=\nExecStart={without_refusal(start)}\n"
    return [
        Wanted(
            DROP_IN,
            DROP_IN_TEXT.format(start=text),
            part,
            "the persistence daemon starts where there is a GPU, and does not refuse it",
        )
    ]


def without_refusal(start: str) -> str:
    """Return a command line of the persistence daemon without the option that disables persistence mode."""
    return " ".join(word for word in start.split() if word != "--no-persistence-mode")


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return the links of the units, and one action per setting and GPU. Pure."""
    actions: List[Action] = []
    for path, unit, want in (
        (WANTS, UNIT, has_unit(document)),
        (MPS_WANTS, MPS_UNIT, declares(document) and document["policy"].get("sharing") == "mps"),
    ):
        have, name = seen.links.get(path), unit.rpartition("/")[2]
        if want:
            actions += link(PART, path, unit, seen=seen, missing=f"{name} is not enabled")
        elif have is not None:
            reason = "the class does not want this unit any more"
            actions.append(Action(PART, "file.remove", path, reason, before=have))
    stopping, still = _mps_of_an_earlier_class(document, seen)
    actions += stopping
    if not declares(document):
        return actions, [], still
    why = elsewhere(document, seen) or seen.gpu_settings.get("error")
    if why:
        names = ", ".join(f"policy.{item}" for item in items(document))
        return actions, [Note("policy", f"{names}: {why}")], still
    changes, waiting = _changes(document, seen)
    waiting = still + waiting
    first: List[Action] = []  # a restarted daemon releases GPUs, which resets their settings
    last: List[Action] = []
    daemon = seen.gpu_settings.get("persistenced") or {}
    if document["policy"].get("persistence_mode") and "--no-persistence-mode" in (
        daemon.get("arguments") or ()
    ):
        why = "it runs with --no-persistence-mode"
        first.append(
            _restart("nvidia-persistenced.service", why, BOOT, f"{why}\n", "persistence mode\n")
        )
    mps = seen.gpu_settings.get("mps")
    # At boot, MPS starts after the unit that applies the policy. To wait for it in that
    # unit would be a deadlock.
    if mps and mps["installed"] and not mps["active"] and not mps.get("job"):
        last.append(_restart(MPS_NAME, "it does not run", DEVICE, "stopped\n", "running\n"))
    users = [f"pid {holder['pid']} {holder['command']}" for holder in seen.holders]
    users += [
        f"container {row.get('name') if isinstance(row, dict) else row}"
        for row in seen.runtime.get("gpu_containers") or []
    ]
    if users:
        # Starting a changed unit needs a daemon-reload, which takes the devices away from containers in
        # the toolkit's legacy mode.
        text = (
            "a restart waits until nothing uses the GPU "
            f"({', '.join(users[:3])}{' …' if len(users) > 3 else ''})"
        )
        return (
            actions + changes,
            [],
            waiting
            + [Waiting(PART, unit.target, f"{unit.reason}; {text}") for unit in first + last],
        )
    return actions + first + changes + last, [], waiting


def _restart(unit: str, reason: str, phase: str, before: str, after: str) -> Action:
    return Action(PART, "gpu.unit", unit, reason, phase, before=before, after=after)


def mps_left(document: ClassDocument, seen: Observed) -> bool:
    """Return whether an MPS daemon of an earlier class still runs that this class does not want."""
    runs = (seen.unit(MPS_NAME) or {}).get("ActiveState") == "active"
    return runs and not (declares(document) and document["policy"].get("sharing") == "mps")


def _mps_of_an_earlier_class(
    document: ClassDocument, seen: Observed
) -> Tuple[List[Action], List[Waiting]]:
    """Return actions that stop the MPS daemon of an earlier class.

    A running daemon shares the GPUs even after its unit is removed.
    """
    if not mps_left(document, seen):
        return [], []
    name = MPS_NAME
    why, users = "the class does not share its GPUs by MPS any more", gpu_users(seen)
    if users:
        return [], [
            Waiting(PART, name, f"{why}; its daemon is stopped once nothing uses the GPU ({users})")
        ]
    return [stop_unit(PART, name, why)], []


def _changes(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Waiting]]:
    actions: List[Action] = []
    waiting: List[Waiting] = []
    for index, gpu, key, want in settings(document, seen):
        if is_fault(gpu) or not isinstance(gpu.get("uuid"), str):
            continue
        record = seen.gpu_settings["record"].get(gpu["uuid"], {})
        rows = [
            (item, row) for item, row in judged(gpu, key, want, record) if row.outcome == MISMATCH
        ]
        value = clock_target(gpu, want) if key == "clocks" else want
        if not rows or _pending(key, want, gpu) or _hopeless(key, value, record):
            continue
        if key == "mig":
            listed = as_list(gpu["processes"])
            holders = [f"pid {pid}" for pid in listed]
            holders += [
                f"pid {holder['pid']} {holder['command']}"
                for holder in seen.holders
                if f"pid {holder['pid']}" not in holders
            ]
            if holders:
                text = (
                    f"want {rows[0][1].want}, have {rows[0][1].have}; {', '.join(holders)} would lose "
                    "the GPU. Drain the node."
                )
                waiting.append(Waiting(PART, f"mig of {name_of(index, gpu)}", text))
                continue
        # Setting a pending mode back to the current one needs no reboot.
        reboot = None
        if key == "ecc" and gpu["ecc"]["current"] != want:
            reboot = "ECC becomes active at the next boot"
        several = len(rows) > 1
        reason = "; ".join(
            f"{item.rpartition('.')[2] + ': ' if several else ''}want {row.want}, have {row.have}"
            for item, row in rows
        )
        actions.append(
            Action(
                PART,
                kind="gpu.set",
                target=f"{key} of {name_of(index, gpu)}",
                reason=reason,
                phase=DEVICE,
                before="".join(f"{item}: {row.have}\n" for item, row in rows),
                after="".join(f"{item}: {row.want}\n" for item, row in rows),
                reboot=reboot,
                data={
                    "vendor": seen.gpu_settings["vendor"],
                    "uuid": gpu["uuid"],
                    "index": int(index),
                    "field": key,
                    "value": value,
                },
            )
        )
    return actions, waiting


def _pending(key: str, want: Any, gpu: Mapping[str, Any]) -> bool:
    """Return whether only the reboot for ECC or MIG is missing."""
    if key not in DRAIN:
        return False
    mode = gpu[key]
    return bool(
        mode["pending"] != mode["current"]
        and mode["pending"] == (want if key == "ecc" else want["enabled"])
    )


def modes_of(document: ClassDocument, seen: Observed, item: str) -> List[modes.Mode]:
    """Return ECC or MIG of each GPU that has it declared and readable."""
    rows = []
    for index, gpu, key, want in (
        settings(document, seen) if declares(document) and item in DRAIN else ()
    ):
        mode = None if is_fault(gpu) else gpu.get(item)
        if key == item and isinstance(mode, dict) and not is_fault(mode):
            rows.append(
                modes.Mode(
                    index,
                    mode["current"],
                    mode["pending"],
                    want if item == "ecc" else want["enabled"],
                )
            )
    return rows


def held(document: ClassDocument, seen: Observed) -> List[str]:
    """Return the GPU modes that the next boot would make wrong.

    The node must not reboot before they are fixed. Pure.
    """
    return [
        text
        for item in DRAIN
        for text in [modes.spoiling(item, modes_of(document, seen, item))]
        if text
    ]


def _hopeless(key: str, value: Any, record: Mapping[str, Any]) -> bool:
    """Return whether this driver has reported that it has no such setter. Another attempt would not help."""
    reported = record.get(key)
    if not reported or reported["value"] != value:
        return False
    return all(part["rc"] in ABSENT for part in reported.get("parts", {"": reported}).values())


def reboot_reasons(document: ClassDocument, seen: Observed) -> List[str]:
    """Return the settings that become active at the next boot. Pure."""
    reasons = []
    for _, gpu, key, want in settings(document, seen) if declares(document) else ():
        if (
            key in DRAIN
            and isinstance(gpu.get(key), dict)
            and not is_fault(gpu[key])
            and _pending(key, want, gpu)
        ):
            reasons.append(f"{key.upper()} becomes active at the next boot")
    return list(dict.fromkeys(reasons))


# -- refusals


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse values that a board does not support. All of them are collected before anything is set. Pure."""
    faults: Dict[str, Dict[Tuple[str, str], List[str]]] = {}
    for index, gpu, key, want in settings(document, seen) if declares(document) else ():
        if is_fault(gpu):
            continue
        for text, right in _out_of_range(key, want, gpu):
            faults.setdefault(key, {}).setdefault((text, right), []).append(name_of(index, gpu))
    refused = []
    for key, rows in faults.items():
        right = next(iter(rows))[1]
        remedy = (
            f"Correct policy.{key} in class {document['class']}, or give these GPUs an override: the "
            f"nearest right value is {right}."
        )
        # Boards of one model have the same fault, so report it once.
        reported = [
            f"{names[0] if len(names) == 1 else f'each of {len(names)} GPUs'} {text}"
            for (text, _), names in rows.items()
        ]
        text = "; ".join(reported)
        refused.append(
            Refusal(f"policy-{key.partition('_')[0]}", f"{text[0].upper()}{text[1:]}.", remedy)
        )
    return refused


def _out_of_range(key: str, want: Any, gpu: Mapping[str, Any]) -> Iterator[Tuple[str, str]]:
    """Yield (fault, nearest valid value) for one setting of one GPU.

    A board that does not report its range has no faults.
    """
    if key == "power_limit_watts":
        low, high = gpu["power"]["min"], gpu["power"]["max"]
        if not is_fault(low) and not is_fault(high) and not low <= want <= high:
            yield f"takes {low} to {high} W, not {want} W", f"{min(max(want, low), high)} W"
    if key == "clocks":
        yield from _wrong_clocks(want, gpu)
    if key == "mig" and not is_fault(gpu["mig"]):
        known = gpu["mig"]["profiles"]
        for profile in want.get("profiles", ()) if known else ():
            if profile not in known:
                same = [
                    name for name in known if name.partition(".")[0] == profile.partition(".")[0]
                ]
                import difflib  # start-up time: rarely needed

                near = difflib.get_close_matches(profile, same or known, 1, 0)[0]
                yield f"has no MIG profile {profile} (it has {', '.join(known)})", near


def _wrong_clocks(want: Mapping[str, Any], gpu: Mapping[str, Any]) -> Iterator[Tuple[str, str]]:
    supported = gpu["clocks"]["supported"]
    # Without a list of supported clocks, only the maximum can be checked.
    if is_fault(supported) or not supported:
        for name in ("graphics", "memory"):
            top, value = gpu["clocks"]["max"][name], want.get(f"{name}_mhz")
            if value is not None and not is_fault(top) and value > top:
                yield f"takes a {name} clock of up to {top} MHz, not {value} MHz", f"{top} MHz"
        return
    memories = sorted(int(clock) for clock in supported)
    memory = want.get("memory_mhz")
    if memory is not None and memory not in memories:
        nearest = min(memories, key=lambda clock: abs(clock - memory))
        yield (
            f"has no memory clock of {memory} MHz (it has {', '.join(map(str, memories))})",
            f"{nearest} MHz",
        )
        return
    graphics = want.get("graphics_mhz")
    choices = clocks_of(
        [supported[str(memory)]] if memory is not None else list(supported.values())
    )
    if graphics is not None and choices and graphics not in choices:
        nearest = min(choices, key=lambda clock: abs(clock - graphics))
        yield (
            f"has no graphics clock of {graphics} MHz (it has {choices[0]} to {choices[-1]})",
            f"{nearest} MHz",
        )


def clocks_of(runs: Sequence[Sequence[Sequence[int]]]) -> List[int]:
    """Return the sorted clocks that runs of (first, last, step) describe."""
    clocks: Set[int] = set()
    for first, last, step in (run for some in runs for run in some):
        clocks.update(range(first, last + 1, step or 1))
    return sorted(clocks)


# -- findings


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Return one finding per declared item, over all GPUs. Pure."""
    if not declares(document):
        return []
    why = elsewhere(document, seen)
    error = seen.gpu_settings.get("error")
    rows: Dict[str, List[Tuple[str, Judged]]] = {}
    for index, gpu, key, want in settings(document, seen):
        # Of a GPU that does not answer, the UUID is a fault, and no record has it.
        uuid = str(gpu.get("uuid"))
        record = seen.gpu_settings["record"].get(uuid, {})
        for item, row in judged(gpu, key, want, record):
            rows.setdefault(item, []).append((index, row))
    missing = declared(document["gpu"])["count"] - len(seen.gpu_settings.get("gpus", {}))
    rows_judged = []
    for item in items(document):
        severity = "drain" if item in DRAIN else "degraded"
        if why or error:
            rows_judged.append(
                Finding(
                    f"policy.{item}",
                    ELSEWHERE if why else UNREAD,
                    _declared(document, item),
                    why or error,
                    UNREAD_REMEDY,
                    severity=severity,
                )
            )
            continue
        own = rows.get("compute_mode" if item == "sharing" else item, [])
        rows_judged.append(
            _over_gpus(document, item=item, rows=own, severity=severity, missing=missing, seen=seen)
        )
    return rows_judged + ([] if why or error else _overrides(document, seen))


UNREAD_REMEDY = Remedy(
    "Look at dmesg on the node for why the GPU does not answer; where its driver hangs, reboot the node.",
    PERSON,
    REBOOT,
)
REMEDY = Remedy(
    "Run site.yml for this host, or `goldnode-node policy apply` on it: it sets what the class "
    "says and reads it back.",
    POLICY,
)


def _declared(document: ClassDocument, item: str) -> str:
    """Return the class's value of an item, without its overrides."""
    key, _, part = item.partition(".")
    value = document["policy"].get(key)
    if isinstance(value, dict) and part:
        value = value.get(part)
    return "as its overrides say" if value is None else say(item, value)


def _over_gpus(
    document: ClassDocument,
    item: str,
    rows: Sequence[Tuple[str, Judged]],
    severity: str,
    missing: int,
    *,
    seen: Observed,
) -> Finding:
    """Return one finding over all GPUs.

    A certain fault that drains the node outranks a value that could not be read, which outranks the
    rest.
    """
    expected = _declared(document, item)
    wants = sorted({row.want for _, row in rows})
    if len(wants) > 1:
        expected = "; ".join(
            f"{want}: GPU {', '.join(index for index, row in rows if row.want == want)}"
            for want in wants
        )
    elif item != "sharing" and wants:
        expected = wants[0]
    off: Dict[str, List[str]] = {}
    for index, row in rows:
        if row.outcome != MATCH:
            off.setdefault(row.have, []).append(index)
    got = [f"GPU {', '.join(indexes)}: {have}" for have, indexes in off.items()]
    outcomes = {row.outcome for _, row in rows}
    if missing > 0:
        got.append(f"{missing} of {declared(document['gpu'])['count']} GPUs do not answer")
        outcomes.add(UNREAD)
    mps = seen.gpu_settings.get("mps") if item == "sharing" else None
    if mps is not None and not mps["active"]:
        lacks = f"{MPS_PROGRAM} is not installed: add its package to the stack"
        got.append(f"{MPS_NAME} does not run" if mps["installed"] else lacks)
        outcomes.add(MISMATCH)
    if item == "sharing" and mps_left(document, seen):
        got.append(f"{MPS_NAME} still runs")
        outcomes.add(MISMATCH)
    ranked = [MISMATCH, UNREAD] if severity == "drain" else [UNREAD, MISMATCH]
    outcome = next((rank for rank in (*ranked, NOT_EXPOSED) if rank in outcomes), MATCH)
    remedy = UNREAD_REMEDY
    if outcome != UNREAD:
        remedy = modes.remedy(item, modes_of(document, seen, item)) or REMEDY
    return Finding(
        f"policy.{item}",
        outcome,
        expected,
        "; ".join(got) or expected,
        None if outcome == MATCH else remedy,
        severity=severity,
    )


def _overrides(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Report overrides for models that the node does not have.

    Overrides for a UUID are not reported: each belongs to one node, and applies to no GPU on all
    others.
    """
    models = [
        override for override in document["policy"].get("overrides", ()) if "model" in override
    ]
    if not models:
        return []
    idle = [
        row["model"]
        for row in models
        if not any(fits(row, gpu) for gpu in seen.gpu_settings.get("gpus", {}).values())
        # A class that takes any model has overrides for models that most of its nodes do not have.
        and declared(document["gpu"])["model"] != AUTO
    ]
    expected = f"a GPU for each of {', '.join(row['model'] for row in models)}"
    if not idle:
        return [Finding("policy.overrides", MATCH, expected, expected)]
    remedy = Remedy(
        "Remove the override from the class, or move the host to the class of its GPUs.", PERSON
    )
    return [
        Finding("policy.overrides", MISMATCH, expected, f"no GPU is a {', '.join(idle)}", remedy)
    ]

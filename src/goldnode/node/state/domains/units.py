"""Domain of the gate and the passive check: units, drop-ins and timers, and their state in systemd.

`seen.units` has these keys:

* loaded: unit -> its properties in systemd (:data:`.systemd.PROPERTIES`); None in an image
  or if systemd is not PID 1
* gate: the gate's own state (:data:`.gate_files.STATE`); None before its first decision
* hook: the command that a drain calls (:func:`.gate_files.hook`)
* overrides: what others changed of these units (:func:`.overrides.survey`)
* shadows: programs before goldnode's in root's PATH (:func:`.overrides.shadows`)
"""

from __future__ import annotations

from ...effective.systemd import UnitTree
from ...ground import gate_files, systemd, verdict_files
from ...ground.boot import NOTICE
from ...ground.host import Host
from .. import overrides
from ..actions import link, start_unit, stop_unit, unlink
from ..finding import ELSEWHERE, MATCH, UNREAD, Finding, judge_item
from ..model import BOOT, Action, Note, Observed, Refusal, Waiting
from ..observe import RECORD, load_json
from ..remedy import COMMAND, PERSON, SITE, Remedy
from .files import Wanted, of_the_site
from .program import ACT, CLASS, CLOSED, DEVICES, MAKE, PROGRAM, READER
from .program import COMMAND as PROGRAM_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

    from ...ground.document import ClassDocument


FOLDER = "/etc/systemd/system"
WATCH, TIMER = "goldnode-watch.service", "goldnode-watch.timer"
SOCKET = "goldnode-serve.socket"  # belongs to domain serve; queried in the same call
LINK = f"{FOLDER}/timers.target.wants/{TIMER}"
EVENTS = "goldnode-events.service"
EVENTS_LINK = f"{FOLDER}/multi-user.target.wants/{EVENTS}"
MOTD = "/etc/update-motd.d/90-goldnode"
# Units that goldnode installs or adds drop-ins to. One `systemctl show` queries these
# and the units of its files.
UNITS = (
    "goldnode-sanity.service",
    "goldnode-policy.service",
    "goldnode-mps.service",
    WATCH,
    TIMER,
    EVENTS,
    SOCKET,
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    *gate_files.RUNTIMES,
)

# Without a file, they may still be loaded: every class has them, or they are no service.
ALWAYS = ("goldnode-sanity.service", WATCH, TIMER, EVENTS, SOCKET)

UNDO = (
    "Remove that line or file (`systemctl revert UNIT` removes all drop-ins of a unit, `systemctl unmask UNIT` "
    "a mask), then run site.yml."
)
EARLIER = f"comes before {PROGRAM_NAME} in root's PATH"

WATCH_TEXT = f"""\
# goldnode: check the running node against its class: \
a GPU may fail hours after a healthy boot
[Unit]
Description=goldnode passive check of the node class
After=goldnode-sanity.service
# No start limit: a refused check would leave the node unchecked.
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStartPre={MAKE}
ExecStartPre={DEVICES}
ExecStart={PROGRAM} check --quiet --passive --defer
ExecStartPost={ACT}
# A verdict is not a failure of the unit: 1 degraded, 2 drain, 3 could not check, 4 not this class.
SuccessExitStatus=1 2 3 4
TimeoutStartSec=600
Nice=10
CPUWeight=20
IOSchedulingPriority=7
{READER}"""

# The interval starts when the last check ends, so that checks never pile up. The
# random delay spreads a fleet.
TIMER_TEXT = f"""# goldnode: run the passive check; a verdict is valid for {verdict_files.LIMIT} s
[Unit]
Description=goldnode passive check, every {verdict_files.PERIOD // 60} minutes
Before=goldnode-sanity.service

[Timer]
OnActiveSec={verdict_files.PERIOD}
OnUnitInactiveSec={verdict_files.PERIOD}
RandomizedDelaySec=30

[Install]
WantedBy=timers.target
"""

# In a container, /dev/kmsg is the host's log or missing, so the unit is skipped rather than failed. Without
# polkit, systemd requires CAP_SYS_ADMIN from a client that starts a unit.
EVENTS_TEXT = f"""\
# goldnode: check the node when the kernel reports a fault, between two runs of the timer
[Unit]
Description=goldnode watch of the kernel log
ConditionPathExists={CLASS}
ConditionPathExists=/dev/kmsg
ConditionVirtualization=!container

[Service]
ExecStart={PROGRAM} watch-log
Restart=on-failure
RestartSec=30
Nice=10
CPUWeight=20
MemoryMax=64M
TasksMax=8
CapabilityBoundingSet=CAP_SYSLOG CAP_SYS_ADMIN
{CLOSED}ProtectHome=yes
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
DevicePolicy=closed
DeviceAllow=/dev/kmsg r

[Install]
WantedBy=multi-user.target
"""

# Reads text files of the last check and of the gate, without starting a program for each login.
MOTD_TEXT = f"""#!/bin/sh
# goldnode: one line at login when this node is not healthy
file={verdict_files.STATUS}
tell() {{ echo "goldnode: $*. See: {PROGRAM} check"; exit 0; }}
[ ! -s {NOTICE} ] || echo "goldnode: $(cat {NOTICE})"
[ -r "$file" ] || tell "this node has not been checked since it booted"
read now rest </proc/uptime
read at code status class <"$file"
case $at in '' | *[!0-9]*) tell "the last verdict cannot be read" ;; esac
[ $((${{now%%.*}} - at)) -le {verdict_files.LIMIT} ] || \
tell "the last verdict is too old, nothing watches this node"
if [ ! -e {gate_files.PASS} ] && [ -s {gate_files.REASON} ]; then
    read why <{gate_files.REASON}
    tell "the gate is closed: ${{why#goldnode gate: }}"
fi
[ "$status" = healthy ] || tell "class $class, verdict: $status (exit code $code)"
"""


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Collect the loaded units, the gate's last decision, and the drain hook. One systemctl call."""
    loaded: Optional[Dict[str, Dict[str, str]]] = None
    unread, tree = "", None
    try:
        tree = UnitTree(host)
    except OSError as problem:
        unread = f"{problem.filename}: {problem.strerror}"
    if host.live and host.exists("/run/systemd/system"):
        # The verdict checks these services; query them in the same call.
        stated = (document.get("health") or {}).get("baseline", {}).get("services", ())
        named = {
            name if "." in name else f"{name}.service"
            for name in stated
            if isinstance(name, str) and name[:1] not in ("", "-")
        }
        # systemd searches for each unit that it does not know, which takes it longer than the answer.
        asked = {
            name
            for name in {*UNITS, *named}
            if tree is None
            or name in ALWAYS
            or tree.entry(name)
            or tree.fragment(name)
            # A service that runs may have lost its file.
            or host.is_link(f"/run/systemd/units/invocation:{name}")
        }
        loaded = systemd.units(
            host, sorted({*asked, *filter(None, (_unit(path) for path in seen.files))})
        )
    seen.units = {
        "loaded": loaded,
        "gate": load_json(host, gate_files.STATE) if host.live else None,
        "hook": gate_files.hook(host, document),
    }
    if tree is not None:
        own = {path for path, row in seen.files.items() if row and row.get("type") == "file"}
        installed = [name for path in sorted(own) for name in [_unit(path)] if name]
        names = [name for name in dict.fromkeys(installed) if f"{FOLDER}/{name}" in own]
        try:
            seen.units["overrides"] = overrides.survey(tree, own, names, needed(document))
            seen.units["shadows"] = overrides.shadows(host, PROGRAM_NAME)
        except OSError as problem:
            unread = f"{problem.filename}: {problem.strerror}"
    if unread:
        seen.units["unread"] = unread


def needed(document: ClassDocument) -> List[str]:
    """Return units of packages without which a node would not be as its class after a boot. podman needs none."""
    runtime, names = document.get("runtime"), []
    if runtime and runtime["engine"] == "docker":
        names = list(gate_files.RUNTIMES)
    elif runtime and runtime["engine"] == "containerd":
        names = ["containerd.service"]
    if document.get("driver") and (document.get("platform") or {}).get("nvswitch"):
        names.append("nvidia-fabricmanager.service")
    settings = document.get("policy") or {}
    if settings.get("persistence_mode"):
        names.append("nvidia-persistenced.service")
    if any(row.get("load") for row in document.get("modules") or ()):
        names.append("systemd-modules-load.service")
    if settings.get("host"):
        names.append("systemd-sysctl.service")
    return names


def _unit(path: str) -> Optional[str]:
    """Return the unit that a file from goldnode defines or extends, or None."""
    if not path.startswith(FOLDER + "/"):
        return None
    name, _, inner = path[len(FOLDER) + 1 :].partition("/")
    if inner:
        name = name[: -len(".d")] if name.endswith(".d") and "/" not in inner else ""
    if name.startswith(".") or not name.endswith((".service", ".timer", ".socket")):
        return None
    return name


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the passive check, the login message and, for `gate: block`, drop-ins for the runtimes."""
    often = f"the passive check runs every {verdict_files.PERIOD // 60} minutes"
    shown = "a login shows that the node is not healthy"
    files = [
        Wanted(f"{FOLDER}/{WATCH}", WATCH_TEXT, "sanity", "the node is checked while it works"),
        Wanted(f"{FOLDER}/{TIMER}", TIMER_TEXT, "sanity", often),
        Wanted(MOTD, MOTD_TEXT, "sanity", shown, mode=0o755),
    ]
    if watches(document):
        why = "the node is checked when the kernel reports a fault"
        files.append(Wanted(f"{FOLDER}/{EVENTS}", EVENTS_TEXT, "sanity", why))
    if document.get("gate") == gate_files.BLOCK:
        why = "the class says `gate: block`: a bad node starts no containers"
        files += [
            Wanted(f"{FOLDER}/{name}.d/{gate_files.DROP_IN}", gate_files.drop_in(), "sanity", why)
            for name in gate_files.RUNTIMES
        ]
    return files


def watches(document: ClassDocument) -> bool:
    """Return whether to watch the kernel log: only if there is a GPU that can report faults."""
    return bool(document.get("gpu"))


def reload(seen: Observed, actions: Sequence[Action]) -> Tuple[List[Action], List[Waiting]]:
    """Return a `systemctl daemon-reload` if systemd has outdated units, or will have after `actions`.

    It waits while containers or processes use a GPU. In the toolkit's legacy mode, a reload takes
    the devices away from running containers. Pure.
    """
    outdated = set(stale(seen))
    for action in actions:
        name = _unit(action.target) if action.kind in ("file.write", "file.remove") else None
        # systemd looks again for a unit that it did not find, and not for one that was masked or broken.
        if name and (seen.unit(name) or {}).get("LoadState") not in (None, "not-found"):
            outdated.add(name)
    names = sorted(outdated)
    if not names:
        return [], []
    users = gpu_users(seen)
    if users:
        text = (
            f"systemd still has {', '.join(names)} as before: `systemctl daemon-reload` waits "
            "until nothing uses the GPU "
            f"({users}), since it could take the devices away from running containers"
        )
        return [], [Waiting("sanity", "units.reload", text)]
    reason = f"systemd has to read {', '.join(names)} again"
    return [Action("sanity", "units.reload", "systemd", reason, BOOT, data={"names": names})], []


def gpu_users(seen: Observed) -> str:
    """Return the first containers and processes that use a GPU, as text; empty if there are no such users."""
    users = [f"container {item['name']}" for item in seen.runtime.get("gpu_containers", ())]
    users += [f"pid {holder['pid']} {holder['command']}" for holder in seen.holders]
    return ", ".join(users[:3]) + (" …" if len(users) > 3 else "")


def stale(seen: Observed) -> List[str]:
    """Return the units with files from goldnode that changed after systemd loaded them."""
    return sorted(
        name
        for name, unit in (seen.units.get("loaded") or {}).items()
        if unit["NeedDaemonReload"] == "yes"
        and (
            any(_unit(path) == name for path in seen.files)
            or "/goldnode" in f"{unit['FragmentPath']} {unit['DropInPaths']}"
        )
    )


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return actions that start the timer and the log watch, and a note on a missing drain hook. Pure."""
    to = f"{FOLDER}/{TIMER}"
    actions = link("sanity", LINK, to, seen=seen, missing="the passive check is not enabled")
    timer = seen.unit(TIMER)
    # A masked timer is a decision of the administrator. The check reports it.
    if timer and timer["ActiveState"] != "active" and timer["LoadState"] != "masked":
        reason = f"the passive check has to run; the timer is {timer['ActiveState'] or 'unknown'}"
        actions.append(start_unit("sanity", TIMER, reason))
    actions += _events(document, seen)
    if seen.unrecorded:
        text = "goldnode's record of the node was deleted: {} is missing. The state before goldnode is unknown now"
        reason = text.format(", ".join(seen.unrecorded))
        held = [row["name"] for row in document["packages"]]
        actions.append(
            Action("sanity", "record.restore", RECORD, reason, BOOT, data={"held": held})
        )
    notes = []
    if seen.live and document.get("gate") == gate_files.DRAIN and not seen.units.get("hook"):
        notes.append(Note("gate", gate_files.NO_TARGET))
    unread = seen.units.get("unread")
    if unread:
        notes.append(Note("units.effective", unread))
    notes += [Note("units.path", f"{path} {EARLIER}") for path in seen.units.get("shadows") or ()]
    return actions, notes, []


def _events(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return actions that start the log watch if the class has a GPU, and otherwise stop it.

    In a container its conditions skip it, so it is not started.
    """
    unit = seen.unit(EVENTS) or {}
    if not watches(document):
        path = f"{FOLDER}/{EVENTS}"
        if of_the_site(path, seen.files.get(path)):
            return []
        actions = unlink("sanity", EVENTS_LINK, "the class has no GPU", seen=seen)
        if unit.get("ActiveState") == "active":
            actions.append(stop_unit("sanity", EVENTS, "it runs, and the class has no GPU"))
        return actions
    to, missing = f"{FOLDER}/{EVENTS}", "the watch of the kernel log is not enabled"
    actions = link("sanity", EVENTS_LINK, to, seen=seen, missing=missing)
    if (
        unit
        and not seen.container
        and unit["ActiveState"] not in ("active", "activating")
        and unit["LoadState"] != "masked"
    ):
        is_now = unit["ActiveState"] or "unknown"
        reason = f"the kernel log has to be watched; the watch is {is_now}"
        actions.append(start_unit("sanity", EVENTS, reason))
    return actions


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse a node on which others have changed what goldnode's units do. Otherwise nothing would watch it."""
    texts = seen.units.get("overrides")
    if not texts:
        return []
    return [
        Refusal("unit-override", f"systemd would not run what was installed: {_some(texts)}.", UNDO)
    ]


def _some(texts: Sequence[str]) -> str:
    return "; ".join(texts[:4]) + (" …" if len(texts) > 4 else "")


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Report the gate's state (for information), its drain hook, outdated units, and the check's timer."""
    mode = str(document.get("gate") or gate_files.REPORT)
    state = seen.units.get("gate") or {}
    elsewhere = "an image does not run" if not seen.live else None
    if elsewhere:
        rows = [Finding("gate", ELSEWHERE, mode, elsewhere)]
    else:
        now = "not decided yet in this boot"
        if "open" in state:
            now = "open" if state["open"] else "closed"
        rows = [Finding("gate", MATCH, mode, f"{state.get('mode', mode)}: {now}")]
        if mode == gate_files.DRAIN:
            error = state.get("error") if seen.units.get("hook") else gate_files.NO_TARGET
            remedy = Remedy(
                "Put right what it says, or name commands in the site file: `gate: {drain: […], "
                "resume: […]}`, and run site.yml.",
                PERSON,
            )
            want = "a drain is reported"
            rows.append(judge_item("gate.hook", want, error or want, remedy))
    if seen.units.get("loaded") is None:
        elsewhere = elsewhere or "systemd does not run here"
    names, want = stale(seen), "as on disk"
    got = f"not as on disk: {', '.join(names)}" if names else want
    remedy = Remedy("Run site.yml when no GPU container runs: it reloads systemd.", SITE)
    rows.append(judge_item("units.loaded", want, got, remedy, elsewhere))
    rows += _effective(seen)
    timer = seen.unit(TIMER) or {}
    active = timer.get("ActiveState") or "unknown"
    if timer.get("LoadState") in ("masked", "not-found"):
        active = timer["LoadState"]
    remedy = Remedy(f"Run site.yml; where it is masked, `systemctl unmask {TIMER}` first.", SITE)
    rows.append(judge_item("watch.timer", "active", active, remedy, elsewhere))
    return rows


def _effective(seen: Observed) -> List[Finding]:
    """Return whether systemd and a shell run what goldnode installed. Also of an image."""
    want, unread = "as installed", seen.units.get("unread")
    if unread:
        remedy = Remedy("Repair the file, or make it readable for root.", PERSON)
        return [Finding("units.effective", UNREAD, want, unread, remedy)]
    texts, paths = seen.units.get("overrides") or [], seen.units.get("shadows") or []
    remedy = Remedy("Remove or rename it, or call goldnode-node by its full path.", COMMAND)
    return [
        judge_item("units.effective", want, _some(texts) or want, Remedy(UNDO, COMMAND, SITE)),
        judge_item("units.path", want, ", ".join(paths) or want, remedy),
    ]

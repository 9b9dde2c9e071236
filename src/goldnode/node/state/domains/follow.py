"""Domain of `follow`: the timer of a node that follows a signed channel (:mod:`...follow`).

Its state in systemd is in `seen.units["loaded"]`, which domain `units` collects for every unit with
a file of goldnode.
"""

from __future__ import annotations

from ...ground.host import Host
from ...ground.json_lines import as_dict
from ..actions import link, start_unit, stop_unit, unlink
from ..finding import Finding, judge_item
from ..model import Action, Note, Observed, Refusal, Waiting
from ..remedy import SITE, Remedy
from . import units
from .files import Wanted
from .program import CLOSED, PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence, Tuple

    from ...ground.document import ClassDocument


SERVICE, TIMER = "goldnode-follow.service", "goldnode-follow.timer"
LINK = f"{units.FOLDER}/timers.target.wants/{TIMER}"
EVERY = 60  # seconds

FETCH = "goldnode-follow-fetch.service"

# systemd opens the request as root: it has the TLS key. Without AF_UNIX no socket of systemd is in reach, and glibc
# asks the name servers itself.
FETCH_TEXT = f"""# goldnode: talk to the channel and the lock service, for goldnode-follow.service
[Unit]
Description=goldnode follow: network
# No start limit: a pass starts it for each question.
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={PROGRAM} follow --fetch
StandardInput=file:/run/goldnode/follow-request
StandardOutput=journal
TimeoutStartSec=4h
{CLOSED}DynamicUser=yes
CacheDirectory=goldnode/fetch
CacheDirectoryMode=0700
PrivateDevices=yes
ProtectHome=read-only
ProtectKernelLogs=yes
ProtectProc=invisible
ProcSubset=pid
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET AF_INET6
MemoryMax=512M
Nice=10
"""
# The writer of images mounts in a namespace of its own, writes the other slot and the ESP, and copies files of any kind, so
# this takes away only what it certainly does not use.
WRITER = """\
CapabilityBoundingSet=~CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_MODULE CAP_SYS_TIME CAP_SYSLOG CAP_BPF CAP_PERFMON
NoNewPrivileges=yes
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
RestrictRealtime=yes
LockPersonality=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @debug @module @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM
"""

# An image is written, and a lock applied, within the limit.
SERVICE_TEXT = f"""# goldnode: one pass of a node that follows a signed channel
[Unit]
Description=goldnode follow: rollouts of the class
After=network-online.target goldnode-sanity.service
Wants=network-online.target
ConditionPathExists={{root}}

[Service]
Type=oneshot
ExecStart={PROGRAM} follow --apart
# 1: a person has to act, as the journal says. The unit is not to blame.
SuccessExitStatus=1
TimeoutStartSec=4h
Nice=10
CPUWeight=20
IOSchedulingPriority=7
{{sandbox}}"""

# The interval starts when the last pass ends. The random delay spreads a fleet over the servers.
TIMER_TEXT = """# goldnode: follow the channel of the class
[Unit]
Description=goldnode follow, every {every} seconds

[Timer]
OnBootSec=60
OnActiveSec={every}
OnUnitInactiveSec={every}
RandomizedDelaySec={spread}

[Install]
WantedBy=timers.target
"""


def declared(document: ClassDocument) -> Mapping[str, Any]:
    """Return the class's `follow`; empty if its nodes follow no channel."""
    return as_dict(document.get("follow"))


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Collect nothing more than the other domains do."""


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the units of a node that follows a channel."""
    follow = declared(document)
    if not follow:
        return []
    every = int(follow.get("every") or EVERY)
    why = f"the class says `follow: {{channel: {follow.get('channel')}}}`"
    # As in node/follow/settings.py, which a plan does not import, to start quickly.
    root = follow.get("root") or "/etc/goldnode/follow/root.json"
    # The command of the site that applies a lock may need anything, the network first of all.
    sandbox = "" if follow.get("apply") else WRITER
    text = SERVICE_TEXT.format(root=root, sandbox=sandbox)
    return [
        Wanted(f"{units.FOLDER}/{SERVICE}", text, "sanity", why),
        Wanted(
            f"{units.FOLDER}/{FETCH}", FETCH_TEXT, "sanity", "its network has a user of its own"
        ),
        Wanted(
            f"{units.FOLDER}/{TIMER}",
            TIMER_TEXT.format(every=every, spread=max(1, every // 4)),
            "sanity",
            why,
        ),
    ]


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return actions that start the timer if the class follows a channel, and otherwise stop it. Pure."""
    state = seen.unit(TIMER)
    active = state is not None and state["ActiveState"] == "active"
    if not declared(document):
        why = "the class follows no channel any more"
        stop = [stop_unit("sanity", TIMER, why)] if active else []
        return stop + unlink("sanity", LINK, why, seen=seen), [], []
    to = f"{units.FOLDER}/{TIMER}"
    actions = link("sanity", LINK, to, seen=seen, missing="the timer is not enabled")
    # A masked timer is a decision of the administrator. The check reports it.
    if state is not None and not active and state["LoadState"] != "masked":
        is_now = state["ActiveState"] or "unknown"
        reason = f"the node has to follow its channel; the timer is {is_now}"
        actions.append(start_unit("sanity", TIMER, reason))
    return actions, [], []


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Return no refusals: a timer never blocks a change."""
    return []


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Report whether the timer is active. Without a declaration there is no finding."""
    if not declared(document):
        return []
    remedy = Remedy(f"Run site.yml; where it is masked, `systemctl unmask {TIMER}` first.", SITE)
    if seen.units.get("loaded") is None:
        elsewhere = "systemd does not run here" if seen.live else "an image does not run"
        return [judge_item("follow.timer", "active", None, remedy, elsewhere)]
    state = seen.unit(TIMER) or {}
    got = state.get("ActiveState") or "unknown"
    if state.get("LoadState") in ("masked", "not-found"):
        got = state["LoadState"]
    return [judge_item("follow.timer", "active", got, remedy)]


def absent(
    document: Optional[ClassDocument], seen: Observed, record: Mapping[str, Any]
) -> List[Action]:
    """Return nothing: removal stops and removes goldnode's units by the record."""
    return []

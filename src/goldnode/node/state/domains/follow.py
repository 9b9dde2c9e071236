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
from .program import PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence, Tuple

    from ...ground.document import ClassDocument


SERVICE, TIMER = "goldnode-follow.service", "goldnode-follow.timer"
LINK = f"{units.FOLDER}/timers.target.wants/{TIMER}"
EVERY = 60  # seconds

# An image is written, and a lock applied, within the limit. The unit has no sandbox: it changes the node.
SERVICE_TEXT = f"""# goldnode: one pass of a node that follows a signed channel
[Unit]
Description=goldnode follow: rollouts of the class
After=network-online.target goldnode-sanity.service
Wants=network-online.target
ConditionPathExists={{root}}

[Service]
Type=oneshot
ExecStart={PROGRAM} follow
# 1: a person has to act, as the journal says. The unit is not to blame.
SuccessExitStatus=1
TimeoutStartSec=4h
Nice=10
CPUWeight=20
IOSchedulingPriority=7
"""

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
    return [
        Wanted(f"{units.FOLDER}/{SERVICE}", SERVICE_TEXT.format(root=root), "sanity", why),
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

"""Alerts of events: which labels an event raises or resolves in an Alertmanager.

Alertmanager knows an alert by its labels alone, so the events that raise and resolve it have the
same ones: what differs is in the annotations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from goldnode.documents.event import EventDocument
from goldnode.node.ground.optional import optional

EXPIRES = 24 * 3600.0  # seconds until an alert that is not sent again ends by itself
REPEAT = 300.0  # seconds between two sendings of active alerts: a restarted Alertmanager has forgotten them


@dataclass(frozen=True)
class FleetAlert:
    """An alert by its labels, and whether the event raises or resolves it."""

    labels: Mapping[str, str]
    active: bool

    @property
    def key(self) -> str:
        """Return the identity of the alert."""
        return json.dumps(dict(self.labels), sort_keys=True)


def alerts(event: EventDocument) -> list[FleetAlert]:
    """Return the alerts that an event raises or resolves; none for most events."""
    rows = _ALERTS[event.kind](event) if event.kind in _ALERTS else []
    return [
        FleetAlert(
            {"alertname": name, **{key: text for key, text in labels.items() if text}}, active
        )
        for name, labels, active in rows
    ]


_Rows = list[tuple[str, dict[str, str | None], bool]]


def _node(event: EventDocument) -> dict[str, str | None]:
    return {"node": event.node}


def _rollout(event: EventDocument, **more: str | None) -> dict[str, str | None]:
    return {"rollout": event.rollout, "class": event.node_class, **more}


def _finished(event: EventDocument) -> _Rows:
    phase = event.details.get("phase")
    failed = bool(event.details.get("failed")) or phase == "failed"
    rows: _Rows = (
        [("GoldnodeNodeFailed", _node(event), failed)] if failed or phase == "done" else []
    )
    return [*rows, ("GoldnodeNodeOverdue", _node(event), False)]


def _alarm(event: EventDocument) -> _Rows:
    code, subject = event.details.get("code"), event.details.get("subject")
    return [
        ("GoldnodeRolloutAlarm", _rollout(event, code=_text(code), subject=_text(subject)), True)
    ]


def _text(value: Any) -> str | None:
    return optional(str, value)


_ALERTS: Mapping[str, Callable[[EventDocument], _Rows]] = {
    "node.verdict": lambda one: [
        ("GoldnodeNodeNotHealthy", _node(one), one.details.get("status") != "healthy")
    ],
    "node.gate": lambda one: [
        ("GoldnodeGateClosed", _node(one), one.details.get("open") is not True)
    ],
    "node.silent": lambda one: [
        ("GoldnodeNodeSilent", _node(one), one.details.get("silent") is True)
    ],
    "node.finished": _finished,
    "node.overdue": lambda one: [("GoldnodeNodeOverdue", _node(one), True)],
    "node.released": lambda one: [
        ("GoldnodeNodeOverdue", _node(one), False),
        ("GoldnodeNodeFailed", _node(one), False),
    ],
    "rollout.phase": lambda one: [
        ("GoldnodeRolloutRollsBack", _rollout(one), one.details.get("phase") == "rolling-back")
    ],
    "rollout.requirement": lambda one: [
        (
            "GoldnodeRequirementNotMet",
            _rollout(one, requirement=_text(one.details.get("requirement"))),
            one.details.get("answer") != "pass",
        )
    ],
    "rollout.alarm": _alarm,
    "fleet.frozen": lambda one: [
        ("GoldnodeFrozen", {"freeze": _text(one.details.get("id"))}, True)
    ],
    "fleet.unfrozen": lambda one: [
        ("GoldnodeFrozen", {"freeze": _text(one.details.get("id"))}, False)
    ],
    "channel.moved": lambda one: [
        (
            "GoldnodeChannelRolledBack",
            {"channel": one.channel, "line": one.subject},
            one.details.get("action") == "rollback",
        )
    ],
    "hook.test": lambda one: [("GoldnodeTest", {"subject": one.subject}, False)],
}
NAMES = {
    "GoldnodeNodeNotHealthy": ("node.verdict", "the node is healthy"),
    "GoldnodeGateClosed": ("node.gate", "the gate is open"),
    "GoldnodeNodeSilent": ("node.silent", "the node reports again"),
    "GoldnodeNodeFailed": ("node.finished", "a later step is done, or `goldnode rollout release`"),
    "GoldnodeNodeOverdue": ("node.overdue", "the step ends, or `goldnode rollout release`"),
    "GoldnodeRolloutRollsBack": ("rollout.phase", "another phase"),
    "GoldnodeRequirementNotMet": ("rollout.requirement", "the answer is pass"),
    "GoldnodeRolloutAlarm": (
        "rollout.alarm",
        "nothing: it ends when it is not raised again for a day",
    ),
    "GoldnodeFrozen": ("fleet.frozen", "`goldnode rollout unfreeze`"),
    "GoldnodeChannelRolledBack": ("channel.moved", "the next promotion of the channel"),
    "GoldnodeTest": ("hook.test", "at once: it is sent as resolved"),
}


def payload(
    event: EventDocument, alert: FleetAlert, labels: Mapping[str, str], now: float
) -> dict[str, Any]:
    """Return one element of the body of `POST /api/v2/alerts` (postableAlert of Alertmanager's openapi.yaml).

    A resolved alert has no start: Alertmanager refuses one that is not before the end, and keeps
    its own.
    """
    given = {**alert.labels, "source": "goldnode", "severity": "warning", **labels}
    content: dict[str, Any] = {
        "labels": given,
        "annotations": {
            "summary": event.text,
            "event_id": event.id,
            "event_kind": event.kind,
            "details": json.dumps(event.details, sort_keys=True)[:4000],
        },
    }
    if event.simulated:
        content["annotations"]["simulated"] = "SIMULATED: the hardware is simulated"
    at = datetime.fromisoformat(event.at)
    if alert.active:
        content["startsAt"] = _moment(at)
        content["endsAt"] = until(now)
    else:
        content["endsAt"] = _moment(at)
    return content


def until(now: float) -> str:
    """Return the end of an active alert, unless it is sent again."""
    return _moment(datetime.fromtimestamp(now, UTC) + timedelta(seconds=EXPIRES))


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

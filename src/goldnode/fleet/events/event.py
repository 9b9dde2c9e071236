"""One event, and its id.

The id is the digest of where the event is in its source: a line of the log, two verdicts of a node,
an entry of a history. Every controller that reads the same source makes the same id.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from goldnode.documents.event import EventDocument

Severity = Literal["info", "warning", "critical"]
Source = Literal["log", "captures", "channel", "test"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


@dataclass(frozen=True)
class FleetEvent:
    """An event that has no place in an outbox yet. `at` is in seconds since the epoch."""

    id: str
    at: float
    kind: str
    severity: Severity
    source: Source
    subject: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)
    node: str | None = None
    node_class: str | None = None
    rollout: str | None = None
    channel: str | None = None
    simulated: bool | None = None

    def document(self, seq: int) -> EventDocument:
        """Return the event as hooks get it."""
        return EventDocument(
            schema="goldnode.event/1",
            id=self.id,
            seq=seq,
            at=f"{dt.datetime.fromtimestamp(self.at, tz=dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
            kind=self.kind,
            severity=self.severity,
            source=self.source,
            subject=self.subject,
            node=self.node,
            **{"class": self.node_class},
            rollout=self.rollout,
            channel=self.channel,
            simulated=self.simulated,
            text=self.text,
            details=dict(self.details),
        )


def identity(*place: object) -> str:
    """Return the id of the event at a place."""
    return hashlib.sha256(json.dumps(place, separators=(",", ":")).encode()).hexdigest()[:32]


def body(document: EventDocument) -> bytes:
    """Return the bytes of an event, the same each time."""
    content = document.model_dump(mode="json", by_alias=True)
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

"""An event of the fleet, as hooks get it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from goldnode.documents.base import Moment, Part


class EventDocument(Part):
    """A change of the state of a node, a gate, a rollout or a channel."""

    schema_: Literal["goldnode.event/1"] = Field(alias="schema")
    id: str = Field(
        pattern=r"^[0-9a-f]{32}$",
        description="the same for every delivery of this event; receivers drop an id that they have seen",
    )
    seq: int = Field(
        description="number in the outbox of the controller that sent it; it increases"
    )
    at: Moment = Field(description="when it happened")
    kind: str = Field(description="for instance node.verdict; docs/how-to/events.md lists all")
    severity: Literal["info", "warning", "critical"]
    source: Literal["log", "captures", "channel", "test"]
    subject: str = Field(description="the node, the rollout, the channel, or the scope of an order")
    node: str | None
    node_class: str | None = Field(alias="class")
    rollout: str | None
    channel: str | None
    simulated: bool | None = Field(
        description="whether hardware is simulated; null: the source does not know"
    )
    text: str = Field(description="one sentence for a person")
    details: dict[str, Any] = Field(description="fields of this kind")

"""How far a machine got on its way into a class (/var/lib/cloud/data/goldnode-join.json)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Digest, Moment, NodePart


class JoinDocument(NodePart):
    """Record of `goldnode-node join`, which the user data of `goldnode class user-data` runs at each boot until it says `joined`."""

    schema_: Literal["goldnode.join/1"] = Field(alias="schema")
    instance: str = Field(
        description="the instance ID that cloud-init knew; empty outside of an instance"
    )
    class_: str = Field(alias="class")
    digest: Digest = Field(description="of the class document in the user data")
    digests: list[Digest] = Field(
        description="of all class documents that were begun and not applied to their end, the last one included"
    )
    state: Literal["applying", "rebooting", "joined"] = Field(
        description="applying: begun, or ended with an error; rebooting: applied, the next boot judges; joined: a member"
    )
    boot: str | None = Field(
        description="identity of the boot in which the reboot was requested; null: no reboot is awaited"
    )
    reasons: list[str] = Field(description="why the reboot was needed")
    verdict: int | None = Field(
        description="exit status of the check; null: it was not made since the record began"
    )
    time: Moment = Field(description="the last write")

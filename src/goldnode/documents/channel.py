"""The document of a signed channel: what the nodes of one class may do now. `goldnode-node follow` reads it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.documents.base import Moment, Part

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ChannelTarget(Part):
    """The state that a rollout moves nodes to."""

    kind: Literal["lock", "disk"]
    digest: str = Field(description="digest of the lock, or id of the disk build")


class ChannelWave(Part):
    """A wave and its nodes, as the controller has chosen them."""

    name: str
    start: Moment | None = Field(description="when the controller began the wave; null: not yet")
    nodes: list[str] = Field(description="empty until the wave begins")


class ChannelRollout(Part):
    """The rollout of the class."""

    name: str
    phase: Literal["running", "rolling-back", "completed", "rolled-back"]
    origin: str = Field(description="state that nodes move away from")
    to: ChannelTarget
    waves: list[ChannelWave]
    back: dict[str, str | None] = Field(
        description="nodes that go back now, each to its own earlier state"
    )


class ChannelFreeze(Part):
    """A freeze in force: nodes without leave do not start."""

    nodes: list[str] | None = Field(description="null: all nodes of the class")
    reason: str
    who: str


class ChannelImage(Part):
    """The root file system of a disk build, compressed with gzip, and the header of its stream."""

    path: str = Field(description="below the channel")
    size: int
    sha256: Sha256
    header: dict[str, Any] = Field(description="first line of the stream that `slot write` reads")


class ChannelSignature(Part):
    """One signature of a statement."""

    keyid: str = Field(description="SHA-256 of the public key in DER")
    sig: str = Field(description="base64")


class ChannelEvidence(Part):
    """A statement about the state that the rollout goes to: a DSSE envelope (docs/how-to/evidence.md)."""

    payload: str = Field(description="base64")
    payloadType: str  # noqa: N815 (the name in DSSE)
    signatures: list[ChannelSignature]


class ChannelDocument(Part):
    """A class in a channel."""

    schema_: Literal["goldnode.channel/1"] = Field("goldnode.channel/1", alias="schema")
    class_: str = Field(alias="class")
    rollout: ChannelRollout | None
    frozen: list[ChannelFreeze]
    denied: dict[str, str] = Field(description="digests that no node may apply, with the reason")
    images: dict[str, ChannelImage] = Field(description="by id of the disk build")
    evidence: dict[EvidenceKind, ChannelEvidence] = Field(
        default_factory=dict,
        description="signed statements that the nodes want before they move, by kind",
    )

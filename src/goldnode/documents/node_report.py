"""The report of a node: its capture and verdict, as `goldnode-node report` prints them and POST /v1/captures takes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from goldnode.documents.base import Moment, NodePart, Part
from goldnode.documents.capture import CaptureDocument
from goldnode.documents.verdict import VerdictDocument

_Name = Annotated[str, Field(max_length=255)]


class NodeReportGate(Part):
    """The gate of the node after its last check."""

    mode: Literal["report", "drain", "block"]
    open: bool
    reasons: list[str]
    since: Moment
    drained: bool | None = Field(
        None,
        description="true: the gate has drained the node; false: another party had; null: not drained",
    )


class NodeReportDocument(NodePart):
    """A capture and the verdict about it, of the same boot."""

    schema_: Literal["goldnode.node-report/1"] = Field(alias="schema")
    node: _Name | None = Field(
        None, description="name of the node; null: the host name in the capture"
    )
    class_: _Name | None = Field(
        None, alias="class", description="null: that of the verdict, else that of the capture"
    )
    cohort: _Name | None = Field(
        None, description="set by the controller: the variable goldnode_cohort"
    )
    source: Literal["ansible", "http"] | None = Field(
        None, description="set by the controller in its inbox; ignored in what others send"
    )
    engine: _Name | None = Field(
        None, description="SHA-256 of the program on the node; null if not known"
    )
    capture: CaptureDocument
    verdict: VerdictDocument | None = Field(
        None, description="null: the node has no class, or the capture was not judged"
    )
    gate: NodeReportGate | None = Field(
        None, description="null: no check has acted on the gate yet"
    )

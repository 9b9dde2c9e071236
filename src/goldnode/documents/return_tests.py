"""Tests before the return of a node, as the node has them (`goldnode-node return-tests --format json`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import NodePart
from goldnode.documents.gate import GateTests


class ReturnTestsDocument(NodePart):
    """The outstanding tests of one node, and what became of results that were sent to it."""

    schema_: Literal["goldnode.return-tests/1"] = Field(alias="schema")
    node: str = Field(description="host name of the node, up to the first dot")
    class_: str = Field(alias="class")
    simulated: bool = Field(description="whether the hardware of the class is simulated")
    boot_id: str | None = Field(
        description="the kernel's id of the present boot; results of another one do not count"
    )
    open: bool = Field(description="whether the gate lets work start")
    drained: bool | None = Field(
        description="true: by the gate; false: by another party; null: not drained"
    )
    error: str | None = Field(description="why the gate could not call the scheduler")
    reasons: list[str] = Field(description="why the gate is closed")
    causes: list[GateTests]
    unknown: list[str] = Field(description="causes that could not be decided, and why")
    taken: int = Field(description="results that were accepted")
    refused: list[str] = Field(description="a sentence for each result that was refused")

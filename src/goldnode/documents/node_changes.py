"""The report of a node as what has changed since a report that the fleet's service holds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from goldnode.documents.base import Part


class NodeChangesDocument(Part):
    """Changes of a report. Values are numbered from 0 in the order of sorted keys; a list without objects and lists is one value."""

    schema_: Literal["goldnode.node-changes/1"] = Field(alias="schema")
    node: Annotated[str, Field(max_length=253)]
    base: str = Field(
        pattern=r"^[0-9a-f]{32}$",
        description="begin of the SHA-256 of the whole report, in the bytes that the node has sent",
    )
    at: list[Annotated[int, Field(ge=0)]] = Field(
        description="numbers of the values that changed, each as the distance from the one before"
    )
    to: list[Any] = Field(description="these values")
    trees: list[list[Any]] = Field(
        description="path and value of each subtree whose form changed; a path alone: it is gone"
    )
    source: Literal["ansible", "http"] | None = Field(
        None, description="set by the controller in its inbox; ignored in what others send"
    )

"""The deny list of a site: states that must not be applied, until a person lifts them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Moment, Part


class DeniedState(Part):
    """One denied state of a class."""

    class_: str = Field(alias="class")
    digest: str = Field(description="digest of a lock, or id of a disk build")
    rollout: str | None = Field(
        description="the rollout that failed with it; null: a person denied it"
    )
    reason: str
    who: str = Field(description="controller or person")
    at: Moment


class DenyListDocument(Part):
    """The deny list. A site with a key has it as payload of a DSSE envelope."""

    schema_: Literal["goldnode.deny-list/1"] = Field(alias="schema")
    number: int = Field(ge=0, description="greater in each later list of a store")
    denied: list[DeniedState]

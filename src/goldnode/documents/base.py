"""Base class and shared values of the document types."""

# No `from __future__ import annotations`: pydantic would compile the text of each annotation at each start.

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from goldnode.node.ground.text import cleaned

Value = TypeVar("Value")


class Part(BaseModel):
    """Base class of all documents and their parts: no unknown keys, no conversion of types."""

    # Strict: a wrong type must not pass by conversion. `defer_build`: a command uses few documents,
    # and the validators of the others are not built.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class NodePart(Part):
    """Base class of the documents that nodes write: their texts are cleaned before they are validated."""

    @model_validator(mode="before")
    @classmethod
    def _cleaned(cls, value: Any) -> Any:
        return cleaned(value)


class MissingValue(Part):
    """The reason why a value is missing.

    `not_exposed`: this hardware, driver or kernel has no such value. `unread`: reading it failed.
    """

    fault: Literal["not_exposed", "unread"]
    text: str
    rc: int | None = Field(None, description="return code of NVML, or errno")


# A value, or the reason why there is none.
Reading: TypeAlias = Value | MissingValue

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Moment = Annotated[
    str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", description="UTC, to the second")
]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]

"""A game day on one node: `goldnode game-day` (docs/how-to/game-day.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from goldnode.documents.base import Moment, Part

WitnessName = Literal["check", "gate", "alert", "alertmanager", "report"]
SightingOutcome = Literal["seen", "not_seen", "not_asked", "could_not_check"]
# armed: the end is armed and nothing else has changed; made: the fault is on the node; ended: the node is as before;
# left: something of it is left, and `left` has the command; lost: the node could not be asked, and ends it by itself.
GameDayState = Literal["planned", "refused", "armed", "made", "ended", "left", "lost"]


class GameDaySighting(Part):
    """The observation of one witness. `seconds` are since the fault was made; null unless it was seen."""

    witness: WitnessName
    outcome: SightingOutcome
    seconds: float | None
    text: str = Field(description="what was seen, or why nothing was")


class GameDayFinding(Part):
    """A finding of the node, as its verdict names it."""

    id: str
    subject: str | None


class GameDayDocument(Part):
    """One game day. It is written before each step, so that a run which ends early leaves what it had done."""

    schema_: Literal["goldnode.game-day/1"] = Field(alias="schema")
    simulated: bool = Field(description="the class declares simulated hardware")
    id: str
    class_: str = Field(alias="class")
    node: str
    fault: str
    finding: str = Field(description="id of the finding that the check must have")
    who: str
    started: Moment
    limit_seconds: int = Field(description="the node ends the game day by itself after this time")
    held_by: str | None = Field(
        None, description="scheduler that gives the node no work meanwhile; null: none"
    )
    state: GameDayState
    sightings: list[GameDaySighting]
    before: list[GameDayFinding] = Field(description="what differed on the node before the fault")
    left: list[str] = Field(
        description="what is left on the node, each with the command that ends it"
    )

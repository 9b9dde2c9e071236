"""Rotation of a key: steps that are planned, recorded, and repeated after an interruption.

A record beside the key has each step with its time. A step of goldnode may be carried out twice: the record names it
before it begins. A step of a person is done when its effect is seen, or when the person confirms it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file

RECORD, SCHEMA = "rotation.json", "goldnode.rotation/1"
GOLDNODE = "goldnode"
TRUST, WITHDRAW, OVERLAP = "trust", "withdraw", "overlap"


class RotationError(GoldnodeError):
    """A key cannot be rotated, or its record cannot be read."""


@dataclass(frozen=True)
class KeyStep:
    """A step of a rotation: who acts, and what is true afterwards.

    `act` is goldnode's; it returns why it has to wait, or nothing. `seen` tells whether a person's step has had its
    effect; None: the person confirms it.
    """

    name: str
    who: str
    text: str
    command: str = ""
    act: Callable[[], str] | None = None
    seen: Callable[[], bool] | None = None


@dataclass(frozen=True)
class KeyRotation:
    """The procedure of one key. `directory` has the record, the new key, and later the former one."""

    kind: str
    named: str
    directory: Path
    days: int  # at least so long both keys are trusted
    steps: Sequence[KeyStep]


@dataclass(frozen=True)
class StepState:
    """A step with its state: done, next or later. `why` is the reason to wait."""

    step: KeyStep
    state: str
    at: str | None = None
    why: str = ""


@dataclass(frozen=True)
class RotationState:
    """A rotation as it is: `planned`, `running` or `completed`, with its steps."""

    rotation: KeyRotation
    state: str
    stolen: bool
    days: int
    steps: Sequence[StepState]

    def content(self) -> dict[str, Any]:
        """Return the fields of the command's document."""
        steps = [
            {
                "name": row.step.name,
                "who": row.step.who,
                "text": row.step.text,
                "command": row.step.command or None,
                "state": row.state,
                "at": row.at,
                "waits_for": row.why or None,
            }
            for row in self.steps
        ]
        return {
            "kind": self.rotation.kind,
            "named": self.rotation.named,
            "state": self.state,
            "stolen": self.stolen,
            "overlap_days": 0 if self.stolen else self.days,
            "directory": str(self.rotation.directory),
            "steps": steps,
        }


@dataclass(frozen=True)
class RotationRequest:
    """A request: to carry out steps, to end the old key at once, and the person's step that is done."""

    apply: bool = False
    stolen: bool = False
    confirmed: str | None = None
    days: int | None = None  # None: those of the procedure


def carry_out(rotation: KeyRotation, request: RotationRequest, now: dt.datetime) -> RotationState:
    """Return the state of a rotation, after the steps that can be done now if they are asked for.

    Raises RotationError, and the errors of the steps; what was done before stays recorded.
    """
    record = _read(rotation)
    begun = bool(record)
    record.setdefault("stolen", False)
    record.setdefault("days", rotation.days if request.days is None else request.days)
    record.setdefault("done", {})
    record["stolen"] = record["stolen"] or request.stolen
    steps = _ordered(rotation.steps, stolen=record["stolen"])
    done: dict[str, str] = record["done"]
    why = ""
    if request.confirmed is not None:
        _confirmable(steps, done, request.confirmed)
    if request.apply or request.confirmed is not None:
        begun, why = True, _advance(rotation, record, steps, request.confirmed, now)
    rows, state = [], "completed"
    for step in steps:
        if step.name in done:
            rows.append(StepState(step, "done", done[step.name]))
            continue
        rows.append(StepState(step, "next" if state == "completed" else "later", why=why))
        state, why = "running", ""
    if state == "completed":
        _finish(rotation, now)
    state = state if begun else "planned"
    return RotationState(rotation, state, record["stolen"], record["days"], rows)


def _finish(rotation: KeyRotation, now: dt.datetime) -> None:
    """Rename the directory of a completed rotation, so that the same command begins the next one."""
    name = f"{rotation.directory.name}-ended-{now:%Y%m%dT%H%M%S}"
    rotation.directory.rename(rotation.directory.with_name(name))


def _advance(
    rotation: KeyRotation,
    record: dict[str, Any],
    steps: Sequence[KeyStep],
    confirmed: str | None,
    now: dt.datetime,
) -> str:
    """Carry out steps in order until one cannot be done now; return why."""
    rotation.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    done: dict[str, str] = record["done"]
    for step in steps:
        if step.name in done:
            continue
        record["intent"] = step.name
        _write(rotation, record)
        why = _waits(step, record, confirmed, now)
        if why:
            return why
        done[step.name] = now.isoformat()
        _write(rotation, record)
    record["intent"] = None
    _write(rotation, record)
    return ""


def _waits(step: KeyStep, record: dict[str, Any], confirmed: str | None, now: dt.datetime) -> str:
    """Carry out a step; return why it is not done yet."""
    if step.name == OVERLAP:
        end = dt.datetime.fromisoformat(record["done"][TRUST]) + dt.timedelta(record["days"])
        return "" if now >= end else f"both keys stay trusted until {end:%Y-%m-%d %H:%M} UTC"
    if step.act is not None:
        return step.act()
    if step.seen is not None:
        return "" if step.seen() else "its effect is not there yet"
    return "" if step.name == confirmed else f"confirm it with --done {step.name}"


def _ordered(steps: Sequence[KeyStep], *, stolen: bool) -> list[KeyStep]:
    """Return the steps in their order. After a theft the old key is withdrawn as soon as another one is trusted."""
    if not stolen:
        return list(steps)
    rest = [step for step in steps if step.name not in (OVERLAP, WITHDRAW)]
    end = [step for step in steps if step.name == WITHDRAW]
    after = TRUST if any(step.name == TRUST for step in rest) else rest[0].name
    at = 1 + [step.name for step in rest].index(after)
    return [*rest[:at], *end, *rest[at:]]


def _confirmable(steps: Sequence[KeyStep], done: dict[str, str], name: str) -> None:
    """Raise RotationError unless a step is done, or is the next one and a person confirms it."""
    if name in done:
        return  # the run that confirmed it was interrupted
    following = next((step for step in steps if step.name not in done), None)
    if following is None or following.name != name:
        which = f"the next step is {following.name}" if following else "all steps are done"
        raise RotationError(
            f"{name} is not the step that is to be confirmed: {which}",
            remedy="see the steps with the same command without --done and without --apply",
        )
    if following.act is not None or following.seen is not None or name == OVERLAP:
        raise RotationError(
            f"{name} is not for a person to confirm: goldnode does it, or sees its effect",
            remedy="give --apply instead of --done",
        )


def _read(rotation: KeyRotation) -> dict[str, Any]:
    path = rotation.directory / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA or record["kind"] != rotation.kind:
            raise ValueError(f"it is no record of the kind {rotation.kind}")
        for at in record["done"].values():
            dt.datetime.fromisoformat(at)
        int(record["days"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise RotationError(
            f"the record of the rotation cannot be read: {problem}",
            file=path,
            remedy="restore it from a backup; it has no secret",
        ) from problem
    return dict(record)


def _write(rotation: KeyRotation, record: dict[str, Any]) -> None:
    text = json.dumps(
        {"schema": SCHEMA, "kind": rotation.kind, "named": rotation.named, **record}, indent=1
    )
    replace_file(rotation.directory / RECORD, f"{text}\n".encode(), 0o600)

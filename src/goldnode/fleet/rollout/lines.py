"""Sentences and severities of the lines of the log, for persons and for alerting."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from goldnode.documents.rollout_status import RolloutEventDocument
from goldnode.fleet.rollout.model import GAVE_UP, Action, Evaluate, action_to_json
from goldnode.node.ground.text import and_more, phrase

_Content = Mapping[str, Any]
_SHOWN = 8  # names of nodes in one sentence
PHASES: Mapping[str, str] = {
    "queued": "waits for another rollout of the class",
    "running": "runs",
    "rolling-back": "rolls back",
    "completed": "is completed",
    "rolled-back": "is rolled back",
    "superseded": "is superseded by a rollout of the security lane",
}
_ENDS: Mapping[str, str] = {
    "done": "is back in service",
    "failed": "has failed",
    "overdue": "is overdue",
    "deferred": "is deferred, because it is out of service for another reason",
    "passed": "is passed over, because it is busy",
    "left": "is left alone, because it is in another state than the rollout begins from",
}


def moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return f"{dt.datetime.fromtimestamp(seconds, tz=dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def event(row: Mapping[str, Any]) -> RolloutEventDocument:
    """Return the event of a decoded line of the log."""
    content = row["content"]
    return RolloutEventDocument(
        schema="goldnode.rollout-event/1",
        seq=row["seq"],
        at=moment(row["at"]),
        rollout=row["rollout"],
        event=row["action"],
        severity=severity(row["action"], content),
        subject=row["subject"],
        node=content.get("node"),
        who=row["who"],
        text=sentence(row),
        details={
            name: value for name, value in content.items() if name not in ("action", "document")
        },
    )


def severity(action: str, content: _Content) -> Any:
    """Return info, warning or critical. Critical: the change was stopped, or goes back."""
    if action == "ChangePhase":
        return "critical" if content.get("phase") == "rolling-back" else "info"
    if action == "Alarm":
        return "critical" if content.get("code") == "stopped" else "warning"
    if action in ("Overdue", "Freeze", "Deny", "PowerCycle", "PowerCycled", "OpenTicket"):
        return "warning"
    if action == "Calendar":
        return "warning" if content.get("problem") else "info"
    if action == "Answer":
        return {"pass": "info", "unknown": "warning"}.get(str(content.get("answer")), "critical")
    failed = content.get("failed") or content.get("phase") == "failed"
    return "warning" if action == "Finish" and failed else "info"


def sentence(row: Mapping[str, Any], waves: Sequence[str] = ()) -> str:
    """Return one sentence for a decoded line of the log; `waves` are the names of the waves, where they are known.

    An unknown action has its own name.
    """
    action, content = row["action"], row["content"]
    form = SENTENCES.get(action)
    if form is None:
        return f"{action} {row['subject']}"
    text = form({**content, "about": row["subject"], "waves": waves})
    reason = content.get("reason")
    if action in _OF_PERSONS and reason:
        text += f": {reason}"
    return text


def action_sentence(action: Action, waves: Sequence[str]) -> str | None:
    """Return the sentence of an action of a controller; None for one that only asks."""
    if isinstance(action, Evaluate):
        return None
    return sentence(
        {"action": type(action).__name__, "subject": "", "content": action_to_json(action)}, waves
    )


def short(digest: str) -> str:
    """Return a digest as a person reads it: of a lock the first 12 digits, of a disk build its id."""
    return f"lock {digest[7:19]}" if digest.startswith("sha256:") else digest


def _wave(content: _Content, number: int | None = None) -> str:
    place, names = content["wave"] if number is None else number, content["waves"]
    return f"wave {names[place] if place < len(names) else place + 1}"


def _nodes(content: _Content) -> str:
    names = content.get("nodes", ())
    count = f"{len(names)} node" if len(names) == 1 else f"{len(names)} nodes"
    more = and_more(len(names) - _SHOWN)
    return f"{count}: {', '.join(names[:_SHOWN])}{more}" if names else "no nodes"


def _finish(content: _Content) -> str:
    cause, blame = content.get("cause"), content.get("blame")
    if content["phase"] == "left" and (cause or "").startswith(GAVE_UP):
        return f"the rollout goes on without {content['node']}: it {cause}"
    text = f"{content['node']} {_ENDS.get(content['phase'], content['phase'])}" + phrase(
        ": {}", cause
    )
    return text + phrase(" (counted as {})", blame)


def _proceed(content: _Content) -> str:
    what = {"applying": "is out of service, and is changed", "returning": "returns to service"}.get(
        content["phase"], content["phase"]
    )
    return f"{content['node']} {what}" + (f": {content['cause']}" if content.get("cause") else "")


def _grant(content: _Content) -> str:
    back = " to go back" if content.get("direction") == "back" else ""
    attempt = content.get("attempt") or 1
    again = f", attempt {attempt}" if attempt > 1 else ""
    return f"{content['node']} has leave{back} until {moment(content['deadline'])}{again}"


def _silence(content: _Content) -> str:
    if content["on"]:
        until = moment(content["until"])
        return f"alerts of {content['node']} are silenced until {until} ({content['hook']})"
    return f"alerts of {content['node']} are no longer silenced ({content['hook']})"


def _change_phase(content: _Content) -> str:
    scope = f" ({content['back']})" if content.get("back") else ""
    why = f": {content['why']}" if content.get("why") else ""
    return f"the rollout {PHASES.get(content['phase'], content['phase'])}{scope}{why}"


def _calendar(content: _Content) -> str:
    name, problem = content["calendar"], content.get("problem")
    if problem:
        return f"calendar {name} could not be checked: {problem}"
    spans = content.get("spans", ())
    first = phrase("; the first: {}", spans[0]["summary"] if spans else None)
    count = f"{len(spans)} freeze" if len(spans) == 1 else f"{len(spans)} freezes"
    return f"calendar {name} has {count} until {moment(content['until'])}{first}"


def _power_cycled(content: _Content) -> str:
    return f"the power cycle of {content['node']} ended: {content.get('result')}"


def _open_ticket(content: _Content) -> str:
    request = content["request"]
    label = "SIMULATED: " if content.get("simulated") else ""
    return f"{label}{content['node']} needs a repair, ticket {content['ticket']}: {request['finding']}: {request['why']}"


SENTENCES: Mapping[str, Callable[[_Content], str]] = {
    "Submit": lambda c: (
        "the rollout was submitted" if c.get("new") else "the document was replaced"
    ),
    "TakeOver": lambda c: f"{c['holder']} has the rollout, epoch {c['epoch']}",
    "Start": lambda c: f"{_wave(c, 0)} begins with {_nodes(c)}",
    "Promote": lambda c: f"{_wave(c)} begins with {_nodes(c)}",
    "Extend": lambda c: f"{_wave(c)} has too few nodes that passed, and gets {_nodes(c)}",
    "Grant": _grant,
    "Proceed": _proceed,
    "Turn": lambda c: f"{c['node']} is turned back" + (f": {c['cause']}" if c.get("cause") else ""),
    "Finish": _finish,
    "Overdue": lambda c: f"{c['node']} is overdue: {c['reason']}",
    "TakeHold": lambda c: (
        f"{c['node']} is out of service ({c['kind']}, {c['owner']}): {c['reason']}"
    ),
    "DropHold": lambda c: f"{c['node']} is no longer held by {c['owner']}",
    "Evaluate": lambda c: f"requirement {c['requirement']} of {_wave(c)} is evaluated",
    "Answer": lambda c: (
        f"requirement {c['requirement']} of {_wave(c)}: {c['answer']}"
        + (f" ({c['reason']})" if c.get("reason") else "")
    ),
    "Calendar": _calendar,
    "Silence": _silence,
    "ChangePhase": _change_phase,
    "Deny": lambda c: f"{short(c['digest'])} is denied",
    "LiftDenial": lambda c: f"{short(c['digest'])} is allowed again",
    "Alarm": lambda c: f"alarm {c['code']}: {c['text']}",
    "Freeze": lambda c: f"{c['scope']} {c.get('subject', '')}".strip() + " is frozen",
    "Thaw": lambda c: f"the freeze of {c['about']} is lifted",
    "Approve": lambda c: f"wave {c['wave']} is approved as {c['role']}",
    "Release": lambda c: f"{c['node']} is released",
    "PowerCycle": lambda c: f"the power of {c['node']} is cycled",
    "PowerCycled": _power_cycled,
    "PutNodes": lambda c: (
        f"nodes of {c['about']}: {len(c['added'])} added, {len(c['changed'])} changed, "
        f"{len(c['retired'])} retired"
    ),
    "OpenTicket": _open_ticket,
    "CommentTicket": lambda c: f"ticket {c['ticket']} of {c['node']}: {c['text']}",
    "CloseTicket": lambda c: f"ticket {c['ticket']} of {c['node']} is closed",
}
_OF_PERSONS = ("CloseTicket", "Freeze", "Thaw", "Approve", "Release", "Deny", "LiftDenial")

"""Kinds of events of a fleet, which hooks of the site file choose by name. Rendered into docs/how-to/events.md."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class EventKind(NamedTuple):
    """One kind: when it happens, and the fields that `details` has then. A field may be absent."""

    when: str
    details: tuple[str, ...]


KINDS = {
    "node.verdict": EventKind(
        "an ingest finds another status of a node than before; the first one only if it is not healthy",
        ("before", "status", "findings"),
    ),
    "node.gate": EventKind(
        "an ingest finds a gate opened or closed, or closed for another reason",
        ("mode", "open", "reasons", "drained"),
    ),
    "node.silent": EventKind(
        "a node has not reported for `events.silent_after` hours, and is unknown; or it reports again",
        ("silent", "last"),
    ),
    "node.granted": EventKind(
        "a node has leave to be out of service", ("wave", "deadline", "direction", "attempt")
    ),
    "node.step": EventKind(
        "a node in a rollout is out and is changed, returns, or is turned back", ("phase", "cause")
    ),
    "node.finished": EventKind(
        "a node has ended its step: done, failed, deferred, passed over or left alone",
        ("phase", "cause", "blame"),
    ),
    "node.overdue": EventKind("a node did not return in time", ("reason",)),
    "node.held": EventKind(
        "a node is out of service outside of a rollout", ("owner", "kind", "reason")
    ),
    "node.hold-ended": EventKind("that has ended", ("owner",)),
    "node.released": EventKind("a person has removed the holds of a node", ("reason", "before")),
    "node.power": EventKind(
        "the power of an overdue node is cycled, or that has ended", ("result",)
    ),
    "node.silenced": EventKind(
        "alerts of a node are silenced in an Alertmanager while it is changed, or no longer",
        ("hook", "until", "on"),
    ),
    "rollout.submitted": EventKind("a rollout or a new document of it was submitted", ("new",)),
    "rollout.controller": EventKind("a controller has taken the rollout", ("holder", "epoch")),
    "rollout.wave": EventKind("a wave begins, or gets more nodes", ("wave", "nodes")),
    "rollout.phase": EventKind(
        "a rollout is completed, rolls back, is rolled back, or is superseded",
        ("phase", "back", "why"),
    ),
    "rollout.requirement": EventKind(
        "a requirement has another answer: pass, fail or unknown",
        ("requirement", "wave", "answer", "reason"),
    ),
    "rollout.calendar": EventKind(
        "a freeze calendar has other freezes, or could not be checked",
        ("calendar", "until", "spans", "problem"),
    ),
    "rollout.alarm": EventKind(
        "a rollout needs a person, or was stopped", ("code", "subject", "text")
    ),
    "rollout.approved": EventKind("a person has approved a wave", ("wave", "role", "reason")),
    "fleet.frozen": EventKind(
        "the fleet, a class, a rack or a rollout is frozen", ("scope", "reason")
    ),
    "fleet.unfrozen": EventKind("a freeze is lifted", ("reason",)),
    "fleet.nodes": EventKind(
        "nodes are added, changed or retired", ("added", "changed", "retired")
    ),
    "fleet.other": EventKind("a line of the log that this version does not know", ()),
    "state.denied": EventKind("a state of a class is on the deny list", ("digest", "reason")),
    "state.allowed": EventKind("it is no longer", ("digest", "reason")),
    "channel.moved": EventKind(
        "a channel of images or disks is promoted or rolled back",
        ("action", "from", "to", "tag", "reason"),
    ),
    "channel.published": EventKind("a channel that nodes follow has a new version", ("version",)),
    "ticket.opened": EventKind(
        "a node needs a repair by a person", ("ticket", "node", "class", "request")
    ),
    "ticket.commented": EventKind(
        "there is news of an open ticket", ("ticket", "node", "class", "text", "key")
    ),
    "ticket.closed": EventKind("a ticket is closed", ("ticket", "node", "class", "reason")),
    "hook.test": EventKind("`goldnode events test`", ()),
}


def unknown(patterns: tuple[str, ...]) -> str | None:
    """Return the first pattern that no kind matches; None if each matches one."""
    return next(
        (one for one in patterns if not any(fnmatchcase(kind, one) for kind in KINDS)), None
    )

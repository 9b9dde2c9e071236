"""The state of a rollout as text and as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from goldnode.commands.fleet.common import SIMULATED
from goldnode.commands.output import html_page, table
from goldnode.documents.rollout_status import (
    RolloutStatusBuffer,
    RolloutStatusDocument,
    RolloutStatusRemains,
    RolloutStatusWave,
)
from goldnode.node.ground.text import and_more, phrase

_NAMES = 12  # nodes of one state that the text names


def text(document: RolloutStatusDocument) -> str:
    """Return the state of a rollout for a terminal."""
    return "\n".join(_lines(document))


def headline(document: RolloutStatusDocument) -> str:
    """Return phase and wave in one sentence."""
    present = next((wave for wave in document.waves if wave.state in ("present", "stopped")), None)
    text = f"rollout {document.rollout} of class {document.class_}: {document.phase}"
    if present is None:
        return text
    return f"{text}, wave {present.number} of {len(document.waves)} ({present.name})"


def controller(document: RolloutStatusDocument) -> str:
    """Return who runs the rollout, or since when nothing does."""
    own = document.controller
    if own.state == "working":
        return f"controller {own.holder}, epoch {own.epoch}, last sign of life {own.since}"
    if own.state == "none":
        return f"no controller has taken it, since {own.since}"
    if own.state == "quiet":
        return f"controller {own.holder}, epoch {own.epoch}, quiet since {own.since}"
    if own.remedy is None:
        return "it has ended, and needs no controller"
    # Deferred nodes on the way there and on the way back.
    late = document.states.get("deferred", 0) + document.states.get("back-deferred", 0)
    nodes = f"{late} deferred nodes" if late else "nodes that are left"
    return f"it has ended; {nodes} converge while `{own.remedy}` runs"


def counts(wave: RolloutStatusWave) -> str:
    """Return the states of a wave's nodes with their numbers."""
    return ", ".join(f"{number} {name}" for name, number in wave.states.items()) or "-"


def by_state(document: RolloutStatusDocument) -> dict[str, list[str]]:
    """Return the names of the nodes that need attention, by state, in the order of the document."""
    states: dict[str, list[str]] = {}
    for node in document.nodes:
        states.setdefault(node.state, []).append(node.node)
    return states


def _lines(document: RolloutStatusDocument) -> Iterator[str]:
    if document.simulated:
        yield SIMULATED
    yield headline(document) + phrase(": {}", document.why)
    yield f"from {document.from_}"
    yield f"to   {document.to}"
    yield controller(document)
    yield ""
    if document.waits:
        yield "held back by:"
        for wait in document.waits:
            until = phrase(", until {}", wait.until)
            yield f"- {wait.subject}: {wait.reason}{until}"
            if wait.remedy:
                yield f"  `{wait.remedy}`"
        yield ""
    if document.remains:
        yield (
            "left by the rollback:" if document.phase.startswith("roll") else "in the denied state:"
        )
        yield from remains(document)
        yield ""
    yield table(
        [
            ("wave", "state", "size", "nodes", "by state", "soak until", "approvals"),
            *(
                (
                    f"{wave.number} {wave.name}",
                    wave.state,
                    wave.size,
                    str(wave.nodes),
                    counts(wave),
                    wave.soak_until or "-",
                    approvals(wave),
                )
                for wave in document.waves
            ),
        ]
    )
    yield ""
    if document.requirements:
        rows = [
            (item.name, item.answer, item.reason, item.at or "-") for item in document.requirements
        ]
        yield table([("requirement", "answer", "reason", "at"), *rows])
        yield ""
    if document.buffers:
        buffers = [
            (f"{item.scope} {item.name}", item.kind, used(item)) for item in document.buffers
        ]
        yield table([("out of service", "kind", "nodes"), *buffers])
        yield ""
    if document.budget is not None:
        yield document.budget.text
        yield ""
    yield f"nodes: {', '.join(f'{number} {name}' for name, number in document.states.items()) or 'none'}"
    for state, names in by_state(document).items():
        more = and_more(len(names) - _NAMES)
        yield f"  {state}: {' '.join(names[:_NAMES])}{more}"
    if document.held_back:
        more = and_more(len(document.held_back) - _NAMES)
        yield f"  held back as known good: {' '.join(document.held_back[:_NAMES])}{more}"
    causes = [
        (node.node, node.state, node.cause or "-") for node in document.nodes if serious(node.state)
    ]
    if causes:
        yield ""
        yield table([("node", "state", "cause"), *causes[:_NAMES]])
        yield "`goldnode rollout explain NODE` has more"
    waits = {wait.reason for wait in document.waits}
    for item in document.freezes:
        # It is among the reasons above.
        if f"frozen by {item.who}: {item.reason}" in waits:
            continue
        yield (
            f"frozen: {item.scope} {item.subject}".rstrip()
            + f", by {item.who} at {item.at}: {item.reason}"
        )
    for digest, reason in document.denied.items():
        yield f"denied: {digest}: {reason}"


def remains(document: RolloutStatusDocument) -> Iterator[str]:
    """Yield the nodes that a rollback leaves behind, by reason, each with the command that ends it."""
    rows: dict[str, list[RolloutStatusRemains]] = {}
    for item in document.remains:
        rows.setdefault(item.reason, []).append(item)
    for reason, items in rows.items():
        names = [item.node for item in items]
        more = and_more(len(names) - _NAMES)
        yield f"- {' '.join(names[:_NAMES])}{more}: {reason}"
        each = "" if len({item.remedy for item in items}) == 1 else ", and so for each of them"
        yield f"  `{items[0].remedy}`{each}"


def serious(state: str) -> bool:
    """Return whether a node in this state needs a person."""
    return state.removeprefix("back-") in ("failed", "overdue")


def used(item: RolloutStatusBuffer) -> str:
    """Return what is used of a buffer."""
    return f"{item.used}, no limit" if item.limit is None else f"{item.used} of {item.limit}"


def approvals(wave: RolloutStatusWave) -> str:
    """Return the approvals of a wave: given and missing ones."""
    return ", ".join(f"{item.role}: {item.who or 'missing'}" for item in wave.approvals) or "-"


def html(document: RolloutStatusDocument) -> str:
    """Return the state of a rollout as one self-contained page."""
    return html_page(
        "rollout_status.html.j2",
        found=document,
        controller=controller(document),
        counts=counts,
        approvals=approvals,
        by_state=by_state(document),
        serious=serious,
        used=used,
    )

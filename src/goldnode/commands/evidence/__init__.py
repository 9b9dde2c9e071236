"""The group `goldnode evidence`: the commands `sign`, `list`, `verify` and `diff`, and what they share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands import LazyGroup
from goldnode.commands.options import FILE

if TYPE_CHECKING:
    from goldnode.evidence.proved import EvidenceTrust, PresentClass, ProofStatus

_SECTIONS = {
    "Make": {
        "sign": ("evidence.sign", "Sign the record of a proof as a statement about a class."),
    },
    "Judge": {
        "list": (
            "evidence.list",
            "List what is proved about a class, on which hardware, by whom and since when.",
        ),
        "verify": (
            "evidence.verify",
            "Verify statements: signature, subject, hardware, and that nothing has changed.",
        ),
        "diff": (
            "evidence.diff",
            "Show which evidence is stale, or would be, by which package, field, fact or tool.",
        ),
    },
}
CLASS = click.argument("class_", metavar="CLASS")
TRUST = click.option(
    "--trust",
    multiple=True,
    type=FILE,
    metavar="FILE",
    show_default="`evidence.public_key` of the site file, else `fleet.public_key`",
    help="PEM file of trusted public keys. Repeatable.",
)
DOCUMENT = click.option(
    "--document",
    type=FILE,
    metavar="FILE",
    show_default="the class as it is declared now",
    help="Class document to compare with, as `goldnode class export` writes it.",
)


@click.group(cls=LazyGroup, sections=_SECTIONS)
def evidence() -> None:
    """Sign proofs of a class, and show which of them still hold."""


def trusted(given: tuple[Path, ...]) -> EvidenceTrust:
    """Return the keys to verify with: those given, else those of the site file."""
    from goldnode.core.site import load_site  # start-up time: it loads pydantic
    from goldnode.evidence.proved import EvidenceTrust, trust
    from goldnode.evidence.signatures import load_public

    if given:
        return EvidenceTrust([key for file in given for key in load_public(file)])
    return trust(load_site())


def present_class(class_: str, document: Path | None) -> PresentClass:
    """Return the class as it is declared now, or as a document has it. Raises GoldnodeError."""
    from goldnode.classdoc.record import document_in
    from goldnode.core.errors import EvidenceError
    from goldnode.core.site import load_site
    from goldnode.evidence.proved import PresentClass
    from goldnode.fleet.control import evidence as control

    if document is None:
        return control.present(class_, load_site())
    content = dict(document_in(str(document)))
    if content["class"] != class_:
        raise EvidenceError(
            f"this is the document of class {content['class']}, not of {class_}",
            file=document,
            remedy=f"write it with `goldnode class export {class_}`",
        )
    return PresentClass(content, control.tools())


def row(status: ProofStatus, class_: str) -> dict[str, Any]:
    """Return a status as a report shows it."""
    proof = status.proof
    content: dict[str, Any] = {
        "kind": status.kind,
        "state": status.state,
        "why": status.why,
        "file": str(status.path) if status.path is not None else None,
        "renew": status.renew(class_) if status.state != "current" else None,
        "changes": [
            {"sort": one.sort, "name": one.name, "old": one.old, "new": one.new}
            for one in status.changed
        ],
    }
    if proof is not None:
        predicate = proof.predicate
        hardware = predicate.hardware
        content |= {
            "since": predicate.time,
            "simulated": predicate.simulated,
            "hardware": hardware.model_dump() if hardware is not None else None,
            "nodes": predicate.nodes,
            "tools": predicate.tools,
            "key": proof.keyid,
            "subjects": dict(proof.subjects),
        }
    return content


def hardware_text(status: ProofStatus) -> str:
    """Return the hardware of a proof for a reader: model and number, marked if it is simulated."""
    if status.proof is None:
        return "-"
    predicate = status.proof.predicate
    hardware = predicate.hardware
    text = "none needed"
    if hardware is not None:
        text = hardware.model or "not read"
        if hardware.count is not None:
            text += f" x {hardware.count}"
    return f"{text} (SIMULATED)" if predicate.simulated else text

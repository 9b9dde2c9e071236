"""Command `goldnode evidence sign`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from goldnode.commands.evidence import DOCUMENT, present_class
from goldnode.commands.options import EXISTING, FILE, NEW_FILE, grouped
from goldnode.commands.output import emit, reports
from goldnode.core.errors import EvidenceError

if TYPE_CHECKING:
    from goldnode.core.evidence_kinds import EvidenceKind
    from goldnode.evidence.signatures import EnvelopeSigner

_KINDS = ("boot", "canary", "floors", "dual", "smoke", "disk", "prove-gpu", "module-build")


@dataclass(frozen=True)
class _Further:
    """Values that the record does not state, and the file to write."""

    document: Path | None
    capture: Path | None
    artifact: str | None
    key: Path | None
    out: Path | None


@click.command()
@click.argument("kind", type=click.Choice(_KINDS), metavar="KIND")
@click.argument("record", type=EXISTING, metavar="RECORD")
@click.option("--class", "class_", required=True, metavar="CLASS", help="Class that it is about.")
@grouped(
    "further",
    _Further,
    DOCUMENT,
    click.option(
        "--capture",
        type=FILE,
        metavar="FILE",
        help="Capture of the same hardware, for records that do not state VBIOS and firmware.",
    ),
    click.option(
        "--artifact",
        metavar="DIGEST|FILE",
        help="Further subject: the digest of an image, or a file such as a module package.",
    ),
    click.option(
        "--key",
        type=FILE,
        metavar="FILE",
        show_default="`evidence.signing_key` of the site file, else `fleet.signing_key`",
        help="Secret key to sign with, PEM (ed25519 or ECDSA).",
    ),
    click.option(
        "--out",
        type=NEW_FILE,
        metavar="FILE",
        show_default="a file in the site's directory of evidence",
        help="File to write.",
    ),
)
@reports("evidence-sign")
def sign(kind: str, record: Path, class_: str, further: _Further, *, form: str) -> None:
    """Sign the record of a proof as a statement about a class.

    KIND is boot, canary, floors, dual, smoke, disk, prove-gpu or module-build. RECORD is what the proof wrote. It must
    be about the class as it is declared now, or as --document has it. A proof that failed can be signed too: it then
    states so, and proves nothing.
    """
    from goldnode.core.files import replace_file
    from goldnode.core.site import load_site
    from goldnode.evidence import proved
    from goldnode.evidence.dependencies import DETAIL
    from goldnode.evidence.proofs import ProofRequest, prove
    from goldnode.evidence.statements import LARGEST, SUFFIX, envelope

    # The key is read first, so that a wrong one changes nothing.
    signer = _signer(further.key)
    present = present_class(class_, further.document)
    asked = ProofRequest(
        cast("EvidenceKind", kind), record, present.document, further.capture, further.artifact
    )
    for detail in range(DETAIL, 0, -1):
        proof = prove(asked, detail)
        try:
            data = envelope(proof, signer)
            break
        except EvidenceError:
            # Keys are compared less exactly where a class declares very many.
            if detail == 1:
                raise
    predicate = proof.predicate
    time = predicate.time.replace(":", "").replace("-", "")
    digest = proof.subjects[f"record:{_record_name(kind, record)}"].removeprefix("sha256:")
    path = (
        further.out
        or proved.directory(load_site(), class_) / f"{kind}-{time}-{digest[:12]}{SUFFIX}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)
    content: dict[str, Any] = {
        "file": str(path),
        "kind": kind,
        "bytes": len(data),
        "simulated": predicate.simulated,
        "outcome": predicate.result.outcome,
        "subjects": dict(proof.subjects),
        "key": signer.keyid,
    }
    emit(form, content, lambda: _text(content, str(predicate.result.summary), LARGEST))


def _record_name(kind: str, record: Path) -> str:
    return "record.json" if kind == "prove-gpu" else record.name


def _signer(key: Path | None) -> EnvelopeSigner:
    from goldnode.core.site import load_site
    from goldnode.evidence.signatures import load_signer

    if key is not None:
        return load_signer(key)
    site = load_site()
    named = site.evidence.signing_key or site.fleet.signing_key
    if not named:
        raise EvidenceError(
            "no key signs evidence on this site",
            file=site.file,
            remedy="name one with --key, or as evidence.signing_key in the site file",
        )
    return load_signer(site.resolve(named))


def _text(content: dict[str, Any], summary: str, largest: int) -> str:
    label = " (SIMULATED hardware: proves no real class)" if content["simulated"] else ""
    return (
        f"wrote {content['file']}: {content['bytes']} bytes of at most {largest}\n"
        f"{content['kind']} {content['outcome']}: {summary}{label}"
    )

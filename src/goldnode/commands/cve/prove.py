"""Command `goldnode cve prove`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.cve import facts as shared
from goldnode.commands.cve import sources as given
from goldnode.commands.cve.sources import CveSources
from goldnode.commands.fleet.ingest import DATA
from goldnode.commands.options import FILE
from goldnode.commands.output import emit, reports
from goldnode.core.errors import EvidenceError

if TYPE_CHECKING:
    from goldnode.core.site import Site
    from goldnode.documents.cve_lane import CveProofDocument


@click.command()
@shared.CVE_NAME
@shared.INVENTORY
@shared.PUBLISHED
@click.option(
    "--key",
    type=FILE,
    metavar="FILE",
    show_default="`cve.signing_key`, `evidence.signing_key` or `fleet.signing_key` of the site file",
    help="Secret key to sign with, PEM (ed25519 or ECDSA).",
)
@shared.WRITE
@given.SOURCES
@DATA
@reports("cve-proof")
def prove(
    name: str,
    *,
    inventory: str | None,
    key: Path | None,
    sources: CveSources,
    data: Path | None,
    form: str,
    **record: Any,
) -> None:
    """Write and sign the list of what is left.

    Every lock, image, disk, channel and node that has the vulnerability or may have it is in the list, with the owner of
    the node and the reason. It is proved only if nothing is left and nothing was unread. With --write the list is signed
    and becomes proof.json, with its signature in proof.json.dsse.

    Exit status: 0 it is proved that nothing is left, 1 it is not, 2 an error.
    """
    from goldnode.cve.lane import proof
    from goldnode.cve.record import event
    from goldnode.evidence import signed_file
    from goldnode.fleet.shared.person import person

    by, published, write = person(), record["published"], bool(record["write"])
    read = shared.judged(name, sources, data, inventory)
    if write:
        signing = key or _site_key(read.site)
        shared.record_published(read, published, by)
    document = proof(read.facts, by)
    if write:
        kind = signed_file.SignedKind(
            "proof", PAYLOAD_TYPE, f"goldnode cve prove {read.facts.cve} --write", EvidenceError
        )
        read.facts.record.add(
            event(read.facts.at, by, "prove", "begun", f"{len(document.left)} left")
        )
        text = document.model_dump_json(by_alias=True, indent=2) + "\n"
        signed_file.write(read.facts.record.proof, text.encode(), signing, kind)
        if document.proved:
            read.facts.record.add(event(read.facts.at, by, "prove", "proved"))
    emit(form, document.model_dump(mode="json", by_alias=True), lambda: _text(document))
    if write:
        click.echo(f"signed {read.facts.record.proof}", err=True)
    if not document.proved:
        sys.exit(1)


PAYLOAD_TYPE = "application/vnd.goldnode.cve-proof+json"


def _site_key(site: Site) -> Path:
    named = site.cve.signing_key or site.evidence.signing_key or site.fleet.signing_key
    if not named:
        raise EvidenceError(
            "no key signs proofs on this site",
            file=site.file,
            remedy="name one with --key, or as cve.signing_key in the site file",
        )
    return site.resolve(named)


def _text(document: CveProofDocument) -> str:
    lines = [f"{document.cve} ({document.severity}) at {document.at}: {document.nodes} nodes"]
    if document.simulated:
        lines[0] += f", {document.simulated} of SIMULATED hardware"
    if document.hours is not None:
        lines.append(f"{document.hours} hours since its publication")
    for row in document.left:
        owner = row.owner or "no owner is named"
        lines.append(f"left: {row.kind} {row.name} ({owner}): {row.state}: {row.why}")
    for unread in document.not_judged:
        names = ", ".join(unread.names[:4])
        lines.append(f"not judged: {unread.kind} {names} ({len(unread.names)}): {unread.why}")
    if document.proved:
        lines.append("proved: no lock, image, disk, channel or node is left")
    elif not document.nodes:
        lines.append("not proved: no node was read")
    else:
        lines.append(f"not proved: {len(document.left)} left")
    return "\n".join(lines)

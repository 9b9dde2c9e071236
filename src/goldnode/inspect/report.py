"""Inspection and truth reports, as documents to attach and as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from goldnode.inspect.policy import Inspection
from goldnode.inspect.scan import shown
from goldnode.inspect.truth import Truth
from goldnode.node.ground.text import and_more
from goldnode.oci.layout import OciImage, canonical

INSPECTION = "application/vnd.goldnode.inspection.v1+json"
TRUTH = "application/vnd.goldnode.truth.v1+json"


def inspection_document(inspection: Inspection) -> dict[str, Any]:
    """Return the document of type INSPECTION.

    It contains no time and no location, so equal images have equal documents.
    """
    return {
        "backend": inspection.backend,
        "passed": inspection.passed,
        "elf_files": inspection.elf_files,
        "own": [
            {"path": shown(path), "program": program} for path, program in inspection.own.items()
        ],
        "signals": inspection.signals,
        "findings": [
            {
                "severity": row.severity,
                "rule": row.rule,
                "path": row.path,
                "message": row.message,
                "package": row.package,
                "required_by": list(row.required_by),
                "remedy": row.remedy,
                "waived": row.waived,
                "evidence": [
                    {"signal": signal, "path": path, "what": what}
                    for signal, path, what in row.evidence
                ],
            }
            for row in inspection.findings
        ],
    }


def truth_document(truth: Truth) -> dict[str, Any]:
    """Return the document of type TRUTH."""
    return {
        "passed": truth.passed,
        "claims": [
            {
                "claim": row.claim,
                "expected": row.expected,
                "got": row.got,
                "how": row.how,
                "result": row.result,
            }
            for row in truth.claims
        ],
    }


def attach(image: OciImage, inspection: Inspection, truth: Truth | None) -> None:
    """Attach the documents to an image of a layout, replacing those of an earlier inspection."""
    documents = {INSPECTION: inspection_document(inspection)}
    if truth is not None:
        documents[TRUTH] = truth_document(truth)
    for kind, document in documents.items():
        new = image.layout.attach(image.digest, kind, canonical(document))
        for row, _ in image.layout.attached(image.digest, kind):
            if row.digest != new.digest:
                image.layout.detach(row.digest)


def text(inspection: Inspection, truth: Truth | None) -> Iterator[str]:
    """Return the lines of the report for people: refusals first, the verdict last."""
    policy = "validated against no policy: name a backend with --backend"
    if inspection.backend:
        policy = f"validated against the policy of {inspection.backend}"
    yield f"{inspection.name}: {inspection.elf_files:,} ELF files, {policy}"
    for path, program in inspection.own.items():
        yield f"  goldnode's own: {shown(path)}, which is {program} of this version"
    for row in inspection.findings:
        yield f"  {'waived' if row.waived else row.severity}: {row.message} [{row.rule}]"
        if row.path and row.path not in row.message:
            yield f"    at: {row.path}"
        if row.required_by:
            yield f"    required by: {', '.join(row.required_by[:6])}" + and_more(
                len(row.required_by) - 6
            )
        if row.waived:
            yield f"    accepted by {row.waived}"
        elif row.remedy:
            yield f"    instead: {row.remedy}"
    refused = sum(row.severity == "refuse" and not row.waived for row in inspection.findings)
    if truth is not None:
        counts = {
            result: sum(row.result == result for row in truth.claims)
            for result in ("ok", "differs", "not_verified")
        }
        yield (
            f"  tag and labels: {counts['ok']} claims hold, {counts['differs']} do not, "
            f"{counts['not_verified']} not verified"
        )
        for claim in truth.claims:
            if claim.result != "ok":
                mark = "refuse" if claim.result == "differs" or claim.essential else "note"
                got = f"got {claim.got}" if claim.got else "no evidence found"
                state = "does not hold" if claim.result == "differs" else "is not verified"
                yield (
                    f"  {mark}: the claim {claim.claim} {state}: "
                    f"expected {claim.expected}, {got} ({claim.how})"
                )
    if not inspection.backend:
        yield f"{inspection.name}: no verdict"
    elif refused or (truth is not None and not truth.passed):
        untrue = "" if truth is None or truth.passed else "; the tag is not shown to be true"
        yield (
            f"{inspection.name}: REFUSED, {refused} finding{'' if refused == 1 else 's'} "
            f"refuse{'s' if refused == 1 else ''} it{untrue}"
        )
    else:
        yield f"{inspection.name}: passed"

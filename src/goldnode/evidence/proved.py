"""Evidence of a class as the site has it: which statements count today, which are stale or refused, and what is missing.

A directory of the site has one folder per class. Nothing in it is believed before its signature was verified.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from goldnode.core.errors import EvidenceError
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.core.site import Site
from goldnode.documents.evidence import PREDICATES
from goldnode.evidence import statements
from goldnode.evidence.dependencies import DependencyChange, changes
from goldnode.evidence.signatures import load_public
from goldnode.evidence.statements import SUFFIX, SignedProof
from goldnode.node.ground.renewal import renew
from goldnode.node.ground.text import and_more

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

ProofState = Literal["current", "stale", "failed", "refused", "missing"]
_AHEAD = dt.timedelta(minutes=5)  # that clocks may differ


@dataclass(frozen=True)
class EvidenceTrust:
    """Keys by which statements are verified, and keys that no longer count."""

    keys: Sequence[SSlibKey] = ()
    withdrawn: Sequence[SSlibKey] = ()


@dataclass(frozen=True)
class PresentClass:
    """The class as it is declared today: its document, and the tools that would make a proof."""

    document: Mapping[str, Any]
    tools: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return str(self.document["class"])


@dataclass(frozen=True)
class ProofStatus:
    """One statement, or one kind without any. `proof` is None where it is missing or refused before it was read."""

    kind: EvidenceKind | None
    state: ProofState
    why: str
    path: Path | None = None
    proof: SignedProof | None = None
    changed: tuple[DependencyChange, ...] = ()

    def renew(self, class_: str) -> str:
        """Return the command that makes the proof again."""
        return renew(self.kind, class_) if self.kind is not None else ""


def directory(site: Site, class_: str) -> Path:
    """Return the folder with the statements of a class."""
    return site.resolve(site.evidence.directory) / class_


def trust(site: Site) -> EvidenceTrust:
    """Return the keys of the site. Raises EvidenceError if it names none, and SigningKeyError."""
    named = site.evidence.public_key or site.fleet.public_key
    if not named:
        raise EvidenceError(
            "no key verifies evidence on this site",
            file=site.file,
            remedy="name the public key as evidence.public_key in the site file",
        )
    withdrawn = site.evidence.withdrawn_keys
    return EvidenceTrust(
        load_public(site.resolve(named)), load_public(site.resolve(withdrawn)) if withdrawn else ()
    )


def statuses(folder: Path, present: PresentClass, given: EvidenceTrust) -> list[ProofStatus]:
    """Return the status of every statement in a folder, sorted by kind, the newest first."""
    rows = [judge(path, present, given) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    rows.sort(
        key=lambda row: row.proof.predicate.time if row.proof is not None else "", reverse=True
    )
    return sorted(rows, key=lambda row: row.kind or "")


def judge(path: Path, present: PresentClass, given: EvidenceTrust) -> ProofStatus:
    """Return the status of one statement for a class. A reason to refuse it comes before staleness."""
    try:
        proof = statements.read(path, given.keys, given.withdrawn)
    except EvidenceError as problem:
        return ProofStatus(_kind_of(path), "refused", problem.message, path)
    refused = _refusal(proof, present)
    if refused:
        return ProofStatus(proof.kind, "refused", refused, path, proof)
    changed = tuple(changes(proof, present.document, present.tools))
    if changed:
        why = changed[0].text() + and_more(len(changed) - 1)
        return ProofStatus(proof.kind, "stale", why, path, proof, changed=changed)
    result = proof.predicate.result
    if result.outcome != "passed":
        return ProofStatus(
            proof.kind,
            "failed",
            f"{result.outcome.replace('_', ' ')}: {result.summary}",
            path,
            proof,
        )
    return ProofStatus(proof.kind, "current", result.summary, path, proof)


def _refusal(proof: SignedProof, present: PresentClass) -> str:
    """Return why a statement with a good signature proves nothing about a class; empty: it does."""
    name = present.name
    if proof.class_ != name or proof.predicate.class_ != name:
        return f"its subject is class {proof.class_ or 'none'}, not {name}"
    if proof.predicate.simulated and not present.document["simulated"]:
        return f"it was made on simulated hardware, which never proves the real class {name}"
    return ""


def _kind_of(path: Path) -> EvidenceKind | None:
    """Return the kind in the name of a file that cannot be believed, for a list only."""
    return next((kind for kind in PREDICATES if path.name.startswith(f"{kind}-")), None)


def required(
    kinds: Sequence[EvidenceKind],
    rows: Sequence[ProofStatus],
    *,
    now: dt.datetime,
    max_age: dt.timedelta | None = None,
) -> list[ProofStatus]:
    """Return a status for each kind that is asked for: the one that decides.

    The newest statement that fits the class of today decides, so that a later failure is not outweighed by an earlier
    success. Without any, the newest stale one does, then one that is refused.
    """
    return [
        _deciding(kind, [row for row in rows if row.kind == kind], now, max_age) for kind in kinds
    ]


def _deciding(
    kind: EvidenceKind,
    rows: Sequence[ProofStatus],
    now: dt.datetime,
    max_age: dt.timedelta | None,
) -> ProofStatus:
    for states in (("current", "failed"), ("stale",), ("refused",)):
        row = next((row for row in rows if row.state in states), None)
        if row is not None:
            return _aged(row, now, max_age)
    return ProofStatus(kind, "missing", "no statement of this kind")


def _aged(row: ProofStatus, now: dt.datetime, max_age: dt.timedelta | None) -> ProofStatus:
    """Return the status; one that counts becomes stale by its age, and is refused if it is from the future."""
    if row.state != "current" or row.proof is None:
        return row
    made = row.proof.predicate.time
    age = now - dt.datetime.strptime(made, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC)
    if age < -_AHEAD:
        return ProofStatus(
            row.kind, "refused", f"it was made at {made}, in the future", row.path, row.proof
        )
    if max_age is not None and age > max_age:
        return ProofStatus(
            row.kind,
            "stale",
            f"it was made at {made}, longer ago than is accepted",
            row.path,
            row.proof,
        )
    return row

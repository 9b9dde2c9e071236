"""Evidence as a controller and the commands ask for it: for a wave, a promotion, and for nodes that follow a channel.

A disk build names no lock by itself. The statement about its boots does, so that the others are compared with that.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from goldnode.canary import pack
from goldnode.catalog.load import Catalog
from goldnode.catalog.models import EvidenceRule, NodeClass
from goldnode.channels.requirements import EVIDENCE, ChannelSubject, Requirement
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.compat.workloads import parse_reference
from goldnode.core.errors import EvidenceError, GoldnodeError
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.core.files import sha256_of
from goldnode.core.release import program_digest
from goldnode.core.site import Site
from goldnode.documents.evidence import EvidenceDisk
from goldnode.documents.rollout import RolloutEvidence, seconds
from goldnode.dual import pack as dual_pack
from goldnode.evidence import proved, statements
from goldnode.evidence.proved import PresentClass, ProofStatus
from goldnode.evidence.statements import SUFFIX, SignedProof
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import Answer
from goldnode.node.ground.renewal import renew

LOGGER = logging.getLogger("goldnode.rollout")


@cache
def tools() -> Mapping[str, str]:
    """Return the tools that goldnode itself brings, by their names in statements.

    goldnode-smoke is not among them: an image has its own, which its digest covers.
    """
    return {
        "goldnode-dual": f"sha256:{hashlib.sha256(dual_pack.program()).hexdigest()}",
        "goldnode-node": program_digest().removeprefix("sha256:"),
        "goldnode-canary": pack.digest(),
    }


def present(class_: str, site: Site) -> PresentClass:
    """Return a class as the catalog, the facts and the lock of today declare it. Raises GoldnodeError."""
    return PresentClass(class_document(class_, load_catalog(), site), tools())


# Waves


def answer(
    item: RolloutEvidence, settings: RolloutSettings, site: Site, now: float
) -> tuple[Answer, str]:
    """Return whether the evidence that a rollout requires is there, and the first command that makes what is missing.

    Raises GoldnodeError where the class or the keys cannot be read. `now` is in seconds since 1970.
    """
    declared = present(settings.class_, site)
    rows = proved.statuses(proved.directory(site, settings.class_), declared, proved.trust(site))
    lock, goes_to = declared.document["lock"]["digest"], settings.target
    if not goes_to.startswith("sha256:"):
        rows = [_about_build(row, goes_to) for row in rows]
        booted = _lock_of_build([row.proof for row in rows if row.state != "refused"], goes_to)
        if booted is None:
            how = renew("disk", settings.class_)
            return Answer.UNKNOWN, f"waits for disk (missing) of build {goes_to}: {how}"
        goes_to = booted
    # Evidence about the class of this controller proves nothing about another target.
    if lock != goes_to:
        return (
            Answer.UNKNOWN,
            f"class {settings.class_} has {lock} here, and the rollout goes to {goes_to}",
        )
    max_age = dt.timedelta(seconds=seconds(item.max_age)) if item.max_age is not None else None
    moment = dt.datetime.fromtimestamp(now, tz=dt.UTC)
    decided = proved.required(item.kinds, rows, now=moment, max_age=max_age)
    unmet = [row for row in decided if row.state != "current"]
    if not unmet:
        return Answer.PASSES, f"proved: {', '.join(item.kinds)}"
    bad = next((row for row in unmet if row.state == "failed"), None)
    if bad is not None and bad.why.startswith("failed"):
        return Answer.FAILS, f"{bad.kind} {bad.why}"
    # The command first: a reason is cut at 200 characters.
    first, *others = unmet
    also = "".join(f"; and for {row.kind} ({row.state})" for row in others)
    return (
        Answer.UNKNOWN,
        f"waits for {first.kind} ({first.state}){also}: {first.renew(settings.class_)}; {first.why}",
    )


def _about_build(row: ProofStatus, build: str) -> ProofStatus:
    """Return a status; a statement about the boots of another build is refused."""
    proof = row.proof
    if proof is None or not isinstance(proof.predicate, EvidenceDisk):
        return row
    if proof.predicate.build == build:
        return row
    why = f"it is about build {proof.predicate.build}, not {build}"
    return ProofStatus(row.kind, "refused", why, row.path, proof)


def _lock_of_build(proofs: Iterable[SignedProof | None], build: str) -> str | None:
    """Return the lock of a disk build, as a verified statement about its boots has it; None without one."""
    for proof in proofs:
        predicate = proof.predicate if proof is not None else None
        if proof is not None and isinstance(predicate, EvidenceDisk) and predicate.build == build:
            return proof.subject("lock")
    return None


# Promotions


@dataclass(frozen=True)
class PromotionEvidence:
    """Judge of the requirement `evidence` of a promotion: what the classes ask for that run an image."""

    site: Site

    def __call__(self, image: ChannelSubject) -> Requirement:
        """Return the result for an image. What cannot be read is not verified."""
        try:
            return self._judge(image, load_catalog())
        except GoldnodeError as problem:
            return Requirement(
                EVIDENCE, "not_verified", problem.message, remedy=problem.remedy or ""
            )

    def _judge(self, image: ChannelSubject, catalog: Catalog) -> Requirement:
        if image.class_ is not None:
            names = [image.class_]
        else:
            # A class that cannot be read may run the image.
            names = [
                name for name, row in catalog.whole().classes.items() if _runs(row.item, image)
            ]
        proof: list[str] = []
        asked = []
        for name in sorted(names):
            rule = catalog.node_class(name).item.evidence
            if rule is None:
                continue
            asked.append(f"{name} ({', '.join(rule.kinds)})")
            decided = self._decided(name, rule, image)
            unmet = [row for row in decided if row.state != "current"]
            if unmet:
                states = {row.state for row in unmet}
                state = "missing" if states == {"missing"} else "failed"
                why = "; ".join(
                    f"{row.kind} of class {name} is {row.state}: {row.why}" for row in unmet
                )
                steps = ", or ".join(dict.fromkeys(row.renew(name) for row in unmet))
                return Requirement(EVIDENCE, state, why, tuple(proof), steps)
            proof += [f"sha256:{sha256_of(row.path)}" for row in decided if row.path is not None]
        if not asked:
            who = f"class {image.class_}" if image.class_ else "no class that runs it"
            verb = "asks for none" if image.class_ else "asks for any"
            return Requirement(EVIDENCE, "passed", f"{who} {verb}")
        return Requirement(EVIDENCE, "passed", f"proved for {', '.join(asked)}", tuple(proof))

    def _decided(self, class_: str, rule: EvidenceRule, image: ChannelSubject) -> list[ProofStatus]:
        declared = present(class_, self.site)
        lock = declared.document["lock"]["digest"]
        if image.lock is not None and image.lock != lock:
            raise EvidenceError(
                f"the image has lock {image.lock}, and class {class_} has {lock}: evidence is about the class of today",
                remedy=f"build it again: `goldnode disks build {class_}`",
            )
        folder = proved.directory(self.site, class_)
        rows = proved.statuses(folder, declared, proved.trust(self.site))
        rows = [_about_image(row, image) for row in rows]
        days = rule.max_age_days
        max_age = dt.timedelta(days=days) if days is not None else None
        return proved.required(rule.kinds, rows, now=dt.datetime.now(dt.UTC), max_age=max_age)


def _about_image(row: ProofStatus, image: ChannelSubject) -> ProofStatus:
    """Return a status; a statement of the kind that is about an image is refused if it is about another one."""
    if row.kind != image.kind or row.proof is None:
        return row
    about = [digest for name, digest in row.proof.subjects.items() if name.startswith("artifact:")]
    if image.digest in about:
        return row
    why = f"it is about {', '.join(about) or 'no image'}, not {image.digest}"
    return ProofStatus(row.kind, "refused", why, row.path, row.proof)


def _runs(item: NodeClass, image: ChannelSubject) -> bool:
    """Return whether a class with evidence names an image, by its digest, its tag or one of its channels."""
    if item.evidence is None:
        return False
    for declared in item.images:
        reference = parse_reference(declared.ref)
        repository = f"/{reference.name}".endswith(f"/{image.repository}")
        if reference.digest is not None:
            if reference.digest == image.digest:
                return True
        elif repository and (reference.tag is None or reference.tag in image.tags):
            return True
    return False


# Nodes that follow a channel


@dataclass(frozen=True)
class FollowedEvidence:
    """The statements that a channel has for its nodes. Each node verifies them itself."""

    site: Site

    def changed(self) -> tuple[int, ...]:
        """Return when statements came or went, as a value to compare."""
        root = self.site.resolve(self.site.evidence.directory)
        return tuple(path.stat().st_mtime_ns for path in sorted(root.glob("*")) if path.is_dir())

    def of_state(
        self, class_: str, kind: Literal["lock", "disk"], digest: str
    ) -> dict[EvidenceKind, dict[str, Any]]:
        """Return the newest statement of each kind that the nodes of a class want, about exactly this state.

        Without one, the nodes wait, and freezes and denials are published all the same.
        """
        try:
            row = load_catalog().classes.get(class_)
            rule = row.item.evidence if row is not None else None
            if rule is None or not rule.follow:
                return {}
            return self._newest(
                class_, {*rule.follow, *(["disk"] if kind == "disk" else [])}, digest
            )
        except GoldnodeError as problem:
            LOGGER.error("the channel has no evidence of class %s: %s", class_, problem)
            return {}

    def _newest(
        self, class_: str, kinds: Collection[str], digest: str
    ) -> dict[EvidenceKind, dict[str, Any]]:
        proofs = [
            proof
            for proof in self._believed(class_)
            if proof.kind in kinds and proof.class_ == class_
        ]
        lock = digest
        if not digest.startswith("sha256:"):
            lock = _lock_of_build(proofs, digest) or ""
        newest: dict[EvidenceKind, SignedProof] = {}
        for proof in sorted(proofs, key=lambda proof: proof.predicate.time):
            build = proof.predicate.build if isinstance(proof.predicate, EvidenceDisk) else digest
            if proof.subject("lock") == lock and (lock == digest or build == digest):
                newest[proof.kind] = proof
        return {kind: json.loads(proof.path.read_bytes()) for kind, proof in newest.items()}

    def _believed(self, class_: str) -> Iterator[SignedProof]:
        """Yield the statements of a class whose signature holds."""
        folder = proved.directory(self.site, class_)
        if not folder.is_dir():
            return
        trust = proved.trust(self.site)
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                yield statements.read(path, trust.keys, trust.withdrawn)
            except EvidenceError as problem:
                LOGGER.warning("not published: %s", problem)

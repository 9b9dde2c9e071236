"""Requirements of an image before it is published and before a channel moves to it.

Each product has its own list (`goldnode.images.requirements`, `goldnode.disks.requirements`). Here is the part
that they share: the result of one requirement, waivers, approvals, and the order of the channels.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from goldnode.channels.lines import History
from goldnode.core.errors import ImageError, nearest
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.core.site import VulnerabilityLimits
from goldnode.node.ground.text import phrase

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

NO_SOAK = (
    "no requirement covers the soak time yet: goldnode does not measure how long an image ran well before it "
    "is promoted"
)
EVIDENCE = "evidence"  # of the node classes that run an image
BEFORE = {"canary": "candidate", "stable": "canary", "known-good": "stable"}


@dataclass(frozen=True)
class RequirementDecision:
    """A person's decision, with the recorded reason: to waive a requirement, or to approve a part's new major version.

    It is for one promotion. `name` is that of the requirement, or of the part.
    """

    name: str
    by: str
    reason: str


@dataclass(frozen=True)
class Requirement:
    """The result of one requirement.

    `state`: passed, failed, missing, not_run, not_verified, approved or waived. `evidence` are digests of
    artefacts.
    """

    name: str
    state: str
    why: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    by: str = ""
    reason: str = ""

    @property
    def met(self) -> bool:
        """Return whether it permits the step."""
        return self.state in ("passed", "approved", "waived")

    def document(self) -> dict[str, Any]:
        """Return the form that publications and histories record."""
        fields: dict[str, Any] = {
            "gate": self.name,  # the name of the key in histories that are signed already
            "state": self.state,
            "why": self.why,
            "evidence": list(self.evidence),
        }
        return fields | ({"by": self.by, "reason": self.reason} if self.by else {})


@dataclass(frozen=True)
class ChannelSubject:
    """An image as the evidence of node classes names it.

    :param digest: as a statement names it: of the manifest of a container image, of the raw disk.
    :param kind: of the evidence that is about the image itself.
    :param repository: with `tags`, how a class names a container image.
    :param class_: of a disk, with its `lock`. None: every class that runs the image.
    """

    digest: str
    kind: EvidenceKind
    repository: str = ""
    tags: tuple[str, ...] = ()
    class_: str | None = None
    lock: str | None = None


EvidenceJudge = Callable[[ChannelSubject], Requirement]


@dataclass(frozen=True)
class Decisions:
    """Inputs of a judgement besides the image: trusted keys, decisions about requirements, the history, and
    limits.

    `evidence` judges what node classes ask for; without it that is not verified. `now` is the time of the judgement, None
    for that of the clock.
    """

    trust: Sequence[SSlibKey] = ()
    waivers: Sequence[RequirementDecision] = ()
    approvals: Sequence[RequirementDecision] = ()
    history: History | None = None
    limits: VulnerabilityLimits = field(default_factory=VulnerabilityLimits)
    now: dt.datetime | None = None
    evidence: EvidenceJudge | None = None

    def proved(self, image: ChannelSubject) -> Requirement:
        """Return whether an image has the evidence that node classes ask for."""
        if self.evidence is None:
            return Requirement(
                EVIDENCE, "not_verified", "what the node classes ask for was not read"
            )
        return self.evidence(image)


@dataclass(frozen=True)
class Requirements:
    """The requirements of one product: their names by step, and the parts whose major versions need an approval."""

    asked: Mapping[str, Sequence[str]]
    majors: Sequence[str]

    def check(
        self,
        step: str,
        waivers: Sequence[RequirementDecision] = (),
        approvals: Sequence[RequirementDecision] = (),
    ) -> None:
        """Refuse a waiver or an approval that a step does not ask for: a typing error must not waive anything.

        Raises ImageError.
        """
        asked = self.asked[step]
        for waiver in waivers:
            # One waiver would let any part change, not only the one that was looked at.
            if waiver.name == "majors":
                raise ImageError(
                    "a new major version is approved part by part",
                    remedy="use --approve-major PART --by WHO --reason WHY",
                )
            if waiver.name not in asked:
                raise ImageError(
                    f'{step} has no requirement "{waiver.name}"',
                    remedy=nearest(waiver.name, [name for name in asked if name != "majors"]),
                )
        for approval in approvals:
            if "majors" not in asked or approval.name not in self.majors:
                raise ImageError(
                    f'{step} asks for no approval of "{approval.name}"',
                    remedy=nearest(approval.name, self.majors),
                )

    def judge(
        self,
        step: str,
        digest: str,
        given: Decisions,
        one: Callable[[str], Requirement],
        majors: Callable[[], list[Requirement]],
    ) -> list[Requirement]:
        """Return the results of a step for the image with this digest, in the order of the report.

        `one` judges a requirement by its name, `majors` the major versions.
        """
        self.check(step, given.waivers, given.approvals)
        results: list[Requirement] = []
        for name in self.asked[step]:
            if name == "majors":
                results += majors()
            else:
                result = order(step, digest, given.history) if name == "order" else one(name)
                # Judged first: the history records what was waived.
                results.append(waived(result, given.waivers))
        return results


def requirements(
    base: Sequence[str], canary: Sequence[str], stable: Sequence[str], majors: Sequence[str]
) -> Requirements:
    """Return the requirements of a product. A step includes those of the previous one.

    `base` are those of a publication, in the order of the report; `canary` and `stable` come in addition.
    """
    moved = ("order", "majors")
    # The nodes of the channel canary make what the classes ask for.
    good = (*base, *canary, *stable, EVIDENCE, *moved)
    asked = {
        "publish": tuple(base),
        "candidate": tuple(base),
        "canary": (*base, *canary, *moved),
        "stable": good,
        "known-good": good,
    }
    return Requirements(asked, majors)


def waived(result: Requirement, waivers: Sequence[RequirementDecision]) -> Requirement:
    """Return the result; one that is not met is waived if a waiver names it."""
    why = f"{result.state}: {result.why}"
    # A waiver that is not needed is not recorded.
    return result if result.met else _decided(result, result.name, waivers, "waived", why)


def _decided(
    result: Requirement, name: str, decisions: Sequence[RequirementDecision], state: str, why: str
) -> Requirement:
    """Return a result, in another state if there is a decision about the name."""
    for one in decisions:
        if one.name == name:
            return replace(result, state=state, why=why, remedy="", by=one.by, reason=one.reason)
    return result


def refuse(step: str, what: str, results: Sequence[Requirement]) -> None:
    """Raise ImageError if a requirement is not met. The error names all that are not."""
    unmet = [result for result in results if not result.met]
    if not unmet:
        return
    reasons = "; ".join(f"{result.name}: {result.why}" for result in unmet)
    remedies = list(dict.fromkeys(result.remedy for result in unmet if result.remedy))
    # Major versions are approved, and have that in their own remedy.
    other = next((result.name for result in unmet if not result.name.startswith("major")), None)
    if other is not None:
        remedies.append(f"record why it may pass: --waive {other} --by WHO --reason WHY")
    verb = "published" if step == "publish" else f"promoted to {step}"
    raise ImageError(f"{what} is not {verb}: {reasons}", remedy=", or ".join(remedies))


def order(step: str, digest: str, history: History | None) -> Requirement:
    """Require that an image was in the previous channel, and was not rolled back there since.

    It still counts if a later image replaced it there.
    """
    before = BEFORE[step]
    # A rollback is a judgement on the image, so that having been there is not enough.
    back = history.taken_back(before).get(digest) if history is not None else None
    if back is not None:
        why = f"{before} was rolled back from it on {back.date[:10]}{phrase(' ({})', back.reason)}"
        return Requirement(
            "order",
            "failed",
            why,
            remedy=f"promote it to {before} again where it is good after all",
        )
    if history is not None and history.was_in(before, digest):
        return Requirement("order", "passed", f"it was {before}")
    return Requirement(
        "order", "failed", f"it never was {before}", remedy=f"promote it to {before} first"
    )


def major(part: str, why: str, approvals: Sequence[RequirementDecision]) -> Requirement:
    """Return the requirement of a part whose major version changes, or may change: passed only with an
    approval of that part.
    """
    remedy = f"record an approval of its own: --approve-major {part} --by WHO --reason WHY"
    result = Requirement(f"major-{part}", "failed", why, remedy=remedy)
    return _decided(result, part, approvals, "approved", why)

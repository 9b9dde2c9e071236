"""Requirements of an image before it is published and before a channel moves to it, read from its attached
documents.

A document that is absent, reports *not run* or *not verified*, is simulated, or cannot be read never counts
as passed. If several documents of one kind are attached, one failed document is enough to refuse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from goldnode.channels.history import History
from goldnode.core.errors import ImageError, nearest
from goldnode.evidence import (
    CYCLONEDX,
    INSPECTION,
    PROVENANCE,
    SIGNATURE,
    SMOKE,
    SPDX,
    TRUTH,
    VULNERABILITIES,
    verify,
)
from goldnode.oci.layout import Layout, OciImage
from goldnode.oci.model import LABELS

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

PUBLICATION = "application/vnd.goldnode.publication.v1+json"

NOT_CHECKED = "no package was held against a database"
NO_SOAK = (
    "no soak gate exists yet: goldnode does not measure how long an image ran well before it is promoted"
)

# Requirements of each step, in the order of the report. A step includes those of the previous one.
_BASE = ("inspection", "truth", "smoke-cpu", "signature")
_CANARY = (*_BASE, "sbom", "provenance")
_STABLE = (*_CANARY, "vulnerabilities", "smoke-gpu")
ASKED: dict[str, tuple[str, ...]] = {
    "publish": _BASE,
    "candidate": _BASE,
    "canary": (*_CANARY, "order", "majors"),
    "stable": (*_STABLE, "order", "majors"),
    "known-good": (*_STABLE, "order", "majors"),
}
BEFORE = {"canary": "candidate", "stable": "canary", "known-good": "stable"}
MAJORS = ("cudnn", "nccl")

_REMEDY = {
    "inspection": "`goldnode images inspect` it",
    "truth": "`goldnode images inspect` it",
    "smoke-cpu": "`goldnode images smoke` it",
    "smoke-gpu": "run `goldnode images smoke` where a GPU is",
    "signature": "sign it with `goldnode images evidence --key`, and name the public key with --trust",
    "sbom": "`goldnode images evidence` writes it",
    "provenance": "`goldnode images evidence` writes it",
    "vulnerabilities": "`goldnode images evidence` writes it from a database that you give",
}


@dataclass(frozen=True)
class Waiver:
    """A waived requirement, with the decider and the recorded reason."""

    gate: str
    by: str
    reason: str


@dataclass(frozen=True)
class Approval:
    """Approval of a new major version of one part, for one promotion."""

    part: str
    by: str
    reason: str


@dataclass(frozen=True)
class Gate:
    """One gate and how it stands: passed, failed, missing, not_run, not_verified, approved or waived; `evidence` are digests of artefacts."""

    name: str
    state: str
    why: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    by: str = ""
    reason: str = ""

    @property
    def open(self) -> bool:
        """Whether it lets the image through."""
        return self.state in ("passed", "approved", "waived")

    def document(self) -> dict[str, Any]:
        """As publications and histories record it."""
        found: dict[str, Any] = {
            "gate": self.name,
            "state": self.state,
            "why": self.why,
            "evidence": list(self.evidence),
        }
        return found | ({"by": self.by, "reason": self.reason} if self.by else {})


def judge(
    step: str,
    layout: Layout,
    digest: str,
    *,
    trust: Sequence[SSlibKey] = (),
    waivers: Sequence[Waiver] = (),
    approvals: Sequence[Approval] = (),
    history: History | None = None,
    against: str | None = None,
) -> list[Gate]:
    """Return the state of the requirements of a step for an image of the layout.

    `against`: the channel's current image, for `majors`. Raises ImageError for a waiver or an approval of
    something that this step does not require: a typing error must not open a gate.
    """
    asked = ASKED[step]
    check_asked(step, asked, waivers, approvals, MAJORS)
    image = OciImage(layout, digest)
    found: list[Gate] = []
    for name in asked:
        if name == "majors":
            found += majors(image, OciImage(layout, against) if against else None, approvals)
        else:
            found.append(
                waived(
                    order(step, digest, history) if name == "order" else _attached(name, image, trust),
                    waivers,
                )
            )
    return found


def check_asked(
    step: str,
    asked: Sequence[str],
    waivers: Sequence[Waiver],
    approvals: Sequence[Approval],
    parts: Sequence[str],
) -> None:
    """Raise ImageError for a waiver of a gate, or an approval of a part, that a step does not ask for."""
    for waiver in waivers:
        if waiver.gate == "majors":
            raise ImageError(
                "a new major version is approved part by part",
                remedy="use --approve-major PART --by WHO --reason WHY",
            )
        if waiver.gate not in asked:
            raise ImageError(
                f'{step} has no gate "{waiver.gate}"',
                remedy=nearest(waiver.gate, [name for name in asked if name != "majors"]),
            )
    for approval in approvals:
        if "majors" not in asked or approval.part not in parts:
            raise ImageError(
                f'{step} asks for no approval of "{approval.part}"', remedy=nearest(approval.part, parts)
            )


def waived(gate: Gate, waivers: Sequence[Waiver]) -> Gate:
    """Return the requirement; a failed one is passed if it was waived."""
    let = next((one for one in waivers if one.gate == gate.name), None)
    if let is None or gate.open:
        return gate
    return Gate(gate.name, "waived", f"{gate.state}: {gate.why}", gate.evidence, "", let.by, let.reason)


def refuse(step: str, what: str, gates: Sequence[Gate]) -> None:
    """Raise ImageError where a gate is shut, with each of them."""
    shut = [gate for gate in gates if not gate.open]
    if not shut:
        return
    told = "; ".join(f"{gate.name}: {gate.why}" for gate in shut)
    remedies = list(dict.fromkeys(gate.remedy for gate in shut if gate.remedy))
    other = next((gate.name for gate in shut if not gate.name.startswith("major")), None)
    if other is not None:
        remedies.append(f"record why it may pass: --waive {other} --by WHO --reason WHY")
    verb = "published" if step == "publish" else f"promoted to {step}"
    raise ImageError(f"{what} is not {verb}: {told}", remedy=", or ".join(remedies))


def _attached(name: str, image: OciImage, trust: Sequence[SSlibKey]) -> Gate:
    if name == "sbom":
        rows = [_present("sbom", "CycloneDX", CYCLONEDX, image), _present("sbom", "SPDX", SPDX, image)]
        evidence = tuple(digest for row in rows for digest in row.evidence)
        bad = next((row for row in rows if not row.open), None)
        return bad or Gate("sbom", "passed", "CycloneDX and SPDX are attached", evidence)
    if name == "provenance":
        return _present(name, "provenance", PROVENANCE, image)
    if name == "vulnerabilities":
        gate = _present(name, "vulnerability report", VULNERABILITIES, image)
        if gate.open and not any(checked(data) for _, data in documents(image, VULNERABILITIES)):
            return Gate(name, "not_run", NOT_CHECKED, gate.evidence, _REMEDY[name])
        return (
            Gate(name, gate.state, "a report is attached; its findings are not judged", gate.evidence)
            if gate.open
            else gate
        )
    if name == "signature":
        return _signature(image, trust)
    if name in ("inspection", "truth"):
        return _passed(name, {"inspection": INSPECTION, "truth": TRUTH}[name], image)
    return _smoke(name.removeprefix("smoke-"), image)


def documents(image: OciImage, kind: str) -> list[tuple[str, Any]]:
    """Digest and content of every document of a kind that is attached; None for one that is no JSON."""
    found: list[tuple[str, Any]] = []
    for descriptor, manifest in image.layout.attached(image.digest, kind):
        if manifest.get("subject", {}).get("digest") != image.digest:
            continue
        for layer in manifest["layers"]:
            try:
                found.append((descriptor.digest, json.loads(image.layout.read(layer["digest"]))))
            except ValueError:
                found.append((descriptor.digest, None))
    return found


def checked(report: Any) -> bool:
    """Return whether packages were compared with a database according to a vulnerability report."""
    return isinstance(report, dict) and report.get("state") in ("checked", "partly_checked")


def _missing(name: str, what: str) -> Gate:
    return Gate(name, "missing", f"no {what} is attached", remedy=_REMEDY[name])


def _present(name: str, what: str, kind: str, image: OciImage) -> Gate:
    rows = documents(image, kind)
    if not rows:
        return _missing(name, what)
    evidence = tuple(digest for digest, _ in rows)
    if any(not isinstance(data, dict) for _, data in rows):
        return Gate(name, "failed", f"an attached {what} cannot be read", evidence, _REMEDY[name])
    return Gate(name, "passed", f"{what} is attached", evidence)


def _passed(name: str, kind: str, image: OciImage) -> Gate:
    rows = documents(image, kind)
    if not rows:
        return _missing(name, f"{name} record")
    evidence = tuple(digest for digest, _ in rows)
    for _, data in rows:
        if not isinstance(data, dict) or data.get("passed") is not True:
            return Gate(
                name,
                "failed",
                f"the {name} record says: {_first(data)}",
                evidence,
                "mend the image, and build it again",
            )
    return Gate(name, "passed", f"the {name} record passed", evidence)


def _first(data: Any) -> str:
    if not isinstance(data, dict):
        return "nothing that can be read"
    for row in data.get("findings", []):
        if isinstance(row, dict) and row.get("severity") == "refuse" and not row.get("waived"):
            return str(row.get("message", "refused"))
    for row in data.get("claims", []):
        if isinstance(row, dict) and row.get("result") != "ok":
            return f"{row.get('claim')}: expected {row.get('expected')}, got {row.get('got')} ({row.get('result')})"
    return "not passed"


def _smoke(tier: str, image: OciImage) -> Gate:
    name = f"smoke-{tier}"
    if tier == "gpu" and image.labels.get(f"{LABELS}backend") == "cpu":
        return Gate(name, "passed", "the backend is cpu: there is no such tier")
    rows = [(digest, data) for digest, data in documents(image, SMOKE)]
    if not rows:
        return _missing(name, "smoke record")
    states: list[tuple[str, str, str]] = []
    for digest, data in rows:
        row = data.get("tiers", {}).get(tier) if isinstance(data, dict) else None
        if not isinstance(data, dict):
            states.append((digest, "failed", "it cannot be read"))
        elif isinstance(row, dict):
            state, why = str(row.get("state")), str(row.get("why") or "")
            if state == "passed" and row.get("simulated", data.get("simulated")):
                state, why = "not_run", "it was simulated"
            states.append((digest, state, why))
    evidence = tuple(digest for digest, _, _ in states)
    for _, state, why in states:
        if state not in ("passed", "not_run"):
            return Gate(
                name,
                "failed",
                f"the smoke tests of tier {tier} failed{': ' + why if why else ''}",
                evidence,
                "mend the image, and build it again",
            )
    if any(state == "passed" for _, state, _ in states):
        return Gate(name, "passed", f"the smoke tests of tier {tier} passed", evidence)
    why = next((why for _, _, why in states if why), "")
    return Gate(
        name,
        "not_run",
        f"the smoke tests of tier {tier} were not run{': ' + why if why else ''}",
        evidence,
        _REMEDY[name],
    )


def _signature(image: OciImage, trust: Sequence[SSlibKey]) -> Gate:
    """Require a good signature of the image by a trusted key, and of every document that it covers or should
    cover, as `images verify` does. A signature by an unknown key does no harm.
    """
    attached = verify.documents(image.layout, image.digest)
    evidence = tuple(row.artefact for row in attached if row.type == SIGNATURE)
    if not evidence:
        return _missing("signature", "signature")
    if not trust:
        why = "it is signed, and no key to verify it with was given"
        return Gate("signature", "not_verified", why, evidence, "name the public key with --trust")
    rows = verify.signed(attached, image.digest, trust)
    own = [row for row in rows if row.what == "signature"]
    good = next((row for row in own if row.state == "ok"), None)
    if good is None:
        return Gate("signature", "failed", own[0].detail, evidence, _REMEDY["signature"])
    bad = next((row for row in rows if row.what != "signature" and row.state == "refused"), None)
    if bad is not None:
        remedy = "let all its documents be there again (publish it from the store that has them), or sign it anew: `goldnode images evidence --key`"
        return Gate("signature", "failed", f"{bad.what}: {bad.detail}", evidence, remedy)
    return Gate("signature", "passed", f"signed, with its documents, {good.detail}", evidence)


def order(step: str, digest: str, history: History | None) -> Gate:
    """Whether an image was in the channel before this one, and was not rolled back there since. One that a later image followed still counts."""
    before = BEFORE[step]
    back = history.taken_back(before).get(digest) if history is not None else None
    if back is not None:
        why = f"{before} was rolled back from it on {back.date[:10]}{f' ({back.reason})' if back.reason else ''}"
        return Gate("order", "failed", why, remedy=f"promote it to {before} again where it is good after all")
    if history is not None and history.was_in(before, digest):
        return Gate("order", "passed", f"it was {before}")
    return Gate("order", "failed", f"it never was {before}", remedy=f"promote it to {before} first")


# Parts


def parts(image: OciImage) -> dict[str, str]:
    """Parts and their versions as the label says: JSON, or NAME=VERSION separated by commas or spaces."""
    text = image.labels.get(f"{LABELS}parts", "").strip()
    if text.startswith("{"):
        try:
            return {str(name).lower(): str(version) for name, version in json.loads(text).items()}
        except (ValueError, AttributeError):
            return {}
    return {
        name.lower(): version
        for name, sign, version in (row.partition("=") for row in re.split(r"[,\s]+", text))
        if sign
    }


def majors(image: OciImage, before: OciImage | None, approvals: Sequence[Approval] = ()) -> list[Gate]:
    """One gate for each of cuDNN and NCCL whose major version is another than in the image before, or is gone."""
    if before is None or before.digest == image.digest:
        return [Gate("majors", "passed", "the channel leads to no other image yet")]
    unread = [one for one in (image, before) if f"{LABELS}parts" not in one.labels]
    old, new = parts(before), parts(image)
    found: list[Gate] = []
    for part in MAJORS:
        was, now = _major(old.get(part)), _major(new.get(part))
        if unread:
            why = f"whether {part} has another major version cannot be told: an image has no label {LABELS}parts"
        elif was is None or was == now:
            continue  # a part that did not exist before breaks no user
        else:
            why = f"{part} goes from {old[part]} to {new.get(part, 'none')}"
        found.append(major(part, why, approvals))
    return found or [Gate("majors", "passed", "cuDNN and NCCL keep their major versions")]


def major(part: str, why: str, approvals: Sequence[Approval]) -> Gate:
    """Return the requirement of a part whose major version changes, or may change: passed only with an
    approval of that part.
    """
    given = next((one for one in approvals if one.part == part), None)
    if given is None:
        return Gate(
            f"major-{part}",
            "failed",
            why,
            (),
            f"record an approval of its own: --approve-major {part} --by WHO --reason WHY",
        )
    return Gate(f"major-{part}", "approved", why, (), "", given.by, given.reason)


def _major(version: str | None) -> str | None:
    found = re.match(r"(?:\d+:)?(\d+)", version or "")
    return found.group(1) if found else None

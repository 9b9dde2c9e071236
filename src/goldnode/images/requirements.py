"""Requirements of a container image, read from its attached documents.

A document that is absent, reports *not run* or *not verified*, is simulated, or cannot be read
never counts as passed. If several documents of one kind are attached, one failed document is enough
to refuse.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from goldnode.channels.lines import CHANNELS, line_of
from goldnode.channels.requirements import (
    EVIDENCE,
    ChannelSubject,
    Decisions,
    Requirement,
    RequirementDecision,
    major,
    requirements,
)
from goldnode.channels.vulnerability_limits import judge_reports
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
from goldnode.node.ground.optional import group
from goldnode.node.ground.text import phrase
from goldnode.oci.identity import identity
from goldnode.oci.layout import Layout, OciImage
from goldnode.oci.model import LABELS

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

PUBLICATION = "application/vnd.goldnode.publication.v1+json"

REQUIREMENTS = requirements(
    ("inspection", "truth", "smoke-cpu", "signature"),
    canary=("sbom", "provenance"),
    stable=("vulnerabilities", "smoke-gpu"),
    majors=("cudnn", "nccl"),
)

_REMEDY = {
    "inspection": "`goldnode images inspect` it",
    "truth": "`goldnode images inspect` it",
    "smoke-cpu": "`goldnode images smoke` it",
    "smoke-gpu": "run `goldnode images smoke` where a GPU is",
    "signature": "sign it with `goldnode images evidence --key`, and name the public key with --trust",
    "sbom": "`goldnode images evidence` writes it",
    "provenance": "`goldnode images evidence` writes it",
    "vulnerabilities": "`goldnode images evidence` writes it from a database or a scanner's report that you give",
}


def judge(
    step: str, layout: Layout, digest: str, given: Decisions, against: str | None = None
) -> list[Requirement]:
    """Return the state of the requirements of a step for an image of the layout.

    `against`: the channel's current image, for `majors`. Raises ImageError for a waiver or an
    approval of something that this step does not require.
    """
    image = OciImage(layout, digest)
    before = OciImage(layout, against) if against else None
    return REQUIREMENTS.judge(
        step,
        digest,
        given,
        lambda name: _attached(name, image, given),
        lambda: majors(image, before, given.approvals),
    )


def _attached(name: str, image: OciImage, given: Decisions) -> Requirement:
    if name == "sbom":
        rows = [
            _present("sbom", "CycloneDX", CYCLONEDX, image),
            _present("sbom", "SPDX", SPDX, image),
        ]
        evidence = tuple(digest for row in rows for digest in row.evidence)
        bad = next((row for row in rows if not row.met), None)
        return bad or Requirement("sbom", "passed", "CycloneDX and SPDX are attached", evidence)
    if name == "provenance":
        return _present(name, "provenance", PROVENANCE, image)
    if name == "vulnerabilities":
        reports = documents(image, VULNERABILITIES)
        if not reports:
            return _missing(name, "vulnerability report")
        now = given.now or dt.datetime.now(dt.UTC)
        return judge_reports(reports, image.digest, given.limits, now, _REMEDY[name])
    if name == EVIDENCE:
        return given.proved(_subject(image))
    if name == "signature":
        return _signature(image, given.trust)
    if name in ("inspection", "truth"):
        return _passed(name, {"inspection": INSPECTION, "truth": TRUTH}[name], image)
    return _smoke(name.removeprefix("smoke-"), image)


def _subject(image: OciImage) -> ChannelSubject:
    """Return an image as classes name it: by its digest, its immutable tag, or a channel of its line."""
    own = identity(image.config)
    tags: tuple[str, ...] = ()
    if own.tag:
        line = line_of(own.repository, own.tag)
        tags = (own.tag, *(line.pointer(channel) for channel in CHANNELS))
    return ChannelSubject(image.digest, "smoke", own.repository, tags)


def documents(image: OciImage, kind: str) -> list[tuple[str, Any]]:
    """Return digest and content of every attached document of a kind. The content of one that is no JSON is None."""
    rows: list[tuple[str, Any]] = []
    # A document that cannot be read is kept as None: it must refuse, not disappear.
    for descriptor, manifest in image.layout.attached(image.digest, kind):
        if manifest.get("subject", {}).get("digest") != image.digest:
            continue
        for layer in manifest["layers"]:
            try:
                rows.append((descriptor.digest, json.loads(image.layout.read(layer["digest"]))))
            except ValueError:
                rows.append((descriptor.digest, None))
    return rows


def _missing(name: str, what: str) -> Requirement:
    return Requirement(name, "missing", f"no {what} is attached", remedy=_REMEDY[name])


def _present(name: str, what: str, kind: str, image: OciImage) -> Requirement:
    rows = documents(image, kind)
    if not rows:
        return _missing(name, what)
    evidence = tuple(digest for digest, _ in rows)
    if any(not isinstance(data, dict) for _, data in rows):
        return Requirement(
            name, "failed", f"an attached {what} cannot be read", evidence, _REMEDY[name]
        )
    return Requirement(name, "passed", f"{what} is attached", evidence)


def _passed(name: str, kind: str, image: OciImage) -> Requirement:
    rows = documents(image, kind)
    if not rows:
        return _missing(name, f"{name} record")
    evidence = tuple(digest for digest, _ in rows)
    for _, data in rows:
        # Every record counts: a later good one does not outweigh a failed one.
        if not isinstance(data, dict) or data.get("passed") is not True:
            return Requirement(
                name,
                "failed",
                f"the {name} record says: {_first(data)}",
                evidence,
                "fix the image, and build it again",
            )
    return Requirement(name, "passed", f"the {name} record passed", evidence)


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


def _smoke(tier: str, image: OciImage) -> Requirement:
    name = f"smoke-{tier}"
    if tier == "gpu" and image.labels.get(f"{LABELS}backend") == "cpu":
        return Requirement(name, "passed", "the backend is cpu: there is no such tier")
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
            # A simulator shows that the test works, not that the image does.
            if state == "passed" and row.get("simulated", data.get("simulated")):
                state, why = "not_run", "it was simulated"
            elif state == "passed" and data.get("emulated"):
                state, why = "passed", f"emulated by {data['emulated']}"
            states.append((digest, state, why))
    evidence = tuple(digest for digest, _, _ in states)
    for _, state, why in states:
        if state not in ("passed", "not_run"):
            return Requirement(
                name,
                "failed",
                f"the smoke tests of tier {tier} failed{phrase(': {}', why)}",
                evidence,
                "fix the image, and build it again",
            )
    if any(state == "passed" for _, state, _ in states):
        # A native run counts more than an emulated one.
        how = min((why for _, state, why in states if state == "passed"), key=len)
        label = f" ({how})" if how.startswith("emulated") else ""
        return Requirement(
            name, "passed", f"the smoke tests of tier {tier} passed{label}", evidence
        )
    why = next((why for _, _, why in states if why), "")
    return Requirement(
        name,
        "not_run",
        f"the smoke tests of tier {tier} were not run{phrase(': {}', why)}",
        evidence,
        _REMEDY[name],
    )


def _signature(image: OciImage, trust: Sequence[SSlibKey]) -> Requirement:
    """Require a good signature of the image by a trusted key, and of every document that it covers or should
    cover, as `images verify` does. A signature by an unknown key does no harm.
    """
    attached = verify.documents(image.layout, image.digest)
    evidence = tuple(row.artefact for row in attached if row.type == SIGNATURE)
    if not evidence:
        return _missing("signature", "signature")
    if not trust:
        why = "it is signed, and no key to verify it with was given"
        return Requirement(
            "signature", "not_verified", why, evidence, "name the public key with --trust"
        )
    rows = verify.signed(attached, image.digest, trust)
    own = [row for row in rows if row.what == "signature"]
    # One trusted signature is enough: others may be of keys that this site does not know.
    good = next((row for row in own if row.state == "ok"), None)
    if good is None:
        return Requirement("signature", "failed", own[0].detail, evidence, _REMEDY["signature"])
    bad = next((row for row in rows if row.what != "signature" and row.state == "refused"), None)
    if bad is not None:
        remedy = "restore all its documents (publish it from the store that has them), or sign it again: `goldnode images evidence --key`"
        return Requirement("signature", "failed", f"{bad.what}: {bad.detail}", evidence, remedy)
    return Requirement(
        "signature", "passed", f"signed, with its documents, {good.detail}", evidence
    )


# Parts


def parts(image: OciImage) -> dict[str, str]:
    """Return the parts and their versions from the label: JSON, or NAME=VERSION separated by commas or spaces."""
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


def majors(
    image: OciImage, before: OciImage | None, approvals: Sequence[RequirementDecision] = ()
) -> list[Requirement]:
    """Return a result for each of cuDNN and NCCL whose major version differs from the previous image, or is gone."""
    if before is None or before.digest == image.digest:
        return [Requirement("majors", "passed", "the channel leads to no other image yet")]
    unread = [one for one in (image, before) if f"{LABELS}parts" not in one.labels]
    old, new = parts(before), parts(image)
    changed: list[Requirement] = []
    for part in REQUIREMENTS.majors:
        was, now = _major(old.get(part)), _major(new.get(part))
        if unread:
            why = f"whether {part} has another major version cannot be determined: an image has no label {LABELS}parts"
        elif was is None or was == now:
            continue  # a part that did not exist before breaks no user
        else:
            why = f"{part} goes from {old[part]} to {new.get(part, 'none')}"
        changed.append(major(part, why, approvals))
    return changed or [Requirement("majors", "passed", "cuDNN and NCCL keep their major versions")]


def _major(version: str | None) -> str | None:
    return group(re.match(r"(?:\d+:)?(\d+)", version or ""))

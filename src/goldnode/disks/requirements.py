"""Requirements of a promotion of a disk image."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from goldnode.core.errors import DiskError, ImageError
from goldnode.core.files import sha256_of
from goldnode.disks import evidence
from goldnode.disks.contents import digest_of
from goldnode.disks.model import BuiltDisk
from goldnode.evidence import signatures
from goldnode.node.ground.json_lines import as_list
from goldnode.node.ground.text import and_more, phrase

BOOTS = 2  # the first boot, and one that finds what the first has left
REQUIREMENTS = requirements(
    ("built", "hygiene", "booted", "inspection", "signature"),
    canary=("sbom", "provenance"),
    stable=("vulnerabilities",),
    majors=("kernel", "driver"),
)
# Written after publication, so promotions require them and `publish` does not.
AFTER_BUILD = ("sbom", "provenance", "vulnerabilities")
_REMEDY = {
    "booted": "boot it: `goldnode disks verify`",
    "inspection": "`goldnode disks evidence` inspects it",
    "signature": "sign it with `goldnode disks evidence --key`, and name the public key with --trust",
    "sbom": "`goldnode disks evidence` writes it",
    "provenance": "`goldnode disks evidence` writes it",
    "vulnerabilities": "`goldnode disks evidence --database` writes it from a database that you give",
}


def judge(
    step: str,
    disk: BuiltDisk,
    given: Decisions | None = None,
    *,
    against: BuiltDisk | None = None,
    lost: str = "",
) -> list[Requirement]:
    """Return the result of each requirement of a step for a disk.

    `against` is the disk that the channel points to now, `lost` the reason why it cannot be read.

    Evidence that is absent, unreadable, unverified or about another disk never counts as passed. Raises
    ImageError for a waiver or an approval that this step does not ask for.
    """
    known = given or Decisions()
    return REQUIREMENTS.judge(
        step,
        digest_of(disk),
        known,
        lambda name: judge_one(name, disk, known),
        lambda: _majors(disk, against, lost, known.approvals),
    )


def judge_one(name: str, disk: BuiltDisk, known: Decisions | None = None) -> Requirement:
    """Return the result of one requirement that depends on the disk alone, not on channels."""
    return READERS[name](disk, known or Decisions())


def _built(disk: BuiltDisk, given: Decisions) -> Requirement:
    remedy = "build it again, or pull it"
    here = [row.format for row in disk.files if (disk.directory / row.file).is_file()]
    if disk.name != f"{disk.class_}-{disk.build_id}" or not here:
        if not here:
            why = "no file of it is here"
        else:
            why = f"it is called {disk.name}, and is build {disk.build_id} of {disk.class_}"
        return Requirement("built", "failed", why, remedy=remedy)
    try:
        evidence.check_files(disk, here)
    except DiskError as problem:
        return Requirement("built", "failed", problem.message, remedy=remedy)
    simulated = "; its class is simulated" if disk.simulated else ""
    return Requirement(
        "built", "passed", f"{', '.join(here)}: as the manifest says{simulated}", (digest_of(disk),)
    )


def _hygiene(disk: BuiltDisk, given: Decisions) -> Requirement:
    bad = [row for row in disk.hygiene if row.outcome not in ("passed", "waived")]
    if not disk.hygiene:
        return Requirement(
            "hygiene", "missing", "the manifest has no hygiene checks", remedy="build it again"
        )
    if bad:
        why = "; ".join(f"{row.check}: {row.detail}" for row in bad)
        return Requirement("hygiene", "failed", why, remedy="fix the root, and build it again")
    let = [row.check for row in disk.hygiene if row.outcome == "waived"]
    reported = f"{len(disk.hygiene)} checks" + phrase(
        ", waived by the definition: {}", ", ".join(let)
    )
    return Requirement("hygiene", "passed", reported, (digest_of(disk),))


def _booted(disk: BuiltDisk, given: Decisions) -> Requirement:
    path = evidence.document(disk, "verified")
    data = _json(path)
    if data is None and not path.is_file():
        return Requirement(
            "booted",
            "missing",
            "it was never booted: there is no record of it",
            remedy=_REMEDY["booted"],
        )
    proof = (f"sha256:{sha256_of(path)}",)

    def shut(why: str) -> Requirement:
        return Requirement("booted", "failed", why, proof, _REMEDY["booted"])

    if not isinstance(data, dict):
        return shut("the record of its boots cannot be read")
    for name, wanted in (
        ("name", disk.name),
        ("build_id", disk.build_id),
        ("raw_sha256", disk.raw.sha256),
    ):
        if data.get(name) != wanted:
            return shut(
                f"the record of boots is about another disk: {name} is {data.get(name)}, expected {wanted}"
            )
    after = data.get("raw_sha256_after", disk.raw.sha256)
    if after != disk.raw.sha256:
        return shut(f"the disk was not the same after it was booted: {after}")
    boots = data.get("boots")
    boots = as_list(boots)
    checks = [
        check
        for boot in boots
        if isinstance(boot, dict)
        for check in boot.get("checks", [])
        if isinstance(check, dict)
    ]
    checks += [check for check in data.get("clones", []) if isinstance(check, dict)]
    wrong = [check for check in checks if check.get("outcome") not in ("passed", "not-verifiable")]
    if wrong:
        row = wrong[0]
        return shut(
            f"{row.get('id')}: expected {row.get('expected')}, got {row.get('got')}"
            + _more(len(wrong) - 1)
        )
    if data.get("outcome") != "passed":
        return shut(f"the outcome of its boots is {data.get('outcome')}, expected passed")
    # A boot with simulated GPUs proves nothing about the disk without them.
    real = [boot for boot in boots if isinstance(boot, dict) and not boot.get("simulated")]
    good = [
        boot
        for boot in real
        if any(check.get("outcome") == "passed" for check in boot.get("checks", []))
    ]
    if len(good) < BOOTS:
        return shut(f"it was booted {len(good)} times, expected {BOOTS}")
    open_ = sorted(
        {str(check.get("id")) for check in checks if check.get("outcome") == "not-verifiable"}
    )
    parts = [f"booted {len(good)} times ({data.get('accelerator', 'accelerator not stated')})"]
    if open_:
        parts.append(f"not verifiable here: {', '.join(open_)}")
    if data.get("simulated_hardware"):
        parts.append("the hardware in it was simulated")
    return Requirement("booted", "passed", "; ".join(parts), proof)


def _more(number: int) -> str:
    return and_more(number, ", and {} more")


def _inspection(disk: BuiltDisk, given: Decisions) -> Requirement:
    result = _present("inspection", ("inspection",), disk)
    if not result.met:
        return result
    data = _json(evidence.document(disk, "inspection"))
    if not isinstance(data, dict) or data.get("raw_sha256") != disk.raw.sha256:
        return Requirement(
            "inspection",
            "failed",
            "the inspection is about another disk",
            result.evidence,
            _REMEDY["inspection"],
        )
    if data.get("passed") is not True:
        return Requirement(
            "inspection",
            "failed",
            f"the inspection says: {evidence.refused(data)}",
            result.evidence,
            "fix it, and build it again",
        )
    return Requirement(
        "inspection",
        "passed",
        f"nothing in it is foreign to {data.get('backend')}",
        result.evidence,
    )


def _signature(disk: BuiltDisk, given: Decisions) -> Requirement:
    path = evidence.document(disk, "signature")
    if not path.is_file():
        return Requirement("signature", "missing", "it is not signed", remedy=_REMEDY["signature"])
    proof = (f"sha256:{sha256_of(path)}",)
    if not given.trust:
        why = "it is signed, and no key to verify it with was given"
        return Requirement(
            "signature", "not_verified", why, proof, "name the public key with --trust"
        )
    verification = evidence.authenticate(disk, given.trust, content=False)
    bad = next((row for row in verification.rows if row.state in ("refused", "not_verified")), None)
    if bad is not None:
        return Requirement(
            "signature",
            "failed",
            f"{bad.what}: {bad.detail}",
            proof,
            "sign it again: `goldnode disks evidence --key`",
        )
    row = next(row for row in verification.rows if row.what == "signature")
    return Requirement("signature", "passed", f"signed, with its documents, {row.detail}", proof)


def _present(name: str, kinds: Sequence[str], disk: BuiltDisk) -> Requirement:
    proof: list[str] = []
    for kind in kinds:
        path = evidence.document(disk, kind)
        if not path.is_file():
            return Requirement(
                name, "missing", f"there is no {path.name}", tuple(proof), _REMEDY[name]
            )
        proof.append(f"sha256:{sha256_of(path)}")
        if not isinstance(_json(path), dict):
            return Requirement(
                name, "failed", f"{path.name} cannot be read", tuple(proof), _REMEDY[name]
            )
    return Requirement(
        name,
        "passed",
        f"{' and '.join(kinds)} {'is' if len(kinds) == 1 else 'are'} there",
        tuple(proof),
    )


def _vulnerabilities(disk: BuiltDisk, given: Decisions) -> Requirement:
    result = _present("vulnerabilities", ("vulnerabilities",), disk)
    if not result.met:
        return result
    data = _json(evidence.document(disk, "vulnerabilities"))
    now = given.now or dt.datetime.now(dt.UTC)
    rows = [(result.evidence[0], data)]
    return judge_reports(rows, digest_of(disk), given.limits, now, _REMEDY["vulnerabilities"])


def _sbom(disk: BuiltDisk, given: Decisions) -> Requirement:
    return _present("sbom", ("cyclonedx", "spdx"), disk)


def _provenance(disk: BuiltDisk, given: Decisions) -> Requirement:
    return _present("provenance", ("provenance",), disk)


def _evidence(disk: BuiltDisk, given: Decisions) -> Requirement:
    return given.proved(
        ChannelSubject(
            f"sha256:{disk.raw.sha256}", "disk", class_=disk.class_, lock=disk.stack_lock
        )
    )


READERS = {
    "built": _built,
    "hygiene": _hygiene,
    "booted": _booted,
    "inspection": _inspection,
    "signature": _signature,
    "sbom": _sbom,
    "provenance": _provenance,
    "vulnerabilities": _vulnerabilities,
    EVIDENCE: _evidence,
}


def _json(path: Path) -> Any:
    try:
        return json.loads(signatures.payload_of(path.read_bytes()))
    except (OSError, ValueError, ImageError):
        return None


def _majors(
    disk: BuiltDisk, against: BuiltDisk | None, lost: str, approvals: Sequence[RequirementDecision]
) -> list[Requirement]:
    """Return a result for each of kernel and driver whose series differs from that of the previous disk, or
    that is gone.
    """
    if against is None and not lost:
        return [Requirement("majors", "passed", "the channel leads to no other disk yet")]
    changes: list[Requirement] = []
    new = series(disk)
    old = {} if against is None else series(against)
    for part in REQUIREMENTS.majors:
        if against is not None and (part not in old or old[part] == new.get(part)):
            continue  # an addition breaks no user of the channel
        if against:
            why = f"{part} goes from {old[part]} to {new.get(part, 'none')}"
        else:
            why = f"whether {part} has another series cannot be determined: {lost}"
        changes.append(major(part, why, approvals))
    return changes or [Requirement("majors", "passed", "kernel and driver keep their series")]


def series(disk: BuiltDisk) -> dict[str, str]:
    """Return the series of kernel and driver that programs and modules depend on: 6.1 of
    6.1.0-53-cloud-amd64, 535 of 535.309.01.
    """
    versions = {"kernel": ".".join(disk.kernel.split("-")[0].split(".")[:2])}
    return versions | (
        {"driver": disk.driver.version.split(".")[0]} if disk.driver is not None else {}
    )

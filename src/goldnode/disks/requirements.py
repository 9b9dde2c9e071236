"""Requirements of a promotion of a disk image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.channels.history import History
from goldnode.channels.requirements import (
    NOT_CHECKED,
    Approval,
    Gate,
    Waiver,
    check_asked,
    checked,
    major,
    order,
    waived,
)
from goldnode.core.errors import DiskError, ImageError
from goldnode.core.files import sha256_of
from goldnode.disks import evidence
from goldnode.disks.contents import digest_of
from goldnode.disks.model import BuiltDisk
from goldnode.evidence import signatures

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey


MAJORS = ("kernel", "driver")
BOOTS = 2
# Gates of each step, in the order of the report. A step includes the gates of the previous one.
_BASE = ("built", "hygiene", "booted", "inspection", "signature")
_CANARY = (*_BASE, "sbom", "provenance")
_STABLE = (*_CANARY, "vulnerabilities")
ASKED: Mapping[str, tuple[str, ...]] = {
    "publish": _BASE,
    "candidate": _BASE,
    "canary": (*_CANARY, "order", "majors"),
    "stable": (*_STABLE, "order", "majors"),
    "known-good": (*_STABLE, "order", "majors"),
}
# Written after publication, so promotions require them and `publish` does not.
LATER = ("sbom", "provenance", "vulnerabilities")
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
    *,
    trust: Sequence[SSlibKey] = (),
    waivers: Sequence[Waiver] = (),
    approvals: Sequence[Approval] = (),
    history: History | None = None,
    against: BuiltDisk | None = None,
    lost: str = "",
    only: Sequence[str] | None = None,
) -> list[Gate]:
    """Return the result of each gate of a step for a disk.

    `against` is the disk that the channel points to now, `lost` the reason why it cannot be read. `only`
    restricts the gates.

    Evidence that is absent, unreadable, unverified or about another disk never counts as passed. Raises
    ImageError for a waiver or an approval that this step does not ask for.
    """
    asked = ASKED[step]
    check_asked(step, asked, waivers, approvals, MAJORS)
    found: list[Gate] = []
    for name in asked if only is None else only:
        if name == "majors":
            found += _majors(disk, against, lost, approvals)
            continue
        gate = order(step, digest_of(disk), history) if name == "order" else _GATES[name](disk, trust)
        found.append(waived(gate, waivers))
    return found


def _built(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    remedy = "build it again, or pull it"
    here = [row.format for row in disk.files if (disk.directory / row.file).is_file()]
    if disk.name != f"{disk.class_}-{disk.build_id}" or not here:
        why = (
            "no file of it is here"
            if not here
            else f"it is called {disk.name}, and is build {disk.build_id} of {disk.class_}"
        )
        return Gate("built", "failed", why, remedy=remedy)
    try:
        evidence.check_files(disk, here)
    except DiskError as problem:
        return Gate("built", "failed", problem.message, remedy=remedy)
    simulated = "; its class is simulated" if disk.simulated else ""
    return Gate("built", "passed", f"{', '.join(here)}: as the manifest says{simulated}", (digest_of(disk),))


def _hygiene(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    bad = [row for row in disk.hygiene if row.outcome not in ("passed", "waived")]
    if not disk.hygiene:
        return Gate("hygiene", "missing", "the manifest has no hygiene checks", remedy="build it again")
    if bad:
        why = "; ".join(f"{row.check}: {row.detail}" for row in bad)
        return Gate("hygiene", "failed", why, remedy="mend what is in the root, and build it again")
    let = [row.check for row in disk.hygiene if row.outcome == "waived"]
    said = f"{len(disk.hygiene)} checks" + (f", waived by the definition: {', '.join(let)}" if let else "")
    return Gate("hygiene", "passed", said, (digest_of(disk),))


def _booted(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    path = evidence.document(disk, "verified")
    data = _json(path)
    if data is None and not path.is_file():
        return Gate(
            "booted", "missing", "it was never booted: there is no record of it", remedy=_REMEDY["booted"]
        )
    proof = (f"sha256:{sha256_of(path)}",)

    def shut(why: str) -> Gate:
        return Gate("booted", "failed", why, proof, _REMEDY["booted"])

    if not isinstance(data, dict):
        return shut("the record of its boots cannot be read")
    for name, wanted in (("name", disk.name), ("build_id", disk.build_id), ("raw_sha256", disk.raw.sha256)):
        if data.get(name) != wanted:
            return shut(
                f"the record of boots is about another disk: {name} is {data.get(name)}, expected {wanted}"
            )
    after = data.get("raw_sha256_after", disk.raw.sha256)
    if after != disk.raw.sha256:
        return shut(f"the disk was not the same after it was booted: {after}")
    boots = data.get("boots")
    boots = boots if isinstance(boots, list) else []
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
            f"{row.get('id')}: expected {row.get('expected')}, got {row.get('got')}" + _more(len(wrong) - 1)
        )
    if data.get("outcome") != "passed":
        return shut(f"the outcome of its boots is {data.get('outcome')}, expected passed")
    # A boot with simulated GPUs proves nothing about the disk without them.
    real = [boot for boot in boots if isinstance(boot, dict) and not boot.get("simulated")]
    good = [
        boot for boot in real if any(check.get("outcome") == "passed" for check in boot.get("checks", []))
    ]
    if len(good) < BOOTS:
        return shut(f"it was booted {len(good)} times, expected {BOOTS}")
    open_ = sorted({str(check.get("id")) for check in checks if check.get("outcome") == "not-verifiable"})
    told = [f"booted {len(good)} times ({data.get('accelerator', 'accelerator not stated')})"]
    told += [f"not verifiable here: {', '.join(open_)}"] if open_ else []
    told += ["the hardware in it was simulated"] if data.get("simulated_hardware") else []
    return Gate("booted", "passed", "; ".join(told), proof)


def _more(number: int) -> str:
    return f", and {number} more" if number > 0 else ""


def _inspection(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    gate = _present("inspection", ("inspection",), disk)
    if not gate.open:
        return gate
    data = _json(evidence.document(disk, "inspection"))
    if not isinstance(data, dict) or data.get("raw_sha256") != disk.raw.sha256:
        return Gate(
            "inspection",
            "failed",
            "the inspection is about another disk",
            gate.evidence,
            _REMEDY["inspection"],
        )
    if data.get("passed") is not True:
        return Gate(
            "inspection",
            "failed",
            f"the inspection says: {evidence.refused(data)}",
            gate.evidence,
            "mend it, and build it again",
        )
    return Gate("inspection", "passed", f"nothing in it is foreign to {data.get('backend')}", gate.evidence)


def _signature(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    path = evidence.document(disk, "signature")
    if not path.is_file():
        return Gate("signature", "missing", "it is not signed", remedy=_REMEDY["signature"])
    proof = (f"sha256:{sha256_of(path)}",)
    if not trust:
        why = "it is signed, and no key to verify it with was given"
        return Gate("signature", "not_verified", why, proof, "name the public key with --trust")
    found = evidence.authenticate(disk, trust, content=False)
    bad = next((row for row in found.rows if row.state in ("refused", "not_verified")), None)
    if bad is not None:
        return Gate(
            "signature",
            "failed",
            f"{bad.what}: {bad.detail}",
            proof,
            "sign it anew: `goldnode disks evidence --key`",
        )
    row = next(row for row in found.rows if row.what == "signature")
    return Gate("signature", "passed", f"signed, with its documents, {row.detail}", proof)


def _present(name: str, kinds: Sequence[str], disk: BuiltDisk) -> Gate:
    proof: list[str] = []
    for kind in kinds:
        path = evidence.document(disk, kind)
        if not path.is_file():
            return Gate(name, "missing", f"there is no {path.name}", tuple(proof), _REMEDY[name])
        proof.append(f"sha256:{sha256_of(path)}")
        if not isinstance(_json(path), dict):
            return Gate(name, "failed", f"{path.name} cannot be read", tuple(proof), _REMEDY[name])
    return Gate(
        name, "passed", f"{' and '.join(kinds)} {'is' if len(kinds) == 1 else 'are'} there", tuple(proof)
    )


def _vulnerabilities(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    gate = _present("vulnerabilities", ("vulnerabilities",), disk)
    if not gate.open:
        return gate
    if not checked(_json(evidence.document(disk, "vulnerabilities"))):
        return Gate("vulnerabilities", "not_run", NOT_CHECKED, gate.evidence, _REMEDY["vulnerabilities"])
    return Gate("vulnerabilities", "passed", "a report is there; its findings are not judged", gate.evidence)


def _sbom(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    return _present("sbom", ("cyclonedx", "spdx"), disk)


def _provenance(disk: BuiltDisk, trust: Sequence[SSlibKey]) -> Gate:
    return _present("provenance", ("provenance",), disk)


_GATES = {
    "built": _built,
    "hygiene": _hygiene,
    "booted": _booted,
    "inspection": _inspection,
    "signature": _signature,
    "sbom": _sbom,
    "provenance": _provenance,
    "vulnerabilities": _vulnerabilities,
}


def _json(path: Path) -> Any:
    try:
        return json.loads(signatures.payload_of(path.read_bytes()))
    except (OSError, ValueError, ImageError):
        return None


def _majors(
    disk: BuiltDisk, against: BuiltDisk | None, lost: str, approvals: Sequence[Approval]
) -> list[Gate]:
    """Return one gate for each of kernel and driver whose series differs from that of the previous disk, or
    that is gone.
    """
    if against is None and not lost:
        return [Gate("majors", "passed", "the channel leads to no other disk yet")]
    found: list[Gate] = []
    new = series(disk)
    old = {} if against is None else series(against)
    for part in MAJORS:
        if against is not None and (part not in old or old[part] == new.get(part)):
            continue  # an addition breaks no user of the channel
        why = (
            f"{part} goes from {old[part]} to {new.get(part, 'none')}"
            if against
            else f"whether {part} has another series cannot be told: {lost}"
        )
        found.append(major(part, why, approvals))
    return found or [Gate("majors", "passed", "kernel and driver keep their series")]


def series(disk: BuiltDisk) -> dict[str, str]:
    """Return the series of kernel and driver that programs and modules depend on: 6.1 of
    6.1.0-53-cloud-amd64, 535 of 535.309.01.
    """
    found = {"kernel": ".".join(disk.kernel.split("-")[0].split(".")[:2])}
    return found | ({"driver": disk.driver.version.split(".")[0]} if disk.driver is not None else {})

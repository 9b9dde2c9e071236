"""Writer of all evidence documents of an image: attaches those that are missing or have changed."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from goldnode import evidence
from goldnode.core.errors import ImageError
from goldnode.evidence import cosign, sbom, signatures, size, vulnerabilities
from goldnode.evidence.contents import Contents, EvidenceLock, contents
from goldnode.evidence.diff import compare_images
from goldnode.evidence.layers import snapshot
from goldnode.evidence.provenance import PREDICATE, provenance
from goldnode.evidence.scan_reports import ScanReport
from goldnode.evidence.verify import documents, sign
from goldnode.evidence.writer import EvidenceOptions, EvidenceWriter, WrittenEvidence
from goldnode.node.ground.text import phrase
from goldnode.oci.layout import Layout, OciImage, canonical
from goldnode.oci.model import Built, ImageSpec


@dataclass(frozen=True)
class ImageEvidenceOptions(EvidenceOptions):
    """Inputs besides the image.

    `against` is the digest of the image to compare with. `registry` is where the image will be published, as
    its signature for cosign states.
    """

    against: str | None = None
    registry: str = ""


def examine(
    layout: Layout, digest: str, locks: Sequence[EvidenceLock] = (), cache: Path | None = None
) -> tuple[OciImage, Contents]:
    """Read an image and determine its contents."""
    image = OciImage(layout, digest)
    return image, contents(image, snapshot(image, cache), locks)


def write(
    layout: Layout,
    image: ImageSpec,
    built: Built,
    locks: Sequence[EvidenceLock],
    options: ImageEvidenceOptions,
) -> list[WrittenEvidence]:
    """Write and attach all evidence documents. `locks` has the image's own lock last.

    Raise ImageError if the lock is not the one the image was built from, or if an SBOM violates its schema.
    Documents that this version of goldnode wrote from the same inputs, and that are still attached, are not
    generated again: the result would be the same.
    """
    if not locks or locks[-1].digest != built.lock:
        raise ImageError(
            f"{image.name} was built from lock {built.lock[:19]}…, and its lock is another one now",
            remedy=f"run `goldnode images build {image.name}`, or restore that lock",
        )
    note = _Note(layout, image, built, locks, options)
    kept = note.read()
    if kept is not None:
        return kept
    written = _write(layout, image, built, locks, options)
    note.write(written)
    return written


def _write(
    layout: Layout,
    image: ImageSpec,
    built: Built,
    locks: Sequence[EvidenceLock],
    options: ImageEvidenceOptions,
) -> list[WrittenEvidence]:
    from goldnode.evidence.cyclonedx_bom import cyclonedx  # its library takes 0.3 s to load

    snapshot, there = examine(layout, built.digest, locks, options.cache)
    put = _AttachedEvidence(layout, built.digest)
    bill = cyclonedx(snapshot, there)
    files = sum(len(wheel.files) for wheel in there.wheels if wheel.unpacked)
    packages = (
        f"{len(there.debs)} debs, {len(there.wheels)} wheels, {files} files unpacked from wheels, "
        f"{len(there.unowned)} of unknown origin"
    )
    written = [
        put.bill(evidence.CYCLONEDX, bill, packages),
        put(evidence.SPDX, sbom.spdx(snapshot, there), "the same, as SPDX 2.3"),
    ]
    statement = provenance(
        image, built, locks, there, builder=options.builder, base=snapshot.labels
    )
    written.append(put.provenance(evidence.PROVENANCE, statement, options))
    written.append(_vulnerabilities(put, snapshot, there, options))
    sizes = size.sizes(snapshot, there)
    line = (
        f"{size.human(sizes['compressed'])} to pull, {size.human(sizes['files'])} of files, "
        f"{size.human(sizes['hidden'])} hidden"
    )
    written.append(put(evidence.SIZE, size.document(snapshot, there), line))
    if options.against is not None and options.against != built.digest:
        old = examine(layout, options.against, cache=options.cache)
        difference = compare_images(old, (snapshot, there))
        major = ", ".join(f"{row.name} {row.was} -> {row.now}" for row in difference.major)
        written.append(
            put(
                evidence.DIFF,
                difference.document(),
                f"to {options.against[:19]}…{phrase('; MAJOR {}', major)}",
            )
        )
    if options.signer is not None:
        before = {row.artefact for row in documents(layout, built.digest)}
        name = image.ref(built.build_id)
        artefact = sign(layout, built.digest, name, options.signer)
        state: Literal["written", "kept"] = "kept" if artefact in before else "written"
        written.append(
            WrittenEvidence(evidence.SIGNATURE, state, f"by key {options.signer.keyid[:12]}")
        )
        repository = "/".join(
            part for part in (options.registry, image.repository or image.backend) if part
        )
        new = cosign.attach(layout, built.digest, repository, name, options.signer)
        line = f"for {repository}, and its attestations"
        written.append(WrittenEvidence(cosign.SIGNATURE, "written" if new else "kept", line))
    return written


def _vulnerabilities(
    put: EvidenceWriter, image: OciImage, there: Contents, options: ImageEvidenceOptions
) -> WrittenEvidence:
    """Write the vulnerability report. It states the time of the scan, because an image collects reports."""
    for database in options.databases:
        if isinstance(database, ScanReport):
            database.check_subject(image, there)
    moment = dt.datetime.now(dt.UTC) if options.databases else None
    report = vulnerabilities.report(there, options.databases, moment)
    # A scan that finds the same in the same data is not written again only because of its time.
    same = next(
        (data for data in put.existing(evidence.VULNERABILITIES) if report.is_repeated_by(data)),
        None,
    )
    return put(evidence.VULNERABILITIES, same or report.document(), report.line())


class _AttachedEvidence(EvidenceWriter):
    """Documents that are attached to an image of a layout."""

    def __init__(self, layout: Layout, digest: str) -> None:
        self.layout, self.digest = layout, digest
        self.before = documents(layout, digest)

    def existing(self, kind: str) -> list[bytes]:
        return [row.data for row in self.before if row.type == kind]

    def replace(self, kind: str, data: bytes) -> None:
        self.layout.attach(self.digest, kind, data)
        # Other tools may attach in-toto documents of other predicate types; leave those alone.
        for row in self.before:
            if row.type == kind and (
                kind != evidence.PROVENANCE or _predicate(row.data) == PREDICATE
            ):
                self.layout.detach(row.artefact)


class _Note:
    """Record of the inputs and results of the last run, stored next to the layer indexes."""

    def __init__(
        self,
        layout: Layout,
        image: ImageSpec,
        built: Built,
        locks: Sequence[EvidenceLock],
        options: ImageEvidenceOptions,
    ) -> None:
        self._layout, self._digest = layout, built.digest
        if options.cache is None:
            self._file = None
        else:
            self._file = options.cache / f"written-{built.digest.removeprefix('sha256:')}.json"
        self._made_of = {
            "goldnode": _source_digest(),
            "image": image.name,
            # The duration of the build has no effect on the evidence.
            "built": {**vars(built), "seconds": 0},
            "locks": [lock.digest for lock in locks],
            "databases": [database.about() for database in options.databases],
            "against": options.against,
            "builder": options.builder,
            "key": options.signer.keyid if options.signer is not None else None,
            "registry": options.registry,
        }

    def _attached(self) -> list[str]:
        return [descriptor.digest for descriptor, _ in self._layout.attached(self._digest)]

    def read(self) -> list[WrittenEvidence] | None:
        if self._file is None:
            return None
        try:
            rows = json.loads(self._file.read_bytes())
            if (
                rows["made_of"] != json.loads(canonical(self._made_of))
                or rows["attached"] != self._attached()
            ):
                return None
            return [WrittenEvidence(row["kind"], "kept", row["line"]) for row in rows["written"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, written: Sequence[WrittenEvidence]) -> None:
        if self._file is None:
            return
        document = {
            "made_of": self._made_of,
            "attached": self._attached(),
            "written": [vars(row) for row in written],
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=self._file.parent, prefix=".new-", delete=False
        ) as file:
            file.write(canonical(document))
        Path(file.name).replace(self._file)


@cache
def _source_digest() -> str:
    """Return a digest of the code that writes evidence, so that a new version writes its documents again."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(
        b"".join(file.read_bytes() for file in files) + version("goldnode").encode()
    ).hexdigest()


def _predicate(data: bytes) -> str:
    try:
        return str(json.loads(signatures.payload_of(data)).get("predicateType"))
    except (ImageError, ValueError, AttributeError):
        return PREDICATE  # an unreadable document is replaced

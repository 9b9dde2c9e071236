"""Evidence about a built disk: documents next to it with its content, provenance, signatures and known
vulnerabilities.

The documents depend only on the disk, its locks, and the given databases and keys. They contain no clock,
host or local path, so writing them again gives the same bytes. Everything that container images have too is
shared with `goldnode.images`: SBOMs, envelopes, vulnerability reports, and the search for files foreign to a
backend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from goldnode.core.errors import DiskError, ImageError
from goldnode.core.files import replace_file, sha256_of
from goldnode.disks import slot_image
from goldnode.disks.contents import DiskContents, digest_of, read
from goldnode.disks.model import VERIFIED, BuiltDisk
from goldnode.evidence import sbom, signatures, vulnerabilities
from goldnode.evidence.contents import key
from goldnode.evidence.diff import (
    ImageChange,
    bytes_of,
    counts,
    file_changes,
    file_lines,
    growth,
    listed,
    package_changes,
    shown_change,
    sign,
)
from goldnode.evidence.provenance import BUILDER
from goldnode.evidence.provenance import PREDICATE as SLSA
from goldnode.evidence.size import human
from goldnode.evidence.verify import Verification, VerificationRow
from goldnode.evidence.writer import EvidenceOptions, EvidenceWriter, WrittenEvidence
from goldnode.node.ground.text import phrase
from goldnode.node.slots.builder import PREDICATE
from goldnode.oci.layout import canonical

if TYPE_CHECKING:
    from cyclonedx.model.component import Component
    from securesystemslib.signer import SSlibKey


BUILD_TYPE = "urn:goldnode:disk-build:1"

# Document -> suffix of the disk's name.
SUFFIX: Mapping[str, str] = {
    "cyclonedx": ".cdx.json",
    "spdx": ".spdx.json",
    "provenance": ".provenance.json",
    "vulnerabilities": ".vulnerabilities.json",
    "inspection": ".inspection.json",
    "size": ".size.json",
    "diff": ".diff.json",
    "signature": slot_image.SIGNATURE,
}
TITLES: Mapping[str, str] = {
    "cyclonedx": "SBOM (CycloneDX)",
    "spdx": "SBOM (SPDX)",
    "verified": "boot record",
}


@dataclass(frozen=True)
class DiskEvidenceOptions(EvidenceOptions):
    """Inputs besides the disk.

    `against` is an earlier disk to compare with. `backend` overrides the backend that the disk states.
    """

    against: BuiltDisk | None = None
    backend: str | None = None
    policy: Path | None = None


def document(disk: BuiltDisk, kind: str) -> Path:
    """Return the path of a document about a disk; `verified` is the boot record."""
    return disk.directory / (VERIFIED if kind == "verified" else disk.name + SUFFIX[kind])


def write(disk: BuiltDisk, options: DiskEvidenceOptions) -> list[WrittenEvidence]:
    """Write all documents about a disk next to it, the signature last.

    Raises DiskError and ImageError; nothing is signed in that case.
    """
    from goldnode.evidence.cyclonedx_bom import cyclonedx  # its library takes 0.3 s to load

    check_files(disk, only=("raw",))
    contents = read(disk, options.cache)
    put = _EvidenceFiles(disk)
    modules = {row.path: (row.entry, row.origin) for row in contents.modules}
    bill = cyclonedx(subject(disk), contents.root, components(contents))
    firmware = {f"efi/{row.path}": (row.entry, row.origin) for row in contents.esp}
    unknown = len([path for path in contents.root.unowned if path not in modules])
    hashed = len([item for item in contents.root.debs if item.sha256])
    known = f"{len(contents.root.debs)} debs ({hashed} with the hash of the lock), {len(modules)} modules"
    line = f"{known}, {len(firmware)} files of the ESP, {unknown} of unknown origin"
    written = [put.bill("cyclonedx", bill, line)]
    written.append(
        put(
            "spdx",
            sbom.spdx(subject(disk), contents.root, {**modules, **firmware}),
            "the same, as SPDX 2.3",
        )
    )
    statement = provenance(disk, contents, builder=options.builder)
    written.append(put.provenance("provenance", statement, options))
    report = vulnerabilities.report(contents.root, options.databases)
    written.append(put("vulnerabilities", report.document(), report.line()))
    inspection = inspect(disk, options.backend or contents.backend, options.policy)
    reported = "passed" if inspection["passed"] else f"REFUSED: {refused(inspection)}"
    written.append(
        put(
            "inspection",
            canonical(inspection),
            f"{inspection['elf_files']} ELF files, backend {inspection['backend']}: {reported}",
        )
    )
    sizes = size(contents)
    line = f"{human(sizes['files'])} of files, {human(sizes['allocated'])} of {human(sizes['raw'])} on the disk"
    smallest = min(
        (row["size"] for row in sizes["formats"] if row["format"] != "raw"), default=None
    )
    written.append(
        put(
            "size", canonical(sizes), f"{line}{f', {human(smallest)} to fetch' if smallest else ''}"
        )
    )
    if options.against is not None:
        difference = compare(options.against, disk, options.cache)
        written.append(put("diff", canonical(difference.data()), f"to {options.against.name}"))
    if options.signer is not None:
        signed = put.envelope("signature", _signed_documents(disk), options.signer)
        written.append(put("signature", signed, f"by key {options.signer.keyid[:12]}"))
    return written


class _EvidenceFiles(EvidenceWriter):
    """Documents next to a disk."""

    def __init__(self, disk: BuiltDisk) -> None:
        self.disk = disk

    def existing(self, kind: str) -> list[bytes]:
        try:
            return [document(self.disk, kind).read_bytes()]
        except FileNotFoundError:
            return []

    def replace(self, kind: str, data: bytes) -> None:
        replace_file(document(self.disk, kind), data)


def check_files(disk: BuiltDisk, only: Sequence[str] | None = None) -> None:
    """Validate the files of a build against its manifest, byte by byte.

    `only` restricts the formats. Raises DiskError for the first file that differs.
    """
    for row in disk.files:
        if only is not None and row.format not in only:
            continue
        path = disk.directory / row.file
        if not path.is_file():
            raise DiskError(
                f"{row.file} is not beside its manifest",
                file=disk.directory,
                remedy="build or pull it again",
            )
        length = path.stat().st_size
        if length != row.size:
            raise DiskError(
                f"{row.file} has {length} bytes, the manifest says {row.size}",
                file=path,
                remedy="build or pull it again",
            )
        if (got := sha256_of(path)) != row.sha256:
            raise DiskError(
                f"{row.file} is altered: its sha256 is {got[:16]}…, the manifest says {row.sha256[:16]}…",
                file=path,
                remedy="build or pull it again",
            )


# Content of the documents


def subject(disk: BuiltDisk) -> sbom.Subject:
    """Return the subject of a bill of materials: the disk, identified by its manifest and the sha256 of the
    raw disk.
    """
    import datetime as dt

    created = dt.datetime.fromtimestamp(disk.epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # Not the type operating-system: scanners would take the disk's name for that of its distribution.
    return sbom.Subject(
        disk.name,
        digest=digest_of(disk),
        sha256=disk.raw.sha256,
        created=created,
        kind="file",
        purpose="OPERATING-SYSTEM",
        scheme="disk",
    )


def components(contents: DiskContents) -> list[Component]:
    """Return components that no package manager lists: kernel modules built for this disk, and files of the
    EFI system partition.
    """
    from goldnode.evidence.cyclonedx_bom import file_component  # its library takes 0.3 s to load

    purls = {key(item): sbom.purl(item, contents.root) for item in contents.root.packages}
    driver = contents.disk.driver
    rows = []
    for row in contents.modules:
        made = {"goldnode": "prebuilt by goldnode", "dkms": "built by DKMS"}.get(row.how, row.how)
        properties = {
            "goldnode:origin": purls[row.origin] if row.origin else "not known",
            "goldnode:made": made,
            "goldnode:kernel": str(row.built.get("kernel") or contents.disk.kernel),
            "goldnode:build-key": str(row.built.get("key") or ""),
            "goldnode:sources": " ".join(
                f"{name}={reported}"
                for name, reported in sorted(dict(row.built.get("trees") or {}).items())
            ),
        }
        stated = str(row.built.get("driver_version") or (driver.version if driver else ""))
        rows.append(
            file_component(
                f"/{row.path}", row.entry, properties, kind="device-driver", stated=stated
            )
        )
    for item in contents.esp:
        origin = "made by the build: no package has a file of this content"
        if item.origin:
            origin = purls[item.origin]
        role = "loader" if item.path.upper().endswith(".EFI") else ""
        kind = "firmware" if role else "file"
        properties = {
            "goldnode:origin": origin,
            "goldnode:role": f"{contents.disk.loader} loader" if role else "",
        }
        ref = f"esp:/{quote(item.path)}"
        rows.append(file_component(f"ESP:/{item.path}", item.entry, properties, ref=ref, kind=kind))
    return rows


def provenance(disk: BuiltDisk, contents: DiskContents, *, builder: str = BUILDER) -> bytes:
    """Return an unsigned in-toto statement with a SLSA v1 predicate: the disk in each format, and all its
    inputs.
    """
    digests = {
        f"urn:goldnode:class:{disk.class_}": disk.class_digest,
        f"urn:goldnode:stack-lock:{disk.stack}": disk.stack_lock,
        f"urn:goldnode:disk-lock:{disk.class_}": disk.disk_lock,
    }
    dependencies = [
        {"uri": uri, "digest": {"sha256": digest.removeprefix("sha256:")}}
        for uri, digest in digests.items()
    ]
    dependencies += [
        {
            "uri": f"pkg:deb/{disk.os.id}/{row.name}@{row.version}?arch={row.architecture}",
            "digest": {"sha256": row.sha256},
        }
        for row in disk.packages
    ]
    unique = {(str(row["uri"]), str(row["digest"])): row for row in dependencies}
    tools = {
        **{name: str(reported) for name, reported in disk.tools.items()},
        "goldnode": version("goldnode"),
    }
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "class": disk.class_,
                "os": f"{disk.os.id}{disk.os.version}",
                "architecture": disk.os.architecture,
                "layout": disk.layout,
                "loader": disk.loader,
                "formats": sorted(row.format for row in disk.files),
                "disk_lock": {"sha256": disk.disk_lock.removeprefix("sha256:")},
            },
            "internalParameters": {
                "epoch": disk.epoch,
                "tools": dict(sorted(disk.tools.items())),
                "simulated": disk.simulated,
                "modules": {
                    row.name: row.built.get("key") for row in contents.modules if row.built
                },
            },
            "resolvedDependencies": [unique[name] for name in sorted(unique)],
        },
        "runDetails": {
            "builder": {"id": builder, "version": dict(sorted(tools.items()))},
            "metadata": {"invocationId": disk.build_id},
        },
    }
    others = {row.file: row.sha256 for row in disk.files}
    return signatures.statement(disk.name, digest_of(disk), SLSA, predicate, others)


def _signed_documents(disk: BuiltDisk) -> bytes:
    """Return the statement that a disk's signature signs: all documents, the files of the disk, and what a slot gets."""
    rows = [
        {"file": path.name, "sha256": sha256_of(path), "size": path.stat().st_size}
        for path in documents(disk)
    ]
    return signatures.statement(
        disk.name,
        digest_of(disk),
        PREDICATE,
        {"documents": rows}
        | ({"slot": slot_image.about(disk)} if slot_image.has_slots(disk) else {}),
        {row.file: row.sha256 for row in disk.files},
    )


def documents(disk: BuiltDisk) -> list[Path]:
    """Return every document about a disk that exists next to it except the signature, sorted by name."""
    names = [document(disk, kind) for kind in (*SUFFIX, "verified") if kind != "signature"]
    return sorted(path for path in names if path.is_file())


def inspect(disk: BuiltDisk, backend: str, policy: Path | None = None) -> dict[str, Any]:
    """Search the disk for files foreign to its backend.

    Raises ImageError, and DiskError if the backend is unknown.
    """
    # Start-up time: only this reads a whole disk.
    from goldnode.gpuprogram.smoke import pack
    from goldnode.inspect import examine, report, targets
    from goldnode.inspect import policy as policies

    if not backend:
        raise DiskError(
            f"{disk.name} does not say which backend its class is of",
            file=disk.directory,
            remedy="name it with --backend, or build it again",
        )
    rules = policies.load(policy)
    rules.backend(backend)
    inspection, _ = examine(
        targets.find(str(disk.directory / f"{disk.name}.raw"), None)[0],
        rules,
        backend,
        own=pack.own(),
    )
    rows = report.inspection_document(inspection)
    # Strip the local directory: it is private, and would make the documents of equal disks differ.
    text = json.dumps(rows, ensure_ascii=False).replace(str(disk.directory) + "/", "")
    return {**json.loads(text), "subject": digest_of(disk), "raw_sha256": disk.raw.sha256}


def refused(inspection: Mapping[str, Any]) -> str:
    """Return the message of the first finding that refuses the disk."""
    rows = [
        row
        for row in inspection.get("findings", [])
        if row.get("severity") == "refuse" and not row.get("waived")
    ]
    return str(rows[0].get("message")) if rows else "nothing that it names"


def size(contents: DiskContents) -> dict[str, Any]:
    """Return sizes in bytes: files by package, raw disk, and each format."""
    packages: dict[str, int] = {}
    for path, entry in contents.root.snapshot.entries.items():
        if entry.kind == "f":
            owner = contents.root.owners.get(path, "")
            packages[owner] = packages.get(owner, 0) + entry.size
    names = {key(item): f"{item.name} {item.version}" for item in contents.root.packages}
    rows = [
        {"package": names.get(owner, owner), "size": number}
        for owner, number in packages.items()
        if owner
    ]
    return {
        "subject": digest_of(contents.disk),
        "raw": contents.disk.raw.size,
        "allocated": contents.disk.raw.allocated,
        "files": bytes_of(contents.root),
        "without_package": packages.get("", 0),
        "esp": sum(row.entry.size for row in contents.esp),
        "formats": [
            {"file": row.file, "format": row.format, "size": row.size}
            for row in contents.disk.files
        ],
        "packages": sorted(rows, key=lambda row: (-int(str(row["size"])), str(row["package"]))),
    }


# Differences


@dataclass(frozen=True)
class DiskDiff:
    """Differences between two disks.

    `facts` are kernel, driver and the like. `files` are counts by package. Sizes are in bytes.
    """

    old: BuiltDisk
    new: BuiltDisk
    facts: list[ImageChange]
    packages: list[ImageChange]
    rebuilt: list[str]
    modules: list[ImageChange]
    esp: list[ImageChange]
    files: dict[str, dict[str, int]]
    unexplained: list[ImageChange]
    hygiene: list[ImageChange]
    sizes: dict[str, tuple[int, int]]
    grown: list[tuple[str, int]]

    def __bool__(self) -> bool:
        return any(
            (
                self.facts,
                self.packages,
                self.rebuilt,
                self.modules,
                self.esp,
                self.files,
                self.unexplained,
                self.hygiene,
            )
        )

    def data(self) -> dict[str, Any]:
        """Return the document that is written next to the newer disk."""
        groups = {
            name: [row.data() for row in getattr(self, name)]
            for name in ("facts", "packages", "modules", "esp", "unexplained", "hygiene")
        }
        return {
            "subject": digest_of(self.new),
            "against": digest_of(self.old),
            "names": {"from": self.old.name, "to": self.new.name},
            **groups,
            "rebuilt": self.rebuilt,
            "files": self.files,
            "sizes": {
                name: {"from": was, "to": now, "by": now - was}
                for name, (was, now) in self.sizes.items()
            },
            "grown": [{"package": name, "by": by} for name, by in self.grown],
        }

    def text(self, *, files: bool = False) -> str:
        """Return the differences as text. `files` lists every unexplained file instead of the first ones."""
        lines = [f"{self.old.name} -> {self.new.name}"]
        if self.old.raw.sha256 == self.new.raw.sha256:
            return f"{lines[0]}\nthe same disk: sha256 {self.new.raw.sha256}"
        limit = None if files else 20
        lines += [f"{row.name}: {row.was or 'none'} -> {row.now or 'none'}" for row in self.facts]
        if self.packages:
            lines += [
                f"packages: {counts(self.packages)}",
                *(f"  {shown_change(row)}" for row in self.packages),
            ]
        if self.rebuilt:
            lines.append(f"same version, other file: {', '.join(self.rebuilt)}")
        for title, rows in (
            ("modules built for the disk", self.modules),
            ("EFI system partition", self.esp),
            ("hygiene", self.hygiene),
        ):
            if rows:
                lines += [f"{title}:", *listed([f"{sign(row)} {row.name}" for row in rows], limit)]
        lines += file_lines(self.files, self.unexplained, limit)
        for name, (was, now) in self.sizes.items():
            lines.append(
                f"{name}: {human(was)} -> {human(now)} ({'+' if now >= was else ''}{human(now - was)})"
            )
        lines += [f"  {'+' if by >= 0 else ''}{human(by)}  {name}" for name, by in self.grown[:10]]
        if not self:
            lines.append("no package, module or file differs")
        return "\n".join(lines)


def compare(old: BuiltDisk, new: BuiltDisk, cache: Path | None = None) -> DiskDiff:
    """Compare two disks for someone who decides about the newer one. Raises DiskError and ImageError.

    `goldnode disks compare` answers another question: which bytes differ between two disks that should be
    equal.
    """
    was, now = read(old, cache), read(new, cache)
    packages, rebuilt = package_changes(was.root.debs, now.root.debs)
    files, unexplained, _ = file_changes(
        was.root, now.root, {row.name for row in packages} | set(rebuilt)
    )
    formats = {row.format: row.size for row in old.files}
    sizes = {
        "files": (bytes_of(was.root), bytes_of(now.root)),
        "allocated": (old.raw.allocated, new.raw.allocated),
    }
    sizes |= {
        row.format: (formats[row.format], row.size)
        for row in new.files
        if row.format in formats and row.format != "raw"
    }
    return DiskDiff(
        old=old,
        new=new,
        facts=_changes(facts(old), facts(new)),
        packages=packages,
        rebuilt=sorted(rebuilt),
        modules=_changes(
            *({row.path: row.entry.sha256 for row in one.modules} for one in (was, now))
        ),
        esp=_changes(*({row.path: row.entry.sha256 for row in one.esp} for one in (was, now))),
        files=files,
        unexplained=unexplained,
        hygiene=_changes(
            *(
                {f"{row.check}: {row.outcome}": row.detail for row in one.hygiene}
                for one in (old, new)
            )
        ),
        sizes=sizes,
        grown=growth(was.root, now.root),
    )


def facts(disk: BuiltDisk) -> dict[str, str]:
    """Return the facts about a disk that a reader asks for first."""
    rows = {
        "class": disk.class_,
        "class document": disk.class_digest[:19],
        "stack": disk.stack,
        "stack lock": disk.stack_lock[:19],
        "system": f"{disk.os.id} {disk.os.version} {disk.os.architecture}",
        "kernel": disk.kernel,
        "loader": disk.loader,
        "layout": disk.layout,
        "modules": " ".join(disk.modules),
        "pending first boot": ", ".join(row.id for row in disk.pending),
    }
    if disk.driver is not None:
        rows["driver"] = f"{disk.driver.module} {disk.driver.version}"
    return rows | ({"simulated": "yes"} if disk.simulated else {})


def _changes(was: Mapping[str, str], now: Mapping[str, str]) -> list[ImageChange]:
    return [
        ImageChange(name, was.get(name), now.get(name))
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    ]


# Signatures


def authenticate(
    disk: BuiltDisk, keys: Sequence[SSlibKey], *, content: bool = True
) -> Verification:
    """Verify a disk's files, that every document is about it, and who signed them.

    `content` also hashes the files of the disk.
    """
    digest = digest_of(disk)
    rows: list[VerificationRow] = []
    try:
        if content:
            check_files(
                disk, [row.format for row in disk.files if (disk.directory / row.file).is_file()]
            )
        absent = [row.format for row in disk.files if not (disk.directory / row.file).is_file()]
        here = len(disk.files) - len(absent)
        note = phrase("; not here: {}", ", ".join(absent))
        state: Literal["ok", "note"] = "ok" if content and here else "note"
        result = (
            f"{here} files are what the manifest says" if content else "the files were not read"
        )
        rows.append(VerificationRow("disk", state, f"{result}{note}"))
    except DiskError as problem:
        return Verification(digest, [VerificationRow("disk", "refused", problem.message)])
    there = documents(disk)
    rows += [
        VerificationRow(_title(disk, path), "refused", fault)
        for path in there
        if (fault := _about(disk, path, digest)) is not None
    ]
    rows += _signatures(disk, there, digest, keys)
    return Verification(digest, rows)


def _title(disk: BuiltDisk, path: Path) -> str:
    name = path.name.removeprefix(disk.name)
    kind = next((kind for kind, suffix in SUFFIX.items() if suffix == name), "verified")
    return TITLES.get(kind, kind)


def _about(disk: BuiltDisk, path: Path, digest: str) -> str | None:
    """Return why a document is not about this disk; None if it is."""
    try:
        payload = signatures.payload_of(path.read_bytes())
        statement = json.loads(payload)
        if path == document(disk, "provenance"):
            reported = signatures.subjects(payload)[:1]
        elif path == document(disk, "cyclonedx"):
            reported = [statement["metadata"]["component"]["version"]]
        elif path == document(disk, "spdx"):
            reported = [
                row["versionInfo"]
                for row in statement["packages"]
                if row["SPDXID"] == "SPDXRef-image"
            ]
        elif path == document(disk, "verified"):
            if statement["raw_sha256"] == disk.raw.sha256:
                return None
            return f"it is about the raw disk {statement['raw_sha256']}"
        else:
            reported = [statement["subject"]]
    except ImageError as problem:
        return problem.message
    except (ValueError, KeyError, TypeError, AttributeError):
        return "it cannot be read"
    if reported == [digest]:
        return None
    return f"it is about {reported[0] if reported else 'nothing'}"


def _signatures(
    disk: BuiltDisk, there: Sequence[Path], digest: str, keys: Sequence[SSlibKey]
) -> list[VerificationRow]:
    path = document(disk, "signature")
    if not keys:
        why = "there is no signature, and no public key was named"
        if path.is_file():
            why = "no public key was named"
        return [VerificationRow("signature", "not_verified", why)]
    if not path.is_file():
        return [VerificationRow("signature", "refused", "the disk is not signed")]
    try:
        opened = signatures.open_envelope(path.read_bytes(), keys)
    except ImageError as problem:
        return [VerificationRow("signature", "refused", problem.message)]
    statement = json.loads(opened.payload)
    if (
        digest not in signatures.subjects(opened.payload)
        or statement.get("predicateType") != PREDICATE
    ):
        return [VerificationRow("signature", "refused", "it was given for something else")]
    rows = [VerificationRow("signature", "ok", f"by key {opened.keyid[:12]}")]
    listed_rows = {
        str(row["file"]): str(row["sha256"]) for row in statement["predicate"]["documents"]
    }
    here = {row.name: row for row in there}
    rows += [
        VerificationRow(name, "refused", "it is signed for, and is not here")
        for name in sorted(listed_rows.keys() - here.keys())
    ]
    for name, one in sorted(here.items()):
        title = _title(disk, one)
        if name not in listed_rows:
            rows.append(
                VerificationRow(
                    title,
                    "refused",
                    "it was written after the signature; `goldnode disks evidence` signs it again",
                )
            )
        elif listed_rows[name] != sha256_of(one):
            rows.append(
                VerificationRow(
                    title,
                    "refused",
                    "it is not what was signed: it was altered, or rewritten after the signature",
                )
            )
        else:
            rows.append(VerificationRow(title, "ok", "signed for"))
        if one == document(disk, "provenance") and signatures.is_envelope(one.read_bytes()):
            try:
                signatures.open_envelope(one.read_bytes(), keys)
            except ImageError as problem:
                rows.append(VerificationRow(title, "refused", problem.message))
    return rows

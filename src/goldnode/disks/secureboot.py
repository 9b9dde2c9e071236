"""Disks for machines with Secure Boot under the site's own keys.

Signing is a step after the build, so that a build is the same with and without a key. The signatures of a build's boot
files, and the variables that enrol the certificate, are one document next to it, NAME.secure-boot.json. The signed disk
is a function of both: who has no key makes the same bytes from the build and the document.

What is signed: systemd-boot, and for each slot one unified kernel image (:mod:`goldnode.node.slots.unified`). The root file
system has the same bytes as in the build.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from goldnode.core.errors import DiskError
from goldnode.core.files import replace_file
from goldnode.disks import contents, esp, slot_image, tools
from goldnode.disks.architecture import architecture_of, refuse_other_than_amd64
from goldnode.disks.assemble import measure
from goldnode.disks.enrolment import VARIABLES, enrolment_files
from goldnode.disks.model import BuiltDisk
from goldnode.disks.tools import Progress
from goldnode.lock.builder import modinfo
from goldnode.lock.modpackage import Signing
from goldnode.node.effective import loader
from goldnode.node.ground.errors import NodeError
from goldnode.node.slots import unified as uki
from goldnode.node.state import slots

SCHEMA = "goldnode.secure-boot/1"
SUFFIX = ".secure-boot.json"
LOADER = architecture_of("amd64").boot
# How the firmware gets the certificate: not from this disk, at the first boot of a virtual machine, at the first boot.
Enrol = Literal["none", "virtual", "always"]
WORDS: Mapping[Enrol, str] = {"none": "off", "virtual": "if-safe", "always": "force"}
IF_SAFE = (
    253  # first systemd-boot that knows `if-safe`; before that, nothing is enrolled unless `force`
)
# Newest systemd-stub whose boots had only verified content. That of 262 was seen to start with more (docs/how-to/secure-boot.md,
# "Verified, and not verified"); those between were not tried.
NEWEST_STUB = 257
PROGRAMS = {
    "sbsign": "sbsigntool",
    "sbverify": "sbsigntool",
    "openssl": "openssl",
    "modinfo": "kmod",
}


@contextmanager
def _readable(where: Path) -> Iterator[None]:
    """Turn the error of a program that is no program of UEFI into one of the disk."""
    try:
        yield
    except NodeError as problem:
        raise DiskError(
            f"a boot file of the image cannot be used: {problem}",
            file=where,
            remedy="build the disk again",
        ) from problem


@dataclass(frozen=True)
class BootFiles:
    """Programs of a build that the firmware starts, unsigned. `images` has the unified kernel of each slot."""

    loader: bytes
    images: Mapping[str, bytes]

    def named(self) -> dict[str, bytes]:
        """Return all by their names in the document."""
        return {"loader": self.loader, **self.images}


def require_programs(*names: str) -> None:
    """Raise DiskError for programs that this machine lacks, before any work. The remedy installs them."""
    missing = [name for name in names if shutil.which(name, path=tools.path()) is None]
    if missing:
        packages = sorted({PROGRAMS.get(name) or tools.PACKAGES[name] for name in missing})
        raise DiskError(
            f"this machine has no {', '.join(missing)}, which sign and verify boot files",
            remedy=f"run `apt-get install {' '.join(packages)}`",
        )


def boot_files(disk: BuiltDisk) -> BootFiles:
    """Return the boot files of a build: systemd-boot, and the unified kernels of both slots. Raises DiskError."""
    refuse_other_than_amd64(disk.name, disk.os.architecture, "signing for Secure Boot is")
    if not slot_image.has_slots(disk):
        raise DiskError(
            f"image {disk.name} has layout `{disk.layout}` and loader `{disk.loader}`, and only layout `ab` with "
            "systemd-boot can be signed",
            file=disk.directory,
            remedy="write `layout: ab` and `loader: systemd-boot` in the definition, and build it again; for GRUB, "
            "see shim in docs/how-to/secure-boot.md",
        )
    raw, start = disk.path("raw"), slot_image.partition(disk, "esp").start
    options = slot_image.command_line(raw, start, disk.build_id)
    stub, release = (_of_root(disk, name) for name in (uki.STUB, "usr/lib/os-release"))
    if (version := stated_version("systemd-stub", stub) or 0) > NEWEST_STUB:
        raise DiskError(
            f"image {disk.name} has systemd-stub {version}, and none newer than {NEWEST_STUB} is known to start verified content only",
            file=disk.directory,
            remedy=f"use systemd-boot-efi {NEWEST_STUB} or older, as Debian 12 and 13 have it, and build it again",
        )
    kernel, initrd = (
        _of_esp(raw, start, f"goldnode/a/{name}") for name in ("vmlinuz", "initrd.img")
    )
    parts = uki.UnifiedParts(stub, release, disk.kernel, kernel, initrd)
    with _readable(raw):
        images = {
            slot: uki.image(parts, slots.slot_options(slot, slots.without_root(options)))
            for slot in slots.SLOTS
        }
    return BootFiles(_of_esp(raw, start, LOADER), images)


def _of_esp(raw: Path, start: int, name: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="goldnode-esp-") as scratch:
        copy = Path(scratch, "file")
        tools.run("mcopy", "-n", "-i", f"{raw}@@{start}", f"::/{name}", copy)
        return copy.read_bytes()


def _of_root(disk: BuiltDisk, name: str) -> bytes:
    raw, start = disk.path("raw"), contents.root_of(disk).start
    with tempfile.TemporaryDirectory(prefix="goldnode-root-") as scratch:
        copy = Path(scratch, "file")
        tools.run("debugfs", "-R", f"dump /{name} {copy}", f"{raw}?offset={start}")
        if not copy.is_file() or not copy.stat().st_size:
            raise DiskError(
                f"the root of {disk.name} has no /{name}",
                file=raw,
                remedy="add systemd-boot-efi to the packages of the loader, and build it again",
            )
        return copy.read_bytes()


def unsigned_modules(disk: BuiltDisk, cache: Path | None = None) -> list[str]:
    """Return the modules of a root, beside those of the distribution, that no key has signed. Raises DiskError."""
    require_programs("modinfo")
    names = []
    for module in contents.read(disk, cache).modules:
        with tempfile.TemporaryDirectory(prefix="goldnode-module-") as scratch:
            copy = Path(scratch, Path(module.path).name)
            copy.write_bytes(_of_root(disk, module.path))
            if not modinfo(copy).get("signer"):
                names.append(module.name)
    return sorted(names)


def sign(
    disk: BuiltDisk, files: BootFiles, signing: Signing, trusted: Sequence[Path] = ()
) -> dict[str, Any]:
    """Sign the boot files of a build, and return the document. Raises DiskError and ModulesError.

    `trusted` are further certificates that the firmware gets.
    """
    require_programs("sbsign", "sbverify", "openssl")
    rows = {}
    for name, image in files.named().items():
        signature = detached(image, signing)
        rows[name] = {
            "digest": uki.digest(image),
            "signature": base64.b64encode(signature).decode(),
        }
    variables = enrolment_files(signing, trusted)
    return {
        "schema": SCHEMA,
        "name": disk.name,
        "build_id": disk.build_id,
        "certificate": base64.b64encode(signing.der()).decode(),
        "files": rows,
        "variables": {
            name: base64.b64encode(content).decode() for name, content in variables.items()
        },
    }


def detached(image: bytes, signing: Signing) -> bytes:
    """Return a detached signature of a program. sbsign puts the time into it, so that it differs each time."""
    with tempfile.TemporaryDirectory(prefix="goldnode-sign-") as scratch:
        program, pem, out = (
            Path(scratch, name) for name in ("program", "certificate", "signature")
        )
        program.write_bytes(image)
        pem.write_text(_pem(signing.der()))
        words = [
            "sbsign",
            "--detached",
            "--key",
            str(signing.key),
            "--cert",
            str(pem),
            "--output",
            str(out),
        ]
        done = subprocess.run(
            [*words, str(program)], capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode or not out.is_file():
            reported = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise DiskError(
                f"sbsign cannot sign: {reported[-1] if reported else 'it gives no reason'}",
                file=signing.key,
                remedy="give it a key of RSA without a passphrase, which it cannot read from a variable",
            )
        return out.read_bytes()


def _pem(der: bytes) -> str:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"


def load(file: Path) -> dict[str, Any]:
    """Read a document. Raises DiskError for one that is not complete."""
    remedy = "run `goldnode disks sign` again"
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as problem:
        raise DiskError(
            f"the signatures cannot be read: {problem}", file=file, remedy=remedy
        ) from problem
    names = {"loader", *slots.SLOTS}
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise DiskError(f"this is no document of schema {SCHEMA}", file=file, remedy=remedy)
    try:
        whole = (
            names <= document["files"].keys()
            and {f"{name}.auth" for name in VARIABLES} <= document["variables"].keys()
        )
        texts = [document["certificate"], *document["variables"].values()]
        texts += [row["signature"] for row in document["files"].values()]
        for text in texts:
            base64.b64decode(text, validate=True)
    except (KeyError, AttributeError, TypeError, binascii.Error, ValueError):
        whole = False
    if not whole:
        raise DiskError("the document of signatures is not complete", file=file, remedy=remedy)
    return document


def of_build(disk: BuiltDisk) -> Path | None:
    """Return the document next to a build; None for a build that is not signed.

    Raises DiskError for one that is damaged, or about another build.
    """
    file = disk.directory / f"{disk.name}{SUFFIX}"
    if not file.exists():
        return None
    about = load(file).get("build_id")
    if about != disk.build_id:
        raise DiskError(
            f"the signatures are of build {about}, and the disk is {disk.build_id}",
            file=file,
            remedy=f"run `goldnode disks sign {disk.name}` again",
        )
    return file


def signed_files(files: BootFiles, document: Mapping[str, Any], where: str) -> BootFiles:
    """Return the boot files with the signatures of a document, each verified by sbverify. Raises DiskError."""
    require_programs("sbverify")
    signed = {}
    for name, image in files.named().items():
        row = document["files"][name]
        if row["digest"] != uki.digest(image):
            raise DiskError(
                f"the signature of `{name}` is of other content than the build has: {row['digest'][:16]}…, "
                f"the build has {uki.digest(image)[:16]}…",
                file=where,
                remedy="sign this build: `goldnode disks sign`",
            )
        signed[name] = uki.signed(image, base64.b64decode(row["signature"]))
        with tempfile.TemporaryDirectory(prefix="goldnode-verify-") as scratch:
            program, pem = Path(scratch, "program"), Path(scratch, "certificate")
            program.write_bytes(signed[name])
            pem.write_text(_pem(base64.b64decode(document["certificate"])))
            done = subprocess.run(
                ["sbverify", "--cert", str(pem), str(program)], capture_output=True, check=False
            )
        if done.returncode:
            raise DiskError(
                f"sbverify refuses the signature of `{name}` by the certificate of the document",
                file=where,
                remedy="sign this build again: `goldnode disks sign`",
            )
    return BootFiles(signed.pop("loader"), signed)


def save(disk: BuiltDisk, document: Mapping[str, Any]) -> Path:
    """Write a document next to its build, and return its path."""
    path = disk.directory / f"{disk.name}{SUFFIX}"
    replace_file(path, json.dumps(document, indent=1, sort_keys=True).encode() + b"\n")
    return path


def stated_version(name: str, program: bytes) -> int | None:
    """Return the version that systemd-boot or systemd-stub states in its program, or None."""
    stated = re.search(rb"#### LoaderInfo: %s (\d+)" % name.encode(), program)
    return int(stated[1]) if stated else None


def esp_content(
    disk: BuiltDisk, files: BootFiles, document: Mapping[str, Any], enrol: Enrol
) -> dict[str, esp.Content]:
    """Return the content of the ESP of a signed disk by path. Raises DiskError."""
    raw, start = disk.path("raw"), slot_image.partition(disk, "esp").start
    name = f"loader/entries/goldnode-{disk.build_id}-a.conf"
    fields = dict(loader.fields(_of_esp(raw, start, name).decode()))
    word = WORDS[enrol]
    if enrol == "virtual" and (stated_version("systemd-boot", files.loader) or IF_SAFE) < IF_SAFE:
        word = "manual"
    # The options are those of the unified kernel, for those who read the entry: the stub ignores them.
    rows = [(key, fields[key]) for key in ("title", "sort-key", "version")]
    rows += [("linux", "/goldnode/a/goldnode.efi"), ("options", fields["options"])]
    content: dict[str, esp.Content] = {
        LOADER: files.loader,
        "loader/loader.conf": f"default goldnode-*\ntimeout 0\neditor no\nsecure-boot-enroll {word}\n".encode(),
        name: "".join(f"{key:<10} {value}\n" for key, value in rows).encode(),
        "goldnode/a/goldnode.efi": files.images["a"],
        "goldnode/a/slot.json": _of_esp(raw, start, "goldnode/a/slot.json"),
    }
    if enrol != "none":
        for file, text in document["variables"].items():
            content[f"loader/keys/auto/{file}"] = base64.b64decode(text)
    return content


def write(
    disk: BuiltDisk,
    files: BootFiles,
    document: Mapping[str, Any],
    out: Path,
    *,
    enrol: Enrol,
    progress: Progress,
) -> tuple[str, int]:
    """Write the signed disk to `out`, atomically. Return its SHA-256 and the allocated bytes. Raises DiskError.

    `files` are signed. Only the ESP differs from the build.
    """
    row = slot_image.partition(disk, "esp")
    content = esp_content(disk, files, document, enrol)
    # One more for the other slot, and one while an update is written.
    need = esp.content_size(content) + 2 * max(len(image) for image in files.images.values())
    if need > row.size * 95 // 100:
        raise DiskError(
            f"the ESP of {disk.name} has {row.size >> 20} MiB, and three unified kernels need {need >> 20}",
            file=disk.directory,
            remedy=f"set `esp_mib` of the class to {-(-need * 11 // 10 >> 20)} or more in the definition, and build it again",
        )
    new = out.with_name(f".{out.name}.new")
    try:
        progress("copying the disk")
        tools.run("cp", "--sparse=always", "--reflink=auto", disk.path("raw"), new)
        _empty(new, row.start, row.size)
        progress("writing the ESP")
        volume = row.filesystem_uuid.replace("-", "").lower()
        esp.make(new, row.start, row.size, content, label="ESP", volume=volume, epoch=disk.epoch)
        digest, allocated = measure(new)
        with new.open("rb") as opened:
            os.fsync(opened.fileno())
        new.replace(out)
    except OSError as problem:
        raise DiskError(
            f"{out} cannot be written: {problem.strerror}", remedy="name another file with --out"
        ) from problem
    finally:
        new.unlink(missing_ok=True)
    return digest, allocated


def _empty(disk: Path, start: int, size: int) -> None:
    """Make a range of a file zeros."""
    tools.run("fallocate", "--punch-hole", "--offset", str(start), "--length", str(size), disk)


def for_slots(disk: BuiltDisk) -> dict[str, Any] | None:
    """Return what a node needs to make the signed kernel of a slot; None for a build that is not signed.

    Raises DiskError for a document that is damaged, or about another build.
    """
    file = of_build(disk)
    if file is None:
        return None
    rows = load(file)["files"]
    return {slot: {key: rows[slot][key] for key in ("digest", "signature")} for slot in slots.SLOTS}

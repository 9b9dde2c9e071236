"""Small disks for tests: builds that follow the manifest's form. `make_build` has noise for a disk; `make_disk` assembles a real one
(GPT, ESP, ext4) of a few files that look like a Debian root."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.vulnerability_samples import vulnerability_report

from goldnode.core.files import sha256_of
from goldnode.disks import assemble
from goldnode.disks.contents import digest_of
from goldnode.disks.evidence import document, documents
from goldnode.disks.model import (
    BuiltDisk,
    DiskDriver,
    DiskFile,
    DiskPackage,
    DiskSystem,
    Hygiene,
    Partition,
    Raw,
)
from goldnode.evidence import signatures
from goldnode.evidence.signatures import load_signer
from goldnode.node.slots.builder import PREDICATE

BUILDS = {"a": "a" * 12, "b": "b" * 12, "c": "c" * 12, "d": "d" * 12}
CLASS = "cpu_node"
EPOCH = 1_766_000_000


def make_build(
    store: Path,
    name: str = "a",
    *,
    class_: str = CLASS,
    kernel: str = "6.1.0-53-cloud-amd64",
    driver: str | None = None,
    hygiene: tuple[Hygiene, ...] = (Hygiene("no passwords", "passed", "no account has one"),),
    disk_lock: str = "sha256:" + "2" * 64,
    forms: tuple[str, ...] = ("raw", "qcow2"),
    bulk: int = 1 << 16,
    content: bytes | None = None,
) -> BuiltDisk:
    """A build of the store whose files are noise: what channels and publishing look at, and nothing that boots."""
    build_id = BUILDS.get(name, name)
    title = f"{class_}-{build_id}"
    directory = store / "built" / class_ / build_id
    directory.mkdir(parents=True)
    suffixes = {
        "raw": ".raw",
        "qcow2": ".qcow2",
        "tar": ".root.tar.zst",
        "vmlinuz": ".vmlinuz",
        "initrd": ".initrd.img",
    }
    files = []
    for form in forms:
        path = directory / f"{title}{suffixes[form]}"
        seed = content or f"{title} {form}".encode()
        path.write_bytes(
            b"".join(hashlib.sha256(seed + b"%d" % number).digest() for number in range(bulk // 32))
        )
        files.append(DiskFile(path.name, form, path.stat().st_size, sha256_of(path)))
    raw = next(row for row in files if row.format == "raw")
    disk = BuiltDisk(
        directory=directory,
        name=title,
        class_=class_,
        build_id=build_id,
        simulated=False,
        class_digest="sha256:" + "1" * 64,
        stack="debian12_cpu",
        stack_lock="sha256:" + "3" * 64,
        disk_lock=disk_lock,
        os=DiskSystem("debian", "12", "bookworm", "amd64"),
        kernel=kernel,
        driver=None if driver is None else DiskDriver("nvidia-current", driver),
        modules=(),
        loader="systemd-boot",
        layout="ab",
        epoch=EPOCH,
        partitions=(
            Partition(
                2,
                name="root-a",
                type="x",
                uuid="y",
                start=1 << 20,
                size=1 << 20,
                filesystem="ext4",
                filesystem_uuid="z",
            ),
        ),
        raw=Raw(raw.size, raw.sha256, raw.size),
        files=tuple(files),
        packages=(DiskPackage("bash", "5.2.15-2+b7", "amd64", "4" * 64),),
        pending=(),
        hygiene=hygiene,
        tools={"zstd": "1.5.4"},
    )
    (directory / "disk.json").write_text(disk.text(), encoding="utf-8")
    return disk


def prove(
    disk: BuiltDisk,
    key: Path | None,
    *,
    boots: int = 2,
    boot: Mapping[str, Any] | None = None,
    inspection: Any = True,
    papers: bool = True,
    vulnerabilities: str = "checked",
) -> None:
    """Write beside a disk what the gates read, and sign it. `boot`: fields of the record of boots; None leaves a document out."""
    if boots:
        checks = [
            {"id": "multi-user", "outcome": "passed", "expected": "running", "got": "running"},
            {"id": "gpu", "outcome": "not-verifiable", "expected": "a GPU", "got": None},
        ]
        rows = [
            {"number": number + 1, "seconds": 30.0, "checks": checks} for number in range(boots)
        ]
        record = {
            "schema": 1,
            "name": disk.name,
            "build_id": disk.build_id,
            "raw_sha256": disk.raw.sha256,
            "accelerator": "tcg",
        }
        record |= {
            "simulated_hardware": False,
            "boots": rows,
            "clones": [],
            "outcome": "passed",
        } | dict(boot or {})
        document(disk, "verified").write_text(json.dumps(record))
    about = {"subject": digest_of(disk)}
    if inspection is not None:
        found = (
            []
            if inspection
            else [{"severity": "refuse", "message": "libcudart.so.12 is foreign", "waived": None}]
        )
        reported = {
            **about,
            "raw_sha256": disk.raw.sha256,
            "backend": "cpu",
            "passed": inspection,
            "elf_files": 1,
            "findings": found,
        }
        document(disk, "inspection").write_text(json.dumps(reported))
    if papers:
        bill = {"metadata": {"component": {"version": digest_of(disk)}}}
        document(disk, "cyclonedx").write_text(json.dumps(bill))
        document(disk, "spdx").write_text(
            json.dumps({"packages": [{"SPDXID": "SPDXRef-image", "versionInfo": digest_of(disk)}]})
        )
        document(disk, "provenance").write_bytes(
            signatures.statement(disk.name, digest_of(disk), "https://slsa.dev/provenance/v1", {})
        )
        report = vulnerability_report(digest_of(disk), vulnerabilities)
        document(disk, "vulnerabilities").write_text(json.dumps(report))
    if key is not None:
        sign(disk, key)


def sign(disk: BuiltDisk, key: Path) -> None:
    """Sign a disk with all that lies beside it now."""
    rows = [
        {"file": path.name, "sha256": sha256_of(path), "size": path.stat().st_size}
        for path in documents(disk)
    ]
    payload = signatures.statement(disk.name, digest_of(disk), PREDICATE, {"documents": rows})
    document(disk, "signature").write_bytes(load_signer(key).sign(payload))


# A disk with a root in it


STATUS = """\
Package: bash
Status: install ok installed
Architecture: amd64
Version: {bash}
Maintainer: Somebody <somebody@example.org>
Depends: libc6
Description: shell

Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc
Version: 2.36-9+deb12u13
Description: library

Package: systemd-boot-efi
Status: install ok installed
Architecture: amd64
Source: systemd
Version: 252.39-1~deb12u1
Description: loader

Package: nvidia-current-modules-6.1.0-53-cloud-amd64
Status: install ok installed
Architecture: amd64
Version: 535.309.01+6.1.0+abcdef01
Description: modules
"""
RELEASE = "6.1.0-53-cloud-amd64"
MODULES = f"nvidia-current-modules-{RELEASE}"
KO = f"usr/lib/modules/{RELEASE}/updates/goldnode/nvidia-current.ko"


def make_root(
    root: Path, *, bash: str = "5.2.15-2+b7", more: Mapping[str, bytes] | None = None
) -> None:
    """A directory with what evidence reads of a root, and what a disk cannot be assembled without."""
    for name in ("dev", "efi", "etc", "proc", "run", "sys", "usr", "boot"):
        (root / name).mkdir(parents=True)
    copyright_ = b"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: GPL-3+\n"
    files = {
        "usr/lib/os-release": b'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian 12"\n',
        "var/lib/dpkg/status": STATUS.format(bash=bash).encode(),
        "var/lib/dpkg/info/bash.list": b"/.\n/usr\n/usr/bin\n/usr/bin/bash\n/usr/share/doc/bash/copyright\n",
        "var/lib/dpkg/info/systemd-boot-efi.list": b"/usr/lib/systemd/boot/efi/systemd-bootx64.efi\n",
        f"var/lib/dpkg/info/{MODULES}.list": f"/{KO}\n/usr/share/doc/{MODULES}/goldnode.json\n".encode(),
        "usr/bin/bash": b"#!" + bash.encode(),
        "usr/share/doc/bash/copyright": copyright_,
        f"usr/share/doc/{MODULES}/goldnode.json": json.dumps(
            {
                "key": "k" * 8,
                "kernel": RELEASE,
                "driver_version": "535.309.01",
                "trees": {"nvidia-kernel-dkms": "535.309.01-0+deb12u1"},
            }
        ).encode(),
        KO: b"\x7fELF not really",
        "usr/lib/systemd/boot/efi/systemd-bootx64.efi": b"MZ loader",
        f"boot/vmlinuz-{RELEASE}": b"MZ kernel",
        f"boot/initrd.img-{RELEASE}": b"initramfs",
        "etc/goldnode/class.json": json.dumps(
            {"schema": 1, "class": CLASS, "backend": "cuda"}
        ).encode(),
        **dict(more or {}),
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "usr/bin/sh").symlink_to("bash")
    root.chmod(0o755)


def make_disk(
    store: Path, work: Path, name: str = "a", *, class_: str = CLASS, **given: Any
) -> BuiltDisk:
    """A build whose raw disk is real: assembled of `make_root`. Needs root, mtools, dosfstools and e2fsprogs."""
    root = work / f"root-{name}"
    make_root(root, **given)
    disk = make_build(store, name, class_=class_, driver="535.309.01", bulk=64)
    raw = disk.directory / f"{disk.name}.raw"
    spec = assemble.Spec(
        name=disk.name,
        layout="ab",
        loader="systemd-boot",
        sizes=assemble.Sizes(esp=40 << 20, root=160 << 20),
        seed=uuid.uuid5(uuid.NAMESPACE_OID, disk.name),
        epoch=EPOCH,
        command_line="console=ttyS0",
        release=RELEASE,
        build_id=disk.build_id,
    )
    made = assemble.assemble(root, spec, raw, lambda _: None)
    files = (
        DiskFile(raw.name, "raw", made.size, made.sha256),
        *(row for row in disk.files if row.format != "raw"),
    )
    bash = str(given.get("bash", "5.2.15-2+b7"))
    packages = (
        DiskPackage("bash", bash, "amd64", hashlib.sha256(bash.encode()).hexdigest()),
        DiskPackage("libc6", "2.36-9+deb12u13", "amd64", "5" * 64),
    )
    fields = vars(disk) | {
        "raw": Raw(made.size, made.sha256, made.allocated),
        "files": files,
        "partitions": made.partitions,
        "packages": packages,
        "modules": ("nvidia-current",),
        "kernel": RELEASE,
    }
    found = BuiltDisk(**fields)
    (disk.directory / "disk.json").write_text(found.text(), encoding="utf-8")
    return found

"""Boots of firmware with Secure Boot: keys of a site are enrolled, what they signed starts, and nothing else does.

Loader, stub and kernel are those of Debian 12, 13 and 14; the firmware is OVMF, emulated. Each release has one disk with
nothing but an ESP, whose boots end in a static busybox.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.disks import loaderlab
from tests.e2e.qemu.disk import OVMF_VARS, debian

from goldnode.core.site import load_site
from goldnode.disks import enrolment, secureboot
from goldnode.lock.modpackage import MAGIC, Signing
from goldnode.node.slots import unified as uki

# requirements: Debian packages that the test machine needs for this file; scripts/test installs them.
REQUIREMENTS = (
    "debian-archive-keyring",
    "dosfstools",
    "fdisk",
    "mtools",
    "ovmf",
    "qemu-system-x86",
    "sbsigntool",
    "xz-utils",
)

pytestmark = pytest.mark.long

ENTRY = "loader/entries/goldnode-aaa-a.conf"
UKI = "goldnode/a/goldnode.efi"
LOADER = "EFI/BOOT/BOOTX64.EFI"
OPTIONS = "console=ttyS0 loglevel=4 panic=5 lab=signed then=off"
INIT = """#!/busybox sh
/busybox mkdir -p /proc /sys /dev
/busybox mount -t proc proc /proc
/busybox mount -t sysfs sysfs /sys
/busybox mount -t securityfs securityfs /sys/kernel/security
/busybox mount -t devtmpfs devtmpfs /dev
exec >/dev/console 2>&1
for word in $(/busybox cat /proc/cmdline); do
    case $word in
    lab=*) echo "LAB started ${word#lab=}" ;;
    esac
done
echo "LAB lockdown $(/busybox cat /sys/kernel/security/lockdown)"
echo "LAB hibernation $(/busybox cat /sys/power/disk)"
echo "LAB memory $(/busybox dd if=/dev/mem of=/dev/null bs=1 count=1 skip=1048576 2>&1 | /busybox grep -v records)"
for module in $(/busybox ls /modules 2>/dev/null); do
    said=$(/busybox insmod /modules/$module 2>&1)
    echo "LAB module $module $? ${said##*: }"
    /busybox rmmod watchdog 2>/dev/null
done
/busybox dmesg | /busybox grep -iE "lockdown|module verification|Loaded X.509|Secure boot" | /busybox tail -40
/busybox poweroff -f
while :; do /busybox sleep 1000; done
"""


@dataclass(frozen=True)
class Case:
    """A difference from a signed ESP. Without a start, the console says so, and the firmware goes on to the next boot option."""

    name: str
    change: Callable[[dict[str, bytes]], None]
    starts: bool = False


def flip(image: bytes, section: str) -> bytes:
    """The image with one bit changed in the middle of a section."""
    (row,) = [row for row in uki.sections(image) if row[0] == section]
    place = row[4] + min(row[1], row[3]) // 2
    return image[:place] + bytes([image[place] ^ 1]) + image[place + 1 :]


def changed(section: str, file: str = UKI) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        files[file] = flip(files[file], section)

    return change


def bare(files: dict[str, bytes]) -> None:
    files[UKI] = uki.unsigned(files[UKI])


def options(files: dict[str, bytes]) -> None:
    """An entry asks for a command line of its own."""
    files[ENTRY] = files[ENTRY].replace(b"lab=signed", b"lab=entry")


CASES = (
    Case("signed", lambda files: None, True),
    Case("one bit of the kernel", changed(".linux")),
    Case("one bit of the command line", changed(".cmdline")),
    Case("one bit of the initramfs", changed(".initrd")),
    Case("one bit of the loader", changed(".text", LOADER)),
    Case("no signature", bare),
    Case("options in the entry", options, True),
)  # fmt: skip


def pair(place: Path) -> Signing:
    """A key pair of a site, as docs/how-to/secure-boot.md makes it."""
    if not (place / "modules.crt").exists():
        command = "openssl req -new -x509 -newkey rsa:2048 -nodes -days 3650 -sha256 -subj /CN=Example -keyout modules.key -out modules.crt"
        subprocess.run(command.split(), cwd=place, check=True, capture_output=True)
        (place / "modules.key").chmod(0o600)
    (place / "goldnode-site.yml").write_text(
        "module_signing: {key: modules.key, certificate: modules.crt}\n"
    )
    return Signing.of(load_site(place / "goldnode-site.yml"))


def without_signature(module: bytes) -> bytes:
    """A module without the signature of Debian's build."""
    assert module.endswith(MAGIC)
    tail = len(MAGIC) + 12
    (length,) = struct.unpack(">I", module[-len(MAGIC) - 4 : -len(MAGIC)])
    return module[: -tail - length]


def modules(parts: loaderlab.Parts, signing: Signing) -> dict[str, bytes]:
    """The same module: as Debian signed it, signed by the site, that with one bit changed, and without signature."""
    path = parts.modules["watchdog"]
    module = path.read_bytes()
    if path.suffix == ".xz":
        module = subprocess.run(["xz", "-dc"], input=module, capture_output=True, check=True).stdout
    bare_module = without_signature(module)
    site = signing.sign(bare_module)
    return {
        "1-debian.ko": module,
        "2-site.ko": site,
        "3-changed.ko": site[:1000] + bytes([site[1000] ^ 1]) + site[1001:],
        "4-unsigned.ko": bare_module,
    }


def content(parts: loaderlab.Parts, signing: Signing) -> dict[str, bytes]:
    """Files of a signed ESP, with those that enrol the certificate."""
    images = {"busybox": parts.busybox.read_bytes(), "init": INIT.encode()}
    images.update({f"modules/{name}": module for name, module in modules(parts, signing).items()})
    stub = (parts.loader.parent / "linuxx64.efi.stub").read_bytes()
    release = b'ID=goldnode\nVERSION_ID=1\nPRETTY_NAME="goldnode"\n'
    whole = uki.UnifiedParts(stub, release, "1", parts.kernel.read_bytes(), loaderlab.cpio(images))
    loader = parts.loader.read_bytes()
    programs = {LOADER: loader, UKI: uki.image(whole, OPTIONS)}
    files = {
        name: uki.signed(program, secureboot.detached(program, signing))
        for name, program in programs.items()
    }
    files["loader/loader.conf"] = (
        b"default goldnode-*\ntimeout 0\neditor no\nsecure-boot-enroll force\n"
    )
    entry = f"title goldnode\nsort-key goldnode\nversion 1~aaa\nlinux /{UKI}\noptions {OPTIONS}\n"
    files[ENTRY] = entry.encode()
    for name, variable in enrolment.enrolment_files(signing).items():
        files[f"loader/keys/auto/{name}"] = variable
    return files


SHOWN = re.compile(
    "LAB |nroll|[Ss]ecure Boot|Security|Access|Error|rror loading|failed to start|Loading of|[Ll]ockdown|verification|X.509|Shell|denied|iolation"
)


def boot(files: Mapping[str, bytes], scratch: Path, variables: Path) -> loaderlab.Seen:
    disk = loaderlab.esp(files, scratch / "lab.raw", scratch)
    # The firmware goes on to its next option where the loader ends: its shell, which no key of the site has signed.
    stop = 'loading Boot0003 "EFI Internal Shell"'
    seen = loaderlab.boot(disk, scratch, limit=600, variables=variables, stop=stop, secure=True)
    disk.unlink()
    return seen


@pytest.mark.parametrize("suite", loaderlab.SUITES)
def test_firmware_starts_what_the_site_signed_and_nothing_that_was_changed(
    tmp_path: Path, suite: str
) -> None:
    """With GOLDNODE_SECURE_BOOT_RUN=FOLDER, a line of each boot stays there (secure-boot.jsonl), and a run that was
    interrupted goes on.
    """
    place = Path(os.environ.get("GOLDNODE_SECURE_BOOT_RUN") or tmp_path / "place")
    place.mkdir(exist_ok=True)
    # Debian 14 has no archive of security updates yet.
    archives = [
        row for row in debian(suite, place) if suite != "forky" or "security" not in row.suite
    ]
    parts, signing = loaderlab.fetch(suite, archives, place), pair(place)
    files, record, enrolled = (
        content(parts, signing),
        place / "secure-boot.jsonl",
        place / f"{suite}.fd",
    )

    def add(name: str, seen: loaderlab.Seen) -> dict[str, Any]:
        shown = list(dict.fromkeys(text.strip() for _, text in seen.lines if SHOWN.search(text)))
        row = {
            "suite": suite,
            "case": name,
            "started": seen.started,
            "end": seen.end,
            "lines": shown,
        }
        with record.open("a") as out:
            print(json.dumps({**row, "seconds": round(seen.seconds)}), file=out, flush=True)
        return row

    if not enrolled.exists():
        row = add("setup mode", boot(files, tmp_path, OVMF_VARS))
        assert (row["started"], row["end"]) == (["signed"], "off"), row
        assert any("Enrolling secure boot keys" in line for line in row["lines"])
        shutil.copy(tmp_path / "vars.fd", enrolled)
    rows = {
        row["case"]: row
        for row in map(json.loads, record.read_text().splitlines())
        if row["suite"] == suite
    }
    for case in CASES:
        if case.name not in rows:
            changed_files = dict(files)
            case.change(changed_files)
            rows[case.name] = add(case.name, boot(changed_files, tmp_path, enrolled))
    for case in CASES:
        row, text = rows[case.name], "\n".join(rows[case.name]["lines"])
        end = "off" if case.starts else "stop"
        assert (row["started"], row["end"]) == (["signed"] if case.starts else [], end), row
        # A kernel that starts is locked down, and loads what its distribution and the site have signed.
        loaded = re.findall(r"LAB module (\S+) (\d+)", text)
        loads = [
            ("1-debian.ko", "0"),
            ("2-site.ko", "0"),
            ("3-changed.ko", "129"),
            ("4-unsigned.ko", "129"),
        ]
        assert loaded == (loads if case.starts else [])
        assert ("LAB lockdown none [integrity] confidentiality" in text) == case.starts
        assert case.starts or re.search("Access denied|Security violation", text, re.IGNORECASE), (
            row
        )

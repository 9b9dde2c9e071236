"""Command `goldnode disks sign`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.options import disk_store
from goldnode.commands.output import emit, reports, say

if TYPE_CHECKING:
    from goldnode.disks.secureboot import Enrol


@click.command()
@click.argument("name")
@disk_store("store_path")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the signed disk there, raw.",
)
@click.option(
    "--enrol",
    type=click.Choice(["none", "virtual", "always"]),
    default="virtual",
    show_default=True,
    help="Whether a machine in setup mode takes the certificate at its first boot.",
)
@click.option(
    "--also-trust",
    "trusted",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="CERTIFICATE",
    help="Certificate that the firmware also takes, PEM or DER, as for option ROMs. Repeatable.",
)
@click.option(
    "--signatures",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Use the signatures that another builder of the same image made. No key is needed.",
)
@reports("disk-signature")
def sign(
    name: str,
    store_path: Path | None,
    out: Path | None,
    *,
    enrol: Enrol,
    trusted: tuple[Path, ...],
    file: Path | None,
    form: str,
) -> None:
    """Sign the boot files of a disk image for Secure Boot.

    NAME is a directory, the name of a build, or a class (its newest build). The key is `module_signing` of the site file. The
    build is not changed: its signatures are in NAME.secure-boot.json next to it, and the signed disk differs in the EFI
    system partition only.
    """
    from goldnode.core.errors import DiskError
    from goldnode.core.site import load_site
    from goldnode.disks import secureboot
    from goldnode.disks.model import find, store_directory
    from goldnode.lock.modpackage import Signing

    tools = ["mcopy", "debugfs", "modinfo", "sbverify", *([] if file else ["sbsign", "openssl"])]
    secureboot.require_programs(*tools, *(["mkfs.vfat", "mmd", "fallocate"] if out else []))
    if file is not None and trusted:
        raise DiskError(
            "the certificates of signatures that exist cannot be changed",
            remedy="leave out --also-trust, or sign with the key",
        )
    store = store_directory(store_path)
    disk = find(name, store)
    signing = None if file else Signing.of(load_site())
    say(f"{disk.name}: reading the modules of the root")
    unsigned = secureboot.unsigned_modules(disk, store / "cache")
    if unsigned:
        raise DiskError(
            f"the kernel would refuse modules of {disk.name} under Secure Boot, since they are not signed: "
            + ", ".join(unsigned),
            file=disk.directory,
            remedy="set `secure_boot: true` in the stack, lock and build the disk again",
        )
    say("making and signing the unified kernels")
    unsigned_files = secureboot.boot_files(disk)
    if signing is None:
        document = secureboot.load(file or Path())
    else:
        document = secureboot.sign(disk, unsigned_files, signing, trusted)
    files = secureboot.signed_files(unsigned_files, document, str(file or disk.directory))
    path = secureboot.save(disk, document)
    result: dict[str, object] = {"name": disk.name, "signatures": str(path)}
    lines = [f"signatures: {path}"]
    if out is not None:
        digest, size = secureboot.write(disk, files, document, out, enrol=enrol, progress=say)
        result |= {"disk": str(out), "sha256": digest, "allocated": size}
        lines.append(f"disk: {out}, sha256:{digest}, {size >> 20} MiB")
        version = secureboot.stated_version("systemd-boot", files.loader)
        if enrol == "virtual" and version is not None and version < secureboot.IF_SAFE:
            say(
                f"systemd-boot {version} enrols at the first boot with --enrol always only; otherwise from its menu, "
                "which a key pressed at the start opens"
            )
    emit(form, result, "\n".join(lines))

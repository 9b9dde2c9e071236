"""Facts of the architectures that disk images are built for: names of boot loaders, and partition types.

Names of loaders: UEFI specification 2.10, 3.5.1.1, and Debian's packages. Types of the root partition: Discoverable Partitions Specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from goldnode.core.errors import DiskError


@dataclass(frozen=True)
class DiskArchitecture:
    """Differences between disks of one architecture and those of another.

    `boot` is the path in the ESP that firmware starts without a boot entry. `systemd_boot` and `grub` are paths in the root;
    `grub_package` has the latter. `root_type` is the GUID of the root partition's type, and `repart` systemd-repart's name
    for it.
    """

    name: str
    boot: str
    systemd_boot: str
    grub: str
    grub_package: str
    root_type: str
    repart: str


ARCHITECTURES: Mapping[str, DiskArchitecture] = {
    row.name: row
    for row in (
        DiskArchitecture(
            name="amd64",
            boot="EFI/BOOT/BOOTX64.EFI",
            systemd_boot="usr/lib/systemd/boot/efi/systemd-bootx64.efi",
            # Debian's prebuilt GRUB image: it contains all modules that we need, and reads /EFI/debian/grub.cfg.
            grub="usr/lib/grub/x86_64-efi/monolithic/grubx64.efi",
            grub_package="grub-efi-amd64-bin",
            root_type="4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
            repart="root-x86-64",
        ),
        DiskArchitecture(
            name="arm64",
            boot="EFI/BOOT/BOOTAA64.EFI",
            systemd_boot="usr/lib/systemd/boot/efi/systemd-bootaa64.efi",
            grub="usr/lib/grub/arm64-efi/monolithic/grubaa64.efi",
            grub_package="grub-efi-arm64-bin",
            root_type="b921b045-1df0-41c3-af44-4c6f280d3fae",
            repart="root-arm64",
        ),
    )
}


def refuse_other_than_amd64(name: str, architecture: str, what: str) -> None:
    """Raise DiskError for a disk, by name, of another architecture than amd64, which `what` was not made for."""
    if architecture != "amd64":
        raise DiskError(
            f"image {name} is for {architecture}, and {what} for amd64 only",
            remedy="build, verify and publish it, and write it to disks by other means: docs/how-to/arm64.md",
        )


def architecture_of(name: str) -> DiskArchitecture:
    """Return the facts of an architecture by dpkg's name. Raises DiskError for one without disk images."""
    if name not in ARCHITECTURES:
        raise DiskError(
            f"there are no disk images for {name}",
            remedy=f"use a stack of one of: {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[name]

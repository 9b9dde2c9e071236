"""Installer of the first-boot files, which turn each copy of a disk into a node of its own.

It also removes what must not be shared between machines. The files are copied from `images/disks/files/` as
they are; docs/reference/disk-format.md describes the first boot. The boot check and its gate belong to the class and
are not installed here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from goldnode.core.data import data
from goldnode.core.errors import DiskError
from goldnode.disks.architecture import architecture_of
from goldnode.disks.assemble import Spec, grub_entry, root_grub_config, slot_document
from goldnode.node.state.domains import kernel, slots

# Next to the disk definition, in the source tree.
FILES = data("images/disks/files")
PLACE = "usr/lib/goldnode/disk"  # path in the root: class, layout, image.json, and the first-boot program

_UNITS = "/usr/lib/systemd/system"
_WANTS = "etc/systemd/system"
# Link -> target: the links that `systemctl enable` would create from the units' [Install] sections. No
# systemd is running in the root, so they are created directly.
_LINKS = {
    f"{_WANTS}/sysinit.target.wants/goldnode-hostname.service": f"{_UNITS}/goldnode-hostname.service",
    f"{_WANTS}/multi-user.target.wants/goldnode-first-boot.service": f"{_UNITS}/goldnode-first-boot.service",
    f"{_WANTS}/multi-user.target.wants/goldnode-identity.service": f"{_UNITS}/goldnode-identity.service",
    f"{_WANTS}/multi-user.target.wants/goldnode-lease-name.path": f"{_UNITS}/goldnode-lease-name.path",
    f"{_WANTS}/multi-user.target.wants/systemd-networkd.service": f"{_UNITS}/systemd-networkd.service",
    f"{_WANTS}/sysinit.target.wants/systemd-network-generator.service": (
        f"{_UNITS}/systemd-network-generator.service"
    ),
    f"{_WANTS}/sockets.target.wants/systemd-networkd.socket": f"{_UNITS}/systemd-networkd.socket",
    f"{_WANTS}/network-online.target.wants/systemd-networkd-wait-online.service": (
        f"{_UNITS}/systemd-networkd-wait-online.service"
    ),
    f"{_WANTS}/dbus-org.freedesktop.network1.service": f"{_UNITS}/systemd-networkd.service",
}
_SSH_LINKS = {
    f"{_WANTS}/multi-user.target.wants/goldnode-ssh-keys.service": f"{_UNITS}/goldnode-ssh-keys.service"
}
_SSH_FILES = (
    "etc/ssh/sshd_config.d/60-goldnode.conf",
    "usr/lib/systemd/system/goldnode-ssh-keys.service",
)
_RESOLVER = ("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf")
_FSTAB = "etc/fstab"
_GRUB = "etc/default/grub.d/50-goldnode-disk.cfg"

# Files that would be equal in two clones, or that identify the build machine.
_ONE_MACHINE = (
    "etc/hostname",
    "etc/ssh/ssh_host_*",
    "var/lib/dbus/machine-id",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/credential.secret",
    "var/lib/goldnode/disk/*",
)


def install(root: Path, spec: Spec, files: Path = FILES) -> tuple[str, ...]:
    """Install the first-boot files of `spec` in `root`, and remove what belongs to one machine.

    Idempotent.

    Return the paths it wrote, sorted, without a leading slash. Raises DiskError, before writing anything, for
    a root without systemd or systemd-repart, and for a directory that leads out of the root.
    """
    spec.check()
    for name, package in (
        ("usr/lib/systemd/systemd", "systemd-sysv"),
        ("usr/bin/systemd-repart", "systemd (Debian 12) or systemd-repart (Debian 13)"),
        ("usr/lib/systemd/systemd-growfs", "systemd"),
    ):
        if not (root / name).exists():
            raise DiskError(
                f"the root has no /{name}, which its first boot needs",
                file=root,
                remedy=f"add {package} to the packages of the definition",
            )
    if not (files / "common").is_dir():
        raise DiskError(
            "goldnode's own first-boot files are missing",
            file=files,
            remedy="use a whole checkout of goldnode",
        )
    ssh = (root / "usr/sbin/sshd").exists()
    texts: dict[str, tuple[str, int]] = {}
    for part in (
        "common",
        spec.layout,
        *(("cloud-init",) if (root / "usr/bin/cloud-init").exists() else ()),
    ):
        for path in _below(files / part):
            name = str(path.relative_to(files / part))
            if ssh or name not in _SSH_FILES:
                text = path.read_text(encoding="utf-8").replace("@ROOT_SIZE@", str(spec.sizes.root))
                text = text.replace("@ROOT_TYPE@", architecture_of(spec.architecture).repart)
                texts[name] = (text, 0o755 if path.stat().st_mode & 0o100 else 0o644)
    texts[_FSTAB] = (texts[_FSTAB][0] + _own_mounts(root / _FSTAB), 0o644)
    texts[f"{PLACE}/class"] = (spec.class_name + "\n", 0o644)
    texts[f"{PLACE}/layout"] = (spec.layout + "\n", 0o644)
    texts[f"{PLACE}/image.json"] = (slot_document(spec).decode(), 0o644)
    if spec.layout == "ab":
        texts.update({file.path.lstrip("/"): (file.content, file.mode) for file in slots.files()})
    if spec.loader == "grub":
        texts["boot/grub/grub.cfg"] = (
            root_grub_config(spec),
            0o600,
        )  # the mode that update-grub sets
        # Settings of update-grub on the node: they preserve the command line of the definition, and keep the
        # class's kernel the default.
        texts[_GRUB] = (
            '# goldnode: kernel command line of the disk\nGRUB_TIMEOUT=0\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX '
            f'{spec.words}"\n',
            0o644,
        )
        texts[kernel.DROP_IN.lstrip("/")] = (kernel.drop_in(grub_entry(spec)), 0o644)
    # machine-id(5): the next boot is a first boot, and makes one.
    texts["etc/machine-id"] = (
        "uninitialized\n",
        0o444,
    )
    links = _LINKS | (_SSH_LINKS if ssh else {})
    if spec.layout == "ab":
        links |= {link.lstrip("/"): target for link, target in slots.LINKS.items()}
    if (root / "usr/lib/systemd/systemd-resolved").exists():
        links[_RESOLVER[0]] = _RESOLVER[1]
    for name in (*texts, *links, "efi/x"):
        _folder(root, name)
    for pattern in _ONE_MACHINE:
        for path in root.glob(pattern):
            path.unlink()
    for name, (text, mode) in texts.items():
        _put(root / name, text, mode, spec.epoch)
    for name, target in links.items():
        path = root / name
        if not path.is_symlink() or str(path.readlink()) != target:
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        os.utime(path, (spec.epoch, spec.epoch), follow_symlinks=False)
    return tuple(sorted((*texts, *links)))


def _below(place: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(place):
        folders.sort()
        yield from (Path(folder) / name for name in sorted(names))


def _own_mounts(fstab: Path) -> str:
    """Return the fstab lines for mount points other than root and ESP.

    They belong to the site and are preserved.
    """
    try:
        lines = fstab.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ""
    rows = [
        line
        for line in lines
        if len(words := line.split()) > 1
        and not words[0].startswith("#")
        and words[1] not in ("/", "/efi")
    ]
    return "".join(line + "\n" for line in rows)


def _folder(root: Path, name: str) -> None:
    """Create the directory of a file.

    It must be inside the root: an absolute link would lead to this machine's files.
    """
    folder = (root / name).parent
    if not folder.resolve().is_relative_to(root.resolve()):
        raise DiskError(
            f"/{Path(name).parent} of the root leads out of it, to {folder.resolve()}",
            file=root,
            remedy="make that link relative",
        )
    missing = [
        place
        for place in (folder, *folder.parents)
        if not place.exists() and place.is_relative_to(root)
    ]
    for place in reversed(missing):
        place.mkdir(mode=0o755)
        place.chmod(0o755)


def _put(path: Path, text: str, mode: int, epoch: int) -> None:
    new = path.with_name(f".{path.name}.goldnode-new")
    try:
        new.write_text(text, encoding="utf-8")
        new.chmod(mode)
        if os.geteuid() == 0:
            shutil.chown(new, 0, 0)
        os.utime(new, (epoch, epoch))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)

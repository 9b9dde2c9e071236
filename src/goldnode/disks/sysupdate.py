"""Channels of a published directory in the form of systemd-sysupdate, and the transfer files of nodes that follow one.

PLACE/CLASS/sysupdate/CHANNEL/
    SHA256SUMS, SHA256SUMS.gpg             what is offered, and its detached OpenPGP signature
    CLASS_VERSION_SIZE.root.gz             the root, for a partition that gets the label CLASS_VERSION
    CLASS_VERSION.vmlinuz, .initrd.img     kernel and initramfs, for the ESP
    CLASS_VERSION.conf                     entry of the boot loader, which names all three

A version is that of a move of the channel, not of a build: systemd-sysupdate never returns to a lower version, and a
rollback is a later move. The files are derived from the published disk, whose bytes are compared with its manifest.

gzip is what every release reads: 254 and 257 write a root in zstd to the partition as it is, and report success. SIZE
is that of the partition's content in bytes: without it, systemd-sysupdate takes the smallest empty partition, whether
the root fits or not (docs/how-to/disk-sysupdate.md).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.channels.lines import History
from goldnode.core.errors import DiskError
from goldnode.core.files import replace_file, sha256_of, sync
from goldnode.disks import formats, slot_image, tools
from goldnode.disks.architecture import architecture_of, refuse_other_than_amd64
from goldnode.disks.directory import STAGING, check_published, full, move_versions, read_sums
from goldnode.disks.lines import ClassLine
from goldnode.disks.model import FORMATS, SUMS, BuiltDisk
from goldnode.disks.tools import Progress
from goldnode.lock.signing import ArchiveSigner, check_detached
from goldnode.node.ground.openpgp import dearmor
from goldnode.node.state import slots

if TYPE_CHECKING:
    from goldnode.disks.places import DirectoryPlace

FOLDER = "sysupdate"
SIGNATURE = f"{SUMS}.gpg"
KEYRING = "systemd/import-pubring.gpg"  # of a node, in /etc
BOOT = "/EFI/goldnode"  # of kernel and initramfs on the ESP
FIRST = (
    254  # systemd that knows PathRelativeTo=, and the first that Debian has with systemd-sysupdate
)
RENAMED = 257  # systemd that reads *.transfer
# systemd that leaves a part of a version behind when an update fails. It then refuses to update until the part is
# removed, and counts it as installed when it decides whether to reboot.
PARTIAL = 260
_DROP_IN = """\
# goldnode: remove what an update that failed has left, which would end every further one, and counts as a version to reboot into
[Service]
ExecStartPre=-/usr/lib/systemd/systemd-sysupdate vacuum{component}
"""
_SERVICES = ("systemd-sysupdate-update.service", "systemd-sysupdate-reboot.service")
TRIES = slots.TRIES
ROOT = ".root.gz"
INSTANCES = 2
_LABEL = 36  # UTF-16 units of a partition's name (UEFI 2.10, 5.3.3)
_EMPTY = hashlib.sha256().hexdigest()
_GZIP = 6
# Suffix of a published file -> name of its transfer. systemd-sysupdate installs in the order of these names, and the
# entry, which makes a version boot, comes last.
_PARTS: Mapping[str, str] = {
    ROOT: "50-goldnode-root",
    ".vmlinuz": "60-goldnode-vmlinuz",
    ".initrd.img": "61-goldnode-initrd",
    ".conf": "70-goldnode-entry",
}


@dataclass(frozen=True)
class OfferedVersion:
    """A version that a channel offers: its number, and the digest of its build."""

    version: str
    digest: str


@dataclass
class WrittenSysupdate:
    """Result of :func:`write`: the directory, its versions, the newest first, and sizes in bytes by file."""

    directory: Path
    versions: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


def offered(history: History, channel: str) -> list[OfferedVersion]:
    """Return what a channel offers, the newest first: its image, and the one before, for downloads in progress.

    An image that was rolled back from is not offered. Empty for a channel that points to nothing.
    """
    last = history.current(channel)
    if last is None:
        return []
    numbers = move_versions(history)
    before = [move for move in history.stack(channel) if move.now != last.now][-1:]
    return [OfferedVersion(numbers[move.number], move.now) for move in (last, *before)]


def title(class_: str, version: str) -> str:
    """Return the name of a version: the label of its partition, and the beginning of its files. Raises DiskError."""
    name = f"{class_}_{version}"
    if len(name) > _LABEL:
        raise DiskError(
            f"{name} has {len(name)} characters, and the name of a partition {_LABEL} at most",
            remedy=f"give the class a name of {_LABEL - len(version) - 1} characters or less",
        )
    return name


def file_name(name: str, suffix: str, size: int | str) -> str:
    """Return the name of a published file of a version. `size` is that of its root in bytes."""
    return f"{name}_{size}{suffix}" if suffix == ROOT else f"{name}{suffix}"


def entry_text(disk: BuiltDisk, name: str, version: str, options: str) -> str:
    """Return the boot entry of a version (Boot Loader Specification, type 1). Pure.

    :param options: the command line of the image's own entry.
    """
    rows = (
        ("title", f"goldnode {disk.name} ({version})"),
        ("sort-key", "goldnode"),
        ("version", version),
        ("linux", f"{BOOT}/{name}.vmlinuz"),
        ("initrd", f"{BOOT}/{name}.initrd.img"),
        ("options", f"root=PARTLABEL={name} {slots.without_root(options)}".rstrip()),
    )
    return "".join(f"{key} {value}\n" for key, value in rows)


def write(
    place: DirectoryPlace,
    line: ClassLine,
    channel: str,
    history: History,
    signer: ArchiveSigner,
    *,
    best_before: dt.date | None = None,
    progress: Progress = lambda _: None,
) -> WrittenSysupdate:
    """Write what systemd-sysupdate reads of a channel, and sign it. `history` is that of verified channels.

    Files of a version that are there and signed by the same key are not made again. Raises DiskError and
    SigningKeyError; what was published before is then unchanged.
    """
    versions = offered(history, channel)
    if not versions:
        raise DiskError(
            f"{channel} of {line} points to nothing at {place.name}",
            remedy=f"promote a disk to it: goldnode disks promote {channel} {line}",
        )
    class_ = line.repository
    target = place.root / class_ / FOLDER / channel
    names = {one.version: title(class_, one.version) for one in versions}
    with place.turn(), full(place.root):
        stage = place.root / STAGING / f"{FOLDER}-{class_}-{channel}"
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(parents=True)
        try:
            known = signed_sums(target, signer.public)
            sums: dict[str, str] = {}
            for one in versions:
                disk = place.disk(line, one.digest)
                size = slot_image.partition(disk, "root-a").size
                files = [file_name(names[one.version], suffix, size) for suffix in _PARTS]
                if not all(_is(target / file, known.get(file)) for file in files):
                    progress(f"making {names[one.version]}")
                    derive(disk, names[one.version], one.version, stage)
                    sums |= {file: sha256_of(stage / file) for file in files}
                else:
                    sums |= {file: known[file] for file in files}
            if best_before is not None:
                mark = f"BEST-BEFORE-{best_before.isoformat()}"
                (stage / mark).write_bytes(b"")
                sums[mark] = _EMPTY
            (stage / SUMS).write_text(
                "".join(f"{sha256} *{file}\n" for file, sha256 in sorted(sums.items())),
                encoding="ascii",
            )
            signer.detach(stage / SUMS, stage / SIGNATURE)
            _install(stage, target, sums)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    sizes = {file: (target / file).stat().st_size for file in sorted(sums)}
    return WrittenSysupdate(target, [one.version for one in versions], sizes)


def signed_sums(directory: Path, public: bytes) -> dict[str, str]:
    """Return the checksums of a directory if a key has signed them; empty for any other."""
    sums = directory / SUMS
    if not sums.is_file() or check_detached(sums, directory / SIGNATURE, public)[0] is None:
        return {}
    text = sums.read_text(encoding="utf-8", errors="replace").replace(" *", "  ")
    return read_sums(text, str(sums))


def _is(path: Path, sha256: str | None) -> bool:
    return sha256 is not None and path.is_file() and sha256_of(path) == sha256


def _install(stage: Path, target: Path, sums: Mapping[str, str]) -> None:
    """Move new files in, then checksums and signature, and remove what they do not name."""
    target.mkdir(parents=True, exist_ok=True)
    ends = (SIGNATURE, SUMS)
    for path in sorted(stage.iterdir(), key=lambda one: (one.name in ends, one.name)):
        path.chmod(0o644)
        sync(path)
        path.replace(target / path.name)
    sync(target)
    for path in target.iterdir():
        if path.name not in sums and path.name not in ends:
            path.unlink()


def derive(disk: BuiltDisk, name: str, version: str, stage: Path) -> None:
    """Write the files of a version from a published disk. Raises DiskError."""
    tools.require("mcopy", "gzip", "zstd")
    refuse_other_than_amd64(disk.name, disk.os.architecture, "files of systemd-sysupdate are")
    if not slot_image.has_slots(disk):
        raise DiskError(
            f"{disk.name} has layout {disk.layout}, whose boot loader counts no boots",
            file=disk.directory,
            remedy="build it with layout ab",
        )
    check_published(disk.directory)
    with tempfile.TemporaryDirectory(prefix=".raw-", dir=stage) as scratch:
        raw = Path(scratch) / "disk.raw"
        formats.unpack(disk.directory / f"{disk.name}{FORMATS['raw.zst']}", raw)
        if sha256_of(raw) != disk.raw.sha256:
            raise DiskError(
                f"{disk.name} does not hold the disk of its manifest",
                file=disk.directory,
                remedy="publish the disk again",
            )
        esp = slot_image.partition(disk, "esp").start
        fields = slot_image.entry(raw, esp, disk.build_id)
        if "initrd" not in fields:
            raise DiskError(
                f"{disk.name} is signed for Secure Boot: its kernel image names root-a, and a signature cannot be moved",
                file=disk.directory,
                remedy="publish the disk without `goldnode disks sign`, or update its nodes with `goldnode disks update`",
            )
        for key, suffix in (("linux", ".vmlinuz"), ("initrd", ".initrd.img")):
            source = f"::{fields[key]}"
            tools.run("mcopy", "-n", "-i", f"{raw}@@{esp}", source, stage / f"{name}{suffix}")
        text = entry_text(disk, name, version, fields["options"])
        (stage / f"{name}.conf").write_text(text, encoding="ascii")
        root = slot_image.partition(disk, "root-a")
        _pack(raw, root.start, root.size, stage / file_name(name, ROOT, root.size))


def _pack(raw: Path, start: int, size: int, out: Path) -> None:
    """Compress a part of a file, whose place and size are in bytes. Raises DiskError."""
    with (
        raw.open("rb") as source,
        out.open("wb") as packed,
        subprocess.Popen(
            ["gzip", "-n", f"-{_GZIP}"],
            stdin=subprocess.PIPE,
            stdout=packed,
            stderr=subprocess.PIPE,
            env=tools.environment(0),
        ) as gzip,
    ):
        assert gzip.stdin is not None  # noqa: S101
        assert gzip.stderr is not None  # noqa: S101
        source.seek(start)
        try:
            while size and (data := source.read(min(size, 1 << 20))):
                gzip.stdin.write(data)
                size -= len(data)
            gzip.stdin.close()
        except BrokenPipeError:  # it has reported why
            pass
        text = gzip.stderr.read().decode("utf-8", "replace").strip()
    if "No space left on device" in text:
        raise tools.no_space(f"there is no space left for {out}")
    if gzip.returncode or size:
        raise DiskError(f"gzip failed ({gzip.returncode}): {text or 'it printed nothing'}")


# The node's side


@dataclass(frozen=True)
class FollowedChannel:
    """A channel that nodes follow: class, its channel, and the address of the published directory.

    `newest` is the version that it has now. Nodes take none that is older. `component` is for nodes on which
    systemd-sysupdate updates something else, too: all transfers of one directory have one version.
    """

    class_: str
    channel: str
    address: str
    newest: str
    component: str | None = None


def definitions(followed: FollowedChannel, systemd: int) -> dict[str, str]:
    """Return the files of a node for a release of systemd: name in /etc -> text. Raises DiskError."""
    if systemd < FIRST:
        raise DiskError(
            f"systemd {systemd} has no PathRelativeTo=, so that the ESP cannot be named",
            remedy=f"install systemd {FIRST} or later: Debian 12 has 254 in its backports",
        )
    suffix = ".transfer" if systemd >= RENAMED else ".conf"
    folder = f"sysupdate.{followed.component}.d" if followed.component else "sysupdate.d"
    files = {
        f"{folder}/{name}{suffix}": _definition(followed, part) for part, name in _PARTS.items()
    }
    if systemd >= PARTIAL:
        component = f" --component={followed.component}" if followed.component else ""
        for service in _SERVICES:
            text = _DROP_IN.format(component=component)
            files[f"systemd/system/{service}.d/goldnode.conf"] = text
    return files


def _definition(followed: FollowedChannel, part: str) -> str:
    name = f"{followed.class_}_@v"
    path = f"{followed.address.rstrip('/')}/{followed.class_}/{FOLDER}/{followed.channel}"
    rows = [
        f"# goldnode: {followed.channel} of {followed.class_} for systemd-sysupdate",
        "[Transfer]",
        # A directory that was replaced by an earlier copy of itself, with its valid signature, is not followed.
        f"MinVersion={followed.newest}",
        # IMAGE_VERSION of /etc/os-release, which the first boot of a version writes.
        "ProtectVersion=%A",
        "",
        "[Source]",
        "Type=url-file",
        f"Path={path.replace('%', '%%')}",
        f"MatchPattern={file_name(name, part, '@s')}",
        "",
        "[Target]",
        f"InstancesMax={INSTANCES}",
    ]
    if part == ROOT:
        rows += [
            "Type=partition",
            "Path=auto",
            f"MatchPattern={name}",
            f"MatchPartitionType={architecture_of('amd64').root_type}",
        ]
        return "\n".join(rows) + "\n"
    rows += ["Type=regular-file", "PathRelativeTo=boot"]
    if part == ".conf":
        counted: Sequence[str] = (f"{name}+@l-@d{part}", f"{name}+@l{part}", f"{name}{part}")
        rows += ["Path=/loader/entries", f"MatchPattern={' '.join(counted)}"]
        rows += [f"TriesLeft={TRIES}", "TriesDone=0"]
    else:
        rows += [f"Path={BOOT}", f"MatchPattern={name}{part}"]
    return "\n".join(rows) + "\n"


def write_definitions(
    followed: FollowedChannel, systemd: int, public: bytes, out: Path
) -> list[Path]:
    """Write the files of a node as a tree for /etc, with the keyring that its systemd-pull verifies by. Return their paths."""
    files = {name: text.encode() for name, text in definitions(followed, systemd).items()}
    files[KEYRING] = dearmor(public)
    for name, content in files.items():
        replace_file(out / name, content, 0o644)
    return [out / name for name in sorted(files)]

"""Places that hold channels of disk images: a store, or a published directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from goldnode.channels import promotion, signed
from goldnode.channels.lines import ChannelLine
from goldnode.channels.signed import Files
from goldnode.core.errors import DiskError
from goldnode.core.files import replace_file, sha256_of
from goldnode.disks import evidence
from goldnode.disks.contents import digest_of
from goldnode.disks.directory import full
from goldnode.disks.lines import CLASS_NAME, COMMAND, HISTORY
from goldnode.disks.model import MANIFEST, BuiltDisk, builds
from goldnode.node.ground.optional import optional
from goldnode.oci.layout import canonical

if TYPE_CHECKING:
    from goldnode.evidence.signatures import EnvelopeSigner


class ChannelStore:
    """Channel data of a store of disks: cached histories, and the last known target of each channel.

    It only reads the builds of `goldnode.disks.store.Store`. It creates nothing until a name is set.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def cache(self) -> Path:
        """Return the directory of cached evidence, which can be recomputed."""
        return self.root / "cache/evidence"

    def name_as(self, name: str, digest: str) -> None:
        path = self._file(name)
        if self.disk(digest) is not None:
            replace_file(path, digest.encode() + b"\n")
        else:
            path.unlink(missing_ok=True)

    def named(self, name: str) -> str | None:
        """Return the digest that a name points to."""
        try:
            return self._file(name).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None

    def _file(self, name: str) -> Path:
        return self.root / "channels/names" / quote(name, safe="")

    def disk(self, digest: str, class_: str | None = None) -> BuiltDisk | None:
        """Return the build with this manifest digest, or None if the store lacks it."""
        return next((disk for disk in builds(self.root, class_) if digest_of(disk) == digest), None)


class DiskStorePlace(promotion.LocalPlace):
    """A local store as the home of channels, or as the cached copy of a published directory."""

    command = COMMAND

    def __init__(self, store: ChannelStore, name: str = "store") -> None:
        super().__init__(store, name)
        self.store = store

    def pointer(self, line: ChannelLine, channel: str) -> str | None:
        return self.store.named(promotion.local_name(self.name, line, channel))

    def published(self, line: ChannelLine, tag: str) -> str | None:
        return optional(digest_of, self.find(line, tag))

    def find(self, line: ChannelLine, tag: str) -> BuiltDisk | None:
        """Return a build of the class by its id, or None."""
        path = self.store.root / "built" / line.repository / tag
        return BuiltDisk.load(path) if (path / MANIFEST).is_file() else None

    def disk(self, line: ChannelLine, digest: str) -> BuiltDisk:
        """Return a build by its digest. Raises DiskError if the store lacks it."""
        built = self.store.disk(digest, line.repository)
        if built is None:
            raise DiskError(
                f"{line.repository} {digest[:19]} is not in {self.store.root}",
                remedy="pull it where its place can be reached",
            )
        return built

    def whole(self, line: ChannelLine, digest: str) -> int:
        disk = self.disk(line, digest)
        evidence.check_files(
            disk, [row.format for row in disk.files if (disk.directory / row.file).is_file()]
        )
        return (disk.directory / MANIFEST).stat().st_size


class DirectoryPlace:
    """A published directory.

    With `store` and `signer` a rollback can upload a disk again that is gone from the directory.
    """

    command = COMMAND
    copy = False
    settles = False  # its lock excludes other writers

    def __init__(
        self, root: Path, store: ChannelStore, signer: EnvelopeSigner | None = None
    ) -> None:
        self.root, self.store, self.signer = root.absolute(), store, signer
        self.name = str(self.root)
        if not self.root.is_dir():
            raise DiskError(
                f"{root} is no directory to publish to", remedy="make it, or mount what it lies on"
            )

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the directory's lock: one writer at a time, on any machine. Others wait."""
        staging = self.root / ".staging"
        staging.mkdir(exist_ok=True)
        with (staging / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def channels(self, line: ChannelLine) -> Path:
        """Return the directory of the channels of a class."""
        return self.root / line.repository / "channels"

    def files(self) -> Files:
        return signed.read_folder(self.root / signed.FOLDER)

    def commit(self, files: Files) -> None:
        with full(self.root):
            signed.write_folder(self.root / signed.FOLDER, files)

    def pointer(self, line: ChannelLine, channel: str) -> str | None:
        try:
            pointer = json.loads((self.channels(line) / f"{channel}.json").read_bytes())
            return str(pointer["digest"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return "unreadable"

    def point(self, line: ChannelLine, channel: str, digest: str) -> None:
        from goldnode.disks.directory import refresh

        disk = self.disk(line, digest)
        script = disk.directory / f"{disk.name}.ipxe"
        chain = self.channels(line) / f"{channel}.ipxe"
        document = {
            "schema": 1,
            "class": disk.class_,
            "channel": channel,
            "build_id": disk.build_id,
            "name": disk.name,
            "digest": digest,
        }
        with full(self.root):
            if script.is_file():
                replace_file(
                    chain, f"#!ipxe\nchain --replace ../{disk.build_id}/{script.name}\n".encode()
                )
            else:
                chain.unlink(missing_ok=True)
            pointer = canonical({**document, "path": f"{disk.class_}/{disk.build_id}"})
            replace_file(self.channels(line) / f"{channel}.json", pointer)
            refresh(self.root)

    def published(self, line: ChannelLine, tag: str) -> str | None:
        path = self.root / line.repository / tag
        return digest_of(BuiltDisk.load(path)) if (path / MANIFEST).is_file() else None

    def disk(self, line: ChannelLine, digest: str) -> BuiltDisk:
        """Return a published build by its digest. Raises DiskError if the directory lacks it."""
        for path in sorted((self.root / line.repository).glob(f"*/{MANIFEST}")):
            if "sha256:" + sha256_of(path) == digest:
                return BuiltDisk.load(path.parent)
        raise DiskError(
            f"{self.root}/{line.repository} has no build {digest[:19]}",
            remedy="publish it again: goldnode disks publish",
        )

    def whole(self, line: ChannelLine, digest: str) -> int:
        from goldnode.disks.directory import check_published

        directory = self.disk(line, digest).directory
        check_published(directory)
        return (directory / MANIFEST).stat().st_size

    def former(self, line: ChannelLine) -> bytes:
        path = self.channels(line) / HISTORY
        return path.read_bytes() if path.is_file() else b""

    def retire(self, line: ChannelLine) -> None:
        path = self.channels(line) / HISTORY
        if path.is_file():
            path.rename(path.with_suffix(".migrated"))

    def classes(self) -> list[str]:
        """Return every class that has a build, or a history of the last release."""
        names = {path.parent.parent.name for path in self.root.glob(f"*/*/{MANIFEST}")}
        names |= {path.parent.parent.name for path in self.root.glob(f"*/channels/{HISTORY}")}
        return sorted(name for name in names if CLASS_NAME.fullmatch(name))

    def send_again(self, line: ChannelLine, digest: str) -> bool:
        from goldnode.disks.upload import copy_build

        disk = self.store.disk(digest, line.repository)
        if disk is None or self.signer is None:
            return False
        copy_build(disk, self, self.signer, [], replace=True)
        return True

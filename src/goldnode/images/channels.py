"""Channels of container images: their backends (a registry, or a store by itself), and promotion."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from goldnode.channels import promotion
from goldnode.channels.lines import ChannelLine, History
from goldnode.channels.migration import TYPE as FORMER
from goldnode.channels.promotion import ChannelPlace, LocalPlace, Move, MoveResult, local_name
from goldnode.channels.requirements import Requirement, major
from goldnode.channels.signed import Files
from goldnode.core.errors import ImageError
from goldnode.images.publish import PublishedImage, push, push_evidence
from goldnode.images.pull import CHANNELS, METADATA, TITLE, channel_files, pull_evidence
from goldnode.images.requirements import REQUIREMENTS, judge, parts
from goldnode.oci.identity import identity
from goldnode.oci.layout import (
    EMPTY,
    MANIFEST,
    Descriptor,
    Layout,
    OciImage,
    digest_of,
    read_config,
)
from goldnode.oci.registry import Registry, RegistryAddress, Repository, artifact_manifest

HISTORY = "-history"  # end of the tag of a history of the last release


class ImagePlace(ChannelPlace, Protocol):
    """A backend for channels of container images."""

    def documents(
        self, line: ChannelLine, digest: str, scratch: Layout, *, evidence: bool = True
    ) -> Layout:
        """Return a layout with the image's manifest and configuration, and with its evidence if requested."""


class ImageStorePlace(LocalPlace):
    """A store by itself, or its copy of a registry. Channels are names in its layout."""

    command = "goldnode images"

    def __init__(self, layout: Layout, name: str = "store") -> None:
        super().__init__(layout, name)
        self.layout = layout

    def pointer(self, line: ChannelLine, channel: str) -> str | None:
        return self._digest(local_name(self.name, line, channel))

    def published(self, line: ChannelLine, tag: str) -> str | None:
        return self._digest(f"{line.repository}:{tag}")

    def _digest(self, ref: str) -> str | None:
        descriptor = self.layout.refs().get(ref)
        return None if descriptor is None else descriptor.digest

    def whole(self, line: ChannelLine, digest: str) -> int:
        whole(self.layout, digest)
        return self.layout.path(digest).stat().st_size

    def documents(
        self, line: ChannelLine, digest: str, scratch: Layout, *, evidence: bool = True
    ) -> Layout:
        return self.layout


class RegistryPlace:
    """A registry.

    `layout` is the local store. A rollback to an image that is gone from the registry uploads it
    again from there.
    """

    command = "goldnode images"
    copy = False
    settles = True

    def __init__(self, where: RegistryAddress, registry: Registry, layout: Layout) -> None:
        self.where, self.registry, self.layout = where, registry, layout
        self.name = str(where)
        self._seen: dict[str, bytes] = {}  # blobs of channels by digest

    def repository(self, line: ChannelLine) -> Repository:
        """Return the repository of a line."""
        return self.registry.repository(self.where.repository(line.repository))

    def files(self) -> Files:
        target = self.registry.repository(self.where.repository(CHANNELS))
        return channel_files(target, self._seen)

    def commit(self, files: Files) -> None:
        target = self.registry.repository(self.where.repository(CHANNELS))
        with tempfile.TemporaryDirectory(prefix="goldnode-channels-") as folder:
            # OCI requires a configuration blob; for an artifact it is the empty one.
            blobs = {"": b"{}", **files}
            rows = []
            for name, data in sorted(blobs.items()):
                file = Path(folder, name or "config")
                file.write_bytes(data)
                about = ((TITLE, name),) if name else ()
                kind = METADATA if name else EMPTY
                row = Descriptor(kind, digest_of(data), len(data), about)
                target.push_blob(row, file)
                rows.append(row)
        target.put_manifest(CHANNELS, artifact_manifest(METADATA, rows[1:], {}), MANIFEST)

    def pointer(self, line: ChannelLine, channel: str) -> str | None:
        return self.repository(line).digest(line.pointer(channel))

    def point(self, line: ChannelLine, channel: str, digest: str) -> None:
        target = self.repository(line)
        manifest = target.manifest(digest)
        if manifest is None:
            raise ImageError(f"{target} has no {digest}", remedy="publish the image again")
        target.put_manifest(line.pointer(channel), manifest.data, manifest.media_type)

    def published(self, line: ChannelLine, tag: str) -> str | None:
        target = self.repository(line)
        manifest = target.manifest(tag)
        if manifest is None:
            return None
        config = manifest.document.get("config")
        data = target.read_blob(Descriptor.of(config)) if config else b"{}"
        own = identity(read_config(data, f"the configuration of {target}:{tag}"))
        if own.ref != f"{line.repository}:{tag}":
            raise ImageError(
                f"{target}:{tag} is {manifest.digest}, which is {own.text()}: the tag was moved",
                remedy="find out who did; publish the image of that name again",
            )
        return manifest.digest

    def whole(self, line: ChannelLine, digest: str) -> int:
        target = self.repository(line)
        manifest = target.manifest(digest)
        if manifest is None:
            raise ImageError(f"{target} has no {digest}", remedy="publish the image again")
        for row in (manifest.document["config"], *manifest.document["layers"]):
            blob = Descriptor.of(row)
            # -1: the registry has the blob and does not state its size.
            if target.blob_size(blob.digest) not in (blob.size, -1):
                raise ImageError(
                    f"blob {blob.digest} is not whole in {target}", remedy="publish the image again"
                )
        return len(manifest.data)

    def documents(
        self, line: ChannelLine, digest: str, scratch: Layout, *, evidence: bool = True
    ) -> Layout:
        target = self.repository(line)
        manifest = target.manifest(digest)
        if manifest is None:
            raise ImageError(f"{target} has no {digest}", remedy="publish the image again")
        if not scratch.has(digest):
            scratch.put(
                target.read_blob(Descriptor.of(manifest.document["config"])),
                manifest.document["config"]["mediaType"],
            )
            scratch.put(manifest.data, manifest.media_type)
        if evidence:
            pull_evidence(scratch, target, digest)
        return scratch

    def former(self, line: ChannelLine) -> bytes:
        manifest = self.repository(line).manifest(f"{line.name}{HISTORY}")
        if manifest is None or manifest.document.get("artifactType") != FORMER:
            return b""
        return self.repository(line).read_blob(Descriptor.of(manifest.document["layers"][0]))

    def retire(self, line: ChannelLine) -> None:
        """Leave the tag: many registries delete none, and nothing reads it any more."""

    def former_lines(self, repositories: Iterable[str]) -> list[ChannelLine]:
        """Return the lines of repositories that have a history of the last release."""
        return [
            ChannelLine(repository, tag.removesuffix(HISTORY))
            for repository in repositories
            for tag in self.registry.repository(self.where.repository(repository)).tags()
            if tag.endswith(HISTORY)
        ]

    def send_again(self, line: ChannelLine, digest: str) -> bool:
        """Upload an image from the store again, without a tag.

        Return False if the store does not have it complete.
        """
        try:
            whole(self.layout, digest)
        except ImageError:
            return False
        target, image = self.repository(line), PublishedImage("", digest)
        push(self.layout, digest, target, image)
        push_evidence(self.layout, digest, target, image)
        return True

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()  # a registry has no lock: see `goldnode.channels.promotion`


# Completeness of an image


def whole(layout: Layout, digest: str) -> None:
    """Raise ImageError if an image of the store lacks a blob, or if a blob is altered. Reads every byte."""
    if not layout.has(digest):
        raise ImageError(
            f"{digest} is not in {layout.root}",
            remedy="pull it where the registry can be reached: goldnode images pull",
        )
    image = OciImage(layout, digest)
    for row in (Descriptor.of(image.manifest["config"]), *image.layers):
        if not layout.has(row.digest):
            raise ImageError(
                f"blob {row.digest} of {digest} is not in {layout.root}",
                remedy="pull the image again",
            )
        layout.read(row.digest)


# Promotion


def promote(place: ImagePlace, layout: Layout, move: Move) -> MoveResult:
    """Point a channel to the container image with an immutable tag; see `goldnode.channels.promotion.promote`."""

    def judging(
        history: History, digest: str, against: str | None
    ) -> tuple[list[Requirement], list[str]]:
        with _scratch() as scratch:
            documents = place.documents(move.line, digest, Layout(Path(scratch)))
            # Without the channel's current image, major versions cannot be compared. Each of them
            # then needs an approval, as if it had changed.
            lost = ""
            if against is not None:
                try:
                    documents = place.documents(move.line, against, documents, evidence=False)
                    OciImage(documents, against)
                except ImageError as problem:
                    against, lost = None, problem.message
            results = judge(move.channel, documents, digest, move.decisions(history), against)
            if lost and any(result.name == "majors" for result in results):
                results = [result for result in results if result.name != "majors"]
                why = "whether {} has another major version cannot be determined: " + lost
                approvals = move.given.approvals
                results += [
                    major(part, why.format(part), approvals) for part in REQUIREMENTS.majors
                ]
            return results, _differences(documents, against, digest)

    return promotion.promote(place, layout, move, judging)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory for the documents of an image, in memory if possible."""
    memory = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a private directory there, as anywhere
    return tempfile.TemporaryDirectory(
        prefix="goldnode-judge-", dir=memory if os.access(memory, os.W_OK) else None
    )


def _differences(layout: Layout, before: str | None, after: str) -> list[str]:
    """Return the changes between two images, by the parts in their labels."""
    if before is None or before == after:
        return []
    old, new = parts(OciImage(layout, before)), parts(OciImage(layout, after))
    return [
        f"{name}: {old.get(name, 'none')} to {new.get(name, 'none')}"
        for name in sorted(old | new)
        if old.get(name) != new.get(name)
    ]

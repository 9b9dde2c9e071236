"""A signed channel that nodes follow: the rollouts, freezes and denials of the store, published with TUF.

    CHANNEL/metadata/     signed metadata (`goldnode.channels.updates`)
    CHANNEL/targets/      CLASS.json (`goldnode.documents.channel`), and the program that writes disk images
    CHANNEL/images/       root file systems of disk builds; CLASS.json has their sizes and digests

Any web server can serve the directory. All of it follows from the store, except the images: those
are carried over from what the same key has signed before.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, or_, select

from goldnode.channels import updates
from goldnode.channels.updates import RootKeys, RootState, UpdateError
from goldnode.core import program_file
from goldnode.core.errors import GoldnodeError
from goldnode.core.extras import require
from goldnode.documents.channel import (
    ChannelDocument,
    ChannelFreeze,
    ChannelImage,
    ChannelRollout,
    ChannelTarget,
    ChannelWave,
)
from goldnode.evidence.signatures import EnvelopeSigner, load_signer
from goldnode.fleet.control.channel_keys import DAYS, ROTATE, ChannelKeys
from goldnode.fleet.nodes.disk_update import UpdateImage, send
from goldnode.fleet.rollout.document import loads
from goldnode.fleet.rollout.model import Action
from goldnode.fleet.store import tables
from goldnode.fleet.store.database import StoreDatabase

LOGGER = logging.getLogger("goldnode.rollout")
PROGRAM = (
    "goldnode-node"  # name of the target with the node program, which has the writer of disk images
)
KEPT = 32  # versions of the metadata that stay
RETRY = 10.0  # seconds after a publication that failed
_PUBLISHED = ("running", "rolling-back", "completed", "rolled-back")


# Documents


def documents(
    connection: Connection, images: Mapping[str, ChannelImage]
) -> dict[str, ChannelDocument]:
    """Return the document of each class of the store. An image is in the document of its class."""
    classes = connection.scalars(
        select(tables.node.c["class"]).where(~tables.node.c.retired).distinct()
    )
    return {name: _document(connection, name, images) for name in sorted(classes)}


def _document(
    connection: Connection, node_class: str, images: Mapping[str, ChannelImage]
) -> ChannelDocument:
    rollout = _rollout(connection, node_class)
    denied = connection.execute(
        select(tables.denied.c.digest, tables.denied.c.reason).where(
            tables.denied.c["class"] == node_class, tables.denied.c.lifted_at.is_(None)
        )
    )
    own = {build: image for build, image in images.items() if image.header["class"] == node_class}
    return ChannelDocument.model_validate(
        {
            "class": node_class,
            "rollout": rollout,
            "frozen": list(_frozen(connection, node_class, rollout.name if rollout else "")),
            "denied": {row.digest: row.reason for row in denied},
            "images": own,
            "schema": "goldnode.channel/1",
        }
    )


def _rollout(connection: Connection, node_class: str) -> ChannelRollout | None:
    """Return the active rollout of a class, otherwise the last one that ended: its deferred nodes converge late."""
    table = tables.rollout
    row = connection.execute(
        select(table)
        .where(table.c["class"] == node_class, table.c.phase.in_(_PUBLISHED))
        .order_by(
            table.c.ended_at.is_(None).desc(), table.c.ended_at.desc(), table.c.submitted_at.desc()
        )
        .limit(1)
    ).first()
    if row is None:
        return None
    document = loads(row.document, f"rollout {row.name}").document
    starts = _starts(connection, row.name)
    members: dict[int, list[str]] = {}
    for name, wave in connection.execute(
        select(tables.member.c.node, tables.member.c.wave)
        .where(tables.member.c.rollout == row.name)
        .order_by(tables.member.c.node)
    ):
        members.setdefault(wave, []).append(name)
    step = tables.step
    back = connection.execute(
        select(step.c.node, step.c.target).where(
            step.c.rollout == row.name,
            step.c.direction == "back",
            step.c.phase.in_(("granted", "applying")),
        )
    )
    return ChannelRollout(
        name=row.name,
        phase=row.phase,
        origin=document.from_.digest,
        to=ChannelTarget(kind="lock" if document.to.lock else "disk", digest=document.to.digest),
        waves=[
            ChannelWave(
                name=wave.name, start=_moment(starts.get(number)), nodes=members.get(number, [])
            )
            for number, wave in enumerate(document.waves)
        ],
        back={row.node: row.target for row in back},
    )


def _starts(connection: Connection, rollout: str) -> dict[int, float]:
    """Return when the controller began each wave."""
    log = tables.log
    rows = connection.execute(
        select(log.c.at, log.c.content)
        .where(log.c.rollout == rollout, log.c.action.in_(("Start", "Promote")))
        .order_by(log.c.seq)
    )
    starts: dict[int, float] = {}
    for at, content in rows:
        starts.setdefault(json.loads(content).get("wave", 0), at)
    return starts


def _frozen(connection: Connection, node_class: str, rollout: str) -> Iterator[ChannelFreeze]:
    frozen, node = tables.frozen, tables.node
    rows = connection.execute(
        select(frozen)
        .where(
            frozen.c.lifted_at.is_(None),
            or_(
                frozen.c.scope.in_(("all", "rack")),
                (frozen.c.scope == "class") & (frozen.c.subject == node_class),
                (frozen.c.scope == "rollout") & (frozen.c.subject == rollout),
            ),
        )
        .order_by(frozen.c.at, frozen.c.id)
    )
    for row in rows:
        names = None
        if row.scope == "rack":
            of_rack = select(node.c.name).where(
                node.c["class"] == node_class, node.c.rack == row.subject, ~node.c.retired
            )
            names = sorted(connection.scalars(of_rack))
            if not names:
                continue
        yield ChannelFreeze(nodes=names, reason=row.reason, who=row.who)


def _moment(at: float | None) -> str | None:
    if at is None:
        return None
    return dt.datetime.fromtimestamp(int(at), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Images


def add_image(channel: Path, image: UpdateImage) -> ChannelImage:
    """Write the root file system of a disk build below the channel. Return its description, to be signed."""
    build = image.disk.build_id
    folder = channel / "images"
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{build}.new"
    packed = sha256()
    try:
        with fresh.open("wb") as out:

            def write(data: bytes) -> None:
                packed.update(data)
                out.write(data)

            send(image.raw, image.start, image.first, _without_header(write))
        size, digest = fresh.stat().st_size, packed.hexdigest()
        path = f"images/{build}-{digest[:16]}.root.gz"
        fresh.replace(channel / path)
    finally:
        fresh.unlink(missing_ok=True)
    return ChannelImage(path=path, size=size, sha256=digest, header=dict(image.first))


def _without_header(write: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a writer that leaves out the header line of the stream: the signed document has it."""
    begun = False

    def rest(data: bytes) -> None:
        nonlocal begun
        if begun:
            write(data)
        begun = True

    return rest


# ChannelPublication


@dataclass(frozen=True)
class ChannelPublication:
    """A publication: its version, and whether it is a new one."""

    version: int
    changed: bool
    root: RootState
    images: tuple[str, ...] = ()


@dataclass
class ChannelPublisher:
    """Publishes a store to a channel. Any number of publishers of one store may share the channel."""

    store: StoreDatabase
    channel: Path
    keys: ChannelKeys
    days: int = DAYS
    clock: Callable[[], float] = time.time
    _seen: int = field(default=-1, init=False)  # last line of the log that was published
    _again: float = field(default=0.0, init=False)  # when signatures have to be renewed
    _not_before: float = field(default=0.0, init=False)
    _warned: float = field(default=-1.0, init=False)  # the day of the last warning

    def __call__(self, actions: Sequence[Action] = ()) -> None:
        """Publish if the log has grown, or if the signatures are half as old as they may get.

        A failure is logged and tried again: nodes then see the state before, and the controller
        goes on.
        """
        now = self.clock()
        if 0 < self._not_before - now <= RETRY:  # not longer, where the clock was set back
            return
        try:
            with self.store.read() as connection:
                last = connection.scalar(select(func.max(tables.log.c.seq))) or 0
            if last != self._seen or now >= self._again:
                self._warn(self.publish().root)
                self._seen = last
        except (GoldnodeError, OSError) as problem:
            self._not_before = now + RETRY
            LOGGER.error("the channel %s is not up to date: %s", self.channel, problem)

    def _warn(self, root: RootState) -> None:
        """Log once a day that the root expires."""
        warning, day = root.warning(f"{ROTATE} {self.channel}", self._now()), self.clock() // 86400
        if warning and day != self._warned:
            LOGGER.warning("%s", warning)
            self._warned = day

    def publish(self, images: Sequence[UpdateImage] = ()) -> ChannelPublication:
        """Publish the state of the store, and these images with it. Raises UpdateError."""
        require("updates")
        online = [load_signer(path) for path in self.keys.keys]
        with self._alone():
            root = self._root(online)
            before = updates.published(self.channel, online)
            known = _images(before.files if before else {})
            known.update({image.disk.build_id: add_image(self.channel, image) for image in images})
            with self.store.read() as connection:
                publication = documents(connection, known)
            files = {f"{name}.json": _bytes(document) for name, document in publication.items()}
            if not files:
                raise UpdateError(
                    "the store has no nodes: there is nothing to follow",
                    remedy="add them: `goldnode fleet nodes FILE`",
                )
            if known:
                files[PROGRAM] = program_file.build(writer=True)
            same = before is not None and before.files == files and self._fresh(before.expires)
            version = before.version if same and before else self._write(files, online)
            self._again = self.clock() + self.days * 86400 / 2
            return ChannelPublication(version, not same, root, tuple(sorted(known)))

    def _write(self, files: Mapping[str, bytes], online: Sequence[EnvelopeSigner]) -> int:
        version = updates.publish(self.channel, files, online, self.days)
        updates.prune(self.channel, KEPT)
        return version

    def _root(self, online: Sequence[EnvelopeSigner]) -> RootState:
        """Return the newest root; create the first one. Raises UpdateError for one that has expired."""
        if updates.newest_root(self.channel) is None:
            if not self.keys.root_keys:
                raise UpdateError(
                    f"{self.channel} has no root document",
                    remedy="give the keys of its root with --root-key: `goldnode rollout publish`",
                )
            keys = [load_signer(path) for path in self.keys.root_keys]
            updates.create(self.channel, RootKeys(keys, self.keys.threshold), online)
        return updates.root_state(self.channel, f"{ROTATE} {self.channel}", self._now())

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.clock(), dt.UTC)

    def _fresh(self, expires: dt.datetime) -> bool:
        return expires.timestamp() - self.clock() > self.days * 86400 / 2

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for other publishers of this machine: one version has one content."""
        self.channel.mkdir(parents=True, exist_ok=True)
        with (self.channel / ".lock").open("a") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield


def publisher(
    store: StoreDatabase, channel: Path, keys: ChannelKeys, days: int = DAYS
) -> Callable[[Sequence[Action]], None]:
    """Return a callback for `ControllerParts.written`."""
    return ChannelPublisher(store, channel, keys, days)


def _images(files: Mapping[str, bytes]) -> dict[str, ChannelImage]:
    images: dict[str, ChannelImage] = {}
    for name, data in files.items():
        if name.endswith(".json"):
            images.update(ChannelDocument.model_validate_json(data).images)
    return images


def _bytes(document: ChannelDocument) -> bytes:
    content: dict[str, Any] = document.model_dump(mode="json", by_alias=True)
    return (json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n").encode()

"""A signed channel that nodes follow: the rollouts, freezes and denials of the store, published with TUF.

    CHANNEL/metadata/                       signed metadata (`goldnode.channels.updates`)
    CHANNEL/targets/states/CLASS/           states that nodes may have, one file per lock or disk build
    CHANNEL/targets/images/CLASS/           root file systems of disk builds; the header of each is its `custom`
    CHANNEL/targets/goldnode-node           the program that writes disk images
    CHANNEL/targets/orders/CLASS.json       what the nodes of a class may do now (`goldnode.documents.channel`)

Any web server can serve the directory. Two kinds of keys sign it. The keys of `targets` are offline and sign a
*release*: states, images and the program, and who may sign the rest. The key of the role `orders` is that of
the controller: it begins waves, freezes, denies and goes back, among the states that are released.

For nodes of the last version, which read no delegated roles, a release also has CLASS.json with the orders of its
time, and CHANNEL/images/ has links to the images.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, or_, select

from goldnode.channels import updates
from goldnode.channels.keys import RepositoryKeys, publics, signers
from goldnode.channels.updates import TARGETS, DelegatedPaths, RootState, UpdateError
from goldnode.core import program_file
from goldnode.core.errors import GoldnodeError
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.core.extras import require
from goldnode.documents.channel import (
    ChannelDocument,
    ChannelFreeze,
    ChannelImage,
    ChannelRollout,
    ChannelTarget,
    ChannelWave,
)
from goldnode.evidence.signatures import KeyPlace
from goldnode.fleet.control.channel_keys import DAYS, ROTATE
from goldnode.fleet.control.evidence import FollowedEvidence
from goldnode.fleet.nodes.disk_update import UpdateImage, send
from goldnode.fleet.rollout.document import loads
from goldnode.fleet.rollout.model import Action
from goldnode.fleet.store import tables
from goldnode.fleet.store.database import StoreDatabase

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata, TargetFile, Targets

LOGGER = logging.getLogger("goldnode.rollout")
PROGRAM = (
    "goldnode-node"  # name of the target with the node program, which has the writer of disk images
)
ORDERS = "orders"  # the role of the controller
KEPT = 32  # versions of the metadata that stay
RETRY = 10.0  # seconds after a publication that failed
_PUBLISHED = ("running", "rolling-back", "completed", "rolled-back")


# Documents


def documents(
    connection: Connection,
    images: Mapping[str, Mapping[str, ChannelImage]],
    evidence: FollowedEvidence | None = None,
) -> dict[str, ChannelDocument]:
    """Return the document of each class of the store, with the images and the evidence of each class."""
    classes = connection.scalars(
        select(tables.node.c["class"]).where(~tables.node.c.retired).distinct()
    )
    return {
        name: _document(connection, name, images.get(name, {}), evidence)
        for name in sorted(classes)
    }


def _document(
    connection: Connection,
    node_class: str,
    images: Mapping[str, ChannelImage],
    evidence: FollowedEvidence | None,
) -> ChannelDocument:
    rollout = _rollout(connection, node_class)
    proofs: Mapping[EvidenceKind, Any] = {}
    if rollout is not None and evidence is not None:
        proofs = evidence.of_state(node_class, rollout.to.kind, rollout.to.digest)
    denied = connection.execute(
        select(tables.denied.c.digest, tables.denied.c.reason).where(
            tables.denied.c["class"] == node_class, tables.denied.c.lifted_at.is_(None)
        )
    )
    return ChannelDocument.model_validate(
        {
            "class": node_class,
            "rollout": rollout,
            "frozen": list(_frozen(connection, node_class, rollout.name if rollout else "")),
            "denied": {row.digest: row.reason for row in denied},
            "images": dict(images),
            "evidence": dict(proofs),
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


def add_image(channel: Path, release: Targets, image: UpdateImage) -> None:
    """Write the root file system of a disk build below the channel, and describe it in a release."""
    node_class, build = image.disk.class_, image.disk.build_id
    folder = channel / "targets"
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{build}.new"
    try:
        with fresh.open("wb") as out:
            send(image.raw, image.start, image.first, _without_header(out.write))
        name = f"images/{node_class}/{build}.root.gz"
        updates.add_file(channel, release, name, fresh, {"header": dict(image.first)})
    finally:
        fresh.unlink(missing_ok=True)


def _state_of(name: str) -> tuple[str, str]:
    """Return class and digest of a released image."""
    _, node_class, file = name.split("/")
    return node_class, file.removesuffix(".root.gz")


def _linked(channel: Path, images: Mapping[str, TargetFile]) -> dict[str, dict[str, ChannelImage]]:
    """Link images where nodes of the last version read them, and remove other links. Return them by class and build."""
    folder = channel / "images"
    linked: dict[str, dict[str, ChannelImage]] = {}
    named = set()
    for name, target in images.items():
        node_class, build = _state_of(name)
        digest = target.hashes["sha256"]
        path = folder / f"{build}-{digest[:16]}.root.gz"
        named.add(path.name)
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.hardlink_to(updates.stored_file(channel, target))
        header = target.unrecognized_fields["custom"]["header"]
        linked.setdefault(node_class, {})[build] = ChannelImage(
            path=f"images/{path.name}", size=target.length, sha256=digest, header=header
        )
    for path in folder.glob("*"):
        if path.name not in named:
            path.unlink()
    return linked


def _without_header(write: Callable[[bytes], Any]) -> Callable[[bytes], None]:
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
class ChannelKeys(RepositoryKeys):
    """Keys of a channel. `orders` sign what the nodes may do now; without them those of the refresh do."""

    orders: Sequence[KeyPlace] = ()


@dataclass(frozen=True)
class ChannelRelease:
    """Additions of a release to the present one: images, and the roles that it delegates paths to (None: as before).

    `role` is who releases: `targets`, or a role that `targets` delegates to, which releases images alone.
    """

    images: Sequence[UpdateImage] = ()
    delegated: Sequence[DelegatedPaths] | None = None
    role: str = TARGETS
    days: int = updates.RELEASE_DAYS


@dataclass(frozen=True)
class ChannelPublication:
    """A publication: its version, and whether it is a new one."""

    version: int
    changed: bool
    root: RootState
    images: tuple[str, ...] = ()
    release_expires: dt.datetime | None = None

    def warnings(self, channel: Path, now: dt.datetime | None = None) -> list[str]:
        """Return warnings of signatures of people that end within 30 days."""
        lines = [self.root.warning(f"{ROTATE} {channel}", now)]
        left = (self.release_expires or self.root.expires) - (now or dt.datetime.now(dt.UTC))
        if left <= updates.WARNED:
            lines.append(
                f"warning: the release of {channel} expires in {max(left.days, 0)} days, and nothing is trusted after "
                "that. Sign it again: `goldnode rollout publish --targets-key`."
            )
        return [line for line in lines if line]


@dataclass
class ChannelPublisher:
    """Publishes a store to a channel. Any number of publishers of one store may share the channel."""

    store: StoreDatabase
    channel: Path
    keys: ChannelKeys
    days: int = DAYS
    clock: Callable[[], float] = time.time
    evidence: FollowedEvidence | None = None
    # Last line of the log that was published, and the state of the evidence
    _seen: tuple[int, tuple[int, ...]] = field(default=(-1, ()), init=False)
    _again: float = field(default=0.0, init=False)  # when signatures have to be renewed
    _not_before: float = field(default=0.0, init=False)
    _warned: float = field(default=-1.0, init=False)  # the day of the last warning

    def __call__(self, actions: Sequence[Action] = ()) -> None:
        """Publish if the log or the evidence has grown, or if the signatures are half as old as they may get.

        A failure is logged and tried again: nodes then see the state before, and the controller
        goes on.
        """
        now = self.clock()
        if 0 < self._not_before - now <= RETRY:  # not longer, where the clock was set back
            return
        try:
            with self.store.read() as connection:
                line = connection.scalar(select(func.max(tables.log.c.seq))) or 0
            last = (line, self.evidence.changed() if self.evidence is not None else ())
            if last != self._seen or now >= self._again:
                self._warn(self.publish())
                self._seen = last
        except (GoldnodeError, OSError) as problem:
            self._not_before = now + RETRY
            LOGGER.error("the channel %s is not up to date: %s", self.channel, problem)

    def _warn(self, publication: ChannelPublication) -> None:
        """Log once a day that the root or the release expires."""
        warnings, day = publication.warnings(self.channel, self._now()), self.clock() // 86400
        if warnings and day != self._warned:
            LOGGER.warning("%s", "\n".join(warnings))
            self._warned = day

    def publish(self, release: ChannelRelease | None = None) -> ChannelPublication:
        """Publish the orders of the store, after a release if one is given. Raises UpdateError."""
        require("updates")
        if release is not None:
            document = updates.sign(self.prepare(release), signers(self.keys.targets))
            return self.publish_signed(document, release.role)
        with self._alone():
            return self._publish(False)

    def publish_signed(
        self, document: Metadata[Targets], role: str = TARGETS
    ) -> ChannelPublication:
        """Publish a release that was signed elsewhere, and the orders of the store. Raises UpdateError."""
        with self._alone():
            self._root()
            updates.accept(self.channel, role, document)
            return self._publish(True)

    def _publish(self, released: bool) -> ChannelPublication:
        root = self._root()
        given = self._orders()
        stamp = updates.newest(self.channel, updates.TIMESTAMP)
        changed = released or given or stamp is None or not self._fresh(stamp.signed.expires)
        if changed or stamp is None:
            version = updates.refresh(self.channel, signers(self.keys.online), self.days)
            updates.prune(self.channel, KEPT)
        else:
            version = stamp.signed.version
        self._again = self.clock() + self.days * 86400 / 2
        release = updates.released(self.channel)
        images = tuple(sorted(_state_of(name)[1] for name in released_images(self.channel)))
        expires = release.expires if release is not None else None
        return ChannelPublication(version, changed, root, images, expires)

    def prepare(self, wanted: ChannelRelease) -> Metadata[Targets]:
        """Write the files of a release, and return the release without signatures. Raises UpdateError."""
        require("updates")
        with self._alone():
            self.keys.create(self.channel)
            self._root()
            document = updates.next_release(self.channel, wanted.role, wanted.days)
            release = document.signed
            for image in wanted.images:
                add_image(self.channel, release, image)
            if wanted.role != TARGETS:
                return document
            with self.store.read() as connection:
                self._states(connection, release)
                images = {**released_images(self.channel), **release.targets}
                images = {name: one for name, one in images.items() if _is_image(name, one)}
                linked = _linked(self.channel, images)
                for name, content in documents(connection, linked, self.evidence).items():
                    updates.add_file(self.channel, release, f"{name}.json", _bytes(content))
            teams = self._delegate(release, wanted)
            if images or teams:  # a team may release images
                program = program_file.build(writer=True)
                updates.add_file(self.channel, release, PROGRAM, program)
            return document

    def _states(self, connection: Connection, release: Targets) -> None:
        """ChannelRelease the states that nodes have or may get; what is denied is no longer released."""
        allowed, denied = states(connection)
        kept = {
            name: target
            for name, target in release.targets.items()
            if _is_image(name, target) and _state_of(name) not in denied
        }
        release.targets = kept
        for node_class, digest in sorted(allowed - denied):
            updates.add_file(self.channel, release, f"states/{node_class}/{digest}", b"\n")

    def _delegate(self, release: Targets, wanted: ChannelRelease) -> list[DelegatedPaths]:
        """Delegate the orders to the controller, and images to teams. Return the teams."""
        present: list[DelegatedPaths] = []
        if wanted.delegated is not None:
            present = list(wanted.delegated)
        elif release.delegations is not None:
            present = [
                DelegatedPaths(
                    name,
                    keys=[release.delegations.keys[keyid] for keyid in role.keyids],
                    paths=role.paths or (),
                    threshold=role.threshold,
                )
                for name, role in (release.delegations.roles or {}).items()
                if name != ORDERS
            ]
        own = DelegatedPaths(ORDERS, publics(self.keys.orders or self.keys.online), ["orders/*"])
        updates.delegate(release, [own, *present])
        return present

    def _orders(self) -> bool:
        """Sign the orders of the store if they have changed, or were signed long ago. Return whether they were."""
        with self.store.read() as connection:
            contents = documents(connection, {}, self.evidence)
        if not contents:
            raise UpdateError(
                "the store has no nodes: there is nothing to follow",
                remedy="add them: `goldnode fleet nodes FILE`",
            )
        for node_class, content in contents.items():
            rollout = content.rollout
            if rollout and not is_released(self.channel, node_class, rollout.to.digest):
                raise not_released(self.channel, node_class, rollout.to.digest)
        document = updates.next_release(self.channel, ORDERS, self.days)
        before, document.signed.targets = document.signed.targets, {}
        for node_class, content in contents.items():
            name = f"orders/{node_class}.json"
            updates.add_file(self.channel, document.signed, name, _bytes(content))
        present = updates.newest(self.channel, ORDERS)
        fresh = present is not None and self._fresh(present.signed.expires)
        if fresh and before == document.signed.targets:
            return False
        updates.sign(document, signers(self.keys.orders or self.keys.online))
        updates.accept(self.channel, ORDERS, document)
        return True

    def _root(self) -> RootState:
        """Return the newest root. Raises UpdateError without one, and for one that has expired."""
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
    store: StoreDatabase,
    channel: Path,
    keys: ChannelKeys,
    days: int = DAYS,
    evidence: FollowedEvidence | None = None,
) -> Callable[[Sequence[Action]], None]:
    """Return a callback for `ControllerParts.written`."""
    return ChannelPublisher(store, channel, keys, days, evidence=evidence)


# Released states


def states(connection: Connection) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the states that nodes have, or that a rollout may move them to, and those that are denied."""
    node, rollout, denied = tables.node, tables.rollout, tables.denied
    rows = connection.execute(select(node.c["class"], node.c.digest).where(~node.c.retired))
    allowed = {(node_class, digest) for node_class, digest in rows if digest is not None}
    # The last one that has ended too: its deferred nodes converge late.
    last = select(rollout.c["class"], rollout.c.document).order_by(rollout.c.ended_at.desc())
    ended: set[str] = set()
    for node_class, text in connection.execute(last.where(rollout.c.ended_at.is_not(None))):
        if node_class not in ended:
            allowed |= _ends_of(node_class, text)
        ended.add(node_class)
    for node_class, text in connection.execute(last.where(rollout.c.ended_at.is_(None))):
        allowed |= _ends_of(node_class, text)
    rows = connection.execute(
        select(denied.c["class"], denied.c.digest).where(denied.c.lifted_at.is_(None))
    )
    return allowed, {(node_class, digest) for node_class, digest in rows}


def _ends_of(node_class: str, text: str) -> set[tuple[str, str]]:
    document = loads(text, f"a rollout of {node_class}").document
    return {(node_class, document.to.digest), (node_class, document.from_.digest)}


def is_released(channel: Path, node_class: str, digest: str) -> bool:
    """Return whether the keys of targets, or those that they delegate to, have released a state."""
    names = (f"states/{node_class}/{digest}", f"images/{node_class}/{digest}.root.gz")
    return any(name in names for name, _ in _released_files(channel))


def not_released(channel: Path, node_class: str, digest: str) -> UpdateError:
    """Return the error for a state that nodes would refuse."""
    return UpdateError(
        f"{digest} of class {node_class} is not released: nodes refuse it",
        file=channel,
        remedy=f"release it with the keys of targets: `goldnode rollout publish ROLLOUT --channel {channel} --targets-key "
        "FILE --key FILE`, for a disk with --image",
    )


def released_images(channel: Path) -> dict[str, TargetFile]:
    """Return the images that are released, by their names in the channel."""
    return {name: target for name, target in _released_files(channel) if _is_image(name, target)}


def _is_image(name: str, target: TargetFile) -> bool:
    """Return whether a file is the image of a disk build. A team may list others, which no node takes."""
    custom = target.unrecognized_fields.get("custom")
    return (
        name.startswith("images/")
        and name.endswith(".root.gz")
        and name.count("/") == 2
        and isinstance(custom, dict)
        and isinstance(custom.get("header"), dict)
    )


def _released_files(channel: Path) -> Iterator[tuple[str, TargetFile]]:
    """Yield the files of `targets`, and those that delegated roles may describe."""
    top = updates.released(channel)
    if top is None:
        return
    yield from top.targets.items()
    roles = top.delegations.roles if top.delegations is not None else None
    for name, role in (roles or {}).items():
        release = updates.released(channel, name)
        for path, target in release.targets.items() if release is not None else ():
            if role.is_delegated_path(path):
                yield path, target


def _bytes(document: ChannelDocument) -> bytes:
    content: dict[str, Any] = document.model_dump(mode="json", by_alias=True)
    return (json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n").encode()

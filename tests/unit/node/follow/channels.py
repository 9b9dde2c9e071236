"""Repositories of TUF for tests, made with python-tuf, and python-tuf's own client for comparison."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import Updater, UpdaterConfig

from goldnode.channels.updates import fetcher_of
from goldnode.node.follow.repository import ChannelSource
from goldnode.node.follow.trust import Trusted, Verifier
from goldnode.node.ground.host import Host

NOW = dt.datetime.now(tz=dt.UTC).replace(microsecond=0)
YEAR = NOW + dt.timedelta(days=365)
PAST = NOW - dt.timedelta(days=1)
ROLES = ("root", "timestamp", "snapshot", "targets")
ED25519 = [CryptoSigner.generate_ed25519() for _ in range(6)]
ECDSA = CryptoSigner.generate_ecdsa()


@dataclass
class Channel:
    """A repository in a directory. Keys and versions may be changed before `write`."""

    place: Path
    consistent: bool = True
    root: Root = field(init=False)
    keys: dict[str, list[CryptoSigner]] = field(init=False)
    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 1))
    expires: dict[str, dt.datetime] = field(default_factory=lambda: dict.fromkeys(ROLES, YEAR))
    files: dict[str, bytes] = field(default_factory=lambda: {"gpu.json": b'{"rollout": "one"}'})
    hashes: bool = True

    def __post_init__(self) -> None:
        self.keys = {"root": ED25519[:2], **{key: [ED25519[2]] for key in ROLES[1:]}}
        self.write_root(threshold=2)

    def write_root(self, threshold: int = 1, also: Sequence[CryptoSigner] = ()) -> None:
        """Write the root document with the present keys, signed by them and by `also`."""
        root = Root(
            self.versions["root"], expires=self.expires["root"], consistent_snapshot=self.consistent
        )
        for role, signers in self.keys.items():
            for signer in signers:
                root.add_key(signer.public_key, role)
        root.roles["root"].threshold = threshold
        self.root = root
        self.save("root", root, [*self.keys["root"], *also])

    def save(self, role: str, signed: Any, signers: Sequence[CryptoSigner]) -> None:
        document: Metadata[Any] = Metadata(copy.deepcopy(signed))
        for signer in {id(signer): signer for signer in signers}.values():
            document.sign(signer, append=True)
        prefix = (
            f"{signed.version}."
            if role == "root" or (self.consistent and role != "timestamp")
            else ""
        )
        path = self.place / "metadata" / f"{prefix}{role}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.to_bytes())

    def write(self, *roles: str) -> None:
        """Write targets, snapshot and timestamp, or only the named ones."""
        targets = Targets(self.versions["targets"], expires=self.expires["targets"])
        for name, data in self.files.items():
            target = TargetFile.from_data(name, data, ["sha256"])
            targets.targets[name] = target
            stored = target.get_prefixed_paths()[0] if self.consistent else name
            (self.place / "targets").mkdir(parents=True, exist_ok=True)
            (self.place / "targets" / stored).write_bytes(data)
        if not roles or "targets" in roles:
            self.save("targets", targets, self.keys["targets"])
        meta = {"targets.json": self.described("targets")}
        snapshot = Snapshot(self.versions["snapshot"], expires=self.expires["snapshot"], meta=meta)
        if not roles or "snapshot" in roles:
            self.save("snapshot", snapshot, self.keys["snapshot"])
        stamp = Timestamp(
            self.versions["timestamp"],
            expires=self.expires["timestamp"],
            snapshot_meta=self.described("snapshot"),
        )
        if not roles or "timestamp" in roles:
            self.save("timestamp", stamp, self.keys["timestamp"])

    def described(self, role: str) -> MetaFile:
        prefix = f"{self.versions[role]}." if self.consistent else ""
        path = self.place / "metadata" / f"{prefix}{role}.json"
        if not self.hashes or not path.is_file():
            return MetaFile(self.versions[role])
        return MetaFile.from_data(self.versions[role], path.read_bytes(), ["sha256"])

    def next(self, *roles: str) -> None:
        """Write the next version."""
        for role in roles or ROLES[1:]:
            self.versions[role] += 1
        self.write()

    def file(self, name: str) -> Path:
        return self.place / "metadata" / name


@dataclass
class Clients:
    """A node, and a client of python-tuf, with the same trusted root."""

    channel: Channel
    state: Path
    first: bytes = b""

    def __post_init__(self) -> None:
        self.first = self.channel.file("1.root.json").read_bytes()

    def node(self, now: dt.datetime = NOW) -> Verifier:
        host = Host(str(self.state / "node"), live=True)
        return Verifier(
            host, ChannelSource(str(self.channel.place)), "/seen", self.first, now.timestamp()
        )

    def refresh(self) -> Trusted:
        return self.node().refresh()

    def reference(self) -> None:
        """Refresh python-tuf's client. Raises its RepositoryError."""
        folder = self.state / "reference"
        folder.mkdir(parents=True, exist_ok=True)
        root = folder / "root.json"
        updater = Updater(
            str(folder),
            "metadata/",
            str(folder),
            "targets/",
            fetcher_of(str(self.channel.place)),
            UpdaterConfig(max_root_rotations=256),
            bootstrap=root.read_bytes() if root.is_file() else self.first,
        )
        updater.refresh()

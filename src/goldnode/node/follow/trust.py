"""Verification of a channel: the client of The Update Framework (TUF 1.0, section 5), without any library.

Root documents name the keys of all roles and how many must sign. A node starts from one of a trusted place and
follows each next root that the keys of both have signed. The newest verified metadata stays on the node:
nothing older is accepted later, and an expired document is refused. A target is searched for as TUF does: in `targets`,
then in the roles that it delegates the name to, depth first. Roles with hashed names in bins (TAP 15) are refused.

A document is stored only after it was verified, so a run that is cut off at any point continues.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re

from ..ground import boot, signature
from ..ground.errors import NodeError
from ..ground.host import Host, Json
from ..ground.json_lines import as_dict
from ..ground.typed import NamedTuple
from . import canonical
from .repository import ChannelSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Optional

ROOT, TIMESTAMP, SNAPSHOT, TARGETS = "root", "timestamp", "snapshot", "targets"
# Bytes of one document, and roots that are followed in one run.
LIMITS = {ROOT: 512_000, TIMESTAMP: 16_384, SNAPSHOT: 2_000_000, TARGETS: 5_000_000}
ROTATIONS = 256  # root documents that are followed in one update
DELEGATIONS = 32  # delegated roles that are read to find one target
LARGEST = 16 << 20  # bytes of one target that is read as a whole
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
# Stricter than TUF: a name is part of a path on the node.
_ROLE = re.compile(r"[0-9A-Za-z_-]{1,64}")


class ChannelRefusedError(NodeError):
    """The channel is not trusted. Nothing of it is used."""


class ChannelExpiredError(ChannelRefusedError):
    """A document is too old."""


class Trusted(NamedTuple):
    """A verified channel: its documents, and the time at which its timestamp expires."""

    root: Json
    snapshot: Json
    targets: Json
    version: int
    expires: str

    def path_of(self, name: str, info: Json) -> str:
        """Return where the channel has a target: with a digest in front, if its root wants that."""
        folder, _, base = name.rpartition("/")
        if self.root.get("consistent_snapshot") is True:
            base = f"{next(iter(info['hashes'].values()))}.{base}"
        return f"targets/{folder}/{base}" if folder else f"targets/{base}"


class Verifier(NamedTuple):
    """The client of one channel on one node.

    `folder` is the node's directory with the metadata seen before, `first` the root document of a trusted place, and
    `now` the time in seconds since the epoch.
    """

    host: Host
    repository: ChannelSource
    folder: str
    first: bytes
    now: float

    def refresh(self) -> Trusted:
        """Verify the newest state of the channel and return it. Raises ChannelRefusedError, or ChannelAwayError."""
        root = self._newest_root()
        stamp = self._timestamp(root)
        snapshot = self._next(SNAPSHOT, root, stamp, root)
        targets = self._next(TARGETS, root, snapshot, root)
        return Trusted(root, snapshot, targets, stamp["version"], stamp["expires"])

    def find(self, trusted: Trusted, name: str) -> Optional[Json]:
        """Return the description of a target: that of the first role, in TUF's order, which has it."""
        todo, seen = [(TARGETS, trusted.root)], set()  # type: ignore[var-annotated]
        while todo and len(seen) <= DELEGATIONS:
            role, delegator = todo.pop()
            if role in seen:
                continue
            seen.add(role)
            signed = trusted.targets
            if role != TARGETS:
                signed = self._next(role, delegator, trusted.snapshot, trusted.root)
            if name in signed["targets"]:
                return signed["targets"][name]  # type: ignore[no-any-return]
            further = []
            for row in (signed.get("delegations") or {}).get("roles") or ():
                if _is_delegated(row, name):
                    further.append((row["name"], signed["delegations"]))
                    if row["terminating"]:
                        todo = []
                        break
            todo += reversed(further)
        return None

    def target(self, trusted: Trusted, name: str) -> Optional[bytes]:
        """Return the content of a target; None if the channel has none of this name."""
        info = self.find(trusted, name)
        if info is None:
            return None
        if info["length"] > LARGEST:
            raise ChannelRefusedError(
                f"{name} has {info['length']} bytes, more than {LARGEST}: refused."
            )
        data = self.repository.document(trusted.path_of(name, info), info["length"])
        if data is None:
            raise ChannelRefusedError(
                f"{self.repository.source} has no {name}, which its targets list."
            )
        _whole(data, info, name)
        return data

    # Roles, in the order of TUF's workflow

    def _newest_root(self) -> Json:
        trusted = self._first_root()
        for _ in range(ROTATIONS):
            name = f"metadata/{trusted['version'] + 1}.{ROOT}.json"
            data = self.repository.document(name, LIMITS[ROOT])
            if data is None:
                break
            # The keys of the present root and those of the new one have to sign it.
            following = _own_root(data)
            _verified(data, ROOT, trusted)
            if following["version"] != trusted["version"] + 1:
                raise ChannelRefusedError(f"{name} has version {following['version']}: refused.")
            self._store(ROOT, data)
            trusted = following
        self._current(trusted, ROOT)
        return trusted

    def _first_root(self) -> Json:
        """Return the root to start from: the newest of the one seen before and the one of the trusted place."""
        given = _own_root(self.first)
        try:
            seen = _own_root(self._stored(ROOT))
        except ChannelRefusedError:  # none, or damaged: the way from the given root is the same
            return given
        return seen if seen["version"] >= given["version"] else given

    def _timestamp(self, root: Json) -> Json:
        before = self._before(TIMESTAMP, root)
        data = self._fetched(TIMESTAMP, f"metadata/{TIMESTAMP}.json", LIMITS[TIMESTAMP])
        stamp = _verified(data, TIMESTAMP, root)
        about = _meta(stamp, SNAPSHOT)
        if before is not None:
            if stamp["version"] < before["version"]:
                raise _older(TIMESTAMP, stamp["version"], before["version"])
            if stamp["version"] == before["version"]:
                stamp = before  # one version has one content: the one seen first
            elif about["version"] < _meta(before, SNAPSHOT)["version"]:
                raise _older(SNAPSHOT, about["version"], _meta(before, SNAPSHOT)["version"])
        self._current(stamp, TIMESTAMP)
        if stamp is not before:
            self._store(TIMESTAMP, data)
        return stamp

    def _next(self, name: str, delegator: Json, by: Json, root: Json) -> Json:
        """Return the document of a role that another document names, and store it."""
        about, fetched = _meta(by, name), None

        def read(data: bytes) -> Json:
            _whole(data, about, name)
            document = _verified(data, name, delegator)
            if document["version"] != about["version"]:
                raise ChannelRefusedError(
                    f"{name} has version {document['version']}, and {by['_type']} names {about['version']}: refused."
                )
            return document

        try:
            document = read(self._stored(name))
        except ChannelRefusedError:  # the node has none, or another version
            consistent = root.get("consistent_snapshot") is True
            address = f"metadata/{about['version']}." if consistent else "metadata/"
            limit = about.get("length", LIMITS[_kind(name)])
            fetched = self._fetched(name, f"{address}{name}.json", limit)
            document = read(fetched)
        if name == SNAPSHOT:
            self._continues(document, root)
        self._current(document, name)
        if fetched is not None:
            self._store(name, fetched)
        return document

    def _continues(self, snapshot: Json, root: Json) -> None:
        """Raise ChannelRefusedError if a snapshot lacks a role that this node has seen, or names it in an older version."""
        before = as_dict((self._before(SNAPSHOT, root) or {}).get("meta"))
        for name, about in before.items():
            if name not in snapshot["meta"]:
                raise ChannelRefusedError(f"{SNAPSHOT} does not name {name} any more: refused.")
            now = snapshot["meta"][name]["version"]
            if now < about["version"]:
                raise _older(name, now, about["version"])

    # Files

    def _fetched(self, role: str, name: str, limit: int) -> bytes:
        data = self.repository.document(name, min(limit, LIMITS[_kind(role)]))
        if data is None:
            raise ChannelRefusedError(f"{self.repository.source} has no {name}.")
        return data

    def _before(self, role: str, root: Json) -> Optional[Json]:
        """Return the stored document of a role; None if the present keys have not signed it.

        Keys that were replaced prove nothing any more. This is also the way out of a version number that an
        attacker with a stolen key has set far ahead: a rotation of the root ends it.
        """
        try:
            return _verified(self._stored(role), role, root)
        except ChannelRefusedError:
            return None

    def _stored(self, role: str) -> bytes:
        return self.host.data(f"{self.folder}/{role}.json") or b""

    def _store(self, role: str, data: bytes) -> None:
        self.host.write(f"{self.folder}/{role}.json", data)

    def _current(self, signed: Json, role: str) -> None:
        if float(boot.seconds(signed["expires"]) or 0) > self.now:
            return
        if role == ROOT:  # publishing again does not help
            why, remedy = (
                "the next one",
                "Replace it with `goldnode rollout rotate-keys`, publish the channel again",
            )
        else:
            why, remedy = "it again", "Publish the channel again"
        raise ChannelExpiredError(
            f"{role} of {self.repository.source} has expired on {signed['expires']}: the publisher has not signed {why}, "
            f"or this is an old copy. {remedy}, and check the clock of this node."
        )


# Documents


def parsed(data: bytes, role: str) -> Json:
    """Return a document in the form of its role. Raises ChannelRefusedError."""
    try:
        document = json.loads(data.decode("utf-8"))
        signed, signatures = document["signed"], document["signatures"]
        keyids = [row["keyid"] for row in signatures]
        right = (
            signed["_type"] == _kind(role)
            and str(signed["spec_version"]).startswith("1.")
            and _number(signed["version"])
            and _TIME.fullmatch(signed["expires"]) is not None
            and all(
                isinstance(row["sig"], str) and isinstance(row["keyid"], str) for row in signatures
            )
            and len(set(keyids)) == len(keyids)
        )
        right = right and _FORMS[_kind(role)](signed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right, document = False, {}
    if not right:
        raise ChannelRefusedError(f"{role} is no metadata of TUF 1.0: refused.")
    if _kind(role) == TARGETS:
        _check_targets(document["signed"], role)
    return document  # type: ignore[no-any-return]


def _number(value: Any) -> bool:
    return type(value) is int and value >= 1


def _root_form(signed: Json) -> bool:
    return isinstance(signed["keys"], dict) and all(
        map(_role_form, map(signed["roles"].get, _FORMS))
    )


def _role_form(row: Json) -> bool:
    ids = row["keyids"]
    return _number(row["threshold"]) and isinstance(ids, list) and len(set(ids)) == len(ids)


def _meta_form(signed: Json) -> bool:
    return all(
        _number(about["version"])
        and (about.get("length") is None or _number(about["length"]))
        and isinstance(about.get("hashes") or {}, dict)
        for about in signed["meta"].values()
    )


def _targets_form(signed: Json) -> bool:
    delegations = signed.get("delegations")
    rows = [] if delegations is None else delegations["roles"]
    return (
        isinstance(signed["targets"], dict)
        and (delegations is None or isinstance(delegations["keys"], dict))
        and len({row["name"] for row in rows}) == len(rows)
        and all(_role_form(row) and _delegation_form(row) for row in rows)
    )


def _delegation_form(row: Json) -> bool:
    """Return whether a delegation has a name of its own, and either patterns of paths or prefixes of their hashes."""
    names = [row[key] for key in ("paths", "path_hash_prefixes") if row.get(key) is not None]
    return (
        row["name"] not in _FORMS
        and _ROLE.fullmatch(row["name"]) is not None
        and isinstance(row["terminating"], bool)
        and len(names) == 1
        and isinstance(names[0], list)
        and all(isinstance(name, str) for name in names[0])
    )


def _is_delegated(row: Json, name: str) -> bool:
    """Return whether a role may describe a target. A pattern matches folder by folder."""
    prefixes = row.get("path_hash_prefixes")
    if prefixes is not None:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return any(digest.startswith(prefix) for prefix in prefixes)
    parts = name.split("/")
    return any(
        len(parts) == len(pattern.split("/"))
        and all(map(fnmatch.fnmatchcase, parts, pattern.split("/")))
        for pattern in row["paths"]
    )


def _kind(role: str) -> str:
    """Return the kind of the documents of a role: delegated roles have targets."""
    return role if role in _FORMS else TARGETS


_FORMS: Mapping[str, Callable[[Json], bool]] = {
    ROOT: _root_form,
    TIMESTAMP: _meta_form,
    SNAPSHOT: _meta_form,
    TARGETS: _targets_form,
}


def _check_targets(signed: Json, role: str) -> None:
    for name, info in signed["targets"].items():
        hashes = as_dict(info).get("hashes")
        right = (
            isinstance(hashes, dict)
            and type(info.get("length")) is int
            and info["length"] >= 0
            and all(re.fullmatch("[0-9a-f]+", str(value)) for value in hashes.values())
            and ("sha256" in hashes or "sha512" in hashes)
            and not name.startswith("/")
            and not {"", ".", ".."} & set(name.split("/"))
        )
        if not right:
            raise ChannelRefusedError(
                f"{role} describes {name[:200]!r} without size and digest: refused."
            )


def _verified(data: bytes, role: str, delegator: Json) -> Json:
    """Return the signed part of a document that enough keys which a root, or delegations, name for a role have signed.

    A key counts once, also if it is listed under two ids. Raises ChannelRefusedError.
    """
    document = parsed(data, role)
    roles = delegator["roles"]
    if isinstance(roles, list):  # of delegations
        roles = {row["name"]: row for row in roles}
    about = roles[role]
    try:
        data = canonical.encoded(document["signed"])
    except ValueError as problem:
        raise ChannelRefusedError(f"{role} has no canonical form ({problem}): refused.") from None
    signatures = {row["keyid"]: row["sig"] for row in document["signatures"]}
    good = set()
    for keyid in about["keyids"]:
        key = delegator["keys"].get(keyid)
        if (
            isinstance(key, dict)
            and keyid in signatures
            and signature.verified(key, signatures[keyid], data)
        ):
            good.add(signature.public_pem(key))
        if len(good) >= about["threshold"]:
            return document["signed"]  # type: ignore[no-any-return]
    raise ChannelRefusedError(
        f"{role} has {len(good)} good signatures of the trusted keys, and needs {about['threshold']}: refused. "
        "Compare the root document of this node with the publisher's."
    )


def _own_root(data: bytes) -> Json:
    """Return the signed part of a root that enough of its own keys have signed. Raises ChannelRefusedError."""
    return _verified(data, ROOT, parsed(data, ROOT)["signed"])


def _meta(signed: Json, role: str) -> Json:
    about = signed["meta"].get(f"{role}.json")
    if not isinstance(about, dict):
        raise ChannelRefusedError(f"{signed['_type']} does not name {role}.json: refused.")
    return about


def _whole(data: bytes, about: Mapping[str, Any], name: str) -> None:
    """Raise ChannelRefusedError unless data has the length and all known digests of its description."""
    length = about.get("length")
    if length is not None and len(data) != length:
        raise ChannelRefusedError(
            f"{name} has {len(data)} bytes, and {length} were signed: refused."
        )
    for kind, want in (about.get("hashes") or {}).items():
        if kind in ("sha256", "sha512") and hashlib.new(kind, data).hexdigest() != want:
            raise ChannelRefusedError(f"{name} is not what was signed ({kind}): refused.")


def _older(name: str, now: int, before: int) -> ChannelRefusedError:
    return ChannelRefusedError(
        f"{name} has version {now}, and this node has seen version {before}: refused. Fetch the newest state."
    )

"""Denials in force, and the file that has them: the deny list of a site."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from goldnode.core.files import replace_file
from goldnode.fleet.shared.denylist import PAYLOAD_TYPE, Denial, DenyList, DenyListError, moment
from goldnode.fleet.store import tables
from goldnode.fleet.store.database import StoreDatabase


def rows(connection: Connection) -> tuple[tuple[Any, ...], ...]:
    """Return the denials in force, in the order in which they were made. They differ after any change."""
    denied = tables.denied.c
    query = (
        select(denied["class"], denied.digest, denied.reason, denied.who, denied.at)
        .where(denied.lifted_at.is_(None))
        .order_by(denied.seq)
    )
    return tuple(tuple(row) for row in connection.execute(query))


def in_force(connection: Connection) -> DenyList:
    """Return the denials in force. The number of the list is the last line of the log that changed it."""
    rollouts, number = _rollouts(connection)
    return DenyList(
        tuple(
            Denial(
                name,
                digest=digest,
                rollout=rollouts.get((name, digest)),
                reason=reason,
                who=who,
                at=moment(at),
            )
            for name, digest, reason, who, at in rows(connection)
        ),
        number,
    )


def _rollouts(connection: Connection) -> tuple[dict[tuple[str, str], str | None], int]:
    """Return the rollout of the last denial of each class and digest, and the last line that changed the list."""
    log, rollout = tables.log, tables.rollout
    query = (
        select(
            log.c.seq, log.c.action, log.c.rollout, log.c.subject, log.c.content, rollout.c["class"]
        )
        .join(rollout, rollout.c.name == log.c.rollout, isouter=True)
        .where(log.c.action.in_(("Deny", "LiftDenial")))
        .order_by(log.c.seq)
    )
    denied: dict[tuple[str, str], str | None] = {}
    number = 0
    for seq, action, name, subject, content, node_class in connection.execute(query):
        number = seq
        if action == "Deny":
            owner = node_class or subject.removeprefix("class ")
            denied.setdefault((owner, json.loads(content)["digest"]), name)
        else:
            denied.pop((subject.removeprefix("class "), json.loads(content)["digest"]), None)
    return denied, number


# The file


def write(store: StoreDatabase, path: Path, key: Path | None) -> bool:
    """Write the denials of the store, signed if there is a key. Return whether the file has changed.

    A list that is in the file already, with a signature of this key, stays as it is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Read the store with the lock: of two writers, the later one has the later list.
        with path.with_name(f".{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with store.read() as connection:
                payload = in_force(connection).payload()
            if _same(path, payload, key):
                return False
            replace_file(path, _signed(payload, key))
    except OSError as problem:
        raise DenyListError(
            f"the deny list cannot be written: {problem.strerror}",
            file=path,
            remedy="correct that: until then site.yml, pull and disks update do not know the latest denials",
        ) from problem
    return True


def _signed(payload: bytes, key: Path | None) -> bytes:
    if key is None:
        return payload
    # A site without a key needs no cryptography.
    from goldnode.evidence.signatures import load_signer

    return load_signer(key).sign(payload, PAYLOAD_TYPE)


def _same(path: Path, payload: bytes, key: Path | None) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    if key is None:
        return data == payload
    # Most lists are not signed, and only an extra installs the library.
    from goldnode.core.errors import ImageError
    from goldnode.evidence.signatures import load_signer, open_envelope

    try:
        opened = open_envelope(data, [load_signer(key).public])
    except ImageError:
        return False
    return (opened.payload, opened.payload_type) == (payload, PAYLOAD_TYPE)


class DenyListWriter:
    """The file of a controller. Call `update` after each tick: it costs one query, and writes what has changed."""

    def __init__(self, store: StoreDatabase, path: Path, key: Path | None) -> None:
        self.store, self.path, self.key = store, path, key
        self._written: tuple[tuple[Any, ...], ...] | None = None
        self._version: tuple[int, ...] | None = None  # of the file that was written

    def update(self) -> bool:
        """Write the denials if they, or the file, have changed. Return whether the file has. Raises GoldnodeError."""
        with self.store.read() as connection:
            denials = rows(connection)
        if (
            denials == self._written
            and self._version is not None
            and self._version == self._found()
        ):
            return False
        changed = write(self.store, self.path, self.key)
        self._written, self._version = denials, self._found()
        return changed

    def _found(self) -> tuple[int, ...] | None:
        """Return what changes with the file: another may replace it by an earlier list."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size

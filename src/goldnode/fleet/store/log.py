"""The append-only log of the store, and its sealed heads.

A head is the SHA-256 of the head before it and of every row since, signed with the key of the site.
Rows are chained when they are sealed and not when they are written, so that a grant does not wait
for a digest. Whoever changes, removes or inserts a sealed row needs the key to hide it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select

from goldnode.core.errors import ImageError
from goldnode.fleet.store import many, tables
from goldnode.fleet.store.errors import StoreDamagedError

PAYLOAD_TYPE = "application/vnd.goldnode.log-head+json"
AGAIN, AGAIN_TYPE = "SignHeadsAgain", "application/vnd.goldnode.log-heads+json"
_FIRST = "0" * 64  # the digest before the first entry
_BATCH = 1000  # entries of one query
_FIELDS = ("seq", "at", "who", "rollout", "epoch", "action", "subject", "content")


@dataclass(frozen=True)
class LogLine:
    """One line to append. `content` is the JSON form of the action."""

    at: float
    who: str
    action: str
    subject: str
    content: Mapping[str, Any]
    rollout: str | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class LogVerdict:
    """Result of a verification: rows that heads cover, rows after the last head, and signed heads."""

    sealed: int
    unsealed: int
    heads: int
    signed: int


_APPEND = tables.log.insert().inline()


def append(connection: Connection, *lines: LogLine) -> None:
    """Append lines, in order, in the transaction of the change that they describe."""
    rows = [
        {
            "at": line.at,
            "who": line.who,
            "rollout": line.rollout,
            "epoch": line.epoch,
            "action": line.action,
            "subject": line.subject,
            "content": json.dumps(line.content, sort_keys=True, separators=(",", ":")),
        }
        for line in lines
    ]
    many.execute(connection, _APPEND, rows)


def entries(
    connection: Connection,
    *,
    rollout: str | None = None,
    subject: str | None = None,
    after: int = 0,
    limit: int | None = None,
    where: ColumnElement[bool] | None = None,
) -> Sequence[RowMapping]:
    """Return lines in order, `content` as JSON text. With `limit`, the last ones."""
    query = select(*(tables.log.c[name] for name in _FIELDS)).where(tables.log.c.seq > after)
    if rollout is not None:
        query = query.where(tables.log.c.rollout == rollout)
    if subject is not None:
        query = query.where(tables.log.c.subject == subject)
    if where is not None:
        query = query.where(where)
    if limit is None:
        return connection.execute(query.order_by(tables.log.c.seq)).mappings().all()
    rows = connection.execute(query.order_by(tables.log.c.seq.desc()).limit(limit)).mappings().all()
    return list(reversed(rows))


def seal(connection: Connection, now: float, key: Path | None = None) -> int:
    """Write a head over the lines since the last one, signed if there is a key. Return the lines that it covers.

    The transaction has the lock of the ledger. On PostgreSQL it also waits for lines that are not
    committed yet.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE log IN SHARE MODE")
    last = connection.execute(
        select(tables.head).order_by(tables.head.c.seq.desc()).limit(1)
    ).first()
    digest, seq, count = _chain(
        connection, last.digest if last else _FIRST, last.seq if last else 0
    )
    if not count:
        return 0
    about = {"seq": seq, "covers": count, "digest": digest}
    envelope = None if key is None else _signed(about, key)
    connection.execute(tables.head.insert().values(**about, at=now, envelope=envelope))
    return count


def sign_again(connection: Connection, now: float, who: str, key: Path, public_key: Path) -> int:
    """Sign for all heads with another key, after each was verified with `public_key`. Return how many there are.

    Heads are append-only: the signature over the last one, whose digest covers all before, is a line of the log.
    Without it, the log could not be verified once the key before is trusted no more. Raises StoreDamagedError.
    """
    count = verify(connection, public_key).heads
    last = connection.execute(
        select(tables.head).order_by(tables.head.c.seq.desc()).limit(1)
    ).first()
    if last is None:
        return 0
    envelope = _signed({"seq": last.seq, "digest": last.digest}, key, AGAIN_TYPE)
    append(connection, LogLine(now, who, AGAIN, "log", {"envelope": envelope}))
    seal(connection, now, key)
    return count


def _signed(about: Mapping[str, Any], key: Path, payload_type: str = PAYLOAD_TYPE) -> str:
    # Here, since a site without a key needs no cryptography.
    from goldnode.evidence.signatures import load_signer

    payload = json.dumps(about, sort_keys=True).encode()
    return load_signer(key).sign(payload, payload_type).decode()


def verify(connection: Connection, public_key: Path | None = None) -> LogVerdict:
    """Compare every sealed line with its head, and the heads with the key. Raises StoreDamagedError."""
    digest, seq, signed, sealed = _FIRST, 0, 0, 0
    heads = connection.execute(select(tables.head).order_by(tables.head.c.seq)).all()
    # Digests that a trusted key has signed again: the heads until there need no other signature.
    again = {} if public_key is None else _signed_again(connection, public_key)
    until = max((head.seq for head in heads if again.get(head.seq) == head.digest), default=0)
    for head in heads:
        digest, last, count = _chain(connection, digest, seq, head.seq)
        if (digest, last, count) != (head.digest, head.seq, head.covers):
            raise StoreDamagedError(
                f"the log was changed: lines {seq + 1} to {head.seq} do not match their head",
                remedy="compare it with a backup, and find who can write to the store",
            )
        if public_key is not None:
            if head.seq > until:
                _check(head, public_key)
            signed += 1
        seq, sealed = head.seq, sealed + count
    unsealed = connection.scalar(
        select(func.count()).select_from(tables.log).where(tables.log.c.seq > seq)
    )
    return LogVerdict(sealed, unsealed or 0, len(heads), signed)


def _signed_again(connection: Connection, public_key: Path) -> dict[int, str]:
    """Return seq -> digest of the heads that trusted keys have signed again."""
    from goldnode.evidence.signatures import load_public, open_envelope  # only an extra installs it

    digests, keys = dict[int, str](), load_public(public_key)
    for row in entries(connection, where=tables.log.c.action == AGAIN):
        try:
            opened = open_envelope(json.loads(row["content"])["envelope"].encode(), keys)
            payload = json.loads(opened.payload)
            if opened.payload_type == AGAIN_TYPE:
                digests[int(payload["seq"])] = str(payload["digest"])
        except (ImageError, ValueError, KeyError, TypeError, AttributeError):
            continue  # by a key that is not trusted any more, or false: no signature
    return digests


def _check(head: Any, public_key: Path) -> None:
    if head.envelope is None:
        raise StoreDamagedError(
            f"the head of line {head.seq} is not signed, and this site has a key",
            remedy="find who sealed it without `fleet.signing_key`",
        )
    # Only an extra installs its library.
    from goldnode.evidence.signatures import load_public, open_envelope

    try:
        opened = open_envelope(head.envelope.encode(), load_public(public_key))
        payload = json.loads(opened.payload)
    except (ImageError, ValueError) as problem:
        raise StoreDamagedError(
            f"the signature of the head of line {head.seq} is wrong: {problem}",
            remedy="use the key that signed it, rotate a key with `goldnode keys rotate log`, or find who wrote the head",
        ) from problem
    wanted = {"seq": head.seq, "covers": head.covers, "digest": head.digest}
    if opened.payload_type != PAYLOAD_TYPE or payload != wanted:
        raise StoreDamagedError(f"the head of line {head.seq} differs from what was signed")


def _chain(
    connection: Connection, digest: str, after: int, until: int | None = None
) -> tuple[str, int, int]:
    """Return the digest over the lines after `after`, the number of the last one, and how many there are."""
    sha256 = hashlib.sha256(bytes.fromhex(digest))
    count, columns = 0, [tables.log.c[name] for name in _FIELDS]
    while True:
        query = (
            select(*columns)
            .where(tables.log.c.seq > after)
            .order_by(tables.log.c.seq)
            .limit(_BATCH)
        )
        if until is not None:
            query = query.where(tables.log.c.seq <= until)
        rows = connection.execute(query).all()
        for row in rows:
            sha256.update(json.dumps(list(row), separators=(",", ":")).encode() + b"\n")
        if rows:
            after, count = rows[-1][0], count + len(rows)
        if len(rows) < _BATCH:
            return sha256.hexdigest(), after, count


def decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with `content` as JSON object."""
    return {**row, "content": json.loads(row["content"])}

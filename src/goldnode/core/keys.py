"""OpenPGP keys on the controller: select from a keyring, armour, compare.

The node package reads fingerprints.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from goldnode.node.openpgp import PUBLIC_KEY, crc24, dearmor, packets, primary_fingerprints

_SIGNATURE, _SUBKEY = 2, 14  # packet tags
_CERTIFICATION, _DIRECT, _REVOCATION = range(0x10, 0x14), 0x1F, 0x20  # signature types
_CREATED, _KEY_EXPIRES, _ISSUER, _ISSUER_FINGERPRINT = 2, 9, 16, 33  # subpacket types
_WEAK_HASHES = (1, 2, 3)  # MD5, SHA-1, RIPEMD-160


@dataclass(frozen=True)
class KeyState:
    """State of one primary key as its self-signatures state it; apt verifies those signatures, goldnode does not.

    `weak`: every self-signature uses SHA-1 or an older hash, which Sequoia (apt from Debian 13) rejects.
    """

    fingerprint: str
    expires: dt.datetime | None
    revoked: bool
    weak: bool

    def expired(self, now: dt.datetime) -> bool:
        """Return whether the key has expired at `now` (with time zone)."""
        return self.expires is not None and self.expires <= now


def states(data: bytes) -> list[KeyState]:
    """Return the state of each primary key in `data`, in file order. Raises OpenPGPError for damaged data."""
    found: list[KeyState] = []
    keys: list[tuple[str, int, list[tuple[int, int, int | None, int]], bool]] = []
    own = False
    for tag, body in packets(dearmor(data)):
        if tag == PUBLIC_KEY:
            own = True
            keys.append(
                (primary_fingerprints(_frame(tag, body))[0], int.from_bytes(body[1:5], "big"), [], False)
            )
        elif tag == _SUBKEY:
            own = False
        elif tag == _SIGNATURE and own and keys:
            fingerprint, created, signatures, revoked = keys[-1]
            kind, made, expires, hashed = _signature(body, fingerprint)
            if kind == _REVOCATION:
                keys[-1] = (fingerprint, created, signatures, True)
            elif kind is not None:
                signatures.append((kind, made, expires, hashed))
    for fingerprint, created, signatures, revoked in keys:
        # The newest certification decides (RFC 4880, section 5.2.3.3); a key signature counts where it has no lifetime.
        seconds = None
        for kinds in (_CERTIFICATION, (_DIRECT,)):
            rows = [row for row in signatures if row[0] in kinds]
            seconds = seconds or (max(rows, key=lambda row: row[1])[2] if rows else None)
        end = dt.datetime.fromtimestamp(created + seconds, tz=dt.UTC) if seconds else None
        weak = bool(signatures) and all(row[3] in _WEAK_HASHES for row in signatures)
        found.append(KeyState(fingerprint, end, revoked, weak))
    return found


def _signature(body: bytes, fingerprint: str) -> tuple[int | None, int, int | None, int]:
    """Return type, creation time, key lifetime (seconds) and hash of a self-signature; type None for any other one."""
    if body[:1] != b"\x04" or len(body) < 6:
        return None, 0, None, 0
    kind, hashed = body[1], body[3]
    length = int.from_bytes(body[4:6], "big")
    rest = body[6 + length :]
    parts = dict(_subpackets(body[6 : 6 + length]))
    issuers = {**dict(_subpackets(rest[2 : 2 + int.from_bytes(rest[:2], "big")])), **parts}
    issuer = (
        issuers.get(_ISSUER_FINGERPRINT, b"")[1:].hex().upper() or issuers.get(_ISSUER, b"").hex().upper()
    )
    if (
        not issuer
        or not fingerprint.endswith(issuer[-16:])
        or kind not in (*_CERTIFICATION, _DIRECT, _REVOCATION)
    ):
        return None, 0, None, 0
    expires = int.from_bytes(parts[_KEY_EXPIRES], "big") if _KEY_EXPIRES in parts else None
    return kind, int.from_bytes(parts.get(_CREATED, b""), "big"), expires, hashed


def _subpackets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, body) of the subpackets of a signature (RFC 4880, section 5.2.3.1)."""
    at = 0
    while at < len(data):
        first = data[at]
        if first < 192:
            length, at = first, at + 1
        elif first < 255:
            length, at = ((first - 192) << 8) + int.from_bytes(data[at + 1 : at + 2], "big") + 192, at + 2
        else:
            length, at = int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
        if length == 0 or at + length > len(data):
            return
        yield data[at] & 0x7F, data[at + 1 : at + length]
        at += length


def armor(data: bytes) -> bytes:
    """Return the keys in `data` (armoured or binary) as one armoured block. The output is deterministic."""
    binary = dearmor(data)
    text = base64.b64encode(binary)
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    head, tail = b"-----BEGIN PGP PUBLIC KEY BLOCK-----", b"-----END PGP PUBLIC KEY BLOCK-----"
    return b"\n".join([head, b"", *lines, b"=" + base64.b64encode(crc24(binary)), tail, b""])


def select(data: bytes, fingerprints: Iterable[str]) -> bytes:
    """Return a binary keyring with the keys of `data` whose primary fingerprint is in `fingerprints`.

    The user ids, signatures and subkeys of a primary key are included. The result is empty if no key matches.
    """
    wanted = {_bare(item) for item in fingerprints}
    chosen, keep = [], False
    for tag, body in packets(dearmor(data)):
        if tag == PUBLIC_KEY:
            # Packets up to the next primary key belong to this one (RFC 4880, section 11.1).
            keep = primary_fingerprints(_frame(tag, body))[0] in wanted
        if keep:
            chosen.append(_frame(tag, body))
    return b"".join(chosen)


def unexpected(data: bytes, expected: Iterable[str]) -> list[str]:
    """Return the fingerprints in `data` that are not in `expected` (any case, spaces ignored)."""
    allowed = {_bare(item) for item in expected}
    return [item for item in primary_fingerprints(data) if item not in allowed]


def _bare(fingerprint: str) -> str:
    return re.sub(r"\s", "", fingerprint).upper()


def _frame(tag: int, body: bytes) -> bytes:
    """Return one packet in the new format with a four-octet length (RFC 4880, section 4.2.2.3)."""
    return bytes((0xC0 | tag, 0xFF)) + len(body).to_bytes(4, "big") + body

"""OpenPGP keys on the controller: select from a keyring, armour, compare.

The node package reads fingerprints.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from goldnode.node.ground.openpgp import PUBLIC_KEY, crc24, dearmor, packets, primary_fingerprints

_SIGNATURE, _SUBKEY = 2, 14  # packet tags
_CERTIFICATION, _DIRECT, _REVOCATION = range(0x10, 0x14), 0x1F, 0x20  # signature types
_BINDING, _SUBKEY_REVOCATION = 0x18, 0x28  # signature types over a subkey
_CREATED, _KEY_EXPIRES, _ISSUER, _FLAGS, _ISSUER_FINGERPRINT = 2, 9, 16, 27, 33  # subpacket types
_SIGNS = 0x02  # flag: the key may sign data
# RFC 9580, section 9.5; RFC 4880 has the same numbers.
_HASHES = {
    1: "md5",
    2: "sha1",
    3: "ripemd160",
    8: "sha256",
    9: "sha384",
    10: "sha512",
    11: "sha224",
    12: "sha3-256",
    14: "sha3-512",
}
# RFC 9580, section 9.1. The algorithms that only encrypt have no name here.
_ALGORITHMS = {1: "rsa", 3: "rsa", 17: "dsa", 19: "ecdsa", 22: "eddsa", 27: "ed25519", 28: "ed448"}
# RFC 9580, section 9.2, and the OID of secp256k1.
_CURVES = {
    "2a8648ce3d030107": "nistp256",
    "2b81040022": "nistp384",
    "2b81040023": "nistp521",
    "2b2403030208010107": "brainpoolp256",
    "2b240303020801010b": "brainpoolp384",
    "2b240303020801010d": "brainpoolp512",
    "2b8104000a": "secp256k1",
    "2b06010401da470f01": "ed25519",
}


@dataclass(frozen=True)
class KeyPart:
    """A primary key or a subkey.

    `algorithm` is rsa, dsa, or the name of a curve; empty if it cannot sign. `hashes` are those of the signatures by
    which the primary key vouches for it. `signs`: it may sign data.
    """

    algorithm: str
    bits: int
    hashes: tuple[str, ...] = ()
    signs: bool = True


@dataclass(frozen=True)
class KeyState:
    """State of one primary key as its self-signatures state it; apt verifies those signatures, goldnode does not.

    `parts` are the primary key and its subkeys that are not revoked.
    """

    fingerprint: str
    expires: dt.datetime | None
    revoked: bool
    parts: tuple[KeyPart, ...] = ()

    def expired(self, now: dt.datetime) -> bool:
        """Return whether the key has expired at `now` (with time zone)."""
        return self.expires is not None and self.expires <= now


class _SelfSignature(NamedTuple):
    kind: int
    made: int
    expires: int | None
    hashed: str
    flags: int | None


class _Part(NamedTuple):
    body: bytes
    signatures: list[_SelfSignature]

    def state(self, revocation: int) -> KeyPart | None:
        """Return the state of the key; None if it is revoked."""
        if any(row.kind == revocation for row in self.signatures):
            return None
        algorithm, bits = _algorithm(self.body)
        newest = max(self.signatures, key=lambda row: row.made, default=None)
        # Keys without flags are older than flags: each may do what its algorithm can.
        signs = newest is None or newest.flags is None or bool(newest.flags & _SIGNS)
        hashes = tuple(dict.fromkeys(row.hashed for row in self.signatures))
        return KeyPart(algorithm, bits, hashes, signs and bool(algorithm))


def states(data: bytes) -> list[KeyState]:
    """Return the state of each primary key in `data`, in file order. Raises OpenPGPError for damaged data."""
    keys: list[tuple[str, list[_Part]]] = []
    for tag, body in packets(dearmor(data)):
        if tag == PUBLIC_KEY:
            keys.append((primary_fingerprints(_frame(tag, body))[0], [_Part(body, [])]))
        elif tag == _SUBKEY and keys:
            keys[-1][1].append(_Part(body, []))
        elif tag == _SIGNATURE and keys:
            fingerprint, parts = keys[-1]
            if (signature := _signature(body, fingerprint)) is not None:
                parts[-1].signatures.append(signature)
    return [_state(fingerprint, parts) for fingerprint, parts in keys]


def _state(fingerprint: str, parts: list[_Part]) -> KeyState:
    primary, own = parts[0], parts[0].signatures
    # The newest certification decides (RFC 4880, section 5.2.3.3); a key signature counts where it has no lifetime.
    seconds = None
    for kinds in (_CERTIFICATION, (_DIRECT,)):
        rows = [row for row in own if row.kind in kinds]
        seconds = seconds or (max(rows, key=lambda row: row.made).expires if rows else None)
    created = int.from_bytes(primary.body[1:5], "big")
    end = dt.datetime.fromtimestamp(created + seconds, tz=dt.UTC) if seconds else None
    revoked = any(row.kind == _REVOCATION for row in own)
    # -1 is no type: a revoked primary key is still listed, and `revoked` states it.
    usable = [primary.state(-1), *(part.state(_SUBKEY_REVOCATION) for part in parts[1:])]
    return KeyState(fingerprint, end, revoked, tuple(part for part in usable if part is not None))


def _algorithm(body: bytes) -> tuple[str, int]:
    """Return the name of the algorithm or curve of a version 4 key, and its size in bits (0: not stated)."""
    name = _ALGORITHMS.get(body[5] if len(body) > 5 else 0, "")
    if name in ("rsa", "dsa"):
        return name, int.from_bytes(body[6:8], "big")
    if name in ("ecdsa", "eddsa") and len(body) > 6:
        curve = body[7 : 7 + body[6]].hex()
        return _CURVES.get(curve, f"{name} on curve {curve}"), 0
    return name, 0


def _signature(body: bytes, fingerprint: str) -> _SelfSignature | None:
    """Return a signature that a primary key made over itself or a subkey; None for any other one."""
    if body[:1] != b"\x04" or len(body) < 6:
        return None
    kind, hashed = body[1], body[3]
    length = int.from_bytes(body[4:6], "big")
    rest = body[6 + length :]
    parts = dict(_subpackets(body[6 : 6 + length]))
    # An issuer is a hint and may be in the unhashed part. Times and flags count only where hashed.
    issuers = {**dict(_subpackets(rest[2 : 2 + int.from_bytes(rest[:2], "big")])), **parts}
    issuer = (
        issuers.get(_ISSUER_FINGERPRINT, b"")[1:].hex().upper()
        or issuers.get(_ISSUER, b"").hex().upper()
    )
    known = (*_CERTIFICATION, _DIRECT, _REVOCATION, _BINDING, _SUBKEY_REVOCATION)
    # A fingerprint, or a key ID, which is the end of one.
    if not issuer or not fingerprint.endswith(issuer[-16:]) or kind not in known:
        return None
    flags = parts.get(_FLAGS)
    return _SelfSignature(
        kind,
        int.from_bytes(parts.get(_CREATED, b""), "big"),
        int.from_bytes(parts[_KEY_EXPIRES], "big") if _KEY_EXPIRES in parts else None,
        _HASHES.get(hashed, f"hash {hashed}"),
        None if flags is None else int.from_bytes(flags[:1], "big"),
    )


def _subpackets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, body) of the subpackets of a signature (RFC 4880, section 5.2.3.1)."""
    at = 0
    while at < len(data):
        first = data[at]
        if first < 192:
            length, at = first, at + 1
        elif first < 255:
            length, at = (
                ((first - 192) << 8) + int.from_bytes(data[at + 1 : at + 2], "big") + 192,
                at + 2,
            )
        else:
            length, at = int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
        # Damaged: what was read so far counts.
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

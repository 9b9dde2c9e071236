"""OpenPGP keys on the controller: select from a keyring, armour, compare.

The node package reads fingerprints.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

from goldnode.node.openpgp import PUBLIC_KEY, crc24, dearmor, packets, primary_fingerprints


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

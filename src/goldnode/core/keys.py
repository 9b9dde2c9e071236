"""What the controller does with OpenPGP keys beyond reading their fingerprints: select from a keyring, armour, compare."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

from goldnode.node.openpgp import PUBLIC_KEY, crc24, dearmor, packets, primary_fingerprints


def armor(data: bytes) -> bytes:
    """Return the keys in `data` (armoured or binary) as one armoured block, always the same for the same keys."""
    binary = dearmor(data)
    text = base64.b64encode(binary)
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    head, tail = b"-----BEGIN PGP PUBLIC KEY BLOCK-----", b"-----END PGP PUBLIC KEY BLOCK-----"
    return b"\n".join([head, b"", *lines, b"=" + base64.b64encode(crc24(binary)), tail, b""])


def select(data: bytes, fingerprints: Iterable[str]) -> bytes:
    """Return the binary keyring that holds only those keys of `data` whose primary fingerprint is in `fingerprints`.

    A primary key takes its user ids, signatures and subkeys with it. The result is empty where none matches.
    """
    wanted = {_bare(item) for item in fingerprints}
    chosen, keep = [], False
    for tag, body in packets(dearmor(data)):
        if tag == PUBLIC_KEY:
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
    """One packet in the new format with a four-octet length (RFC 4880, section 4.2.2.3)."""
    return bytes((0xC0 | tag, 0xFF)) + len(body).to_bytes(4, "big") + body

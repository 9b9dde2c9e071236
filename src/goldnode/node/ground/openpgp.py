"""Fingerprints of OpenPGP public keys (RFC 4880), without gpg: armoured or binary, one key or a whole
keyring.

This module only decides whether a key file is the one that a catalog names, by the v4 fingerprints
of primary keys. It verifies no signatures: apt does that, with the key that this module has
accepted.
"""

from __future__ import annotations

import base64
import binascii
import re
from hashlib import sha1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Tuple


_BLOCK = rb"(?sm)^-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(?P<body>.*?)^-----END PGP PUBLIC KEY BLOCK-----"
# Types of packets: RFC 9580, section 5.
PUBLIC_KEY, _SECRET_KEY, _PUBLIC_SUBKEY, _SECRET_SUBKEY = 6, 5, 14, 7


class OpenPGPError(Exception):
    """The bytes are not OpenPGP public keys; the text names the reason in one clause."""


def dearmor(data: bytes) -> bytes:
    """Return the binary packets of `data`. The blocks of an armoured file are joined; a binary file is
    returned unchanged.

    Raises OpenPGPError if content or checksum of a block is damaged.
    """
    if data[:1] and data[0] & 0x80:
        return data
    blocks = [_block(match.group("body")) for match in re.finditer(_BLOCK, data)]
    if not blocks:
        raise OpenPGPError("there is no OpenPGP public key in it")
    return b"".join(blocks)


def primary_fingerprints(data: bytes) -> List[str]:
    """Return the fingerprints (40 upper-case hex digits) of the primary public keys in `data`, in
    file order.

    Raises OpenPGPError for damaged data, for a secret key, and for key versions other than 4.
    """
    fingerprints = []
    for tag, body in packets(dearmor(data)):
        if tag in (_SECRET_KEY, _SECRET_SUBKEY):
            raise OpenPGPError("it holds a secret key")
        if tag != PUBLIC_KEY:
            continue
        if body[:1] != b"\x04":
            version = str(body[0]) if body else "?"
            raise OpenPGPError(f"it holds a key of version {version}, expected 4")
        # RFC 4880, section 12.2: SHA-1 over 0x99, the two-octet length, and the packet body.
        prefix = b"\x99" + len(body).to_bytes(2, "big")
        fingerprints.append(sha1(prefix + body, usedforsecurity=False).hexdigest().upper())
    if not fingerprints:
        raise OpenPGPError("there is no primary public key in it")
    return fingerprints


def _block(body: bytes) -> bytes:
    """Decode one armoured block (RFC 4880, section 6.2): headers, a blank line, base64, `=` and a CRC-24."""
    lines = [line.strip() for line in body.split(b"\n")]
    if b"" in lines and all(b":" in line for line in lines[: lines.index(b"")]):
        lines = lines[lines.index(b"") + 1 :]
    checksum = None
    content = []
    for line in lines:
        if line.startswith(b"="):
            checksum = line[1:]
        elif line:
            content.append(line)
    try:
        decoded = base64.b64decode(b"".join(content), validate=True)
        if checksum is not None and base64.b64decode(checksum, validate=True) != crc24(decoded):
            raise OpenPGPError("its armour has a wrong checksum")
    except binascii.Error as error:
        raise OpenPGPError("its armour is not base64") from error
    if not decoded:
        raise OpenPGPError("its armour is empty")
    return decoded


def crc24(data: bytes) -> bytes:
    """Return the checksum of armoured data (RFC 4880, section 6.1)."""
    value = 0xB704CE
    for octet in data:
        value ^= octet << 16
        for _ in range(8):
            value <<= 1
            if value & 0x1000000:
                value ^= 0x1864CFB
    return (value & 0xFFFFFF).to_bytes(3, "big")


def _number(octets: bytes, size: int) -> int:
    if len(octets) != size:
        raise OpenPGPError("it is cut short")
    return int.from_bytes(octets, "big")


def packets(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield (tag, body) of every packet (RFC 4880, section 4.2). Raises OpenPGPError if the framing is
    broken.
    """
    position = 0
    try:
        while position < len(data):
            head = data[position]
            if not head & 0x80:
                raise OpenPGPError("it is not a sequence of OpenPGP packets")
            position += 1
            # Bit 6 selects the new packet format; the old format encodes the size of the length in
            # the low bits.
            if head & 0x40:
                tag = head & 0x3F
                first = data[position]
                if first < 192:
                    length, position = first, position + 1
                elif first < 224:
                    length, position = ((first - 192) << 8) + data[position + 1] + 192, position + 2
                elif first == 255:
                    length, position = _number(data[position + 1 : position + 5], 4), position + 5
                else:
                    raise OpenPGPError("it has a packet of partial length, which no key may have")
            else:
                tag = (head >> 2) & 0x0F
                size = (1, 2, 4, 0)[head & 0x03]
                if not size:
                    raise OpenPGPError("it has a packet of unknown length, which no key may have")
                length, position = _number(data[position : position + size], size), position + size
            body = data[position : position + length]
            if len(body) != length:
                raise OpenPGPError("it is cut short")
            yield tag, body
            position += length
    except IndexError as error:
        raise OpenPGPError("it is cut short") from error

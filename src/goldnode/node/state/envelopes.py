"""Signed statements (DSSE envelopes), and the files of this node with the public keys that verify them."""

from __future__ import annotations

import base64
import hashlib
import re

from ..ground import signature
from ..ground.errors import NodeError
from ..ground.host import Host
from . import owners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Tuple

TYPE = "application/vnd.in-toto+json"
MOST = 16  # keys of a file, and signatures of an envelope: each pair is one call of openssl
AGAIN = "put it there again, from a place that you trust"
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----\s([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----")
# The algorithm in DER of a SubjectPublicKeyInfo (RFC 8410, RFC 5480), and the digest that it signs.
_ALGORITHMS = (
    (bytes.fromhex("06032b6570"), ""),  # ed25519
    (bytes.fromhex("06082a8648ce3d030107"), "sha256"),  # ECDSA P-256
    (bytes.fromhex("06052b81040022"), "sha384"),  # ECDSA P-384
)


def trusted(host: Host, path: str, effect: str) -> Optional[Mapping[str, Tuple[str, str]]]:
    """Return the keys in a file of this node by their ids: PEM and digest; None without the file.

    :param effect: what follows from a file without a key. Raises NodeError for such a file.
    """
    text = host.text(path)
    if text is None and host.lstat(path) is None:
        return None
    owners.believe(host, path, AGAIN)
    keys = {}
    for body in _PEM.findall(text or "")[:MOST]:
        try:
            der = base64.b64decode("".join(body.split()), validate=True)
        except ValueError:
            continue
        digest = next((digest for algorithm, digest in _ALGORITHMS if algorithm in der[:32]), None)
        if digest is not None:
            pem = f"-----BEGIN PUBLIC KEY-----\n{base64.encodebytes(der).decode()}-----END PUBLIC KEY-----\n"
            keys[hashlib.sha256(der).hexdigest()] = pem, digest
    if not keys:  # an empty file trusts nothing
        raise NodeError(
            f"{path} has no public key of ed25519, ECDSA P-256 or P-384 in PEM: {effect}."
        )
    return keys


def opened(
    envelope: Mapping[str, Any], keys: Mapping[str, Tuple[str, str]]
) -> Optional[Tuple[str, bytes]]:
    """Return the id of a key that has signed an envelope, and the payload; None if none of the keys has."""
    payload, signed = _parts(envelope)
    # DSSE (version 1) signs the type of the payload too.
    data = b"DSSEv1 %d %b %d %b" % (len(TYPE), TYPE.encode(), len(payload), payload)
    for keyid, sig in signed:
        if keyid in keys and signature.is_signed(*keys[keyid], sig.hex(), data):
            return keyid, payload
    return None


def signers(envelope: Mapping[str, Any]) -> str:
    """Return the keys that an envelope names, for a message."""
    _, signed = _parts(envelope)
    return ", ".join(keyid[:12] for keyid, _ in signed[:3] if keyid.isalnum()) or "none"


def _parts(envelope: Mapping[str, Any]) -> Tuple[bytes, List[Tuple[str, bytes]]]:
    """Return payload and signatures of an envelope; no signature for another form or type."""
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        signed = [
            (str(row["keyid"]), base64.b64decode(row["sig"], validate=True))
            for row in envelope["signatures"]
        ]
        right = envelope["payloadType"] == TYPE
    except (KeyError, TypeError, ValueError):
        right = False
    return (payload, signed[:MOST]) if right else (b"", [])

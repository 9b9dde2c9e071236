"""Signature of who built an image, verified before the image is written to a slot.

The first line of the stream has the builder's signed statement (a DSSE envelope), which has the digest of the root,
its kernel, and the kernel's command line. The keys of a node are in `KEYS`: PEM, one or more public keys. With that file,
an image that none of them has signed is refused, regardless of the sender and the purpose.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re

from ..ground import signature
from ..ground.errors import NodeError
from ..ground.host import Host
from ..ground.json_lines import as_dict
from ..state import owners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Tuple

KEYS = "/etc/goldnode/image-keys.pem"
TYPE = "application/vnd.in-toto+json"
PREDICATE = "urn:goldnode:disk-evidence:1"
SIGNED = ("name", "class", "build_id", "kernel", "options", "root")  # fields of the first line
MOST = 16  # keys of a node, and signatures of an image: each pair is one call of openssl
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----\s([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----")
# The algorithm in DER of a SubjectPublicKeyInfo (RFC 8410, RFC 5480), and the digest that it signs.
_ALGORITHMS = (
    (bytes.fromhex("06032b6570"), ""),  # ed25519
    (bytes.fromhex("06082a8648ce3d030107"), "sha256"),  # ECDSA P-256
    (bytes.fromhex("06052b81040022"), "sha384"),  # ECDSA P-384
)
_AGAIN = "put it there again, from a place that you trust"


def verified(host: Host, image: Mapping[str, Any]) -> Optional[str]:
    """Return the id of the builder's key that has signed an image; None on a node without keys.

    :param image: first line of the stream. Raises NodeError if no key of the node has signed it.
    """
    keys = trusted(host)
    if keys is None:
        return None
    name = image["name"]
    keyid, payload = _opened(as_dict(image.get("signature")), keys, name)
    try:
        statement = json.loads(payload)
        slot = {field: statement["predicate"]["slot"][field] for field in SIGNED}
        right = statement["predicateType"] == PREDICATE
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NodeError(
            f"the builder's signature of {name} covers no image of a slot. "
            "Sign it again with `goldnode disks evidence` of this version."
        ) from None
    for field in SIGNED if right else ():
        if slot[field] != image[field]:
            raise NodeError(
                f"{field} of {name} is not what the builder has signed. Find out who changed it; nothing was written."
            )
    if not right:
        raise NodeError(
            f"the builder's signature of {name} is for something else. Nothing was written."
        )
    return keyid


def trusted(host: Host) -> Optional[Mapping[str, Tuple[str, str]]]:
    """Return the keys of this node by their ids: PEM and digest; None without the file. Raises NodeError."""
    text = host.text(KEYS)
    if text is None and host.lstat(KEYS) is None:
        return None
    owners.believe(host, KEYS, _AGAIN)
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
            f"{KEYS} has no public key of ed25519, ECDSA P-256 or P-384 in PEM: no image is written. "
            f"Correct it, or, where no image has to be signed, remove it: {_AGAIN}."
        )
    return keys


def _opened(
    envelope: Mapping[str, Any], keys: Mapping[str, Tuple[str, str]], name: str
) -> Tuple[str, bytes]:
    """Return the id of a key that has signed an envelope, and the payload. Raises NodeError."""
    rows = envelope.get("signatures")
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        kind = str(envelope["payloadType"])
        signed = [
            (str(row["keyid"]), base64.b64decode(row["sig"], validate=True)) for row in rows or ()
        ]
    except (KeyError, TypeError, ValueError):
        kind, payload, signed = "", b"", []
    if kind == TYPE:
        # DSSE (version 1) signs the type of the payload too.
        data = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
        for keyid, sig in signed[:MOST]:
            if keyid in keys and signature.is_signed(*keys[keyid], sig.hex(), data):
                return keyid, payload
    named = ", ".join(keyid[:12] for keyid, _ in signed[:3] if keyid.isalnum()) or "none"
    raise NodeError(
        f"no key of {KEYS} has signed {name} (its signatures: {named}). Sign it with `goldnode disks evidence`, or add "
        "the key of who built it. Nothing was written."
    )

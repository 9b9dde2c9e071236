"""Signatures, verified with the command `openssl` (3.0 or newer): ed25519, and ECDSA P-256 and P-384."""

from __future__ import annotations

import base64
import os
import re
import shutil
import tempfile
from functools import lru_cache

from .errors import NodeError
from .host import Host
from .json_lines import as_dict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Tuple

OPENSSL = "openssl"
# DER of a SubjectPublicKeyInfo with an ed25519 key (RFC 8410), up to the 32 bytes of the key.
_ED25519 = bytes.fromhex("302a300506032b6570032100")
# scheme -> (key types that python-tuf writes, digest of openssl; empty: the key hashes by itself)
SCHEMES = {
    "ed25519": (("ed25519",), ""),
    "ecdsa-sha2-nistp256": (("ecdsa", "ecdsa-sha2-nistp256"), "sha256"),
    "ecdsa-sha2-nistp384": (("ecdsa", "ecdsa-sha2-nistp384"), "sha384"),
}
_HEX = re.compile(r"(?:[0-9a-f]{2})+")


def public_pem(key: Mapping[str, Any]) -> Optional[Tuple[str, str]]:
    """Return the PEM of a key and the digest that it signs; None for a key of another kind, which verifies nothing."""
    kinds, digest = SCHEMES.get(str(key.get("scheme")), ((), ""))
    if key.get("keytype") not in kinds:
        return None
    public = as_dict(key.get("keyval")).get("public")
    if not isinstance(public, str):
        return None
    if digest:
        return (public, digest) if public.startswith("-----BEGIN PUBLIC KEY-----") else None
    if not re.fullmatch("[0-9a-f]{64}", public):
        return None
    body = base64.b64encode(_ED25519 + bytes.fromhex(public)).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n", ""


def verified(key: Mapping[str, Any], signature: str, data: bytes) -> bool:
    """Return whether `signature` (hex) over `data` is of this key. Raises NodeError if openssl cannot be used."""
    pem = public_pem(key)
    if pem is None or not _HEX.fullmatch(signature) or len(signature) > 1024:
        return False
    return is_signed(*pem, signature, data)


@lru_cache(maxsize=64)  # a pass looks at stored documents more than once
def is_signed(pem: str, digest: str, signature: str, data: bytes) -> bool:
    # openssl reads an ed25519 message from a file only. Nothing here is secret.
    place = tempfile.mkdtemp(prefix="goldnode-signature-")
    try:
        files = {"key": pem.encode(), "signature": bytes.fromhex(signature), "data": data}
        for name, content in files.items():
            with open(os.path.join(place, name), "wb") as out:
                out.write(content)
        key_file, signed, message = (os.path.join(place, name) for name in files)
        if digest:
            words = ["dgst", f"-{digest}", "-verify", key_file, "-signature", signed, message]
        else:
            words = ["pkeyutl", "-verify", "-pubin", "-inkey", key_file, "-rawin"]
            words += ["-in", message, "-sigfile", signed]
        done = Host("/").run(OPENSSL, *words, timeout=30)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if done.rc in (124, 126, 127) or "nknown option" in done.err:
        raise NodeError(
            f"signatures cannot be verified: {done.tail(2)}. Install openssl 3.0 or newer."
        )
    return done.rc == 0

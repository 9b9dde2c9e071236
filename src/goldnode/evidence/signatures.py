"""Signatures: DSSE envelopes created and opened with keys that the site provides.

Keys are files. The secret key is PKCS #8 PEM (`openssl genpkey -algorithm ed25519`). A file of trusted keys
has one or more public PEM blocks, so that keys can be rotated. Secret keys are read only for signing, and no
error message contains any of their content. ed25519 signatures of equal documents are equal. ECDSA signatures
are not, so a valid one is reused instead of signing again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlsplit

from goldnode.core.errors import ImageError, SigningKeyError
from goldnode.core.site import load_site
from goldnode.oci.layout import canonical

if TYPE_CHECKING:
    from securesystemslib.signer import Signer, SSlibKey

STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD = "application/vnd.in-toto+json"
PIN = "GOLDNODE_PKCS11_PIN"  # of a token; the name of the variable
PASSWORD = "GOLDNODE_SIGNING_PASSWORD"  # noqa: S105 - the name of the variable
_MAKE = (
    "make one with `openssl genpkey -algorithm ed25519 -out KEY.pem` "
    "and `openssl pkey -in KEY.pem -pubout -out KEY.pub`"
)
_SCHEMES = {"ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384"}


KeyPlace = Path | str  # a file, or the URI of a key in a token


@dataclass(frozen=True)
class EnvelopeSigner:
    """Secret key to sign with. `keyid` identifies its public half and is not secret."""

    keyid: str
    _key: Signer

    @property
    def signer(self) -> Signer:
        """Return the key for a library that signs with it."""
        return self._key

    @property
    def public(self) -> SSlibKey:
        """Return the public half of the key."""
        return cast("SSlibKey", self._key.public_key)

    def sign(self, payload: bytes, payload_type: str = PAYLOAD) -> bytes:
        """Return the DSSE envelope of `payload` as canonical JSON."""
        from securesystemslib.dsse import Envelope  # only an extra installs it; so below

        envelope = Envelope(payload, payload_type, {})
        envelope.sign(self._key)
        return canonical(envelope.to_dict())

    def sign_bytes(self, data: bytes) -> bytes:
        """Return a bare signature of `data` that openssl can verify.

        Use `pkeyutl -verify -rawin` for ed25519 and `dgst -sha256 -verify` for ECDSA.
        """
        return bytes.fromhex(self._key.sign(data).signature)

    def __repr__(self) -> str:
        return f"Signer({self.keyid[:12]})"


@dataclass(frozen=True)
class Opened:
    """Payload of a verified envelope, and the id of the key that verified it."""

    payload: bytes
    payload_type: str
    keyid: str


def load_signer(path: Path) -> EnvelopeSigner:
    """Read a secret key. Raise SigningKeyError, which never contains any of the file's content."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as problem:
        raise SigningKeyError(
            f"the signing key cannot be read: {problem.strerror}", file=path, remedy=_MAKE
        ) from problem
    # As ssh does.
    if mode & 0o077:
        raise SigningKeyError(
            "the signing key can be read by others than its owner",
            file=path,
            remedy=f"run `chmod 600 {path}`",
        )
    password = os.environ.get(PASSWORD)
    try:
        secret = load_pem_private_key(
            # The library refuses a password for a key that is not encrypted.
            data,
            password.encode() if password and b"ENCRYPTED" in data else None,
        )
        signer = CryptoSigner(secret)
    except TypeError:
        # No `from`: a library's message may quote its input, which is the key.
        raise SigningKeyError(
            "the signing key is encrypted", file=path, remedy=f"give its password in {PASSWORD}"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        wrong = "this is no secret key, or"
        if b"ENCRYPTED" in data:
            wrong = "the password of the signing key is not the right one, or"
        raise SigningKeyError(
            f"{wrong} it is of a kind that is not signed with here", file=path, remedy=_MAKE
        ) from None
    if signer.public_key.scheme not in _SCHEMES:
        raise SigningKeyError(
            f"the signing key is {signer.public_key.scheme}, expected ed25519 or ECDSA P-256",
            file=path,
            remedy=_MAKE,
        )
    named = CryptoSigner(secret, _named(signer.public_key))
    return EnvelopeSigner(named.public_key.keyid, named)


def load_key(place: KeyPlace) -> EnvelopeSigner:
    """Return a secret key: of a file, or of a token by the URI `hsm:KEYID?label=TOKEN`. Raise SigningKeyError.

    A key of a token never leaves it. The token's PIN is in `GOLDNODE_PKCS11_PIN`, and `PYKCS11LIB` names its library.
    """
    if isinstance(place, Path):
        return load_signer(place)
    from securesystemslib.exceptions import UnsupportedLibraryError
    from securesystemslib.signer import HSMSigner, Signer

    def pin(_: str) -> str:
        return os.environ.get(PIN, "")

    uri = urlsplit(place)
    try:
        _, public = HSMSigner.import_(
            int(uri.path or 2), dict(parse_qsl(uri.query)).get("label"), pin
        )
        public = _named(public)
        signer = Signer.from_priv_key_uri(place, public, pin)
        # A wrong PIN is reported here, and not in the middle of a publication.
        public.verify_signature(signer.sign(b"goldnode"), b"goldnode")
    except UnsupportedLibraryError:
        raise SigningKeyError(
            f"{place} cannot be used: python-pkcs11 is not installed",
            remedy="install `securesystemslib[PKCS11]` into the environment of goldnode",
        ) from None
    except Exception as problem:  # python-pkcs11 has an error per return value of a token
        why = str(problem) or type(problem).__name__
        raise SigningKeyError(
            f"{place} cannot be used: {why}",
            remedy=f"name the library of the token in PYKCS11LIB, its PIN in {PIN}, and the key as hsm:KEYID?label=TOKEN; "
            "the key must be ECDSA P-256 or P-384",
        ) from None
    return EnvelopeSigner(public.keyid, signer)


def public_half(place: KeyPlace) -> SSlibKey:
    """Return the public half of a key; `place` may also be a file with the public half. Raise SigningKeyError."""
    if isinstance(place, Path) and place.is_file() and b"PRIVATE KEY" not in place.read_bytes():
        return load_public(place)[0]
    return load_key(place).public


def load_public(path: Path) -> list[SSlibKey]:
    """Read the public keys of a file, one or more PEM blocks. Raise SigningKeyError."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise SigningKeyError(
            f"the public key cannot be read: {problem.strerror}",
            file=path,
            remedy="correct its name",
        ) from problem
    return read_public(data, path)


def site_keys() -> list[SSlibKey]:
    """Return the public keys of `images.public_key`, by which this site verifies images. Raise SigningKeyError."""
    site = load_site()
    return load_public(site.resolve(site.images.public_key)) if site.images.public_key else []


def unsigned_reason(what: str, keys: bool, reason: str | None) -> str:
    """Return the reason for which an image is taken that nothing verifies; empty where there are keys.

    Raises ImageError where neither keys nor a reason are given, and where both are.
    """
    reason = (reason or "").strip()
    if not keys and not reason:
        raise ImageError(
            f"{what} is not taken: nothing says by which key to believe who built it",
            remedy="name the builder's key as images.public_key in the site file (images: or with --trust), or, on a site "
            "that has none, state why it is taken: --unsigned REASON, which is recorded",
        )
    if keys and reason:
        raise ImageError(
            f"--unsigned is for sites without keys, and the keys of {what} are known",
            remedy="leave it out, and have the image signed; a policy file can accept images of some registries",
        )
    return reason


def read_public(data: bytes, path: Path) -> list[SSlibKey]:
    """Read public keys, one or more PEM blocks. `path` is the file that has them. Raise SigningKeyError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    # Its public half could be derived, but a secret key does not belong where keys are handed out.
    if b"PRIVATE KEY" in data:
        raise SigningKeyError(
            "this is a secret key, where its public half is asked for",
            file=path,
            remedy="write that with `openssl pkey -pubout`",
        )
    blocks = re.findall(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", data, re.DOTALL)
    try:
        keys = [_named(SSlibKey.from_crypto(load_pem_public_key(block))) for block in blocks]
    except (ValueError, UnsupportedAlgorithm):
        keys = []
    if not keys or any(key.scheme not in _SCHEMES for key in keys):
        raise SigningKeyError(
            "this is no ed25519 or ECDSA public key in PEM",
            file=path,
            remedy="write it with `openssl pkey -pubout`",
        )
    return keys


def _named(key: SSlibKey) -> SSlibKey:
    """Return the key with an id that openssl can compute too.

    The id is the output of `openssl pkey -pubin -in KEY.pub -outform DER | sha256sum`.
    """
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
    )
    from securesystemslib.signer import SSlibKey

    value = key.keyval["public"]
    # securesystemslib has these keys as raw bytes in hexadecimal, and the others as PEM.
    if key.keytype == "ed25519":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        spki = Ed25519PublicKey.from_public_bytes(bytes.fromhex(value)).public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
    else:
        spki = load_pem_public_key(value.encode()).public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
    return SSlibKey(hashlib.sha256(spki).hexdigest(), key.keytype, key.scheme, key.keyval)


def is_envelope(data: bytes) -> bool:
    """Return whether a document is a DSSE envelope."""
    try:
        document = json.loads(data)
    except ValueError:
        return False
    return (
        isinstance(document, dict) and {"payload", "payloadType", "signatures"} <= document.keys()
    )


def payload_of(data: bytes) -> bytes:
    """Return the payload of an envelope without verifying its signatures; any other document unchanged."""
    if not is_envelope(data):
        return data
    try:
        return base64.b64decode(json.loads(data)["payload"], validate=True)
    except (TypeError, binascii.Error) as problem:
        raise ImageError("the envelope's payload is not base64: it was altered") from problem


def open_envelope(data: bytes, keys: Sequence[SSlibKey]) -> Opened:
    """Verify an envelope: at least one signature must be valid and made by one of `keys`.

    Raise ImageError that names the condition that failed.
    """
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    if not is_envelope(data):
        raise ImageError("the document is not signed")
    document = json.loads(data)
    payload, payload_type = payload_of(data), str(document["payloadType"])
    # Pre-authentication encoding of the DSSE protocol: signatures cover the payload type as well.
    pae = b"DSSEv1 %d %b %d %b" % (
        len(payload_type.encode()),
        payload_type.encode(),
        len(payload),
        payload,
    )
    if isinstance(document["signatures"], list):
        rows = [row for row in document["signatures"] if isinstance(row, dict)]
    else:
        rows = []
    if not rows:
        raise ImageError("the envelope has no signature")
    tried = False
    for row in rows:
        try:
            # securesystemslib has signatures in hexadecimal.
            value = base64.b64decode(str(row.get("sig", "")), validate=True).hex()
        except binascii.Error:
            continue
        # Envelopes of other tools (cosign) need not name their key; try every known one.
        for key in [key for key in keys if row.get("keyid") in (None, "", key.keyid)]:
            tried = True
            try:
                key.verify_signature(Signature(key.keyid, value), pae)
            except UnverifiedSignatureError:
                continue
            return Opened(payload, payload_type, key.keyid)
    # A known key with a wrong signature is worse than an unknown key, and reported as such.
    if tried:
        raise ImageError(
            "the signature does not hold: what was signed, or the signature, was altered"
        )
    who = ", ".join(sorted(str(row.get("keyid"))[:12] for row in rows))
    raise ImageError(
        f"it is signed by a key that is not known here ({who})",
        remedy="name the public key that is meant, or sign it again",
    )


def statement(
    name: str,
    digest: str,
    predicate_type: str,
    predicate: dict[str, Any],
    others: Mapping[str, str] | None = None,
) -> bytes:
    """Return an in-toto statement (v1) about one image as canonical JSON.

    `others` are names and digests of further subjects.
    """
    named = [(name, digest), *sorted((others or {}).items())]
    rows = [
        {"name": one, "digest": {"sha256": sha256.removeprefix("sha256:")}} for one, sha256 in named
    ]
    return canonical(
        {
            "_type": STATEMENT,
            "subject": rows,
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )


def subjects(payload: bytes) -> list[str]:
    """Return the digests (`sha256:…`) of an in-toto statement's subjects; empty for any other document."""
    try:
        document = json.loads(payload)
        if document.get("_type") == STATEMENT:
            return [f"sha256:{row['digest']['sha256']}" for row in document["subject"]]
        return []
    except (ValueError, KeyError, TypeError, AttributeError):
        return []

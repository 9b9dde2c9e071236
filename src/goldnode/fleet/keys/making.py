"""Making of keys, one way for each kind; each writes secret files for their owner alone, and replaces none."""

from __future__ import annotations

import base64
import datetime as dt
import secrets
from collections.abc import Callable
from pathlib import Path

from goldnode.core.files import replace_file
from goldnode.fleet.keys import authority
from goldnode.lock import signing

_MODULE_DAYS = 3650
MODULE_BITS = 4096
Maker = Callable[[Path, str, dt.datetime], list[Path]]


def make(kind: str, out: Path, name: str, now: dt.datetime) -> list[Path]:
    """Make a key of `kind` in `out`; return its files. Raises SigningKeyError for one that is there."""
    return _MAKERS[kind](out, name, now)


def _pair(file: str, *, p256: bool = False) -> Maker:
    """Return the maker of FILE.pem and FILE.pub: ed25519, or ECDSA P-256."""

    def made(out: Path, _name: str, _now: dt.datetime) -> list[Path]:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519

        key = ed25519.Ed25519PrivateKey.generate() if not p256 else None
        chosen = key or ec.generate_private_key(ec.SECP256R1())
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        secret = chosen.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        authority.write_secret(out / f"{file}.pem", secret)
        public = chosen.public_key().public_bytes(
            pem, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        replace_file(out / f"{file}.pub", public)
        return [out / f"{file}.pem", out / f"{file}.pub"]

    return made


def _mirror(out: Path, name: str, _now: dt.datetime) -> list[Path]:
    _, secret, public = signing.create(out, name, expire="2y")
    return [secret, public]


def _modules(out: Path, name: str, now: dt.datetime) -> list[Path]:
    """Make the key of modules, as the kernel's Documentation/admin-guide/module-signing.rst asks: RSA, no authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=MODULE_BITS)
    who = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name[:64])])
    usage = x509.KeyUsage(True, *[False] * 8)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = x509.CertificateBuilder().subject_name(who).issuer_name(who)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + dt.timedelta(days=_MODULE_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(usage, critical=False)
    certificate = builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    authority.write_secret(out / "modules.key", secret)
    replace_file(out / "modules.pem", certificate.public_bytes(pem))
    replace_file(out / "modules.der", certificate.public_bytes(serialization.Encoding.DER))
    return [out / "modules.key", out / "modules.pem", out / "modules.der"]


def _authority(out: Path, name: str, now: dt.datetime) -> list[Path]:
    authority.create(out, name, now)
    return [out / file for file in (authority.KEY, authority.CERTIFICATE, authority.REVOKED)]


def _webhook(out: Path, _name: str, _now: dt.datetime) -> list[Path]:
    secret = base64.b64encode(secrets.token_bytes(32)).decode()
    authority.write_secret(out / "webhook.secret", f"whsec_{secret}\n".encode())
    return [out / "webhook.secret"]


_MAKERS: dict[str, Maker] = {
    "authority": _authority,
    "documents": _pair("documents"),
    "evidence": _pair("evidence"),
    "images": _pair("images"),
    "log": _pair("log"),
    "mirror": _mirror,
    "modules": _modules,
    "online": _pair("online"),
    "orders": _pair("orders"),
    "release": _pair("goldnode-release", p256=True),
    "root": _pair("root"),
    "targets": _pair("targets"),
    "webhook": _webhook,
}

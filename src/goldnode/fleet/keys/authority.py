"""Authority of the certificates of nodes: a directory with its key, a list of what it issued, and what is revoked.

`fleet serve --client-ca DIR/authority.pem --client-crl DIR/revoked.pem` trusts it. It needs the extra `fleet`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.core import secret_modes
from goldnode.core.errors import SigningKeyError
from goldnode.core.files import replace_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, Name

CERTIFICATE, KEY, REVOKED, ISSUED = "authority.pem", "authority.key", "revoked.pem", "issued.json"
BEFORE = "before"  # the directory of the authority that this one replaces, while both are trusted
DAYS, NODE_DAYS = 3650, 365
_EARLY = dt.timedelta(minutes=5)  # clocks of nodes differ
_END = b"-----END X509 CRL-----"
_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)


def create(directory: Path, name: str, now: dt.datetime, days: int = DAYS) -> Path:
    """Make an authority in `directory`, with an empty list of revoked certificates. Return its certificate.

    Raises SigningKeyError if the directory has one: nodes trust it.
    """
    from cryptography import x509

    for file in (CERTIFICATE, KEY):
        if (directory / file).exists():
            raise SigningKeyError(
                "there is an authority already",
                file=directory / file,
                remedy="name another directory with --out",
            )
    key, who = _key(), _named(name)
    builder = _builder(who, who, key, now, now + dt.timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    # RFC 5280, section 4.2.1.2. Without it OpenSSL takes the first of two authorities with one name, and fails.
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(own, critical=False)
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    write_secret(directory / KEY, _pem(key))
    replace_file(directory / CERTIFICATE, _certificate_pem(_signed(builder, key)))
    _write_issued(directory, [])
    _write_revoked(directory, now)
    return directory / CERTIFICATE


def issue(
    directory: Path,
    node: str,
    out: Path,
    now: dt.datetime,
    days: int = NODE_DAYS,
    *,
    serves: bool = False,
) -> Path:
    """Make key and certificate of a node in `out`. Return the certificate. Raises SigningKeyError.

    `serves`: of the lock service instead. A certificate of a node does not prove the service.
    """
    from cryptography import x509

    if not _NAME.fullmatch(node):
        raise SigningKeyError(
            f"{node!r} is no DNS name in small letters",
            remedy="use the id of the node in the store",
        )
    authority, signer = _opened(directory)
    key, end = _key(), now + dt.timedelta(days=days)
    builder = _builder(
        _named(node), authority.subject, key, now, min(end, authority.not_valid_after_utc)
    )
    names = x509.SubjectAlternativeName([x509.DNSName(node)])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purpose = x509.oid.ExtendedKeyUsageOID
    usage = x509.ExtendedKeyUsage([purpose.SERVER_AUTH if serves else purpose.CLIENT_AUTH])
    builder = builder.add_extension(usage, critical=False)
    certificate = _signed(builder, signer)
    # Recorded first: a certificate that is not in the list could not be revoked.
    row = {
        "node": node,
        "serves": serves,
        "serial": f"{certificate.serial_number:x}",
        "expires": certificate.not_valid_after_utc.isoformat(),
        "revoked": None,
    }
    _write_issued(directory, [*issued(directory), row])
    out.mkdir(parents=True, exist_ok=True)
    write_secret(out / f"{node}.key", _pem(key))
    replace_file(out / f"{node}.pem", _certificate_pem(certificate))
    return out / f"{node}.pem"


def revoke(directory: Path, node: str, now: dt.datetime, *, keep: str = "") -> int:
    """Revoke the certificates of a node, but for the one with the serial `keep`; return how many.

    Those of the authority before count too. Raises SigningKeyError if the node has none that counts.
    """
    before, count = directory / BEFORE, 0
    if (before / CERTIFICATE).exists():
        count = _revoke(before, node, now, keep)
    count += _revoke(directory, node, now, keep)
    if not count:
        raise SigningKeyError(
            f"{node} has no certificate of this authority that is not revoked",
            file=directory / ISSUED,
            remedy="see `goldnode keys list --authority DIR`",
        )
    return count


def _revoke(directory: Path, node: str, now: dt.datetime, keep: str) -> int:
    rows = issued(directory)
    valid = [row for row in rows if (row["node"], row["revoked"]) == (node, None)]
    valid = [row for row in valid if row["serial"] != keep]
    _opened(directory)  # before the record: a wrong key must not leave a record without its list
    for row in valid:
        row["revoked"] = now.isoformat()
    if valid:
        _write_issued(directory, rows)
    _write_revoked(directory, now)
    return len(valid)


def issued(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of what an authority issued: node, serial, expires, revoked. Raises SigningKeyError."""
    path = directory / ISSUED
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["issued"]
        for row in rows:
            int(row["serial"], 16)
            dt.datetime.fromisoformat(row["revoked"] or row["expires"])
            str(row["node"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise SigningKeyError(
            f"the list of certificates cannot be read: {problem}",
            file=path,
            remedy="restore the directory of the authority from a backup",
        ) from problem
    return list(rows)


def serial(certificate: Path) -> str:
    """Return the serial number of a certificate, as the list of an authority has it."""
    from cryptography import x509

    return f"{x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number:x}"


def succeed(directory: Path, new: Path, now: dt.datetime) -> None:
    """Replace an authority by the one in `new`; the former one goes to `before`, and stays trusted.

    Certificate and list of the directory have both: without a list of each authority, OpenSSL
    refuses the certificates of the other one. May be repeated after an interruption.
    """
    before = directory / BEFORE
    before.mkdir(mode=0o700, exist_ok=True)
    for name in (CERTIFICATE, KEY, ISSUED, REVOKED):
        if not (before / name).exists():
            replace_file(before / name, (directory / name).read_bytes(), 0o600)
    own = [(place / CERTIFICATE).read_bytes() for place in (new, before)]
    replace_file(directory / ISSUED, (new / ISSUED).read_bytes(), 0o600)
    replace_file(directory / KEY, (new / KEY).read_bytes(), 0o600)
    replace_file(directory / CERTIFICATE, b"".join(own))
    _write_revoked(directory, now)


def withdraw(directory: Path, away: Path, now: dt.datetime) -> None:
    """End the trust in the authority before, whose directory becomes `away`. May be repeated."""
    if (directory / BEFORE).exists():
        (directory / BEFORE).rename(away)
    certificate, _ = _opened(directory)
    replace_file(directory / CERTIFICATE, _certificate_pem(certificate))
    _write_revoked(directory, now)


def write_secret(path: Path, data: bytes) -> None:
    """Write a secret that did not exist, for its owner alone from its first byte. Raises SigningKeyError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SigningKeyError(
            "there is a key already", file=path, remedy="name another directory, or move it away"
        ) from None
    with os.fdopen(number, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _opened(directory: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    secret_modes.require(directory / KEY, secret_modes.AUTHORITY_KEY)
    try:
        certificate = x509.load_pem_x509_certificate((directory / CERTIFICATE).read_bytes())
        key = load_pem_private_key((directory / KEY).read_bytes(), None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise TypeError("no ECDSA key")
    except (OSError, ValueError, TypeError) as problem:
        # No text of a library: it may quote the key.
        raise SigningKeyError(
            "this is no authority of goldnode, or its key cannot be read",
            file=directory,
            remedy="make one with `goldnode keys make authority --out DIR`",
        ) from problem
    return certificate, key


def _write_revoked(directory: Path, now: dt.datetime) -> None:
    """Write the list of revoked certificates, with that of the authority before.

    It holds as long as the authority: a list that ends would stop all nodes.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    authority, key = _opened(directory)
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
    update = max(now - _EARLY, _last_update(directory / REVOKED) + dt.timedelta(seconds=1))
    builder = builder.last_update(update).next_update(authority.not_valid_after_utc)
    for row in issued(directory):
        if row["revoked"] is not None:
            entry = x509.RevokedCertificateBuilder().serial_number(int(row["serial"], 16))
            when = dt.datetime.fromisoformat(row["revoked"])
            builder = builder.add_revoked_certificate(entry.revocation_date(when).build())
    # The number is for people: OpenSSL takes the list with the later update, to the second.
    number = x509.CRLNumber(int(now.timestamp() * 1000))
    # RFC 5280, section 5.2.1: OpenSSL selects a list by it where two authorities have one name.
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    data = builder.add_extension(number, critical=False).sign(key, hashes.SHA256())
    before = directory / BEFORE / REVOKED
    lists = [data.public_bytes(Encoding.PEM), before.read_bytes() if before.exists() else b""]
    replace_file(directory / REVOKED, b"".join(lists))


def _last_update(path: Path) -> dt.datetime:
    """Return the latest update of the lists in a file: a service ignores a list that is not later than the one before."""
    from cryptography import x509

    blocks = path.read_bytes().split(_END)[:-1] if path.exists() else []
    try:
        updates = [x509.load_pem_x509_crl(block + _END).last_update_utc for block in blocks]
    except ValueError:
        updates = []  # a damaged file, which no service has read
    return max(updates, default=dt.datetime(1970, 1, 1, tzinfo=dt.UTC))


def _write_issued(directory: Path, rows: list[dict[str, Any]]) -> None:
    text = json.dumps({"schema": "goldnode.issued/1", "issued": rows}, indent=1)
    replace_file(directory / ISSUED, f"{text}\n".encode(), 0o600)


def _builder(
    subject: Name, issuer: Name, key: EllipticCurvePrivateKey, now: dt.datetime, end: dt.datetime
) -> CertificateBuilder:
    from cryptography import x509

    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _EARLY).not_valid_after(end)


def _signed(builder: CertificateBuilder, key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256())


def _usage(*, signs_certificates: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    return generate_private_key(SECP256R1())


def _named(name: str) -> Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name[:64])])


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


def _certificate_pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)

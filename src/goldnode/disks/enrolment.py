"""Variables of UEFI Secure Boot that the firmware of a machine in setup mode takes at its first boot.

systemd-boot enrols the files in /loader/keys/NAME of the ESP (systemd-boot(7), `secure-boot-enroll`). The same
certificate, key and goldnode version give the same bytes: RSA signatures without attributes, dated by the certificate.

Formats: UEFI 2.10, 32.4.1 (EFI_SIGNATURE_LIST) and 8.2.2 (EFI_VARIABLE_AUTHENTICATION_2).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from goldnode.core.errors import DiskError
from goldnode.lock import modpackage

X509 = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
PKCS7 = uuid.UUID("4aafd29d-68df-49ee-8aa9-347d375665a7")
GLOBAL = uuid.UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
SECURITY = uuid.UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
# Variable -> namespace. Each belongs to the one before it: who has the key of PK may change KEK, and so on.
VARIABLES = {"PK": GLOBAL, "KEK": GLOBAL, "db": SECURITY}
# Non-volatile, for boot services and the running system, authenticated by time.
ATTRIBUTES = 0x27
# Owner of these entries in the lists. It identifies them and grants nothing.
OWNER = uuid.UUID("5b9b7a3c-0f4e-5f0e-9c57-6d1a0c2f8e11")


def signature_list(certificates: Sequence[bytes]) -> bytes:
    """Return certificates (DER) as EFI_SIGNATURE_LISTs, one each: a list has entries of one size."""
    out = bytearray()
    for der in certificates:
        out += X509.bytes_le + struct.pack("<III", 28 + 16 + len(der), 0, 16 + len(der))
        out += OWNER.bytes_le + der
    return bytes(out)


def timestamp(when: datetime) -> bytes:
    """Return an EFI_TIME in UTC."""
    fields = (when.year, when.month, when.day, when.hour, when.minute, when.second)
    return struct.pack("<HBBBBBxIhBx", *fields, 0, 0, 0)


def authenticated(
    name: str, certificates: Sequence[bytes], signing: modpackage.Signing, when: datetime
) -> bytes:
    """Return the content of a variable, signed: a file NAME.auth. Raises ModulesError."""
    content, dated = signature_list(certificates), timestamp(when.astimezone(UTC))
    covered = name.encode("utf-16-le") + VARIABLES[name].bytes_le
    covered += struct.pack("<I", ATTRIBUTES) + dated + content
    body = bare_signed_data(signing.cms(covered, certificates=True))
    certificate = struct.pack("<IHH", 24 + len(body), 0x0200, 0x0EF1) + PKCS7.bytes_le + body
    return dated + certificate + content


def bare_signed_data(der: bytes) -> bytes:
    """Return the SignedData of a PKCS #7 ContentInfo: UEFI asks for it without that shell."""
    outer, inner = _content(der, 0), 0
    _, length, start = outer
    _, size, place = _content(der, start)  # the OID of the type
    tag, _, inner = _content(der, place + size)
    if tag != 0xA0 or start + length > len(der):
        raise DiskError(
            "openssl's signature is not the PKCS #7 that UEFI asks for", remedy="report this"
        )
    return der[inner : start + length]


def _content(der: bytes, place: int) -> tuple[int, int, int]:
    """Return tag, length and place of the content of a DER value."""
    tag, first = der[place], der[place + 1]
    if first < 0x80:
        return tag, first, place + 2
    octets = first & 0x7F
    return tag, int.from_bytes(der[place + 2 : place + 2 + octets], "big"), place + 2 + octets


def enrolment_files(signing: modpackage.Signing, further: Sequence[Path] = ()) -> dict[str, bytes]:
    """Return PK.auth, KEK.auth and db.auth of a key pair. Raises ModulesError.

    `further` are certificates that db has as well.
    """
    own, when = signing.der(), signing.begins()
    db = [own, *(modpackage.certificate_der(path) for path in further)]
    return {
        f"{name}.auth": authenticated(name, db if name == "db" else [own], signing, when)
        for name in VARIABLES
    }

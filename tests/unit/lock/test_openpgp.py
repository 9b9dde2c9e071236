"""Fingerprints without gpg, validated against gpg's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.lock.archive import SigningKey

from goldnode.core import keys
from goldnode.node.ground import openpgp


@pytest.mark.parametrize("armored", [True, False])
def test_fingerprint_equals_that_of_gpg(key: SigningKey, tmp_path: Path, armored: bool) -> None:
    data = key.export(tmp_path / "key", armored=armored).read_bytes()
    assert openpgp.primary_fingerprints(data) == [key.fingerprint]
    assert keys.unexpected(data, [key.fingerprint.lower()]) == []
    assert keys.unexpected(data, ["0" * 40]) == [key.fingerprint]


def test_rsa_with_a_subkey_counts_once(tmp_path: Path) -> None:
    made = SigningKey(tmp_path / "h", "")
    made.home.mkdir(mode=0o700)
    made.gpg("--quick-gen-key", "rsa", "rsa2048", "sign", "never")
    rows = made.gpg("--with-colons", "--list-keys").splitlines()
    primary = next(row.split(":")[9] for row in rows if row.startswith("fpr:"))
    made.gpg("--quick-add-key", primary, "rsa2048", "sign", "never")
    data = made.export(tmp_path / "key").read_bytes()
    made.stop()
    assert openpgp.primary_fingerprints(data) == [primary]


@pytest.mark.parametrize("joined", ["armored", "binary"])
def test_keyring_of_two_and_choosing_one(
    key: SigningKey, other_key: SigningKey, tmp_path: Path, joined: str
) -> None:
    parts = [
        one.export(tmp_path / name, armored=joined == "armored").read_bytes()
        for name, one in (("a", key), ("b", other_key))
    ]
    ring = b"".join(parts)
    assert openpgp.primary_fingerprints(ring) == [key.fingerprint, other_key.fingerprint]
    chosen = keys.select(ring, [other_key.fingerprint])
    assert openpgp.primary_fingerprints(chosen) == [other_key.fingerprint]
    shown = other_key.gpg(
        "--show-keys", "--with-colons", str(_written(tmp_path / "chosen", chosen))
    )
    # The user id and its signature came along, so gpg can use the key.
    assert other_key.fingerprint in shown
    assert "somebody else" in shown
    assert keys.select(ring, ["0" * 40]) == b""


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_armor_is_read_back_by_both(key: SigningKey, tmp_path: Path) -> None:
    binary = key.export(tmp_path / "key", armored=False).read_bytes()
    text = keys.armor(binary)
    assert openpgp.dearmor(text) == binary
    assert keys.armor(text) == text
    assert key.fingerprint in key.gpg(
        "--show-keys", "--with-colons", str(_written(tmp_path / "again", text))
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "no OpenPGP public key"),
        (
            lambda data: b"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n",
            "no OpenPGP public key",
        ),
        (lambda data: openpgp.dearmor(data)[:-5], "cut short"),
        (lambda data: openpgp.dearmor(data)[:1], "cut short"),
        (lambda data: b"\x99\x00\x03\x03ab", "version 3"),
        (lambda data: b"\x95\x00\x03\x04ab", "secret key"),
        (lambda data: b"\xa8\x03abc", "partial length|no primary public key|unknown length"),
        (lambda data: data.replace(b"\n=", b"\n=AAAA", 1), "checksum|base64"),
        (lambda data: _swapped(data), "checksum"),
    ],
)
def test_damaged_key_is_an_error(
    key: SigningKey, tmp_path: Path, damage: object, message: str
) -> None:
    data = key.export(tmp_path / "key").read_bytes()
    assert callable(damage)
    with pytest.raises(openpgp.OpenPGPError, match=message):
        openpgp.primary_fingerprints(damage(data))


def _swapped(armored: bytes) -> bytes:
    """Two characters of the content exchanged: still base64, other bytes."""
    lines = armored.splitlines(keepends=True)
    row = next(index for index, line in enumerate(lines) if len(line) > 60 and b"-----" not in line)
    line = lines[row]
    at = next(index for index in range(20) if line[index] != line[index + 1])
    lines[row] = line[:at] + line[at + 1 : at + 2] + line[at : at + 1] + line[at + 2 :]
    return b"".join(lines)

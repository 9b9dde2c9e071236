"""Keys of a PKCS #11 token: SoftHSM 2 of Debian, through securesystemslib and python-pkcs11."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.evidence.tokens import PLACE, token

from goldnode.cli import main
from goldnode.commands.channel_moves import Keys, signers_of
from goldnode.core.errors import SigningKeyError
from goldnode.evidence.signatures import PIN, load_key, public_half

__all__ = ["token"]  # a fixture


def test_token_without_its_library_is_an_error_that_names_the_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYKCS11LIB", raising=False)
    with pytest.raises(SigningKeyError, match="hsm:2 cannot be used") as refusal:
        load_key("hsm:2")
    assert "PKCS11" in str(refusal.value.remedy)


def test_key_of_a_token_signs_what_its_public_half_verifies(token: Path) -> None:
    signer = load_key(PLACE)
    assert signer.keyid == public_half(PLACE).keyid == load_key(token).keyid
    signature = signer.signer.sign(b"data")
    load_key(token).public.verify_signature(signature, b"data")


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize(
    ("place", "pin"), [(PLACE, "0000"), ("hsm:3?label=goldnode", "1234"), ("hsm:2?label=x", "1234")]
)
def test_wrong_pin_key_or_token_is_an_error(
    place: str, pin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIN, pin)
    with pytest.raises(SigningKeyError, match="cannot be used") as refusal:
        load_key(place)
    assert pin not in str(refusal.value)


def test_moves_of_channels_are_signed_by_keys_of_a_token(
    token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By options, and by the site file, which names a token in place of a file."""
    monkeypatch.chdir(tmp_path)
    text = f"images: {{signing_key: '{PLACE}', online_key: '{PLACE}'}}\n"
    (tmp_path / "goldnode-site.yml").write_text(text)
    own = load_key(token).keyid
    for keys in (Keys(), Keys(key=PLACE, more=(token,), online=PLACE)):
        signers = signers_of(keys)
        assert {one.keyid for one in (*signers.roles, *signers.online)} == {own}


def test_command_of_a_move_takes_the_name_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYKCS11LIB", raising=False)
    words = [
        "disks",
        "rollback",
        "cpu_node",
        "--by",
        "ana",
        "--key",
        "hsm:2",
        "--online-key",
        "hsm:2",
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "hsm:2 cannot be used" in done.output

"""Keys of a PKCS #11 token: SoftHSM 2 of Debian, through securesystemslib and python-pkcs11."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.commands.channel_moves import Keys, signers_of
from goldnode.core.errors import SigningKeyError
from goldnode.evidence.signatures import PIN, load_key, public_half

LIBRARY = Path("/usr/lib/softhsm/libsofthsm2.so")
PLACE = "hsm:2?label=goldnode"


def test_token_without_its_library_is_an_error_that_names_the_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYKCS11LIB", raising=False)
    with pytest.raises(SigningKeyError, match="hsm:2 cannot be used") as refusal:
        load_key("hsm:2")
    assert "PKCS11" in str(refusal.value.remedy)


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of the key that a token has. The library reads its settings once per process."""
    pytest.importorskip("pkcs11", reason="optional: `pip install securesystemslib[PKCS11]`")
    if shutil.which("softhsm2-util") is None or not LIBRARY.exists():
        pytest.skip("needs softhsm2 of Debian")
    place = tmp_path_factory.mktemp("token")
    (place / "tokens").mkdir()
    (place / "softhsm2.conf").write_text(f"directories.tokendir = {place / 'tokens'}\n")
    key, pins = place / "key.pem", ("--pin", "1234")
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SOFTHSM2_CONF", str(place / "softhsm2.conf"))
        environment.setenv("PYKCS11LIB", str(LIBRARY))
        environment.setenv(PIN, "1234")
        for words in (
            f"softhsm2-util --init-token --free --label goldnode --so-pin 123456 {' '.join(pins)}",
            f"openssl genpkey {' '.join(curve)} -out {key}",
            f"softhsm2-util --import {key} --token goldnode --label k --id 02 {' '.join(pins)}",
        ):
            subprocess.run(words.split(), check=True, capture_output=True)
        key.chmod(0o600)
        yield key


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

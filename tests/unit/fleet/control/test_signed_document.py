"""Signed rollout documents: with a key of the site, a document is verified before it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.fleet.rollout import documents
from tests.unit.images.registries import make_key

from goldnode.cli import main
from goldnode.evidence.signatures import load_signer
from goldnode.fleet.control.document_files import PAYLOAD_TYPE, envelope_of, load, sign
from goldnode.fleet.rollout.document import RolloutError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "r1.yml"
    found.write_text(documents.TEXT)
    return found


def test_unsigned_document_is_read_where_the_site_has_no_key(path: Path) -> None:
    found = load(path)
    assert (found.settings.name, found.text, found.keyid) == ("r1", documents.TEXT, None)


def test_signed_document_is_read_beside_its_signature_or_from_it(
    path: Path, keys: tuple[Path, Path]
) -> None:
    secret, public = keys
    envelope = sign(path, secret)
    assert envelope == envelope_of(path)
    keyid = load_signer(secret).keyid
    for place in (path, envelope):
        found = load(place, public)
        assert (found.settings.name, found.text, found.keyid) == ("r1", documents.TEXT, keyid)
        assert load(place).keyid is None  # without a key nothing is verified
    assert sign(path, secret).read_bytes() == envelope.read_bytes()


def test_document_that_is_not_verified_is_refused(path: Path, keys: tuple[Path, Path]) -> None:
    secret, public = keys
    with pytest.raises(RolloutError, match=r"is not signed.*goldnode rollout sign"):
        load(path, public)
    envelope = sign(path, secret)
    path.write_text(documents.TEXT.replace("total: 10", "total: 99"))
    with pytest.raises(RolloutError, match="differs from what was signed"):
        load(path, public)
    path.write_text(documents.TEXT)
    (path.parent / "other").mkdir()
    other, other_public = make_key(path.parent / "other")
    with pytest.raises(RolloutError, match="signature is wrong"):
        load(path, other_public)
    envelope.write_bytes(load_signer(secret).sign(documents.TEXT.encode(), "application/json"))
    with pytest.raises(RolloutError, match="is no rollout document"):
        load(path, public)
    altered = json.loads(load_signer(secret).sign(documents.TEXT.encode(), PAYLOAD_TYPE))
    altered["payload"] = json.loads(load_signer(other).sign(b"rollout: r2\n", PAYLOAD_TYPE))[
        "payload"
    ]
    envelope.write_text(json.dumps(altered))
    for place in (path, envelope):
        with pytest.raises(RolloutError, match="signature is wrong"):
            load(place, public)
    envelope.write_text("{")
    with pytest.raises(RolloutError, match="signature is wrong: the document is not signed"):
        load(path, public)


def test_error_of_a_signed_document_names_its_line(path: Path, keys: tuple[Path, Path]) -> None:
    text = documents.TEXT.replace("timeout: 1h", "timeout: soon")
    envelope = path.with_name("r1.dsse")
    envelope.write_bytes(load_signer(keys[0]).sign(text.encode(), PAYLOAD_TYPE))
    line = text.splitlines().index("timeout: soon") + 1
    with pytest.raises(RolloutError, match=rf"r1\.dsse:{line}: "):
        load(envelope, keys[1])


def test_sign_command_writes_an_envelope_that_loads(path: Path, keys: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(main, ["rollout", "sign", str(path), "--key", str(keys[0])])
    assert (done.exit_code, done.output) == (0, f"wrote {path}.dsse\n")
    assert load(path, keys[1]).keyid
    path.write_text("rollout: [\n")
    done = CliRunner().invoke(main, ["rollout", "sign", str(path), "--key", str(keys[0])])
    assert done.exit_code == 2

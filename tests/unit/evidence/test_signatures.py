"""Signing and verifying: what is refused, and that no secret leaves its file."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.evidence.samples import IMAGE, LOCKS, built, image, sample

from goldnode import evidence
from goldnode.core.errors import ImageError, SigningKeyError
from goldnode.evidence import signatures
from goldnode.evidence.verify import documents, sign, verify
from goldnode.evidence.write import ImageEvidenceOptions, write
from goldnode.oci.layout import Layout, canonical

ALGORITHMS = {
    "ed25519": ["-algorithm", "ed25519"],
    "p256": ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
}


def key(directory: Path, name: str = "key", kind: str = "ed25519", *more: str) -> Path:
    file = directory / f"{name}.pem"
    subprocess.run(
        ["openssl", "genpkey", *ALGORITHMS[kind], *more, "-out", str(file)],
        check=True,
        capture_output=True,
    )
    file.chmod(0o600)
    command = [
        "openssl",
        "pkey",
        "-in",
        str(file),
        "-pubout",
        "-out",
        str(directory / f"{name}.pub"),
    ]
    subprocess.run(
        [*command, *(["-passin", "pass:word"] if more else [])], check=True, capture_output=True
    )
    return file


@pytest.fixture(params=["ed25519", "p256"])
def secret(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return key(tmp_path, "key", request.param)


def states(layout: Layout, digest: str, public: Path) -> dict[str, str]:
    result = verify(layout, digest, signatures.load_public(public))
    return {row.what: f"{row.state}: {row.detail}" for row in result.rows if row.state != "ok"} | {
        "passed": str(result.passed)
    }


def write_all(layout: Layout, digest: str, secret: Path | None, **more: object) -> list[str]:
    signer = signatures.load_signer(secret) if secret is not None else None
    rows = write(layout, IMAGE, built(digest), LOCKS, ImageEvidenceOptions(signer=signer, **more))  # type: ignore[arg-type]
    return [row.state for row in rows]


def test_signed_image_verifies_and_is_not_signed_twice(layout: Layout, secret: Path) -> None:
    digest = sample(layout)
    layout.attach(digest, evidence.INSPECTION, canonical({"passed": True, "subject": digest}))
    assert set(write_all(layout, digest, secret)) == {"written"}
    public = secret.with_suffix(".pub")
    result = verify(layout, digest, signatures.load_public(public))
    assert result.passed, result.text()
    assert {row.what for row in result.rows} == {
        "image",
        "inspection",
        "signature",
        "cosign signature",
        "attestation",
        "provenance",
        "SBOM (CycloneDX)",
        "SBOM (SPDX)",
        "vulnerabilities",
        "size",
    }
    # Again: nothing new, not even with ECDSA, whose signatures differ each time.
    before = [row.artefact for row in documents(layout, digest)]
    assert set(write_all(layout, digest, secret)) == {"kept"}
    assert [row.artefact for row in documents(layout, digest)] == before


def test_openssl_verifies_the_signature(layout: Layout, tmp_path: Path) -> None:
    """A second implementation checks the signature, over the bytes that DSSE says are signed."""
    digest, file = sample(layout), key(tmp_path, kind="p256")
    sign(layout, digest, "cuda:x", signatures.load_signer(file))
    (row,) = documents(layout, digest)
    envelope = json.loads(row.data)
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    (tmp_path / "pae").write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = [
        "openssl",
        "dgst",
        "-sha256",
        "-verify",
        str(file.with_suffix(".pub")),
        "-signature",
        str(tmp_path / "sig"),
    ]
    assert (
        subprocess.run(
            [*command, str(tmp_path / "pae")], check=True, capture_output=True, text=True
        ).stdout
        == "Verified OK\n"
    )
    der = [
        "openssl",
        "pkey",
        "-pubin",
        "-in",
        str(file.with_suffix(".pub")),
        "-outform",
        "DER",
        "-out",
        str(tmp_path / "der"),
    ]
    subprocess.run(der, check=True)
    hashed = subprocess.run(
        ["sha256sum", str(tmp_path / "der")], check=True, capture_output=True, text=True
    ).stdout
    assert envelope["signatures"][0]["keyid"] == hashed.split()[0]


def test_image_signed_by_an_unknown_key_does_not_pass(
    layout: Layout, tmp_path: Path, secret: Path
) -> None:
    digest = sample(layout)
    write_all(layout, digest, secret)
    other = key(tmp_path, "other")
    found = states(layout, digest, other.with_suffix(".pub"))
    assert found["passed"] == "False"
    assert "signed by a key that is not known here" in found["signature"]
    # Two keys in one file: the old one is still good.
    both = tmp_path / "both.pub"
    both.write_bytes(
        other.with_suffix(".pub").read_bytes() + secret.with_suffix(".pub").read_bytes()
    )
    assert states(layout, digest, both) == {"passed": "True"}


def test_an_envelope_that_claims_a_known_key(layout: Layout, tmp_path: Path) -> None:
    digest = sample(layout)
    known, other = key(tmp_path), key(tmp_path, "other")
    envelope = json.loads(
        signatures.load_signer(other).sign(
            signatures.statement("x", digest, "urn:goldnode:image-evidence:1", {})
        )
    )
    envelope["signatures"][0]["keyid"] = signatures.load_signer(known).keyid
    layout.attach(digest, evidence.SIGNATURE, canonical(envelope))
    assert (
        "the signature does not hold"
        in states(layout, digest, known.with_suffix(".pub"))["signature"]
    )


def test_altered_signed_payload_does_not_pass(layout: Layout, secret: Path) -> None:
    digest = sample(layout)
    write_all(layout, digest, secret)
    for row in documents(layout, digest):
        if row.type == evidence.SIGNATURE:
            envelope = json.loads(row.data)
            payload = json.loads(base64.b64decode(envelope["payload"]))
            payload["predicate"]["documents"] = []
            envelope["payload"] = base64.b64encode(canonical(payload)).decode()
            layout.detach(row.artefact)
            layout.attach(digest, evidence.SIGNATURE, canonical(envelope))
    found = states(layout, digest, secret.with_suffix(".pub"))
    assert (
        "the signature does not hold: what was signed, or the signature, was altered"
        in found["signature"]
    )
    assert found["passed"] == "False"


def test_a_good_signature_of_another_image(layout: Layout, secret: Path) -> None:
    digest, other = sample(layout), image(layout, "x:1", [{"a": "b"}])
    write_all(layout, digest, secret)
    for row in documents(layout, digest):
        layout.attach(other, row.type, row.data)
    found = states(layout, other, secret.with_suffix(".pub"))
    assert f"it is about {digest}" in found["SBOM (CycloneDX)"]
    for name in ("SBOM (SPDX)", "vulnerabilities", "size", "provenance"):
        assert f"it is about {digest}" in found[name], name
    assert "given for something else" in found["signature"]
    assert found["passed"] == "False"


def test_documents_that_came_went_or_changed_after_the_signature(
    layout: Layout, secret: Path
) -> None:
    digest, public = sample(layout), secret.with_suffix(".pub")
    write_all(layout, digest, secret)
    layout.attach(digest, evidence.SMOKE, canonical({"tiers": {}}))
    layout.attach(digest, "application/vnd.example.note", b"{}")
    found = states(layout, digest, public)
    assert "attached after the signature" in found["smoke"]
    assert found["application/vnd.example.note"].startswith("note: ")
    assert set(write_all(layout, digest, secret)) == {"kept", "written"}
    assert states(layout, digest, public)["passed"] == "True"
    assert len([row for row in documents(layout, digest) if row.type == evidence.SIGNATURE]) == 1
    (smoke,) = (row for row in documents(layout, digest) if row.type == evidence.SMOKE)
    layout.detach(smoke.artefact)
    found = states(layout, digest, public)
    assert "is signed for, and is not attached" in found["smoke"]
    layout.attach(digest, evidence.SMOKE, canonical({"tiers": {"gpu": {"state": "passed"}}}))
    assert states(layout, digest, public)["passed"] == "False"


def test_the_key_is_changed_over_and_documents_move_on(layout: Layout, tmp_path: Path) -> None:
    digest, old, new = sample(layout), key(tmp_path, "old"), key(tmp_path, "new")
    layout.attach(digest, evidence.SMOKE, canonical({"tiers": {}}))
    write_all(layout, digest, old)
    both = tmp_path / "both.pub"
    both.write_bytes(old.with_suffix(".pub").read_bytes() + new.with_suffix(".pub").read_bytes())
    write_all(layout, digest, new)
    assert (
        len([row for row in documents(layout, digest) if row.type == evidence.SIGNATURE]) == 1
    )  # the provenance is another since
    write_all(layout, digest, old)
    sign(layout, digest, "x", signatures.load_signer(new))
    assert (
        len([row for row in documents(layout, digest) if row.type == evidence.SIGNATURE]) == 2
    )  # they say the same
    assert states(layout, digest, both) == {"passed": "True"}
    (smoke,) = (row for row in documents(layout, digest) if row.type == evidence.SMOKE)
    layout.detach(smoke.artefact)
    layout.attach(digest, evidence.SMOKE, canonical({"tiers": {"gpu": {"state": "passed"}}}))
    assert states(layout, digest, both)["passed"] == "False"
    sign(layout, digest, "x", signatures.load_signer(new))
    assert states(layout, digest, both) == {"passed": "True"}


def test_unsigned_or_unchecked_image_is_not_verified(layout: Layout, tmp_path: Path) -> None:
    digest, public = sample(layout), key(tmp_path).with_suffix(".pub")
    write_all(layout, digest, None)
    assert "the image is not signed" in states(layout, digest, public)["signature"]
    result = verify(layout, digest, [])
    assert not result.passed
    assert "NOT verified" in result.text()
    assert "no public key was named" in result.text()
    write_all(layout, digest, public.with_suffix(".pem"))
    assert not verify(layout, digest, []).passed


def test_a_layer_that_was_altered_or_is_gone(layout: Layout, secret: Path) -> None:
    digest, public = sample(layout), secret.with_suffix(".pub")
    write_all(layout, digest, secret)
    keys = signatures.load_public(public)
    path = layout.path(layout.image(digest).layers[1].digest)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "is altered" in states(layout, digest, public)["image"]
    quick = verify(layout, digest, keys, layers=False)
    assert quick.passed
    assert "the layers' content was not read" in quick.text()
    path.unlink()
    assert "is not in" in states(layout, digest, public)["image"]


def test_a_document_whose_blob_was_altered(layout: Layout, secret: Path) -> None:
    digest = sample(layout)
    write_all(layout, digest, secret)
    (bill,) = (row for row in documents(layout, digest) if row.type == evidence.CYCLONEDX)
    layout.path(bill.digest).write_bytes(bill.data.replace(b"libc6", b"libc7"))
    result = verify(layout, digest, signatures.load_public(secret.with_suffix(".pub")))
    assert not result.passed
    assert "is altered" in result.text()


def test_keys_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(signatures.PASSWORD, raising=False)
    good = key(tmp_path)
    with pytest.raises(SigningKeyError, match="cannot be read"):
        signatures.load_signer(tmp_path / "absent.pem")
    good.chmod(0o640)
    with pytest.raises(
        SigningKeyError, match=r"can be read by others than its owner. Run `chmod 600"
    ):
        signatures.load_signer(good)
    good.chmod(0o600)
    with pytest.raises(SigningKeyError, match=r"secret key, where its public half"):
        signatures.load_public(good)
    shutil.copy(good.with_suffix(".pub"), tmp_path / "public.pem")
    (tmp_path / "public.pem").chmod(0o600)
    with pytest.raises(SigningKeyError, match="no secret key"):
        signatures.load_signer(tmp_path / "public.pem")
    (tmp_path / "text").write_text("nothing")
    with pytest.raises(SigningKeyError, match="no ed25519 or ECDSA public key"):
        signatures.load_public(tmp_path / "text")
    rsa = tmp_path / "rsa.pem"
    subprocess.run(
        [
            "openssl",
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:1024",
            "-out",
            str(rsa),
        ],
        check=True,
    )
    rsa.chmod(0o600)
    with pytest.raises(SigningKeyError, match="expected ed25519 or ECDSA P-256"):
        signatures.load_signer(rsa)


def test_a_key_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(signatures.PASSWORD, raising=False)
    file = key(tmp_path, "locked", "ed25519", "-aes256", "-pass", "pass:word")
    with pytest.raises(
        SigningKeyError, match=r"is encrypted. Give its password in GOLDNODE_SIGNING_PASSWORD"
    ):
        signatures.load_signer(file)
    monkeypatch.setenv(signatures.PASSWORD, "wrong")
    with pytest.raises(SigningKeyError, match="password of the signing key") as caught:
        signatures.load_signer(file)
    assert "wrong" not in str(caught.value)
    monkeypatch.setenv(signatures.PASSWORD, "word")
    assert signatures.load_signer(file).keyid


def test_no_secret_is_shown_or_written(layout: Layout, tmp_path: Path) -> None:
    file = key(tmp_path)
    body = file.read_text().splitlines()[1]
    signer = signatures.load_signer(file)
    assert body not in repr(signer)
    digest = sample(layout)
    write_all(layout, digest, file)
    for blob in layout.root.rglob("*"):
        assert not blob.is_file() or body.encode() not in blob.read_bytes()
    broken = tmp_path / "broken.pem"
    broken.write_text(f"-----BEGIN PRIVATE KEY-----\n{body[:-9]}\n-----END PRIVATE KEY-----\n")
    broken.chmod(0o600)
    with pytest.raises(SigningKeyError) as caught:
        signatures.load_signer(broken)
    assert body[:20] not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_envelope_that_names_no_key(tmp_path: Path) -> None:
    """As cosign writes it."""
    file = key(tmp_path)
    envelope = json.loads(signatures.load_signer(file).sign(b"{}"))
    envelope["signatures"][0]["keyid"] = ""
    assert (
        signatures.open_envelope(
            canonical(envelope), signatures.load_public(file.with_suffix(".pub"))
        ).payload
        == b"{}"
    )


@pytest.mark.parametrize(
    "document",
    [
        {"payload": "e30=", "payloadType": "x", "signatures": []},
        {"payload": "%", "payloadType": "x", "signatures": [{}]},
        {},
        [],
    ],
)
def test_open_envelope_refuses_malformed_documents(tmp_path: Path, document: object) -> None:
    with pytest.raises(ImageError):
        signatures.open_envelope(
            canonical(document), signatures.load_public(key(tmp_path).with_suffix(".pub"))
        )

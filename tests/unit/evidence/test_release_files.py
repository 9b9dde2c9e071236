"""Verification of a release: signatures, names, provenance, and the program of a node."""

from __future__ import annotations

import hashlib
import io
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from release import provenance
from tests.unit.images.registries import make_ecdsa_key, make_key

from goldnode.core.errors import SigningKeyError
from goldnode.core.program_file import START
from goldnode.evidence import release_files
from goldnode.evidence.release_files import PROGRAMS, ReleaseError
from goldnode.evidence.signatures import PAYLOAD, load_signer


def archive(content: dict[str, str], level: int = 9) -> bytes:
    """Return a program of nodes with these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as file:
        for name, text in content.items():
            file.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED, level)
    return START + out.getvalue()


CONTENT = {"__main__.py": "print(1)\n" * 99, "goldnode/node/a.py": "A = 1\n"}


class Made:
    """A small release, with its keys."""

    def __init__(self, directory: Path) -> None:
        self.out = directory / "dist"
        self.out.mkdir()
        self.secret, self.public = make_ecdsa_key(directory, "release")
        self.other = make_ecdsa_key(directory, "other")
        tree = directory / "tree/requirements"
        tree.mkdir(parents=True)
        (tree / "dev.lock").write_text("")
        self.tree = tree.parent
        (self.out / "goldnode-1.0.whl").write_bytes(b"wheel")
        (self.out / PROGRAMS[0]).write_bytes(archive(CONTENT))
        self.sign()

    def sums(self) -> dict[str, str]:
        """Return name -> digest of what a release names."""
        paths = [path for path in self.out.iterdir() if not path.name.startswith("SHA256SUMS")]
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
        return {name: found[name] for name in sorted(found) if not name.endswith(".jsonl")}

    def sign(self, secret: Path | None = None, lines: str | None = None) -> None:
        """Write SHA256SUMS (or `lines`) and sign it, as a release does."""
        origin = self.out / "goldnode-1.0.provenance.json"
        origin.unlink(missing_ok=True)
        origin.write_bytes(provenance.document(self.sums(), self.tree, "a" * 40, 1))
        text = "".join(f"{digest}  {name}\n" for name, digest in self.sums().items())
        (self.out / "SHA256SUMS").write_text(text if lines is None else lines)
        provenance.sign(self.out, provenance.signer(secret or self.secret))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_a_release_is_verified(made: Made) -> None:
    release = release_files.verify(made.out, made.public)
    assert release.attested
    assert release.key == load_signer(made.secret).keyid
    rows = release_files.verify_all(release, release_files.members(made.out))
    assert [(path.name, problem) for path, _, problem in rows] == [
        ("goldnode-1.0.provenance.json", ""),
        ("goldnode-1.0.whl", ""),
        ("goldnode-node", ""),
    ]


def another_key(made: Made) -> None:
    made.sign(made.other[0])


def an_old_signature(made: Made) -> None:
    with (made.out / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  more\n")


def no_signature(made: Made) -> None:
    (made.out / "SHA256SUMS.sig").unlink()


def an_empty_signature(made: Made) -> None:
    (made.out / "SHA256SUMS.sig").write_bytes(b"")


def a_long_signature(made: Made) -> None:
    (made.out / "SHA256SUMS.sig").write_bytes(b"0" * 5000)


def a_path(made: Made) -> None:
    made.sign(lines=f"{'0' * 64}  ../etc/passwd\n")


def a_name_twice(made: Made) -> None:
    made.sign(lines=f"{'0' * 64}  a\n{'1' * 64}  a\n")


def no_line(made: Made) -> None:
    made.sign(lines="")


def binary_mode(made: Made) -> None:
    made.sign(lines=f"{'0' * 64} *a\n")


def a_provenance_of_another_key(made: Made) -> None:
    statement = (made.out / "goldnode-1.0.provenance.json").read_bytes()
    envelope = load_signer(made.other[0]).sign(statement)
    (made.out / "goldnode-1.0.intoto.jsonl").write_bytes(envelope)


def a_provenance_of_other_files(made: Made) -> None:
    statement = provenance.document({"other": "0" * 64}, made.tree, "a" * 40, 1)
    envelope = load_signer(made.secret).sign(statement)
    (made.out / "goldnode-1.0.intoto.jsonl").write_bytes(envelope)


def another_type(made: Made) -> None:
    statement = (made.out / "goldnode-1.0.provenance.json").read_bytes()
    envelope = load_signer(made.secret).sign(statement, f"{PAYLOAD}.other")
    (made.out / "goldnode-1.0.intoto.jsonl").write_bytes(envelope)


def a_deep_provenance(made: Made) -> None:
    (made.out / "goldnode-1.0.intoto.jsonl").write_text("[" * 100_000)


@pytest.mark.parametrize(
    "change",
    [
        another_key,
        an_old_signature,
        no_signature,
        an_empty_signature,
        a_long_signature,
        a_path,
        a_name_twice,
        no_line,
        binary_mode,
        a_provenance_of_another_key,
        a_provenance_of_other_files,
        another_type,
        a_deep_provenance,
    ],
)
def test_a_tampered_release_is_refused(made: Made, change: Callable[[Made], None]) -> None:
    change(made)
    with pytest.raises(ReleaseError) as refusal:
        release_files.verify(made.out, made.public)
    assert refusal.value.file


def test_a_file_that_is_not_of_the_release_is_refused(made: Made) -> None:
    (made.out / "goldnode-1.1.whl").write_bytes(b"wheel")
    release = release_files.verify(made.out, made.public)
    rows = release_files.verify_all(release, release_files.members(made.out))
    problems = {path.name: problem for path, _, problem in rows if problem}
    assert list(problems) == ["goldnode-1.1.whl"]
    assert "the release has no file goldnode-1.1.whl" in problems["goldnode-1.1.whl"]


def test_a_secret_key_is_no_public_key(made: Made) -> None:
    with pytest.raises(ReleaseError, match="one public key"):
        release_files.verify(made.out, made.secret)


def test_a_release_is_signed_with_p256(tmp_path: Path) -> None:
    """`openssl dgst -verify` has no ed25519."""
    secret, _ = make_key(tmp_path)
    with pytest.raises(SigningKeyError, match="expected ECDSA P-256"):
        provenance.signer(secret)


def node(monkeypatch: pytest.MonkeyPatch, program: bytes, status: int = 0) -> list[list[str]]:
    """Answer ssh with a program; return the commands."""
    asked: list[list[str]] = []

    def run(command: list[str], **_given: object) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        return subprocess.CompletedProcess(command, status, program, b"Permission denied\n")

    monkeypatch.setattr("goldnode.evidence.release_files.subprocess.run", run)
    return asked


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        (archive(CONTENT), "goldnode-node of the release"),
        (archive(CONTENT, level=1), "compressed by another zlib"),
    ],
)
def test_the_program_of_a_node_is_of_the_release(
    made: Made, monkeypatch: pytest.MonkeyPatch, program: bytes, answer: str
) -> None:
    release = release_files.verify(made.out, made.public)
    asked = node(monkeypatch, program)
    assert answer in release_files.compare_program(release, "n1")
    assert asked[0][-2:] == ["n1", "head -c 16777216 /usr/lib/goldnode/goldnode-node"]


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        (archive({**CONTENT, "goldnode/node/a.py": "A = 2\n"}), "differ: goldnode/node/a.py"),
        (archive({**CONTENT, "sitecustomize.py": ""}), "differ: sitecustomize.py"),
        (archive(CONTENT).replace(b"-I -S", b"-S -S"), r"differ: \(start\)"),
        (b"#!/bin/sh\n", r"differ: \(the whole file\)"),
        (b"", r"differ: \(the whole file\)"),
    ],
)
def test_another_program_on_a_node_is_reported(
    made: Made, monkeypatch: pytest.MonkeyPatch, program: bytes, answer: str
) -> None:
    release = release_files.verify(made.out, made.public)
    node(monkeypatch, program)
    with pytest.raises(ReleaseError, match=answer):
        release_files.compare_program(release, "n1")


def test_a_node_that_does_not_answer_is_reported(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = release_files.verify(made.out, made.public)
    node(monkeypatch, b"", status=255)
    with pytest.raises(ReleaseError, match="Permission denied"):
        release_files.compare_program(release, "n1")
    with pytest.raises(ReleaseError, match="no name of a host"):
        release_files.compare_program(release, "-oProxyCommand=reboot")

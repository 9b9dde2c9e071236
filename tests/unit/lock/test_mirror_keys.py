"""A key that cannot sign, or that nodes would not believe, is found before anything is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.unit.lock.archive import SigningKey
from tests.unit.lock.mirrors import Setting, use_mirror

from goldnode.core.errors import SigningKeyError
from goldnode.lock.signing import create, open_signer
from goldnode.node.ground.openpgp import dearmor, primary_fingerprints

GUARD = "open sesame"


class Maker:
    """GnuPG homes of one test, with odd keys in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.keys: list[SigningKey] = []

    def key(self, name: str) -> SigningKey:
        self.keys.append(SigningKey.create(self.root / name, name))
        return self.keys[-1]

    def gpg(
        self, key: SigningKey, *arguments: str, text: str | None = None, passphrase: str = ""
    ) -> str:
        command = [
            "gpg",
            "--homedir",
            str(key.home),
            "--batch",
            "--yes",
            "--pinentry-mode",
            "loopback",
            "--passphrase",
            passphrase,
            *arguments,
        ]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, input=text
        ).stdout

    def files(self, key: SigningKey, passphrase: str = "") -> tuple[Path, Path]:
        secret, public = key.home / "secret.asc", key.home / "public.asc"
        secret.touch(0o600)
        secret.write_text(self.gpg(key, "--armor", "--export-secret-keys", passphrase=passphrase))
        public.write_text(self.gpg(key, "--armor", "--export"))
        return secret, public


@pytest.fixture
def maker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    made = Maker(tmp_path_factory.mktemp("m"))
    yield made
    for key in made.keys:
        key.stop()


def expired(maker: Maker, _: Path) -> tuple[Path, Path]:
    key = maker.key("old")
    maker.gpg(
        key,
        "--faked-system-time",
        "20200101T000000",
        "--quick-gen-key",
        "ended",
        "ed25519",
        "sign",
        "1y",
    )
    maker.gpg(key, "--yes", "--delete-secret-and-public-key", key.fingerprint)
    return maker.files(key)


def revoked(maker: Maker, _: Path) -> tuple[Path, Path]:
    key = maker.key("revoked")
    certificate = (
        (key.home / "openpgp-revocs.d" / f"{key.fingerprint}.rev")
        .read_text()
        .replace(":-----BEGIN", "-----BEGIN")
    )
    maker.gpg(key, "--import", text=certificate)
    return maker.files(key)


def foreign(maker: Maker, _: Path) -> tuple[Path, Path]:
    return maker.files(maker.key("one"))[0], maker.files(maker.key("two"))[1]


def locked(maker: Maker, _: Path) -> tuple[Path, Path]:
    key = maker.key("first")
    maker.gpg(key, "--quick-gen-key", "guarded", "ed25519", "sign", "never", passphrase=GUARD)
    maker.gpg(key, "--yes", "--delete-secret-and-public-key", key.fingerprint)
    return maker.files(key, passphrase=GUARD)


def public_only(maker: Maker, _: Path) -> tuple[Path, Path]:
    _secret, public = maker.files(maker.key("public"))
    return public, public


def expired_at_nodes(maker: Maker, _: Path) -> tuple[Path, Path]:
    """The secret key was extended, and nodes still have the public key that ends."""
    key = maker.key("another")
    maker.gpg(
        key,
        "--faked-system-time",
        "20200101T000000",
        "--quick-gen-key",
        "ended",
        "ed25519",
        "sign",
        "1y",
    )
    rows = maker.gpg(key, "--with-colons", "--list-keys", "ended").splitlines()
    ended = next(row.split(":")[9] for row in rows if row.startswith("fpr:"))
    public = key.home / "public.asc"
    public.write_text(maker.gpg(key, "--armor", "--export", ended))
    maker.gpg(key, "--quick-set-expire", ended, "20351231T000000")
    secret = key.home / "secret.asc"
    secret.touch(0o600)
    secret.write_text(maker.gpg(key, "--armor", "--export-secret-keys", ended))
    return secret, public


def junk(_: Maker, tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "junk").write_text("no key at all\n")
    return tmp_path / "junk", tmp_path / "junk"


def absent(_: Maker, tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "nowhere.asc", tmp_path / "nowhere.asc"


Case = Callable[[Maker, Path], tuple[Path, Path]]


CASES: list[tuple[Case, str]] = [
    (expired, "has expired. Extend it"),
    (revoked, "is revoked. Make another"),
    (foreign, "and nodes are given"),
    (locked, "is protected by a passphrase that this run cannot enter. Remove the passphrase"),
    (public_only, "holds no secret key"),
    (expired_at_nodes, "is not valid under the public key: the key has expired"),
    (junk, "key"),
    (absent, "cannot be read: No such file or directory"),
]
# Without `mirror.key` the public key is the secret one's own, so that the two cannot disagree.
ALONE = [
    (case, message) for case, message in CASES if case not in (foreign, expired_at_nodes, locked)
]


@pytest.mark.parametrize(
    ("case", "message", "named"),
    [(*row, True) for row in CASES] + [(*row, False) for row in ALONE],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_refused_before_anything_is_fetched(
    setting: Setting, maker: Maker, tmp_path: Path, case: Case, message: str, named: bool
) -> None:
    secret, public = case(maker, tmp_path)
    use_mirror(
        setting.place,
        setting.server.url,
        mirror=setting.directory,
        signing_key=secret,
        key=public if named else None,
    )
    result = setting.run("small")
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert (
        str(secret.parent) in result.output
        or str(public.parent) in result.output
        or "passphrase" in result.output
    )
    assert setting.server.asked == []
    assert setting.stacks() == []


def test_no_key_at_all(setting: Setting) -> None:
    path = setting.place.root / "site.yml"
    site = yaml.safe_load(path.read_text())
    del site["mirror"]["signing_key"]
    path.write_text(yaml.safe_dump(site))
    result = setting.run("small")
    assert (result.exit_code, setting.server.asked) == (2, [])
    assert (
        "the site names no key to sign the mirror with. Make one with `goldnode mirror key --out DIR`"
        in result.output
    )
    del site["mirror"]
    path.write_text(yaml.safe_dump(site))
    assert "the site names no mirror" in setting.run("small").output


def test_a_key_of_the_users_own_keyring(
    setting: Setting, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = maker.key("own")
    monkeypatch.setenv("GNUPGHOME", str(key.home))
    use_mirror(
        setting.place,
        setting.server.url,
        mirror=setting.directory,
        signing_key=Path(key.fingerprint),
    )
    site = yaml.safe_load((setting.place.root / "site.yml").read_text())
    site["mirror"]["signing_key"] = key.fingerprint
    (setting.place.root / "site.yml").write_text(yaml.safe_dump(site))
    result = setting.run("small")
    assert result.exit_code == 0, result.output
    assert f"signed by {key.fingerprint}" in result.output
    site["mirror"]["signing_key"] = "0" * 40
    (setting.place.root / "site.yml").write_text(yaml.safe_dump(site))
    assert "your keyring has no secret key 0000" in setting.run("small").output


def test_a_new_key_signs_what_is_published_again(
    setting: Setting, maker: Maker, pair: tuple[str, Path, Path]
) -> None:
    assert setting.run("small").exit_code == 0
    before = {
        path: path.read_bytes()
        for path in setting.directory.glob("stacks/small/*/dists/**/Packages*")
    }
    key = maker.key("next")
    secret, public = maker.files(key)
    use_mirror(
        setting.place, setting.server.url, mirror=setting.directory, signing_key=secret, key=public
    )
    result = setting.run("verify")
    assert result.exit_code == 1
    assert (
        f"signature: {next(iter(before)).parents[2] / 'InRelease'}: it is signed by another key"
        in result.output
    )
    assert setting.run("small").exit_code == 0
    assert setting.run("verify").exit_code == 0
    assert {path: path.read_bytes() for path in before} == before
    assert primary_fingerprints((setting.directory / "mirror.asc").read_bytes()) == [
        key.fingerprint
    ]


@pytest.mark.parametrize("algorithm", ["ed25519", "rsa4096"])
def test_a_key_is_made(tmp_path: Path, algorithm: str) -> None:
    fingerprint, secret, public = create(tmp_path / "keys", "somebody", algorithm=algorithm)
    assert primary_fingerprints(dearmor(public.read_bytes())) == [fingerprint]
    assert secret.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" in secret.read_bytes()
    assert b"PRIVATE" not in public.read_bytes()
    with pytest.raises(SigningKeyError, match="there is a key already"):
        create(tmp_path / "keys", "somebody")


def test_the_command_that_makes_a_key(setting: Setting, tmp_path: Path) -> None:
    result = setting.run("key", "--out", str(tmp_path / "keys"))
    assert result.exit_code == 0, result.output
    assert f"signing_key: {tmp_path}/keys/mirror-signing.asc" in result.output
    assert setting.run("key", "--out", str(tmp_path / "keys")).exit_code == 2


def test_a_killed_run_leaves_no_secret_key_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    _, secret, _ = create(tmp_path, "somebody")
    program = "import os, sys; from goldnode.lock import signing as s; from pathlib import Path\n"
    program += "with s.open_signer(sys.argv[1], Path()) as key: print(key.home, flush=True); sys.stdin.readline()"
    homes: list[Path] = []
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(secret)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in running:
        assert process.stdout is not None
        homes.append(Path(process.stdout.readline().strip()))
        os.utime(homes[-1], (0, 0))
    running[0].kill()
    running[0].wait()
    assert list(homes[0].glob("private-keys-v1.d/*"))
    with open_signer(str(secret), tmp_path):
        assert [home.exists() for home in homes] == [False, True]
    assert (
        subprocess.run(["pgrep", "-f", f"gpg-agent.*{homes[0].name}"], check=False).returncode == 1
    )
    running[1].communicate("\n")
    assert not homes[1].exists()

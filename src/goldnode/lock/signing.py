"""Signing keys of a mirror: generated, opened and tested with GnuPG before anything else is done with them."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from goldnode.core import secret_modes
from goldnode.core.errors import SigningKeyError
from goldnode.core.keys import armor
from goldnode.node.ground.openpgp import OpenPGPError, dearmor, primary_fingerprints

SECRET, PUBLIC = "mirror-signing.asc", "mirror.asc"
_HOME, _HELD = (
    "gn-gpg-",
    "in-use",
)  # a GnuPG home of ours, and the file in it that is locked while its process lives
_MAKING = 60  # seconds
_NAMED = re.compile(r"^(?:0x)?[0-9A-Fa-f]{40}$")


@dataclass(frozen=True)
class ArchiveSigner:
    """A secret key that has signed once already. `public` is its armoured public key, as nodes get it."""

    fingerprint: str
    public: bytes
    home: Path | None
    uid: str

    def sign(self, text: Path, out: Path) -> None:
        """Clear-sign `text` into `out`. Raises SigningKeyError."""
        self._sign("--clear-sign", text, out)

    def detach(self, text: Path, out: Path) -> None:
        """Write a detached binary signature of `text` to `out`. Raises SigningKeyError."""
        self._sign("--detach-sign", text, out)

    def _sign(self, how: str, text: Path, out: Path) -> None:
        done = self._gpg(
            "--local-user",
            f"{self.fingerprint}",
            "--digest-algo",
            "SHA512",
            "--output",
            str(out),
            how,
            str(text),
        )
        if done.returncode:
            reported = done.stderr.strip()
            if re.search(
                r"pinentry|passphrase|Inappropriate ioctl|cancelled|No secret key.*agent",
                reported,
                re.IGNORECASE,
            ):
                where = "remove the passphrase, or import it and name its fingerprint"
                if self.home is None:
                    where = "unlock it in your gpg-agent first"
                raise SigningKeyError(
                    f"signing key {self.fingerprint} is protected by a passphrase that this run cannot enter",
                    remedy=where,
                )
            raise SigningKeyError(
                f"signing key {self.fingerprint} cannot sign: {_last(reported)}",
                remedy="look at it with `gpg --list-secret-keys`",
            )

    def _gpg(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return _gpg(self.home, *arguments)


def create(
    directory: Path, name: str, *, algorithm: str = "ed25519", expire: str = "never"
) -> tuple[str, Path, Path]:
    """Make a key pair without a passphrase in a temporary GnuPG home.

    Return fingerprint, secret file and public file.

    Raises SigningKeyError if one of the files exists, so that a key that nodes trust is not
    replaced by accident.
    """
    secret, public = directory / SECRET, directory / PUBLIC
    for path in (secret, public):
        if path.exists():
            raise SigningKeyError(
                "there is a key already",
                file=path,
                remedy="name another directory with --out, or move it away",
            )
    with _home() as home:
        done = _gpg(home, "--passphrase", "", "--quick-gen-key", name, algorithm, "sign", expire)
        if done.returncode:
            raise SigningKeyError(f"gpg cannot make a key: {_last(done.stderr)}")
        fingerprint = _secret_keys(home)[0].fingerprint
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # The secret key first, readable by its owner only from its first byte on.
            with os.fdopen(
                os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii"
            ) as out:
                out.write(_gpg(home, "--armor", "--export-secret-keys", fingerprint).stdout)
                out.flush()
                os.fsync(out.fileno())
            public.write_bytes(_public(home, fingerprint))
        except OSError as problem:
            raise SigningKeyError(
                f"the key cannot be written: {problem.strerror}", file=directory
            ) from problem
    return fingerprint, secret, public


@contextmanager
def open_signer(
    key: str, base: Path, public: bytes | None = None, public_file: Path | None = None
) -> Iterator[ArchiveSigner]:
    """Yield the signing key `key`: a file with a secret key (relative to `base`), or a fingerprint
    in the user's keyring.

    The key makes a test signature, which is verified against `public`, the key that nodes have
    (default: its own). Raises SigningKeyError for a key that is absent, expired, revoked, protected
    by a passphrase, or not that of `public`.
    """
    with _home() as scratch:
        home: Path | None = None
        where: Path | None = None
        if not _NAMED.match(key):
            home, where = scratch, base / Path(key).expanduser()
            _import(home, where)
        keys = _secret_keys(home, key.removeprefix("0x") if home is None else None)
        if not keys:
            if home is None:
                raise SigningKeyError(
                    f"your keyring has no secret key {key}",
                    remedy="import it, or name a file in `mirror.signing_key`",
                )
            raise SigningKeyError(
                "the file holds no secret key",
                file=where,
                remedy="export it with `gpg --armor --export-secret-keys`",
            )
        if where is not None:
            secret_modes.require(where, secret_modes.MIRROR_KEY)
        wanted = _fingerprints(public, public_file) if public is not None else [keys[0].fingerprint]
        if public is None and len(keys) > 1:
            raise SigningKeyError(
                "the file holds several secret keys",
                file=where,
                remedy="name the public one in `mirror.key`",
            )
        chosen = next((item for item in keys if item.fingerprint in wanted), None)
        if chosen is None:
            have = ", ".join(item.fingerprint for item in keys)
            raise SigningKeyError(
                f"the signing key is {have}, and nodes are given {', '.join(wanted)}",
                file=public_file or where,
                remedy="let `mirror.key` and `mirror.signing_key` name one key pair",
            )
        states = {"e": "has expired", "r": "is revoked", "d": "is disabled", "i": "is invalid"}
        if chosen.state in states:
            remedy = "make another with `goldnode mirror key`"
            if chosen.state == "e":
                remedy = f"extend it (`gpg --quick-set-expire`) and give nodes its new public key, or {remedy}"
            raise SigningKeyError(
                f"signing key {chosen.fingerprint} ({chosen.uid}) {states[chosen.state]}",
                file=where,
                remedy=remedy,
            )
        given = armor(public) if public is not None else _public(home, chosen.fingerprint)
        signer = ArchiveSigner(chosen.fingerprint, given, home, chosen.uid)
        _try_out(signer, scratch, public_file)
        yield signer


def check_signature(signed: Path, public: bytes) -> tuple[str | None, str]:
    """Verify a clear-signed file against keys. Return the primary fingerprint of a good signature
    (None without one), and the signed text or the error.
    """
    with tempfile.TemporaryDirectory(prefix="goldnode-gpgv-") as name:
        text = Path(name) / "text"
        who, why = _verify(public, Path(name), "--output", str(text), str(signed))
        if who is None or not text.exists():
            return None, why
        return who, text.read_text(encoding="utf-8")


def check_detached(text: Path, signature: Path, public: bytes) -> tuple[str | None, str]:
    """Verify a detached signature of a file against keys. Return the primary fingerprint of a good one, or None and why."""
    with tempfile.TemporaryDirectory(prefix="goldnode-gpgv-") as name:
        return _verify(public, Path(name), str(signature), str(text))


def _verify(public: bytes, scratch: Path, *words: str) -> tuple[str | None, str]:
    keyring = scratch / "key.gpg"
    keyring.write_bytes(dearmor(public))
    done = _call(["gpgv", "--status-fd", "1", "--keyring", str(keyring), *words])
    status = {
        row.split()[1]: row.split()[2:]
        for row in done.stdout.splitlines()
        if row.startswith("[GNUPG:] ") and len(row.split()) > 1
    }
    # gpgv prints one of these in place of GOODSIG (GnuPG's doc/DETAILS).
    for word, why in (
        ("EXPKEYSIG", "the key has expired"),
        ("REVKEYSIG", "the key is revoked"),
        ("EXPSIG", "the signature has expired"),
        ("BADSIG", "the signature is bad: the file was changed after it was signed"),
        ("ERRSIG", "it is signed by another key"),
    ):
        if word in status:
            who = status[word][0] if status[word] else "?"
            return None, f"{why} ({who})"
    if "GOODSIG" not in status or "VALIDSIG" not in status:
        return None, _last(done.stderr) or "there is no signature"
    # The tenth field is the primary key: a subkey may have signed.
    valid = status["VALIDSIG"]
    return valid[9] if len(valid) > 9 else valid[0], ""


@dataclass(frozen=True)
class _Secret:
    fingerprint: str
    state: str
    uid: str


@contextmanager
def _home() -> Iterator[Path]:
    # An agent's socket must fit a sockaddr: a long TMPDIR would break gpg with an obscure error.
    short = tempfile.gettempdir()
    base = Path(short if len(short) < 60 else "/tmp")  # noqa: S108
    _sweep(base)
    with tempfile.TemporaryDirectory(prefix=_HOME, dir=base, ignore_cleanup_errors=True) as name:
        held = os.open(Path(name) / _HELD, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield Path(name)
        finally:  # an agent would outlive a run that fails
            _end_agent(Path(name))
            os.close(held)


def _sweep(base: Path) -> None:
    """Remove leftovers of a run that was killed: its copy of a secret key, and its agent."""
    for home in base.glob(f"{_HOME}*"):
        try:
            status = home.lstat()
            # Another's is not touched; one that was only just made may not be locked yet.
            if (
                status.st_uid != os.geteuid()
                or not stat.S_ISDIR(status.st_mode)
                or time.time() - status.st_mtime < _MAKING
            ):
                continue
            held = os.open(home / _HELD, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use
            continue
        else:
            _end_agent(home)
            shutil.rmtree(home, ignore_errors=True)
        finally:
            os.close(held)


def _end_agent(home: Path) -> None:
    _call(["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"])


def _import(home: Path, file: Path) -> None:
    try:
        data = file.read_bytes()
    except OSError as problem:
        raise SigningKeyError(
            f"the signing key cannot be read: {problem.strerror}",
            file=file,
            remedy="make one with `goldnode mirror key`, or correct `mirror.signing_key`",
        ) from problem
    done = _gpg(home, "--import", data=data)
    if done.returncode and "secret keys read: 1" not in done.stderr:
        raise SigningKeyError(
            f"this is no secret key: {_last(done.stderr)}",
            file=file,
            remedy="export it with `gpg --armor --export-secret-keys`",
        )


def _secret_keys(home: Path | None, only: str | None = None) -> list[_Secret]:
    done = _gpg(
        home, "--with-colons", "--fixed-list-mode", "--list-secret-keys", *([only] if only else [])
    )
    keys: list[_Secret] = []
    state, fingerprint = "", ""
    for row in (line.split(":") for line in done.stdout.splitlines()):
        if row[0] == "sec":
            state, fingerprint = row[1], ""
        # The first fpr record is of the primary key, further ones are of subkeys.
        elif row[0] == "fpr" and not fingerprint:
            fingerprint = row[9]
        elif (
            row[0] == "uid"
            and fingerprint
            and all(item.fingerprint != fingerprint for item in keys)
        ):
            keys.append(_Secret(fingerprint, state, row[9].replace("\\x3a", ":")))
    return keys


def _public(home: Path | None, fingerprint: str) -> bytes:
    # Without gpg's version line or comments, so that the file is the same wherever it is made.
    return armor(
        _gpg(
            home, "--armor", "--export-options", "export-minimal", "--export", fingerprint
        ).stdout.encode()
    )


def _fingerprints(public: bytes, file: Path | None) -> list[str]:
    try:
        return list(primary_fingerprints(dearmor(public)))
    except OpenPGPError as problem:
        raise SigningKeyError(
            f"this is no public key: {problem}",
            file=file,
            remedy="put the mirror's public key there",
        ) from problem


def _try_out(signer: ArchiveSigner, scratch: Path, public_file: Path | None) -> None:
    text, out = scratch / "trial", scratch / "trial.asc"
    text.write_text("goldnode tries out this key\n", encoding="utf-8")
    out.unlink(missing_ok=True)
    signer.sign(text, out)
    good, why = check_signature(out, signer.public)
    if good is None:
        raise SigningKeyError(
            f"a signature of signing key {signer.fingerprint} is not valid under the public key: {why}",
            file=public_file,
            remedy="export the public key again (`gpg --armor --export`) and give that to nodes",
        )


def _gpg(
    home: Path | None, *arguments: str, data: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    own = ["--homedir", str(home)] if home is not None else []
    return _call(
        [
            "gpg",
            *own,
            "--batch",
            "--no-tty",
            "--yes",
            # Fail where a passphrase is needed: a prompt would wait without end.
            "--pinentry-mode",
            "error" if "--passphrase" not in arguments else "loopback",
            *arguments,
        ],
        data,
    )


def _call(command: list[str], data: bytes | None = None) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            command,
            input=data or b"",
            capture_output=True,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except FileNotFoundError as problem:
        package = {"gpgv": "gpgv"}.get(command[0], "gnupg")
        raise SigningKeyError(
            f"{command[0]} is not on this machine", remedy=f"install it: apt-get install {package}"
        ) from problem
    return subprocess.CompletedProcess(
        command,
        done.returncode,
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
    )


def _last(text: str) -> str:
    lines = [line.removeprefix("gpg: ").strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""

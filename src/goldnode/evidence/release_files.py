"""Files of a release of goldnode, verified: SHA256SUMS with its signature, each file, the provenance, the program of a node.

It needs `openssl` and no extra. The same check without goldnode is a page of docs/how-to/install.md.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.errors import GoldnodeError, nearest
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import PROGRAM
from goldnode.node.ground.signature import is_signed

SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
# The second one has the writer of images: a node that follows a channel may run it.
PROGRAMS = ("goldnode-node", "goldnode-node-follow")
PROVENANCE, ATTESTATION = ".provenance.json", ".intoto.jsonl"
PAYLOAD = "application/vnd.in-toto+json"
_UNSIGNED = (SUMS, SIGNATURE, ATTESTATION)  # ends of names that SHA256SUMS does not have
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+-]{0,200})")
_MOST_SUMS, _MOST_SIGNATURE, _MOST_STATEMENT = 1 << 16, 1024, 4 << 20  # bytes
_MOST_PROGRAM = 16 << 20
_WAIT = 60.0  # seconds for ssh


class ReleaseError(GoldnodeError):
    """A file of a release is not as released, or that cannot be verified."""


@dataclass(frozen=True)
class VerifiedRelease:
    """A verified SHA256SUMS: file name -> digest, and the id of the key that signed it.

    `attested` is whether a signed provenance of these files was verified as well.
    """

    directory: Path
    files: Mapping[str, str]
    key: str
    attested: bool


def verify(directory: Path, key: Path) -> VerifiedRelease:
    """Verify SHA256SUMS of a release, and its provenance if it is there. Raises ReleaseError."""
    pem = _public(key)
    sums = _read(directory / SUMS, _MOST_SUMS)
    signature = _read(directory / SIGNATURE, _MOST_SIGNATURE)
    if not _signed(pem, signature, sums):
        raise ReleaseError(
            "the signature does not hold: the file was altered, or another key signed it",
            file=directory / SUMS,
            remedy=f"do not install these files; compare {key} with the key that the project names",
        )
    files = _rows(sums, directory / SUMS)
    return VerifiedRelease(directory, files, _key_id(pem), _attested(directory, files, pem))


def verify_file(release: VerifiedRelease, path: Path) -> str:
    """Return the digest of a file that is as released. Raises ReleaseError."""
    wanted = release.files.get(path.name)
    if wanted is None and path.name in (SUMS, SIGNATURE):
        return hashlib.sha256(_read(path, _MOST_SUMS)).hexdigest()  # verify() has read them
    if wanted is None:
        raise ReleaseError(
            f"the release has no file {path.name}",
            file=path,
            remedy=nearest(path.name, release.files) or "remove it: it is no part of the release",
        )
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise ReleaseError(f"the file cannot be read: {problem.strerror}", file=path) from problem
    if digest != wanted:
        raise ReleaseError(
            f"this is not the released file: its SHA-256 is {digest}, expected {wanted}",
            file=path,
            remedy="fetch it again, and do not install this one",
        )
    return digest


def members(directory: Path) -> list[Path]:
    """Return the files of a directory that SHA256SUMS should name, sorted."""
    rows = [path for path in sorted(directory.iterdir()) if not path.name.endswith(_UNSIGNED)]
    if not rows:
        raise ReleaseError("it has no file of a release", file=directory)
    return rows


def compare_program(release: VerifiedRelease, host: str) -> str:
    """Return which program of the release a node has. Raises ReleaseError for another one.

    The node is asked over ssh. Who is root on it can answer what they like.
    """
    data = _program_of(host)
    digest = hashlib.sha256(data).hexdigest()
    named = {release.files[name]: name for name in PROGRAMS if name in release.files}
    if not named:
        raise ReleaseError("the release has no program of nodes", file=release.directory / SUMS)
    if digest in named:
        return f"{named[digest]} of the release"
    differ: dict[str, list[str]] = {}
    for name in named.values():
        path = release.directory / name
        if not path.is_file():
            continue
        verify_file(release, path)
        differ[name] = _differing(path.read_bytes(), data)
        if not differ[name]:
            # Another zlib compresses the same files to other bytes.
            return f"the files of {name} of the release, compressed by another zlib"
    closest = min(differ.values(), key=len, default=[])
    which = f"; {len(closest)} of its files differ: {', '.join(closest[:5])}" if closest else ""
    raise ReleaseError(
        f"{host} runs another program than the release: SHA-256 {digest}{which}",
        remedy=f"run site.yml of this release for {host}, or find out who replaced {PROGRAM} there",
    )


def _program_of(host: str) -> bytes:
    if host.startswith("-") or not re.fullmatch(r"[A-Za-z0-9@._:%\[\]-]{1,255}", host):
        raise ReleaseError(f"{host!r} is no name of a host")
    command = ["ssh", "-o", "BatchMode=yes", host, f"head -c {_MOST_PROGRAM} {PROGRAM}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_WAIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ReleaseError(f"{host} could not be asked: {problem}") from problem
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ReleaseError(
            f"{host} could not be asked for {PROGRAM}: {''.join(last) or done.returncode}",
            remedy=f"try `ssh {host} true`",
        )
    return done.stdout


def _differing(released: bytes, found: bytes) -> list[str]:
    """Return the names of files that two programs do not share; the start line counts as one."""
    try:
        one, two = _contents(released), _contents(found)
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, EOFError):
        return ["(the whole file)"]
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


def _contents(data: bytes) -> dict[str, bytes]:
    """Return name -> content of the files in a program. Raises ValueError for one that is too large."""
    content = {"(start)": data[: data.index(b"PK\x03\x04")]}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(row.file_size for row in archive.infolist()) > _MOST_PROGRAM:
            raise ValueError("too large")
        for row in archive.infolist():
            if row.filename in content:
                raise ValueError("two files of one name")
            content[row.filename] = archive.read(row)
    return content


def _rows(sums: bytes, path: Path) -> dict[str, str]:
    """Return name -> digest of the lines of a SHA256SUMS."""
    rows: dict[str, str] = {}
    for number, line in enumerate(sums.decode("ascii", "replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in rows:
            raise ReleaseError(
                "expected a SHA-256, two spaces and the name of a file, each name once",
                file=path,
                line=number,
            )
        rows[match[2]] = match[1]
    if not rows:
        raise ReleaseError("it names no file", file=path)
    return rows


def _attested(directory: Path, files: Mapping[str, str], pem: str) -> bool:
    """Return whether there is a provenance, by the same key and about the same files. Raises ReleaseError."""
    path = next(iter(sorted(directory.glob(f"*{ATTESTATION}"))), None)
    if path is None:
        return False
    fault = ReleaseError(
        "the provenance is not signed by this key, or is about other files",
        file=path,
        remedy="fetch it again, and do not install these files",
    )
    try:
        envelope = json.loads(_read(path, _MOST_STATEMENT))
        payload = base64.b64decode(envelope["payload"], validate=True)
        kind = str(envelope["payloadType"])
        values = [base64.b64decode(row["sig"], validate=True) for row in envelope["signatures"]]
        # Pre-authentication encoding of the DSSE protocol.
        pae = b"DSSEv1 %d %b %d %b" % (len(kind.encode()), kind.encode(), len(payload), payload)
        subjects = {
            str(row["name"]): str(row["digest"]["sha256"]) for row in json.loads(payload)["subject"]
        }
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise fault from problem
    wanted = {name: digest for name, digest in files.items() if not name.endswith(PROVENANCE)}
    signed = any(_signed(pem, value, pae) for value in values[:8])
    if not signed or kind != PAYLOAD or subjects != wanted:
        raise fault
    return True


def _public(path: Path) -> str:
    """Return the public key in a file, in PEM. Raises ReleaseError."""
    text = _read(path, _MOST_STATEMENT).decode("ascii", "replace")
    blocks = re.findall(
        r"-----BEGIN PUBLIC KEY-----\n.+?\n-----END PUBLIC KEY-----", text, re.DOTALL
    )
    if len(blocks) != 1 or "PRIVATE" in text:
        raise ReleaseError(
            "expected one public key in PEM",
            file=path,
            remedy="name the key of the project, which begins with BEGIN PUBLIC KEY",
        )
    return f"{blocks[0]}\n"


def _key_id(pem: str) -> str:
    """Return the id of a key, as `openssl pkey -pubin -in KEY -outform DER | sha256sum` prints it."""
    body = "".join(pem.splitlines()[1:-1])
    return hashlib.sha256(base64.b64decode(body)).hexdigest()


def _signed(pem: str, signature: bytes, data: bytes) -> bool:
    try:
        return is_signed(pem, "sha256", signature.hex(), data)
    except NodeError as problem:
        raise ReleaseError(f"could not verify: {problem}") from problem


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as problem:
        raise ReleaseError(
            f"the file cannot be read: {problem.strerror}",
            file=path,
            remedy="fetch all files of the release into one directory, or name the right one",
        ) from problem
    if len(data) > most:
        raise ReleaseError(f"the file has more than {most} bytes", file=path)
    return data


def verify_all(release: VerifiedRelease, paths: Sequence[Path]) -> list[tuple[Path, str, str]]:
    """Return (file, digest, problem) of each file; the problem is empty where the file is as released."""
    rows = []
    for path in paths:
        try:
            rows.append((path, verify_file(release, path), ""))
        except ReleaseError as problem:
            rows.append((path, "", str(problem)))
    return rows

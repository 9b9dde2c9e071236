"""Reader of records: a directory or a tar archive, written by a program that is not trusted.

Nothing is unpickled, no link is followed, and no file is larger than its limit. Each file has the
digest that record.json names.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from goldnode.documents.dual import DualRecordArray, DualRecordDocument
from goldnode.dual import signing
from goldnode.dual.errors import DualError
from goldnode.dual.recorder.values import TYPES, RecorderError, Value, read_npy, value
from goldnode.evidence import signed_file

RECORD = "record.json"
# Limits on a record that is read, in bytes: it may come from another machine.
_DOCUMENT_BYTES = 64 << 20
_ARRAY_BYTES = 1 << 30
_TOTAL_BYTES = 4 << 30
_MEMBER = re.compile(r"record\.json(\.dsse)?|arrays/[0-9]{5}\.npy")
# record.json, its signature, and 4096 arrays.
_MEMBERS = 4098
_AGAIN = "record it again with `goldnode dual record`"


@dataclass(frozen=True)
class DualRecord:
    """A record that was read: its directory, its document, and the digest of record.json."""

    directory: Path
    document: DualRecordDocument
    digest: str

    def value(self, row: DualRecordArray) -> Value:
        """Read one array. Raises DualError unless it is what record.json names."""
        path = self.directory / row.file
        # Size and type before it is opened: a FIFO would block, a device would never end.
        _regular(path, _ARRAY_BYTES)
        try:
            array = read_npy(str(path), row.dtype)
        except (RecorderError, MemoryError, OSError) as problem:
            raise DualError(
                f"the array {row.name} cannot be read: {problem}", file=path, remedy=_AGAIN
            ) from None
        self._compare(row, array, path)
        if row.of is None:
            return array
        return Value(
            array.dtype,
            shape=array.shape,
            data=array.data,
            digest=row.digest,
            of=tuple(row.of),
            stride=row.stride,
        )

    def _compare(self, row: DualRecordArray, array: Value, path: Path) -> None:
        if array.shape != tuple(row.shape):
            message = f"the array {row.name} has the shape {list(array.shape)}, and record.json has {row.shape}"
            raise DualError(message, file=path, remedy=_AGAIN)
        with path.open("rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        # The digest of a thinned array is that of the whole one, which is not here.
        whole = value(row.dtype, array.shape, array.data).digest
        if digest != row.file_digest or (row.of is None and whole != row.digest):
            raise DualError(
                f"the array {row.name} does not match its digest", file=path, remedy=_AGAIN
            )


def _regular(path: Path, limit: int) -> None:
    """Raise DualError unless a file is a regular one of at most `limit` bytes, and no link leads to it."""
    try:
        status = path.lstat()
        # The folder of the arrays may be a link, too.
        inside = path.parent.name != "arrays" or stat.S_ISDIR(path.parent.lstat().st_mode)
    except OSError as problem:
        raise DualError(f"cannot be read: {problem.strerror}", file=path, remedy=_AGAIN) from None
    if not stat.S_ISREG(status.st_mode) or not inside:
        raise DualError(
            "this is a link or a special file, and a record has none", file=path, remedy=_AGAIN
        )
    if status.st_size > limit:
        raise DualError(
            f"this has {status.st_size} bytes, more than {limit}", file=path, remedy=_AGAIN
        )


def read(directory: Path, keys: Sequence[Path] = ()) -> DualRecord:
    """Read the document of a record. Raises DualError; the arrays are read one by one later.

    With `keys`, files of public keys, one of them must have signed record.json, which has the
    digests of the arrays.
    """
    path = directory / RECORD
    _regular(path, _DOCUMENT_BYTES)
    data = path.read_bytes()
    if keys:
        if signed_file.envelope_of(path).exists():
            # An envelope has the document in base64.
            _regular(signed_file.envelope_of(path), 2 * _DOCUMENT_BYTES)
        signed_file.verify(path, data, keys, signing.RECORD)
    try:
        document = DualRecordDocument.model_validate_json(data)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        message = f"this is no record that this goldnode reads: {where}: {first['msg'][:200]}"
        raise DualError(message, file=path, remedy=_AGAIN) from None
    for row in document.arrays:
        _consistent(row, path)
    names = [(row.role, row.name) for row in document.arrays]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DualError(f"two arrays are named {twice[0]} {twice[1]}", file=path, remedy=_AGAIN)
    return DualRecord(directory, document, f"sha256:{hashlib.sha256(data).hexdigest()}")


def _consistent(row: DualRecordArray, path: Path) -> None:
    if row.dtype not in TYPES:
        message = f"the array {row.name} has the type {row.dtype}, and one of {', '.join(TYPES)} is expected"
        raise DualError(message, file=path, remedy=_AGAIN)
    # A shape is a claim until it is compared with the file: it must not reserve memory.
    count = math.prod(row.shape)
    if count * TYPES[row.dtype][1] > _ARRAY_BYTES:
        raise DualError(
            f"the array {row.name} has {count} elements, too many", file=path, remedy=_AGAIN
        )
    thin = row.stride > 1
    if thin != (row.of is not None) or (
        row.of is not None and count != -(-math.prod(row.of) // row.stride)
    ):
        message = (
            f"the array {row.name} has {count} elements, and not every {row.stride}th of {row.of}"
        )
        raise DualError(message, file=path, remedy=_AGAIN)


@contextlib.contextmanager
def opened(path: Path, keys: Sequence[Path] = ()) -> Iterator[DualRecord]:
    """Open a record: a directory, or a tar archive of one. `keys`: see `read`. Raises DualError."""
    if not path.is_file():
        yield read(path, keys)
        return
    with tempfile.TemporaryDirectory(prefix="goldnode-dual-") as scratch:
        place = Path(scratch) / "record"
        with path.open("rb") as file:
            unpack(file, place, path)
        yield read(place, keys)


def unpack(source: IO[bytes], place: Path, name: Path | str) -> None:
    """Write the files of a tar archive into a new directory. Raises DualError for anything but a record's files."""
    (place / "arrays").mkdir(parents=True)
    total = 0
    seen: set[str] = set()
    try:
        with tarfile.open(fileobj=source, mode="r|*") as archive:
            for member in archive:
                inside = member.name.removeprefix("./")
                if member.isdir() and inside.rstrip("/") in ("", ".", "arrays"):
                    continue
                # By the header, before anything is written.
                total += member.size
                if not member.isreg() or not _MEMBER.fullmatch(inside) or inside in seen:
                    raise DualError(
                        f"the archive has {inside[:80]!r}, which no record has",
                        file=name,
                        remedy=_AGAIN,
                    )
                seen.add(inside)
                if total > _TOTAL_BYTES or member.size > _ARRAY_BYTES or len(seen) > _MEMBERS:
                    raise DualError(
                        "the archive is larger than a record may be", file=name, remedy=_AGAIN
                    )
                content = archive.extractfile(member)
                assert content is not None  # noqa: S101 - a regular file has content
                # x: never through a link, and never over another member.
                with (place / inside).open("xb") as out:
                    shutil.copyfileobj(content, out)
    except (tarfile.TarError, EOFError, OSError) as problem:
        if isinstance(problem, OSError) and problem.filename:
            raise
        raise DualError(
            f"this is no tar archive of a record: {problem}", file=name, remedy=_AGAIN
        ) from None


def place_new(place: Path) -> None:
    """Raise DualError unless a record can be written to `place`."""
    if os.path.lexists(place):
        raise DualError("there is something already", file=place, remedy="name a new directory")


def sign(record: DualRecord, key: Path | None) -> None:
    """Sign record.json of a record with the secret key in a file; with None, nothing. Raises GoldnodeError."""
    if key is not None:
        path = record.directory / RECORD
        signed_file.write(path, path.read_bytes(), key, signing.RECORD)

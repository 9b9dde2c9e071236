"""The files of a record: record.json and one .npy file per array."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from typing import IO, Any, Dict, List, Optional

from goldnode.dual.recorder.values import RecorderError, Value, npy, thinned

SCHEMA = "goldnode.dual-record/1"
ARRAYS = 4096  # in a record
Json = Dict[str, Any]


class RecordWriter:
    """Writes arrays below a new directory, and record.json at the end.

    `limit` is the size of all arrays in bytes, `elements` the number of elements of a layer that
    are stored.
    """

    def __init__(self, directory: str, limit: int, elements: int) -> None:
        self.directory, self.limit, self.elements = directory, limit, elements
        self.rows: List[Json] = []
        self.written = 0
        os.makedirs(os.path.join(directory, "arrays"))

    def add(self, role: str, name: str, given: Value, module: Optional[str] = None) -> None:
        """Write an array. Of a large layer only some elements are stored. Raises RecorderError at a limit."""
        if role == "layer":
            given = thinned(given, self.elements)
        content = npy(given)
        self.written += len(content)
        if self.written > self.limit:
            raise RecorderError(
                f"the arrays need more than {self.limit} bytes at {role} {name}: raise --max-bytes, or lower --elements"
            )
        if len(self.rows) >= ARRAYS:
            raise RecorderError(f"the record would have more than {ARRAYS} arrays: see --layers")
        file = f"arrays/{len(self.rows):05d}.npy"
        with open(os.path.join(self.directory, file), "xb") as out:
            out.write(content)
        self.rows.append(
            {
                "role": role,
                "name": name[:300],
                "module": module,
                "file": file,
                "dtype": given.dtype,
                "shape": list(given.shape),
                "of": None if given.of is None else list(given.of),
                "stride": given.stride,
                "digest": given.digest,
                "file_digest": "sha256:" + hashlib.sha256(content).hexdigest(),
            }
        )

    def finish(self, document: Json) -> None:
        """Write record.json."""
        whole = {"schema": SCHEMA, **document, "arrays": self.rows}
        text = json.dumps(whole, indent=1, sort_keys=True, allow_nan=False) + "\n"
        with open(os.path.join(self.directory, "record.json"), "x", encoding="utf-8") as out:
            out.write(text)


def send(directory: str, out: IO[bytes]) -> None:
    """Write a record as a tar archive."""
    with tarfile.open(fileobj=out, mode="w|") as archive:
        for name in (
            "record.json",
            *sorted(f"arrays/{one}" for one in os.listdir(f"{directory}/arrays")),
        ):
            info = tarfile.TarInfo(name)
            info.size = os.path.getsize(os.path.join(directory, name))
            with open(os.path.join(directory, name), "rb") as file:
                archive.addfile(info, file)

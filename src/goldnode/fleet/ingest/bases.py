"""The reports that nodes send changes from: `bases/NODE/DIGEST.json.z` in the fleet's data, the newest two of each node.

Without one, a node gets the answer 409 for its changes, and sends its whole report. Two: changes from the one before may still be
on their way when a new one arrives. Older ones stay for an hour, in which changes in the inbox may need them.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from goldnode.core.files import replace_file
from goldnode.fleet.ingest.refused import RefusedReportError
from goldnode.fleet.ingest.report import load
from goldnode.node.ground.changes import base_digest
from goldnode.node.ground.verdict_files import LARGEST_REPORT

BASES = "bases"  # directory in that of the fleet's data
WHOLE, ROWS = ".json.z", ".rows"  # the report as the node sent it; its rows (quick.py)
_HELD = 2
_SPARED = 3600  # seconds


def base_file(data: Path, node: str, digest: str, kind: str = WHOLE) -> Path:
    """Return a file of a base. The name of a node cannot leave the directory (`report.node_name`)."""
    return data / BASES / node / f"{digest}{kind}"


def hold(data: Path, node: str, body: bytes) -> str:
    """Store a report as a base and return its digest. Older ones of the node are removed but for the last."""
    digest = base_digest(body)
    file = base_file(data, node, digest)
    if not file.exists():
        replace_file(file, zlib.compress(body, 1))
    else:
        os.utime(file)
    dated = []
    for other in file.parent.glob(f"*{WHOLE}"):
        with suppress(FileNotFoundError):  # another process removes it too
            dated.append((other.stat().st_mtime, other))
    for written, old in sorted(dated, reverse=True)[_HELD:]:
        if written < time.time() - _SPARED:
            old.unlink(missing_ok=True)
            old.with_name(old.name.removesuffix(WHOLE) + ROWS).unlink(missing_ok=True)
    return digest


def forget(data: Path, before: float) -> None:
    """Remove the bases of nodes that have sent none since a time."""
    for node in (data / BASES).glob("[!.]*"):
        with suppress(OSError):  # a node sends one just now
            if all(file.stat().st_mtime < before for file in node.iterdir()):
                shutil.rmtree(node)


def held(data: Path, node: str, digest: str) -> dict[str, Any]:
    """Return a base. Raise RefusedReportError for one that is not held, or is damaged: then it is removed."""
    return load(held_body(data, node, digest))


def held_body(data: Path, node: str, digest: str) -> bytes:
    """Return a base as the node has sent it. Raise RefusedReportError as `held` does."""
    file = base_file(data, node, digest)
    try:
        packed = file.read_bytes()
    except FileNotFoundError:
        raise RefusedReportError(
            "the report that its changes are from is not here", remedy="send the whole report"
        ) from None
    try:
        body = zlib.decompressobj().decompress(packed, LARGEST_REPORT)
    except zlib.error:
        body = b""
    if base_digest(body) != digest:
        file.unlink(missing_ok=True)
        raise RefusedReportError(
            "the report that its changes are from is damaged", remedy="send the whole report"
        )
    return body


def write_cache(file: Path, content: bytes) -> None:
    """Replace a file that can be made again: a torn one is recognised by its checksum, so nothing waits for the disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".new-{os.getpid()}-{file.name}")
    try:
        new.write_bytes(content)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise

"""Packs a program into a single file: a zip archive that Python runs.

The archive is stored, not compressed: its bytes are part of images and its digest is in results,
and a new version of a compressor must not change them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from goldnode.core.files import add_to_zip

SOURCE = Path(__file__).parents[2]
# No -S here: frameworks are in the interpreter's site directories. Child processes add -S
# themselves.
START = b"#!/usr/bin/env -S python3 -I\n"


def modules(package: str, names: Iterable[str] = ("*",)) -> dict[str, bytes]:
    """Return archive name -> content of modules of a package (`goldnode/canary/runner`), `pack` left out."""
    return {
        path.relative_to(SOURCE).as_posix(): path.read_bytes()
        for name in names
        for path in (SOURCE / package).glob(f"{name}.py")
        if path.name != "pack.py"
    }


def contents(files: Mapping[str, bytes], entry: str) -> dict[str, bytes]:
    """Return the files of an archive, sorted by name. It runs the function `entry`, a dotted name."""
    module, _, function = entry.rpartition(".")
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents} - {"."}
    empty = {f"{folder}/__init__.py": b"" for folder in folders}
    start = f"from {module} import {function}\n\n{function}()\n".encode()
    return dict(sorted({**empty, **files, "__main__.py": start}.items()))


def packed(files: Mapping[str, bytes], start: bytes = START) -> bytes:
    """Return the program of an archive's files.

    Dates and modes in the archive are fixed, so the same files give the same bytes.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            add_to_zip(archive, name, content)
    return start + out.getvalue()


def write(target: Path, program: bytes) -> None:
    """Write a program, executable, to a path."""
    target.write_bytes(program)
    target.chmod(0o755)

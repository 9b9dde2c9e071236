"""goldnode-dual as a single file: a zip archive that Python runs. Standard library only."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

NAME = "goldnode-dual"
RECORDER = Path(__file__).parent / "recorder"
# No -S: frameworks are in the interpreter's site directories.
START = b"#!/usr/bin/env python3\n"
MAIN = b"from goldnode.dual.recorder.program import main\n\nmain()\n"
PACKAGES = ("goldnode", "goldnode/dual")


@cache
def program() -> bytes:
    """Return the packed recorder. Dates and modes are fixed, so the same sources give the same bytes."""
    files = {
        f"goldnode/dual/recorder/{path.name}": path.read_bytes() for path in RECORDER.glob("*.py")
    }
    files.update({f"{package}/__init__.py": b"" for package in PACKAGES})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted({**files, "__main__.py": MAIN}.items()):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return START + out.getvalue()

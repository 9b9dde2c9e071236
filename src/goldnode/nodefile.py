"""goldnode-node as one file: the package `goldnode.node` in a zip archive that Python runs. The same sources give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

NODE = Path(__file__).parent / "node"
START = b"#!/usr/bin/env -S python3 -I\n"
MAIN = "import sys\n\nfrom goldnode.node.start import main\n\nsys.exit(main())\n"


def sources() -> dict[str, bytes]:
    """Archive name -> content of every file of the program, sorted by name."""
    found = {f"goldnode/node/{path.relative_to(NODE)}": path.read_bytes() for path in NODE.rglob("*.py") if path.name != "__main__.py"}
    return dict(sorted({**found, "goldnode/__init__.py": b"", "__main__.py": MAIN.encode()}.items()))


@cache
def build() -> bytes:
    """The file. Times and modes in the archive are fixed, so that a digest stands for the sources alone."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sources().items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return START + out.getvalue()


def payload(*, content: bool) -> dict[str, str]:
    """The program as the engine takes it: ``{sha256}``, with its bytes in base64 only where they are to be written."""
    data = build()
    found = {"sha256": "sha256:" + hashlib.sha256(data).hexdigest()}
    return {**found, "content": base64.b64encode(data).decode()} if content else found

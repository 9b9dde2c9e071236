"""Entry point of the packed file. Its digest names the runner in every result."""

from __future__ import annotations

import hashlib
import sys
import zipimport
from typing import Any

from . import start


def main() -> None:
    """Run the program of the archive that contains this module."""
    loader: Any = globals()["__loader__"]
    assert isinstance(loader, zipimport.zipimporter)  # noqa: S101 - only the archive begins here
    with open(loader.archive, "rb") as opened:
        digest = "sha256:" + hashlib.sha256(opened.read()).hexdigest()
    sys.exit(start.main(loader.archive, digest))

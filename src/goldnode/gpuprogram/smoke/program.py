"""Entry point of the packed file. It reads the floors and its own path from the archive."""

from __future__ import annotations

import json
import sys
import zipimport
from typing import Any

from . import start

FLOORS = "goldnode/gpuprogram/smoke/floors.json"


def main() -> None:
    """Run the program of the archive that contains this module."""
    loader: Any = globals()["__loader__"]
    assert isinstance(loader, zipimport.zipimporter)  # noqa: S101 - only the archive begins here
    sys.exit(start.main(loader.archive, json.loads(loader.get_data(FLOORS))))

"""goldnode-dual as a single file: a zip archive that Python runs. Standard library only."""

from __future__ import annotations

from functools import cache

from goldnode.gpuprogram import pack

NAME = "goldnode-dual"
# No -I: a recorded model imports what its user's environment offers.
START = b"#!/usr/bin/env python3\n"


@cache
def program() -> bytes:
    """Return the packed recorder. The same sources give the same bytes."""
    files = pack.modules("goldnode/dual/recorder")
    return pack.packed(pack.contents(files, "goldnode.dual.recorder.program.main"), START)

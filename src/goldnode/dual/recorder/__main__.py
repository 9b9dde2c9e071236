"""Entry point of `python3 -m goldnode.dual.recorder`."""

from __future__ import annotations

from goldnode.dual.recorder.program import main

main()

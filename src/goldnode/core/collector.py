"""Python's collector of unused objects, in processes that end soon."""

from __future__ import annotations

import atexit
import functools
import gc

AFTER = 200_000  # new objects; a check makes about as many, and they take tens of MiB


@functools.cache
def collect_rarely() -> None:
    """Keep the collector from walking over all modules and models again and again: a fifth of a check's time.

    Processes that run for long still collect. At the end the interpreter would walk over everything once more, only to
    free what the kernel frees with the process.
    """
    gc.set_threshold(AFTER)
    atexit.register(gc.freeze)

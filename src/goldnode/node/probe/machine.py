"""The machine: identity, OS and kernel, loaded driver, CPUs, memory, pressure, limits."""

from __future__ import annotations

from ..host import Json
from . import Context


def read(context: Context) -> Json:
    """The sections of the capture that are read here."""
    return {}

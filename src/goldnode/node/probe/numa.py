"""NUMA nodes, which of them each device is on, and how far GPUs and NICs are from each other."""

from __future__ import annotations

from ..host import Json
from . import Context


def read(context: Context) -> Json:
    """The sections of the capture that are read here."""
    return {}

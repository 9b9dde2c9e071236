"""Container engine and CDI, services, and drift from the lock."""

from __future__ import annotations

from ..host import Json
from . import Context


def read(context: Context) -> Json:
    """The sections of the capture that are read here."""
    return {}

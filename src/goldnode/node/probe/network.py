"""Network interfaces and InfiniBand devices, from sysfs."""

from __future__ import annotations

from ..host import Json
from . import Context


def read(context: Context) -> Json:
    """The sections of the capture that are read here."""
    return {}

"""GPUs: what their library says (asked in a process that can be killed), and what procfs and sysfs say without it."""

from __future__ import annotations

from ..host import Json
from . import Context


def begin(context: Context) -> None:
    """Start asking the GPU library."""


def read(context: Context) -> Json:
    """The sections of the capture that are read here."""
    return {}

"""Keys and directories of engine and compilation caches."""

from __future__ import annotations

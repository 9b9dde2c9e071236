"""Locks: what a stack resolves to, with every package's version, size and hash."""

from goldnode.core.errors import LockError, VanishedError

__all__ = ["LockError", "VanishedError"]

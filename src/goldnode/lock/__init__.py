"""Locks: the packages that a stack resolves to, each with version, size and hash."""

from goldnode.core.errors import LockError, VanishedError

__all__ = ["LockError", "VanishedError"]

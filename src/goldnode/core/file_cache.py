"""Cache of values from files. A file is read again when its size, inode or time of modification changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

_Content = TypeVar("_Content")
_State = tuple[int, int, int]


class FileCache(Generic[_Content]):
    """The content of files. A file is read again if its size, its time of modification or its inode differs.

    Errors are not stored. Several threads may use it.
    """

    def __init__(self, load: Callable[[Path], _Content]) -> None:
        self.load = load
        self._found: dict[Path, tuple[_State, _Content]] = {}
        self._lock = threading.Lock()

    def get(self, path: Path) -> _Content:
        """Return the content of a file. Raises what `load` raises, and OSError."""
        status = path.stat()
        # Before the file is read: a change in between is seen by the next call.
        state = (status.st_size, status.st_mtime_ns, status.st_ino)
        with self._lock:
            known = self._found.get(path)
        if known is not None and known[0] == state:
            return known[1]
        content = self.load(path)
        with self._lock:
            self._found[path] = (state, content)
        return content

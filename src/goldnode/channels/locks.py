"""Locks of a store: one writer per line, and no garbage collection while a store is in use."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.core.files import full_disk


class StoreDirectory(Protocol):
    """A store, as far as taking turns in it needs it."""

    @property
    def root(self) -> Path:
        """Return the directory of the store."""


@contextmanager
def opening(root: Path, error: type[GoldnodeError], variable: str) -> Iterator[None]:
    """Turn a failure to create the directories of a store into an error with a remedy."""
    try:
        yield
    except OSError as problem:
        raise error(
            f"the store cannot be written: {problem.strerror}",
            file=root,
            remedy=f"name another with --store or ${variable}",
        ) from problem


@contextmanager
def lane(
    layout: StoreDirectory, place: str, *, shared: bool = False, name: str = "place"
) -> Iterator[None]:
    """Let one writer at a time from this store write to a place. Others on this machine wait; other machines do not."""
    folder = layout.root / "channels"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}-{quote(place, safe='')}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


@contextmanager
def using(layout: StoreDirectory) -> Iterator[None]:
    """Keep `goldnode.images.gc` from removing content of the store meanwhile: it waits, or is waited for."""
    with lane(layout, "", shared=True, name="gc"):
        yield


def disk(layout: StoreDirectory) -> AbstractContextManager[None]:
    """Turn a full disk into an error with a remedy."""
    remedy = "free space (`goldnode images gc`) and run it again: what is whole is kept"
    return full_disk(ImageError(f"the disk of {layout.root} is full", remedy=remedy))

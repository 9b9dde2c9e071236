"""Cache of what YAML files of a catalog, of a site and locks are as validated models.

To parse and validate them takes five times as long as to judge a class. A value is found by the digest of the text
it was made of, and the file of values by the digest of the code that makes them: a changed file, or another version
of goldnode, pydantic, PyYAML or Python, asks for a key that the cache does not have. Only files without a
fault are stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import marshal
import os
import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pydantic

from goldnode.core.data import PACKAGE
from goldnode.core.files import cache_directory

# All of goldnode that decides what a text becomes; a test compares it with what the models import.
CODE = (
    "__init__.py",
    "catalog/__init__.py",
    "catalog/load.py",
    "catalog/models.py",
    "catalog/tiers.py",
    "core/__init__.py",
    "core/data.py",
    "core/dataclass.py",
    "core/deny_list.py",
    "core/errors.py",
    "core/event_kinds.py",
    "core/evidence_kinds.py",
    "core/files.py",
    "core/logins.py",
    "core/parsed_files.py",
    "core/site.py",
    "core/yamlparser.py",
    "core/yamlsource.py",
    "documents/__init__.py",
    "documents/base.py",
    "lock/__init__.py",
    "lock/model.py",
    "node/__init__.py",
    "node/ground/__init__.py",
    "node/ground/json_lines.py",
    "node/ground/optional.py",
    "node/ground/text.py",
    "node/ground/typed.py",
    "node/state/__init__.py",
    "node/state/family.py",
)
_MODELS = {"goldnode.catalog.models", "goldnode.core.site", "goldnode.lock.model"}
LIMIT = 16 << 20  # bytes of values; those that were stored first are dropped
FILES = 8  # one for each version of the code that was used last
_DIGEST = 32  # bytes

_Values = dict[bytes, bytes]


class _Unpickler(pickle.Unpickler):
    """Unpickler of models, dates and plain values: a file of the cache can name nothing else to be called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("datetime", "date"):
            return super().find_class(module, name)
        made = super().find_class(module, name) if module in _MODELS else None
        if isinstance(made, type) and issubclass(made, pydantic.BaseModel):
            return made
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a cached file")


def recall(kind: str, text: str) -> Any:
    """Return the value that `text` was made into as a `kind`; None if it is not in the cache."""
    path = values_file()
    stored = None if path is None else values_of(path).get(key_of(kind, text))
    return None if stored is None else _loaded(stored)


def remember(kind: str, text: str, value: object) -> None:
    """Put the value of a text into the cache of this process; `save` writes it. A value that would not come back equal is left out."""
    path = values_file()
    if path is None:
        return
    with contextlib.suppress(pickle.PicklingError, TypeError, AttributeError):
        stored = pickle.dumps(value, protocol=5)
        if _loaded(stored) == value:
            values_of(path)[key_of(kind, text)] = stored
            _UNSAVED.add(path)


def save() -> None:
    """Write what `remember` got, with what other processes have written since. Errors are ignored: the cache is optional."""
    path = values_file()
    if path is None or path not in _UNSAVED:
        return
    _UNSAVED.discard(path)
    values = {**read_values(path), **values_of(path)}
    size = sum(map(len, values.values()))
    for key in list(values):
        if size <= LIMIT:
            break
        size -= len(values.pop(key))
    content = marshal.dumps(values)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".new-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            # For its owner alone: a site file may name internal hosts.
            fresh.touch(mode=0o600, exist_ok=False)
            fresh.write_bytes(hashlib.sha256(content).digest() + content)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        by_age = sorted(path.parent.iterdir(), key=lambda item: item.stat().st_mtime)
        for old in by_age[:-FILES]:
            old.unlink(missing_ok=True)


_UNSAVED: set[Path] = set()


def forget() -> None:
    """Forget what this process has read, and what was not saved."""
    values_of.cache_clear()
    code_digest.cache_clear()
    _UNSAVED.clear()


def key_of(kind: str, text: str) -> bytes:
    return hashlib.sha256(f"{kind}\0{text}".encode()).digest()


def _loaded(stored: bytes) -> Any:
    try:
        return _Unpickler(io.BytesIO(stored)).load()
    # Whatever a damaged value does to the models: it is made from its text again.
    except Exception:
        return None


@cache
def values_of(path: Path) -> _Values:
    """Return the values in a file of the cache. Read once: `remember` adds to them."""
    return read_values(path)


def read_values(path: Path) -> _Values:
    """Return the values in a file, none if another user could have written it or it is damaged."""
    try:
        with path.open("rb") as opened:
            status, content = os.fstat(opened.fileno()), opened.read()
    except OSError:
        return {}
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return {}
    # Before it is decoded: `marshal` trusts its input.
    if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
        return {}
    values: _Values = marshal.loads(content[_DIGEST:])  # noqa: S302 - this user's own file, and undamaged
    return values


def values_file() -> Path | None:
    """Return the file of values of this code and user; None if the code cannot be read, or the user has no home."""
    code = code_digest()
    try:
        # By user: those who share a cache directory must not replace each other's values all the time.
        directory = cache_directory() / "parsed"
        return None if code is None else directory / f"{code}-{os.geteuid()}"
    except RuntimeError:  # of Path.home: a container may run as a number that no user has
        return None


@cache
def code_digest() -> str | None:
    """Return the digest of all that makes values of texts; None if a source of goldnode cannot be read."""
    yaml = importlib.util.find_spec(
        "yaml"
    )  # found and not imported: it is not needed for cached files
    try:
        digest = hashlib.sha256(f"{sys.version}\0{pydantic.VERSION}\0".encode())
        for file in (*(PACKAGE / name for name in CODE), Path(str(yaml and yaml.origin))):
            content = file.read_bytes()
            digest.update(f"{len(content)}\0".encode() + content)
    except OSError:
        return None
    return digest.hexdigest()

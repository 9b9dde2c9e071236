"""The directory of a key: CACHE/KEY, with a manifest of the key's components and the tool's own files in `data`.

The directory appears with its manifest in one rename, so that no directory of a key is without one. A cache is code
that runs later: a directory that others may write to is refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat

from ..ground.errors import NodeError
from ..probe.machine import printable
from . import key as keys
from .caches import CACHES, STRENGTHS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional

MANIFEST, DATA = "goldnode-cache.json", "data"
NAME = re.compile(rf"(?:{'|'.join(CACHES)})-(?:{'|'.join(STRENGTHS)})-[0-9a-f]{{{keys.DIGITS}}}\Z")
FRESH = ".new-"  # prefix of a directory that is being made


def path(root: str, document: Mapping[str, Any]) -> str:
    """Return the path of a key's directory below the directory of caches. Pure."""
    return f"{checked_root(root)}/{document['key']}"


def checked_root(root: str) -> str:
    """Return the directory of caches without a slash at its end. Raises NodeError unless it is an absolute path."""
    if not root.startswith("/") or any(not letter.isprintable() for letter in root):
        raise NodeError(
            f"{printable(root, 200)!r} is no absolute path for caches. Give one, such as /var/cache/gpu."
        )
    return os.path.normpath(root)


def prepare(root: str, document: Mapping[str, Any]) -> str:
    """Return the directory of a key, and make it if it is not there.

    Raises NodeError if the directory is there and is not exactly of this key.
    """
    place = path(root, document)
    try:
        os.makedirs(checked_root(root), 0o755, exist_ok=True)
        if not os.path.lexists(place):
            _make(checked_root(root), place, document)
    except OSError as problem:
        raise NodeError(
            f"{place} cannot be made: {problem.strerror}. Give a directory that you may write to."
        ) from None
    faults = verify(place, document["key"])
    if faults:
        raise NodeError(
            f"{place} is not used: {'; '.join(faults)}. Remove it, and warm the cache again."
        )
    return place


def _make(root: str, place: str, document: Mapping[str, Any]) -> None:
    """Make a directory with its manifest under another name, and rename it."""
    fresh = f"{root}/{FRESH}{os.urandom(8).hex()}"
    os.mkdir(fresh, 0o700)
    try:
        # For the owner alone: the content is code.
        os.mkdir(f"{fresh}/{DATA}", 0o700)
        handle = os.open(
            f"{fresh}/{MANIFEST}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444
        )
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            json.dump(document, opened, indent=1, sort_keys=True)
            opened.write("\n")
            opened.flush()
            os.fsync(opened.fileno())
        os.rename(fresh, place)
    except OSError as problem:
        import shutil  # slow to import, and rarely needed

        shutil.rmtree(fresh, ignore_errors=True)
        # Another process made the directory first. It is verified like any other.
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def verify(
    place: str, expected: Optional[str] = None, node: Optional[Mapping[str, Any]] = None
) -> List[str]:
    """Return the reasons against a directory of a key; none if it may be used.

    :param expected: the key of the program that wants to use it.
    :param node: the components of the node that wants to use it, where the program is not known.
    """
    name = os.path.basename(os.path.normpath(place))
    if not NAME.match(name):
        return ["its name is no key of a cache"]
    folders = (_owned(place, stat.S_ISDIR), _owned(f"{place}/{DATA}", stat.S_ISDIR))
    faults = [fault for fault in folders if fault]
    fault = _owned(f"{place}/{MANIFEST}", stat.S_ISREG)
    if fault:
        return [*faults, fault]
    try:
        document = manifest(place)
    except NodeError as problem:
        return [*faults, str(problem).rstrip(".")]
    if document["key"] != name:
        faults.append(f"its manifest is of the key {document['key']}")
    if expected is not None and name != expected:
        faults.append(f"this node has the key {expected}")
    if node is not None:
        faults += foreign(document, node)
    return faults


def foreign(document: Mapping[str, Any], node: Mapping[str, Any]) -> List[str]:
    """Return the decisive components in which a key differs from a node. Pure."""
    stored, own = (
        keys.of_node(document["cache"], document["strength"], parts)
        for parts in (document["components"], node)
    )
    were, here = keys.leaves(stored), keys.leaves(own)
    return [
        f"{'.'.join(path)} was {_shown(were.get(path))}, and is {_shown(here.get(path))} here"
        for path in keys.differing(stored, own)
    ]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return printable(text, 60)


def manifest(place: str) -> keys.Json:
    """Return the manifest of a directory. Raises NodeError if it is missing or damaged."""
    name = f"{place}/{MANIFEST}"
    try:
        # Without waiting: somebody may have put a pipe in its place.
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            data = opened.read(keys.MOST + 1)
    except OSError as problem:
        raise NodeError(f"its manifest {MANIFEST} cannot be read: {problem.strerror}.") from None
    return keys.parsed(data, f"its manifest {MANIFEST}")


def _owned(name: str, kind: Any) -> Optional[str]:
    """Return why others could have written what is at a path, or why it is of another kind."""
    try:
        status = os.lstat(name)
    except OSError as problem:
        return f"{os.path.basename(name)} cannot be read: {problem.strerror}"
    base = printable(os.path.basename(name), 120)
    if not kind(status.st_mode):
        wanted = "directory" if kind is stat.S_ISDIR else "file"
        return f"{base} is a link, or no {wanted}"
    # Root and this user could change the program itself; any other owner could only add code.
    if status.st_uid not in (0, os.geteuid()):
        return f"{base} belongs to user {status.st_uid}, whose code would run"
    if status.st_mode & 0o022:
        return f"{base} can be written by others: chmod go-w"
    return None


def exports(places: Mapping[str, str]) -> List[str]:
    """Return the lines of a shell that point the tools to their directories. `places` maps caches to paths. Pure."""
    import shlex  # only one of four commands needs it

    lines = []
    for name, place in places.items():
        variable, data = CACHES[name].variable, shlex.quote(f"{place}/{DATA}")
        if variable is None:
            lines.append(f"# {CACHES[name].title}: no variable; store them in {data}")
        else:
            lines.append(f"export {variable}={data}")
    return lines

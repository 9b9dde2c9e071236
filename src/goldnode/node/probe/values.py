"""Values of readers: a value, or a fault with the reason for its absence (docs/reference/capture.md). Also quick
reading of small files.

This module imports only os: a capture reads thousands of sysfs files, and its program starts again each time.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Union

    Fault = Dict[str, Any]

NOT_EXPOSED, UNREAD = "not_exposed", "unread"
# The kernel's answers for something that does not exist. Any other error is a failed read.
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP)
MOST = 1 << 16  # bytes of one file; larger ones have readers of their own


def not_exposed(text: str, rc: Optional[int] = None) -> Fault:
    """Return the fault for something that this hardware, driver or kernel does not have."""
    return _fault(NOT_EXPOSED, text, rc)


def unread(text: str, rc: Optional[int] = None) -> Fault:
    """Return the fault for something that could not be read."""
    return _fault(UNREAD, text, rc)


def _fault(kind: str, text: str, rc: Optional[int]) -> Fault:
    fault: Fault = {"fault": kind, "text": text}
    if rc is not None:
        fault["rc"] = rc
    return fault


def error_fault(problem: OSError) -> Fault:
    """Return an error of the system as a fault."""
    rc = problem.errno
    text = os.strerror(rc) if rc else str(problem)
    return not_exposed(text, rc) if rc in ABSENT else unread(text, rc)


def is_fault(value: Any) -> bool:
    """Return whether a value is a fault."""
    return isinstance(value, dict) and "fault" in value


def known(value: Any) -> bool:
    """Return whether there is a value at all: neither missing nor a fault."""
    return value is not None and not is_fault(value)


def read_open(handle: int, most: int, *, whole: bool = False) -> Union[bytes, Fault]:
    """Return the first `most` bytes of an open file, or its fault, and close it.

    `whole`: the file comes in one read, as an attribute of sysfs does; that saves a second one.
    """
    try:
        data = os.read(handle, most)
        # /proc gives a page at a time.
        while not whole and 0 < len(data) < most:
            more = os.read(handle, most - len(data))
            if not more:
                break
            data += more
        return data
    except OSError as problem:
        return error_fault(problem)
    finally:
        os.close(handle)


def number_of(name: str, text: Union[str, Fault]) -> Union[int, Fault]:
    """Return the integer in the text of a file (decimal, or hexadecimal with 0x), or a fault."""
    if not isinstance(text, str):
        return text
    try:
        if len(text) > 20:  # more than 64 bits
            raise ValueError
        return int(text, 16 if text[:2] in ("0x", "0X") else 10)
    except ValueError:
        return unread(f"{name} holds no number: {text[:40]!r}")


class Files:
    """The files of a node under a root directory. `root` is "" for the machine itself, so that paths join by addition."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    def data(self, name: str, most: int = MOST) -> Union[bytes, Fault]:
        """Return the first `most` bytes of a file, or its fault."""
        try:
            handle = os.open(self.root + name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as problem:
            return error_fault(problem)
        return read_open(handle, most)

    def text(self, name: str, most: int = MOST) -> Union[str, Fault]:
        """Return the content of a small text file without surrounding white space, or its fault."""
        data = self.data(name, most)
        return data.decode("utf-8", "replace").strip() if isinstance(data, bytes) else data

    def number(self, name: str) -> Union[int, Fault]:
        """Return the integer in a file (decimal, or hexadecimal with 0x), or its fault."""
        return number_of(name, self.text(name))

    def names(self, folder: str) -> List[str]:
        """Return the sorted names in a folder; empty if it does not exist or cannot be read."""
        try:
            return sorted(os.listdir(self.root + folder))
        except OSError:
            return []

    def target(self, name: str) -> Optional[str]:
        """Return the target of a symbolic link as it is written; None if it is not a link."""
        try:
            return os.readlink(self.root + name)
        except OSError:
            return None

    def there(self, name: str) -> bool:
        """Return whether there is such a file."""
        return os.path.lexists(self.root + name)

    def real(self, name: str) -> Optional[str]:
        """Return a path of the node with all links followed; None if that leads out of the root, or nowhere."""
        path = os.path.realpath(self.root + name)
        if not os.path.exists(path):
            return None
        if not self.root:
            return path
        top = os.path.realpath(self.root)
        return path[len(top) :] if path.startswith(top + "/") else None

"""Attribute files of one sysfs folder, read with few system calls: a capture reads more than a thousand of
them.
"""

from __future__ import annotations

import errno
import os

from .values import error_fault, number_of, read_open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Union

    from .values import Fault, Files

PAGE = 4096  # an attribute of sysfs is at most that, and comes whole in one read
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class Folder:
    """A folder that is looked up once; ``with`` closes it. Of one that is not there every file is a fault.

    Names may lead further down (``hwmon/hwmon3/power1_cap``). Reading does not follow the device to another one that takes its address meanwhile.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self.fault: Optional[Fault] = None
        try:
            self.handle = os.open(files.root + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as problem:
            self.handle = -1
            self.fault = error_fault(problem)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def data(self, name: str, most: int = PAGE) -> Union[bytes, Fault]:
        """Return the first `most` bytes of a file, or its fault."""
        if self.fault is not None:
            return self.fault
        try:
            handle = os.open(name, FLAGS, dir_fd=self.handle)
        except OSError as problem:
            return error_fault(problem)
        return read_open(handle, most, whole=most <= PAGE)

    def text(self, name: str, most: int = PAGE) -> Union[str, Fault]:
        """Return the content of a text file without surrounding white space, or its fault."""
        data = self.data(name, most)
        return data.decode("utf-8", "replace").strip() if isinstance(data, bytes) else data

    def number(self, name: str) -> Union[int, Fault]:
        """Return the integer in a file, or its fault."""
        return number_of(name, self.text(name))

    def target(self, name: str) -> Optional[str]:
        """Return the last component of a symbolic link's target; None if it is not a link."""
        if self.handle < 0:
            return None
        try:
            return os.readlink(name, dir_fd=self.handle).rpartition("/")[2]
        except OSError:
            return None

    def names(self, folder: str = ".") -> List[str]:
        """Return the sorted names in a subfolder; empty if it does not exist or cannot be read."""
        if self.handle < 0:
            return []
        try:
            handle = os.open(
                folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.handle
            )
        except OSError:
            return []
        try:
            return sorted(os.listdir(handle))
        except OSError:
            return []
        finally:
            os.close(handle)

    def there(self, name: str) -> bool:
        """Return whether there is such a file."""
        try:
            os.stat(name, dir_fd=self.handle, follow_symlinks=False)
        except OSError as problem:
            return problem.errno == errno.EACCES
        return self.handle >= 0

"""The one door to a machine: its files under a root, and the programs that run there.

All code that runs on a node uses :class:`Host`. The same code thus serves the live machine
(``root="/"``), the root file system of an image, and a directory made by a test. Standard library
only, Python 3.9.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from . import boot
from .process import Process
from .typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeAlias

# The installed program: this same code. Units start it, and it starts itself where a call may have to be
# killed.
PROGRAM = "/usr/lib/goldnode/goldnode-node"

# Programs must answer in English, because we parse their text, and must not prompt: no user is there to
# answer.
ENVIRONMENT = {
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",
    "SLURM_TIME_FORMAT": "standard",  # scontrol writes it after each reason
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


_LINKS = 40  # as many as the kernel follows in one path

SUPERUSER = (0, 0)  # numeric user and group of root; tests that do not run as root override it


class Result(NamedTuple):
    """Result of a program: exit status, standard output and standard error as text.

    Exit status 127: not found, 126: not executable, 124: timed out.
    """

    argv: Tuple[str, ...]
    rc: int
    out: str
    err: str

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of both streams, for an error message."""
        return "\n".join((self.out + "\n" + self.err).strip().splitlines()[-lines:])


class Host:
    """A root directory, and a way to run programs in it.

    :param root: absolute path; ``/`` is the live machine. In any other root programs run by chroot.
    :param live: whether the root belongs to a running machine. Only given for a directory that
        plays one.
    """

    def __init__(self, root: str = "/", live: Optional[bool] = None) -> None:
        self.root = os.path.abspath(root)
        # The other roots are those of images, which do not run.
        self.live = self.root == "/" if live is None else live
        # Owner of the files we write: root, in an image too. For a directory that plays a machine,
        # its owner.
        self.superuser = owner_of(self.root) if live and self.root != "/" else SUPERUSER
        self.program = PROGRAM  # runs the reader of the GPUs in a process of its own
        self.pending: Any = None  # open request of a capture to the GPU library (device/stream.py)
        # Text of the node's own class document, as a check has read it.
        self.class_text: Optional[str] = None
        # Every program that was run, in order, for tests and the run record.
        self.commands: List[Tuple[str, ...]] = []

    def located(self, name: str) -> str:
        """Return the path, on the machine that runs this code, of the node's absolute path `name`."""
        return f"{self.root.rstrip('/')}/{name.lstrip('/')}"

    def path(self, name: str) -> Path:
        """Return :meth:`located` as a Path. A check does not use it, to start without importing pathlib."""
        from pathlib import Path  # start-up time, as above

        return Path(self.located(name))

    def exists(self, name: str) -> bool:
        """Return whether the path exists, with all links followed. Raises OSError if that is unknown."""
        try:
            os.stat(self._followed(name))
        except OSError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP):
                return False
            raise
        except ValueError:  # a NUL in the name
            return False
        return True

    def is_link(self, name: str) -> bool:
        """Return whether the path is a symbolic link."""
        return os.path.islink(self.located(name))

    def is_dir(self, name: str) -> bool:
        """Return whether the path is a directory, or a link to one."""
        try:
            return os.path.isdir(self._followed(name))
        except OSError:  # links that lead to each other
            return False

    def real(self, name: str) -> str:
        """Return :meth:`located` with symbolic links followed inside the root, those of directories too. An
        absolute link must not lead out of it: update-alternatives writes no others.
        """
        done: List[str] = []
        left, links = name.split("/")[::-1], 0
        while left:
            part = left.pop()
            if part == "..":  # as in a chroot, the parent of / is /
                del done[-1:]
            if part in ("", ".", ".."):
                continue
            done.append(part)
            if left and self.root == "/":  # the kernel follows links of directories
                continue
            try:
                target = os.readlink(self.located("/".join(done)))
            except OSError:  # not a link; any other problem surfaces when the caller opens it
                continue
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, "too many levels of symbolic links", name)
            done = [] if target.startswith("/") else done[:-1]
            left += target.split("/")[::-1]
        return self.located("/".join(done))

    def _followed(self, name: str) -> str:
        """Return :meth:`real`. On the live machine the kernel follows the links, at less cost."""
        return name if self.root == "/" else self.real(name)

    def lstat(self, name: str) -> Optional[os.stat_result]:
        """Return the status of the path itself, without following a link; None if it does not exist."""
        try:
            return os.lstat(self.located(name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def regular_file(
        self, name: str, most: int = -1
    ) -> Tuple[Optional[os.stat_result], Optional[bytes]]:
        """Return status and content (at most so many bytes) of the path itself. The content is None for anything
        but a regular file, which is not opened.
        """
        status = self.lstat(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            return status, None
        # O_NONBLOCK: do not hang if a user replaces the file by a pipe meanwhile.
        try:
            handle = os.open(
                self.located(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except FileNotFoundError:
            return None, None
        except OSError as problem:
            if problem.errno != errno.ELOOP:  # ELOOP: it has become a link
                raise
            return self.lstat(name), None
        with open(handle, "rb") as opened:
            status = os.fstat(handle)
            return status, opened.read(most) if stat.S_ISREG(status.st_mode) else None

    def data(self, name: str, most: int = -1) -> Optional[bytes]:
        """Return the content of a file (at most this many bytes), or None if it does not exist. In /proc,
        also None if the process ends during the read.
        """
        try:
            with open(self.real(name), "rb") as opened:
                return opened.read(most)
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            return None

    def text(self, name: str) -> Optional[str]:
        """Return the content of a text file, or None if it does not exist."""
        data = self.data(name)
        return None if data is None else data.decode("utf-8", "replace")

    def glob(self, directory: str, pattern: str) -> List[str]:
        """Return the node paths in `directory` that match `pattern`, sorted."""
        if not set(pattern) & set("*?["):
            path = f"{directory.rstrip('/')}/{pattern}"
            return [path] if self.exists(path) else []
        try:
            names = matching(os.listdir(self._followed(directory)), pattern)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []
        return sorted(f"{directory.rstrip('/')}/{name}" for name in names)

    def run(self, *argv: str, timeout: float = 60, stdin: Optional[str] = None) -> Result:
        """Run a program and wait for it.

        Never raises because of the program: see the result's exit status.
        """
        self.commands.append(argv)
        command: Sequence[str] = argv if self.root == "/" else ("chroot", self.root, *argv)
        try:
            process = Process(
                command,
                {**os.environ, **ENVIRONMENT},
                None if stdin is None else stdin.encode("utf-8", "replace"),
            )
        except FileNotFoundError:
            return Result(argv, 127, "", f"{argv[0]}: not found")
        except OSError as problem:  # it exists, but is not executable or not a program
            return Result(argv, 126, "", f"{argv[0]}: {problem.strerror}")
        try:
            whole = process.listen(timeout)
            if not whole:
                process.kill()
                process.listen(0)  # collect what it printed before it closed its pipes
        except BaseException:  # an interrupt must not leave the program running
            process.kill()
            raise
        finally:
            process.close()
        out, status = process.text(process.out), process.status
        if not whole or status is None:
            return Result(argv, 124, out, f"{argv[0]}: no answer within {timeout:g} s")
        return Result(argv, status, out, process.text(process.err))

    def write(
        self, name: str, content: bytes, mode: int = 0o644, owner: Optional[Tuple[int, int]] = None
    ) -> None:
        """Write a file atomically: readers see the old content or the new one, even after a crash.

        :param owner: numeric user and group; None for those of this process.
        """
        target = self.located(name)
        folder, _, base = target.rpartition("/")
        os.makedirs(folder or "/", exist_ok=True)
        temporary = f"{folder}/.{base}.{os.urandom(8).hex()}"
        handle = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(content)
                out.flush()
                if owner:  # before fchmod: fchown clears setuid and setgid
                    os.fchown(out.fileno(), *owner)
                os.fchmod(out.fileno(), mode)
                if not name.startswith("/run/"):  # /run is in memory: nothing to flush
                    os.fsync(out.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    def secure(self, name: str) -> None:
        """Make root the owner of a directory, and revoke write access of all others. Replace
        anything else at that path by a directory.
        """
        here = self.located(name)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(here, flags)
        except OSError as problem:
            if problem.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            os.unlink(here)
            os.mkdir(here, 0o755)
            handle = os.open(here, flags)
        try:
            os.fchown(handle, *self.superuser)  # first: the former owner could undo the chmod
            os.fchmod(handle, os.fstat(handle).st_mode & 0o7777 & ~0o022)
        finally:
            os.close(handle)

    def lines(self, name: str) -> List[str]:
        """Return the lines of a foreign file for :meth:`write_lines`.

        Bytes that are not UTF-8 are preserved.
        """
        return (self.data(name) or b"").decode("utf-8", "surrogateescape").splitlines(True)

    def write_lines(self, name: str, lines: Sequence[str]) -> None:
        """Write changed lines to a foreign file, preserving its mode and owner. If it is a link,
        change its target.
        """
        here = self.real(name)
        content, own = "".join(lines).encode("utf-8", "surrogateescape"), os.stat(here)
        self.write(
            "/" + os.path.relpath(here, self.root),
            content,
            own.st_mode & 0o7777,
            (own.st_uid, own.st_gid),
        )

    def remove(self, name: str) -> None:
        """Remove a file. A missing file is no error."""
        try:
            os.unlink(self.located(name))
        except FileNotFoundError:
            return


def owner_of(root: str) -> Tuple[int, int]:
    """Return the numeric user and group of a directory; root's if it does not exist yet."""
    try:
        status = os.stat(root)
    except OSError:
        return SUPERUSER
    return status.st_uid, status.st_gid


def matching(names: Sequence[str], pattern: str) -> List[str]:
    """Return the names that match a shell pattern, as in :func:`like`. Most patterns have a single
    star and no `?`.
    """
    before, star, after = pattern.partition("*")
    if star and not set(before + after) & set("*?["):
        least = len(before) + len(after)
        return [
            name
            for name in names
            if name.startswith(before) and name.endswith(after) and len(name) >= least
        ]
    return [name for name in names if like(name, pattern)]


DIGITS = frozenset("0123456789")
# Pattern -> text before its first wildcard. Thousands of names are compared with the same few patterns.
BEGINNINGS: Dict[str, str] = {}


def like(name: str, pattern: str) -> bool:
    """Return whether a name matches a shell pattern, like fnmatch.

    A pattern of letters, `?`, `[0-9]` and at most one star needs no regular expression.
    """
    beginning = BEGINNINGS.get(pattern)
    if beginning is None:
        places = [pattern.find(wildcard) for wildcard in "*?[" if wildcard in pattern]
        beginning = BEGINNINGS[pattern] = pattern[: min(places)] if places else pattern
    if not name.startswith(beginning):
        return False
    literal = pattern.replace("[0-9]", "\0")  # no file name contains NUL
    if literal.count("*") > 1 or "[" in literal:
        from fnmatch import fnmatchcase  # start-up time: it compiles a regular expression

        return fnmatchcase(name, pattern)
    before, star, after = literal.partition("*")
    if len(name) < len(before) + len(after) or (not star and len(name) > len(before)):
        return False
    ends = name[: len(before)] + name[len(name) - len(after) :]
    return all(
        own == wanted or wanted == "?" or (wanted == "\0" and own in DIGITS)
        for own, wanted in zip(ends, before + after)
    )


def mount_tables(name: str) -> Tuple[str, ...]:
    """Return where the mounts of this machine are read, the best one first.

    systemd gives a unit with a sandbox mounts of its own, which are read-only; those of PID 1 are the machine's.
    """
    own = f"/proc/self/{name}"
    return (f"/proc/1/{name}", own) if os.environ.get("INVOCATION_ID") else (own,)


def mount_lines(host: Host) -> List[str]:
    """Return the mounts of this machine, as lines of proc_pid_mountinfo(5)."""
    for table in mount_tables("mountinfo"):
        with suppress(PermissionError):
            text = host.text(table)
            if text:
                return text.splitlines()
    return []


# Exists in a container with a simulated kernel (goldnode.testing.lab): that kernel is the container's own.
SIMULATED_KERNEL = "/run/goldnode-simulator/kernel"


# Until its release, Debian gives a system no VERSION_ID (base-files 14 of forky: ID and VERSION_CODENAME alone). sid says forky too.
UNRELEASED = {"forky": "14"}


def release_version(rows: Dict[str, str]) -> str:
    """Return the version of an OS by the rows of its os-release(5), also before its release; empty if it is not known."""
    return rows.get("VERSION_ID") or UNRELEASED.get(rows.get("VERSION_CODENAME", ""), "")


def is_container(host: Host) -> bool:
    """Return whether the live host is a container. A container shares the kernel with its host, and
    shows the host's devices.

    systemd writes /run/systemd/container; container engines set `container=` for PID 1 (systemd's
    container interface).
    """
    if not host.live:
        return False
    if host.text("/run/systemd/container"):
        return True
    try:
        environment = host.data("/proc/1/environ") or b""
    except PermissionError:  # not root, or root of a user namespace only
        environment = b""
    return any(item.startswith(b"container=") for item in environment.split(b"\0"))


def boot_identity(host: Host) -> Optional[str]:
    """Return a text that differs after each boot (see :func:`boot.identity`); None for a root that
    has not booted.
    """
    if not host.live:
        return None
    return boot.identity(
        host.text("/proc/sys/kernel/random/boot_id") or "", host.text("/proc/1/stat") or ""
    )


Json: TypeAlias = "Dict[str, Any]"

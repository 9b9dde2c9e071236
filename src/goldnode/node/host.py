"""The one door to a machine: its files under a root, and the programs run there.

Everything that runs on a node is written against :class:`Host`, so that the same code serves the live machine
(``root="/"``), the root filesystem of an image, and a directory made by a test. Standard library only, Python 3.9.
"""

from __future__ import annotations

import errno
import os
import stat

from . import boot
from .plain import dataclass
from .process import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeAlias

# The program that stays on a node: the same code, started by itself at boot, by units, and where a call may have to be killed.
PROGRAM = "/usr/lib/goldnode/goldnode-node"

# Programs answer in English and ask nothing: their text is parsed, and nobody is there to answer.
ENVIRONMENT = {
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


SUPERUSER = (0, 0)  # numbers of the user and the group root; tests that another user runs put their own here


@dataclass(frozen=True)
class Result:
    """Result of a program: exit status (127: not found, 126: not executable, 124: timed out), standard output
    and error as text.
    """

    argv: Tuple[str, ...]
    rc: int
    out: str
    err: str

    def tail(self, lines: int = 15) -> str:
        """The last lines of both streams, for an error message."""
        return "\n".join((self.out + "\n" + self.err).strip().splitlines()[-lines:])


class Host:
    """A root directory and a way to run programs in it.

    :param root: absolute path; ``/`` is the live machine; programs run in any other root by chroot.
    :param live: whether the root belongs to a running machine; only given for a directory that plays one.
    """

    def __init__(self, root: str = "/", live: Optional[bool] = None) -> None:
        self.root = os.path.abspath(root)
        self.live = self.root == "/" if live is None else live  # and not the root filesystem of an image
        # User and group that own what is goldnode's. In an image these are numbers too; a directory that plays a machine has a root of its own.
        self.superuser = owner_of(self.root) if live and self.root != "/" else SUPERUSER
        self.program = PROGRAM  # what is run to ask for GPUs
        self.pending: Any = (
            None  # a capture's question to the GPU library, while it is open (device/stream.py)
        )
        self.commands: List[
            Tuple[str, ...]
        ] = []  # every program run, in order: tests and the run record read it

    def located(self, name: str) -> str:
        """Where the absolute path `name` of the node lies on the machine this code runs on."""
        return f"{self.root.rstrip('/')}/{name.lstrip('/')}"

    def path(self, name: str) -> Path:
        """Like :meth:`located`, as a Path. Not used by a check, whose start must not import pathlib."""
        from pathlib import Path

        return Path(self.located(name))

    def exists(self, name: str) -> bool:
        """Return whether the target of all links exists. Raises OSError if that is unknown."""
        try:
            os.stat(self.located(name))
        except OSError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP):
                return False
            raise
        except ValueError:  # no name at all: with a NUL in it
            return False
        return True

    def is_link(self, name: str) -> bool:
        """Whether it is a symbolic link."""
        return os.path.islink(self.located(name))

    def is_dir(self, name: str) -> bool:
        """Whether it is a directory, or a link to one."""
        return os.path.isdir(self.located(name))

    def real(self, name: str) -> str:
        """Like :meth:`located`, with symbolic links followed inside the root (an absolute link must not lead out)."""
        current = name
        for _ in range(40):
            here = self.located(current)
            try:
                target = os.readlink(here)
            except OSError:  # no link; whatever else is wrong with it shows to whoever opens it
                return here
            current = os.path.normpath(
                os.path.join("/", os.path.dirname(current), target)
            )  # as in a chroot, .. of / is /
        raise OSError(f"{name}: too many levels of symbolic links")

    def lstat(self, name: str) -> Optional[os.stat_result]:
        """Return the status of what lies at `name` itself, following no link; None where nothing does."""
        try:
            return os.lstat(self.located(name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def plain_file(self, name: str) -> Tuple[Optional[os.stat_result], Optional[bytes]]:
        """Return status and content of what lies at `name` itself. The content is None of anything but a regular file, which is not opened."""
        found = self.lstat(name)
        if found is None or not stat.S_ISREG(found.st_mode):
            return found, None
        # Not to wait, should a user put a pipe there meanwhile.
        try:
            handle = os.open(self.located(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None, None
        except OSError as problem:
            if problem.errno != errno.ELOOP:  # a link by now
                raise
            return self.lstat(name), None
        with open(handle, "rb") as opened:
            found = os.fstat(handle)
            return found, opened.read() if stat.S_ISREG(found.st_mode) else None

    def data(self, name: str) -> Optional[bytes]:
        """Return the content of a file, or None if it does not exist (in /proc also if its process ends
        during the read).
        """
        try:
            with open(self.real(name), "rb") as opened:
                return opened.read()
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            return None

    def text(self, name: str) -> Optional[str]:
        """Return the content of a text file, or None if it does not exist."""
        data = self.data(name)
        return None if data is None else data.decode("utf-8", "replace")

    def glob(self, directory: str, pattern: str) -> List[str]:
        """Node paths in `directory` that match `pattern`, sorted."""
        if not set(pattern) & set("*?["):
            found = [pattern] if self.exists(f"{directory}/{pattern}") else []
        else:
            try:
                found = matching(os.listdir(self.located(directory)), pattern)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                found = []
        return sorted(f"{directory.rstrip('/')}/{name}" for name in found)

    def run(self, *argv: str, timeout: float = 60, stdin: Optional[str] = None) -> Result:
        """Run a program and wait. Never raises for what the program does: the result says it."""
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
        except OSError as problem:  # there, and not to be run: not executable, or no program
            return Result(argv, 126, "", f"{argv[0]}: {problem.strerror}")
        try:
            whole = process.listen(timeout)
            if not whole:
                process.kill()
        except BaseException:  # whoever waits is interrupted
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
        """Write a file atomically: readers see the old content or the new, also after a crash.

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
                if owner:  # before the mode, of which it takes setuid away
                    os.fchown(out.fileno(), *owner)
                os.fchmod(out.fileno(), mode)
                if not name.startswith("/run/"):  # in memory: it does not outlast the power
                    os.fsync(out.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    def secure(self, name: str) -> None:
        """Give a directory to root, and take from all others the right to write to it. Anything else that lies there makes way for one."""
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
            os.fchown(handle, *self.superuser)  # first: until then its owner could take back what follows
            os.fchmod(handle, os.fstat(handle).st_mode & 0o7777 & ~0o022)
        finally:
            os.close(handle)

    def lines(self, name: str) -> List[str]:
        """Return the lines of a foreign file for :meth:`write_lines`. Bytes that are not UTF-8 are preserved."""
        return (self.data(name) or b"").decode("utf-8", "surrogateescape").splitlines(True)

    def write_lines(self, name: str, lines: Sequence[str]) -> None:
        """Write changed lines to a foreign file, with its mode and owner. The target of a link is changed,
        not the link.
        """
        here = self.real(name)
        content, own = "".join(lines).encode("utf-8", "surrogateescape"), os.stat(here)
        self.write(
            "/" + os.path.relpath(here, self.root), content, own.st_mode & 0o7777, (own.st_uid, own.st_gid)
        )

    def remove(self, name: str) -> None:
        """Take a file away; that it is not there is no error."""
        try:
            os.unlink(self.located(name))
        except FileNotFoundError:
            return


def owner_of(root: str) -> Tuple[int, int]:
    """Return the numbers of user and group that own a directory; root's where it is not there yet."""
    try:
        found = os.stat(root)
    except OSError:
        return SUPERUSER
    return found.st_uid, found.st_gid


def matching(names: Sequence[str], pattern: str) -> List[str]:
    """The names that match a shell pattern, as :func:`like` says; most have a single star and no `?`."""
    before, star, after = pattern.partition("*")
    if star and not set(before + after) & set("*?["):
        least = len(before) + len(after)
        return [
            name for name in names if name.startswith(before) and name.endswith(after) and len(name) >= least
        ]
    return [name for name in names if like(name, pattern)]


DIGITS = frozenset("0123456789")


def like(name: str, pattern: str) -> bool:
    """Whether a name matches a shell pattern (fnmatch's). One of letters, `?`, `[0-9]` and at most one star needs no regular expression."""
    plain = pattern.replace("[0-9]", "\0")  # which no name holds
    if plain.count("*") > 1 or "[" in plain:
        from fnmatch import fnmatchcase

        return fnmatchcase(name, pattern)
    before, star, after = plain.partition("*")
    if len(name) < len(before) + len(after) or (not star and len(name) > len(before)):
        return False
    ends = name[: len(before)] + name[len(name) - len(after) :]
    return all(
        own == wanted or wanted == "?" or (wanted == "\0" and own in DIGITS)
        for own, wanted in zip(ends, before + after)
    )


def is_container(host: Host) -> bool:
    """Whether the live host is a container: it shares the kernel, and shows devices, of another machine.

    systemd writes /run/systemd/container; engines set `container=` for PID 1 (systemd's container interface).
    """
    if not host.live:
        return False
    if host.text("/run/systemd/container"):
        return True
    try:
        environment = host.data("/proc/1/environ") or b""
    except PermissionError:  # not root, or root of a user namespace
        environment = b""
    return any(item.startswith(b"container=") for item in environment.split(b"\0"))


def boot_identity(host: Host) -> Optional[str]:
    """A text that is new after each boot (see :func:`boot.identity`); None where nothing has booted."""
    if not host.live:
        return None
    return boot.identity(host.text("/proc/sys/kernel/random/boot_id") or "", host.text("/proc/1/stat") or "")


Json: TypeAlias = "Dict[str, Any]"

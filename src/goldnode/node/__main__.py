"""Entry point of goldnode-node: `python -m goldnode.node`, and `__main__` of the self-contained file.

Python caches no byte code of modules in a zip archive, so it would compile each module again at every start.
The first start by root after a boot therefore compiles the whole archive into one file below PLACE. That file
is a zip archive of byte code, from which Python imports as from any other.

* One process makes the copy and holds a lock. Others that start meanwhile run from the archive without
  waiting.
* A rename publishes the copy in one step. Nothing is added to it later.
* Every start verifies the checksum of the copy before it imports from it, and replaces a damaged copy.
* A process imports through its own open file of the copy. Deleting or replacing the copy does not affect
  running processes.

The program runs from its archive where no sound copy is possible: as another user, on a full file system, or
below a directory that others can write to.

Every failure of the program, import errors included, ends here: exit status 3, "could not check", and one
line with the reason and the fix.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
else:
    try:
        import _signal as signal  # the compiled part of `signal`; see process.py
    except ImportError:
        import signal

# /run is empty after a boot, so a power cut cannot leave half a copy.
PLACE = "/run/goldnode/program"
STAMP, LOCK = "stamp", "lock"
DAY = 86400.0
# Hexadecimal digits of a CRC-32. An archive ends with the checksum of all bytes before; a copy begins with
# that of all bytes after.
SEAL = 8
COULD_NOT_CHECK = 3
DAMAGED = "Run site.yml for this host, or fetch the file again."


def ordinary() -> None:
    """Reset inherited process settings.

    If SIGCHLD is ignored, the kernel reports no exit statuses. The caller's umask must not decide who can
    read our files; secret files get an explicit mode.
    """
    os.umask(0o022)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def settle(archive: str) -> str:
    """Make modules importable from the compiled copy of `archive`, if root has one or can make one.

    Return the digest of the archive. Raises ImportError if the file is not the one that was built.
    """
    root = os.geteuid() == 0
    digest = known(archive) if root else None
    copy = compiled(digest) if digest else None
    if digest is None or copy is None:
        import hashlib

        with open(archive, "rb") as opened:
            data = opened.read()
            mark = marked(os.fstat(opened.fileno()))
        verify(archive, data)
        digest = hashlib.sha256(data).hexdigest()
        try:
            if root:
                copy = compiled(digest) or make(data, digest)
            if copy:
                stamp(mark, digest)
        except Exception:  # noqa: S110 - without a copy or a stamp the program still works, only slower
            pass
    if copy:
        sys.path[0] = copy
    return "sha256:" + digest


def verify(archive: str, data: bytes) -> None:
    """Raise ImportError unless `archive`, whose bytes are `data`, ends with its own checksum.

    Python itself verifies nothing that it imports from a zip archive.
    """
    import zlib

    if b"%0*x" % (SEAL, zlib.crc32(data[:-SEAL])) != data[-SEAL:]:
        raise ImportError(f"{archive} is damaged: its checksum is wrong")


def marked(status: os.stat_result) -> str:
    """Return the identity of a file's content: device, inode, size and ctime.

    Nothing can set a ctime, and a replaced file is another inode.
    """
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_ctime_ns}"


def known(archive: str) -> "str | None":
    """Return the digest that an earlier start of this boot recorded for the file, if the file has not changed
    since.

    Reading and hashing the file takes as long as the rest of a cached answer.
    """
    try:
        if not trusted():
            return None
        with open(os.path.join(PLACE, STAMP), encoding="ascii") as opened:
            mark, _, digest = opened.read(200).rpartition(" ")
        return digest if len(digest) == 64 and digest.isalnum() and mark == marked(os.stat(archive)) else None
    except (OSError, ValueError):
        return None


def stamp(mark: str, digest: str) -> None:
    """Record the digest for `known`.

    Skip a file changed within the last two seconds: a second change could fall into the same clock tick.
    """
    import time

    if time.time_ns() - int(mark.rpartition(" ")[2]) < 2_000_000_000:
        return
    fresh = os.path.join(PLACE, f".{STAMP}-{os.getpid()}")
    with open(fresh, "w", encoding="ascii") as opened:
        opened.write(f"{mark} {digest}")
    os.rename(fresh, os.path.join(PLACE, STAMP))


def safe(directory: str) -> bool:
    """Return whether it is a directory (not a link) that only root can write to."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return False
    return found.st_mode & 0o170022 == 0o040000 and found.st_uid == 0


def trusted() -> bool:
    """Return whether only root can have written to PLACE."""
    return safe(os.path.dirname(PLACE)) and safe(PLACE)


def named(digest: str) -> str:
    """Return the name of the copy for exactly this Python. Byte code differs between versions."""
    import zlib

    return os.path.join(PLACE, f"{digest}-{zlib.crc32(sys.version.encode()):08x}")


def compiled(digest: str) -> "str | None":
    """Open and verify the copy of the archive with this digest.

    Return the path to import from; None if there is no sound copy.
    """
    import zlib

    if not trusted():
        return None
    try:
        handle = os.open(named(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        # By process number and not /proc/self, so that child processes can import from it too.
        path = f"/proc/{os.getpid()}/fd/{handle}"
        if (
            status.st_mode & 0o170022 == 0o100000
            and status.st_uid == 0
            and handle > 2
            and os.path.samestat(status, os.stat(path))
        ):
            seal, checksum, buffer = os.read(handle, SEAL), zlib.crc32(digest.encode()), bytearray(1 << 16)
            while size := os.readv(handle, (buffer,)):
                checksum = zlib.crc32(memoryview(buffer)[:size], checksum)
            if seal == b"%0*x" % (SEAL, checksum):
                return path
    except OSError:  # no /proc, or an unreadable medium
        pass
    os.close(handle)
    return None


def make(data: bytes, digest: str) -> "str | None":
    """Compile the archive into its copy, and remove copies of earlier versions.

    Return the same as `compiled`; None also if another process is compiling.
    """
    import fcntl
    import importlib.util
    import io
    import marshal
    import shutil
    import time
    import zipfile
    import zlib

    parent = os.path.dirname(PLACE)
    os.makedirs(parent, 0o755, exist_ok=True)
    if safe(parent):
        os.makedirs(PLACE, 0o755, exist_ok=True)
    if not trusted():
        return None
    with open(os.path.join(PLACE, LOCK), "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if copy := compiled(digest):  # another process finished it before this one got the lock
            return copy
        # Spare younger files: another version of the program may be installed at the same time.
        for entry in os.scandir(PLACE):
            if (
                entry.name not in (STAMP, LOCK)
                and time.time() - entry.stat(follow_symlinks=False).st_mtime > DAY
            ):
                # Earlier versions of goldnode unpacked themselves into directories.
                (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as sources, zipfile.ZipFile(out, "w") as copies:
            for name in sources.namelist():
                if name.endswith(".py"):
                    code = compile(sources.read(name), f"goldnode-node/{name}", "exec", dont_inherit=True)
                    # PEP 552: the magic number, the flag for unchecked byte code, and eight zero bytes where
                    # a source hash would be.
                    head = importlib.util.MAGIC_NUMBER + b"\x01\0\0\0" + bytes(8)
                    copies.writestr(zipfile.ZipInfo(name + "c"), head + marshal.dumps(code))
        content = out.getvalue()
        fresh = f"{named(digest)}.{os.getpid()}"
        try:
            with open(fresh, "wb") as opened:
                opened.write(b"%0*x" % (SEAL, zlib.crc32(content, zlib.crc32(digest.encode()))) + content)
            os.rename(fresh, named(digest))
        except OSError:
            os.unlink(fresh)
            raise
    return compiled(digest)


def load_once() -> None:
    """Load modules of zip archives once.

    `zipimporter.get_filename` reads and compiles the whole module to find its name, and Python calls it
    before it loads the module. That would cost as long as all reads of a check.
    """
    import zipimport

    class Importer(zipimport.zipimporter):
        """zipimporter that derives file names from the directory of the archive alone."""

        def get_filename(self, fullname: str) -> str:
            """Return the path of a module's file in the archive."""
            path = f"{self.archive}/{self.prefix}{fullname.rpartition('.')[2]}"
            return f"{path}/__init__.py" if self.is_package(fullname) else f"{path}.py"

    sys.path_hooks.insert(0, Importer)
    sys.path_importer_cache.pop(sys.path[0], None)


def begin() -> int:
    """Run the command in `sys.argv`. Return the exit status."""
    ordinary()
    archive = getattr(getattr(__spec__, "loader", None), "archive", None)
    engine = None
    if archive:
        # A process started from the copy needs no other: its parent has verified the copy.
        engine = None if __file__.endswith(".pyc") else settle(archive)
        load_once()

    from goldnode.node.start import leave, main

    try:
        status = main(engine, archive)
    except SystemExit as ended:  # argparse exits by itself
        status = ended.code if isinstance(ended.code, int) else COULD_NOT_CHECK if ended.code else 0
    return leave(status)


def crashed(problem: BaseException) -> int:
    """Report in one line why the program failed. Never raises.

    Return the exit status "could not check": a crash is no verdict.
    """
    try:
        from goldnode.node.fault import report  # imported here: a healthy start does not need it

        report(problem)
    except BaseException:  # fault.py may be damaged itself
        line = f"goldnode-node: {type(problem).__name__}: {problem}. {DAMAGED}\n"
        try:  # noqa: SIM105 - contextlib would be one more module that may be damaged
            os.write(2, line.encode("ascii", "backslashreplace"))
        except OSError:  # stderr is closed
            pass
    return COULD_NOT_CHECK


if __name__ == "__main__":
    try:
        status = begin()
    except BaseException as problem:
        # Skip the interpreter's shutdown: it would flush the failed output again, and exit with 120.
        os._exit(crashed(problem))
    sys.exit(status)

"""Entry point of goldnode-node: `python -m goldnode.node`, and `__main__` of the self-contained file.

Python does not cache byte code of modules in a zip archive: it would compile every module again at
each start. The first start by root after a boot therefore compiles the whole archive into one file
below PLACE. That file is a zip archive of byte code, from which Python imports as from any other.

* One process makes the copy, under a lock. A process that starts meanwhile runs from the archive
  and does not wait.
* A rename publishes the copy in one step. It never changes afterwards.
* Every start verifies the checksum of the copy before it imports from it, and makes a damaged copy
  again.
* A process imports through its own open file of the copy, so deleting or replacing the copy does
  not affect running processes.
* A disk image has a copy already, in SHIPPED, made by its own Python. It is used like one in PLACE.

The program runs from its archive where it cannot have a sound copy: as another user, on a full file
system, or if others than root can write to the directory.

Every failure of the program ends here, failed imports included: exit status 3, "could not check",
and one line with the reason and the fix.
"""

import marshal
import os
import sys
from importlib.machinery import ModuleSpec

# /run is empty after a boot, so a power cut cannot leave half a copy.
PLACE = "/run/goldnode/program"
SHIPPED = "/usr/lib/goldnode/disk/program"
STAMP, LOCK = "stamp", "lock"
DAY = 86400.0  # seconds
# Hexadecimal digits of a CRC-32. The archive ends with that of all bytes before; a copy begins with
# that of all bytes after.
SEAL = 8
HEADER = 16  # bytes before the code in a .pyc file
COULD_NOT_CHECK = 3
PYTHON_IGNORES = 1 << 12 | 1 << 24  # SIGPIPE and SIGXFSZ, as in the masks of proc(5)
DAMAGED = "Run site.yml for this host, or fetch the file again."


def ordinary() -> None:
    """Reset process settings that the caller may have changed.

    With SIGCHLD ignored, the kernel reports no exit status. Blocked signals are inherited by every
    program we start. The caller's umask must not decide who can read our files: secret files get an
    explicit mode.
    """
    os.umask(0o022)
    if usual():
        return
    import signal  # start-up time: it makes three enumerations

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def usual() -> bool:
    """Return whether the kernel says that no signal is blocked, and none ignored that Python does not ignore itself."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as opened:
            masks = {key: rest for key, _, rest in (line.partition(":") for line in opened)}
        blocked, ignored = int(masks["SigBlk"], 16), int(masks["SigIgn"], 16)
    except (OSError, KeyError, ValueError):
        return False
    return blocked == 0 and ignored & ~PYTHON_IGNORES == 0


def settle(archive: str) -> str:
    """Import modules from the compiled copy of `archive`, if root has one or can make one. Return
    the digest of the file.

    Raises ImportError if the file is damaged.
    """
    root = os.geteuid() == 0
    digest = known(archive) if root else None
    copy = compiled(digest) if digest else None
    if digest is None or copy is None:
        import hashlib  # start-up time: a verified copy needs no digest of the file

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
        except Exception:  # noqa: S110 - without a copy or a stamp the program is slower, not wrong
            pass
    if copy:
        import_from(copy)
    return "sha256:" + digest


class CopyImporter:
    """Finder and loader of the modules in a compiled copy, by the copy's own index.

    Python's `zipimport` opens and searches the archive for each module, and reads and decodes it a second time
    to answer for its file name.
    """

    def __init__(self, copy: str) -> None:
        """Read the index: module -> whether it is a package, offset and size in bytes."""
        self.archive = copy
        self.pid, self.handle = os.getpid(), os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
        size = int(self.read(SEAL, SEAL), 16)
        self.start = 2 * SEAL + size
        self.index = marshal.loads(self.read(size, 2 * SEAL))  # noqa: S302 - verified

    def read(self, size: int, at: int) -> bytes:
        """Return bytes of the copy. A fork that calls the driver has closed all its files."""
        if self.pid != os.getpid():
            self.pid, self.handle = os.getpid(), os.open(self.archive, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self.handle, size, at)

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> "ModuleSpec | None":
        """Return the spec of a module, None if the copy does not contain it."""
        row = self.index.get(name)
        if row is None:
            return None
        place = f"{self.archive}/{name.replace('.', '/')}"
        origin = place + ("/__init__.pyc" if row[0] else ".pyc")
        spec = ModuleSpec(name, self, origin=origin, is_package=row[0])  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the creation to Python."""

    def exec_module(self, module: object) -> None:
        """Run the byte code of a module."""
        names = vars(module)
        _, at, size = self.index[names["__name__"]]
        code = marshal.loads(self.read(size, self.start + at))  # noqa: S302 - verified
        exec(code, names)  # noqa: S102 - the code that the archive has


def import_from(copy: str) -> None:
    """Import all further modules of the program from the compiled copy at this path."""
    sys.meta_path.insert(0, CopyImporter(copy))
    # At the end: Python would read the directory of the archive, and search it for each module of its own library.
    sys.path[:1] = []
    sys.path.append(copy)


def verify(archive: str, data: bytes) -> None:
    """Raise ImportError unless `archive` ends with the checksum of its content `data`.

    Python itself verifies no checksum of the modules it imports.
    """
    import zlib

    if b"%0*x" % (SEAL, zlib.crc32(data[:-SEAL])) != data[-SEAL:]:
        raise ImportError(f"{archive} is damaged: its checksum is wrong")


def marked(status: os.stat_result) -> str:
    """Return an identity of a file's content: device, inode, size and ctime.

    The ctime cannot be set, and a file that replaces another has another inode.
    """
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_ctime_ns}"


def known(archive: str) -> "str | None":
    """Return the digest that an earlier start of this boot recorded, if the file has not changed since;
    otherwise None.

    Reading and hashing the file takes as long as the rest of a cached answer.
    """
    try:
        if not trusted(PLACE):
            return None
        with open(os.path.join(PLACE, STAMP), encoding="ascii") as opened:
            mark, _, digest = opened.read(200).rpartition(" ")
        sound = len(digest) == 64 and digest.isalnum() and mark == marked(os.stat(archive))
        return digest if sound else None
    except (OSError, ValueError):
        return None


def stamp(mark: str, digest: str) -> None:
    """Record the digest for :func:`known`, unless the file changed within the last two seconds.

    A second change could still come within the same tick of the file system's clock.
    """
    import time  # start-up time: only after the file was hashed

    if time.time_ns() - int(mark.rpartition(" ")[2]) < 2_000_000_000 or not prepare():
        return
    fresh = os.path.join(PLACE, f".{STAMP}-{os.getpid()}")
    with open(fresh, "w", encoding="ascii") as opened:
        opened.write(f"{mark} {digest}")
    os.rename(fresh, os.path.join(PLACE, STAMP))


def safe(directory: str) -> bool:
    """Return whether `directory` is a real directory, not a link, that only root can write to."""
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        return False
    return status.st_mode & 0o170022 == 0o040000 and status.st_uid == 0


def trusted(place: str) -> bool:
    """Return whether only root can have written to the directory `place`."""
    return safe(os.path.dirname(place)) and safe(place)


def prepare() -> bool:
    """Create PLACE if it does not exist. Return whether only root can have written to it."""
    parent = os.path.dirname(PLACE)
    os.makedirs(parent, 0o755, exist_ok=True)
    if safe(parent):
        os.makedirs(PLACE, 0o755, exist_ok=True)
    return trusted(PLACE)


def named(digest: str, place: str) -> str:
    """Return the path of the copy for this build of Python: another build may have other byte code."""
    import zlib

    return os.path.join(place, f"{digest}-{zlib.crc32(sys.version.encode()):08x}")


def compiled(digest: str) -> "str | None":
    """Open and verify the copy of the archive with this digest. Return the path to import from, or
    None if there is no sound copy.
    """
    return sound(digest, PLACE) or sound(digest, SHIPPED)


def sound(digest: str, place: str) -> "str | None":
    """Open and verify the copy in the directory `place`. Return the result of :func:`compiled`."""
    import zlib

    if not trusted(place):
        return None
    try:
        handle = os.open(
            named(digest, place), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        # Not /proc/self: child processes import from this path too.
        path = f"/proc/{os.getpid()}/fd/{handle}"
        if (
            status.st_mode & 0o170022 == 0o100000
            and status.st_uid == 0
            and handle > 2
            and os.path.samestat(status, os.stat(path))
        ):
            seal, checksum, buffer = (
                os.read(handle, SEAL),
                zlib.crc32(digest.encode()),
                bytearray(1 << 16),
            )
            while size := os.readv(handle, (buffer,)):
                checksum = zlib.crc32(memoryview(buffer)[:size], checksum)
            if seal == b"%0*x" % (SEAL, checksum):
                return path
    except OSError:  # /proc is not mounted, or the copy cannot be read
        pass
    os.close(handle)
    return None


def make(data: bytes, digest: str) -> "str | None":
    """Compile the archive into its copy, and remove copies of earlier versions. Return the result of
    :func:`compiled`.

    Return None if another process is making the copy.
    """
    import fcntl  # start-up time: once for each version of the file
    import shutil
    import time

    if not prepare():
        return None
    with open(os.path.join(PLACE, LOCK), "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if copy := compiled(digest):  # another process made it before this one got the lock
            return copy
        for entry in os.scandir(PLACE):  # a younger copy may belong to another installed program
            if (
                entry.name not in (STAMP, LOCK)
                and time.time() - entry.stat(follow_symlinks=False).st_mtime > DAY
            ):
                # Earlier versions of goldnode unpacked themselves into directories.
                (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
        work = f"{named(digest, PLACE)}.{os.getpid()}"
        os.mkdir(work, 0o700)
        try:
            content = byte_code(data, digest, work)
            fresh = os.path.join(work, "copy")
            with open(fresh, "wb") as opened:
                opened.write(content)
            os.rename(fresh, named(digest, PLACE))
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return compiled(digest)


def byte_code(data: bytes, digest: str, work: str) -> bytes:
    """Return a copy of the archive `data`: its checksum, an index for :class:`CopyImporter`, and the compiled modules.

    :param work: an empty directory for the files. The copy does not depend on it, nor on the time.
    """
    import io  # start-up time, as in make
    import py_compile
    import zipfile
    import zlib

    out, index = io.BytesIO(), {}
    with zipfile.ZipFile(io.BytesIO(data)) as sources, zipfile.ZipFile(out, "w") as copies:
        for name in sources.namelist():
            if name.endswith(".py"):
                source = sources.extract(name, work)
                # Unchecked: the copy has a checksum of its own, and contains no sources. Without docstrings.
                py_compile.compile(
                    source,
                    cfile=source + "c",
                    dfile=f"goldnode-node/{name}",
                    doraise=True,
                    optimize=2,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
                with open(source + "c", "rb") as opened:
                    code = opened.read()
                copies.writestr(zipfile.ZipInfo(name + "c"), code)
                module = name[: -len(".py")].replace("/", ".")
                package = module.endswith(".__init__")
                at = out.tell() - len(code) + HEADER
                index[module[: -len(".__init__")] if package else module] = (
                    package,
                    at,
                    len(code) - HEADER,
                )
    listed = marshal.dumps(index)
    content = b"%0*x" % (SEAL, len(listed)) + listed + out.getvalue()
    return b"%0*x" % (SEAL, zlib.crc32(content, zlib.crc32(digest.encode()))) + content


def begin() -> int:
    """Run the command in `sys.argv`. Return the exit status."""
    ordinary()
    archive = getattr(getattr(__spec__, "loader", None), "archive", None)
    engine = None
    if archive:
        if __file__.endswith(".pyc"):  # a copy that the parent process has verified already
            import_from(archive)
        else:
            engine = settle(archive)

    from goldnode.node.program.start import finish, main

    try:
        status = main(engine, archive)
    except SystemExit as ended:  # argparse exits by itself; a text as its code is an error
        status = ended.code if isinstance(ended.code, int) else COULD_NOT_CHECK
        if not ended.code:
            status = 0
    finish(status)
    return status


def crashed(problem: BaseException) -> int:
    """Report in one line why the program failed.

    Return exit status 3: a crash is no verdict. Never raises.
    """
    try:
        from goldnode.node.ground.fault import report  # only after a failure: a quick start

        report(problem)
    except BaseException:  # the module `fault` may be damaged as well
        line = f"goldnode-node: {type(problem).__name__}: {problem}. {DAMAGED}\n"
        try:  # noqa: SIM105 - contextlib would be one more module that may be damaged
            os.write(2, line.encode("ascii", "backslashreplace"))
        except OSError:  # stderr is closed
            pass
    discard()
    return COULD_NOT_CHECK


def discard() -> None:
    """Point each stream that cannot be written to /dev/null.

    The interpreter flushes them at its end. If that fails, it exits with 120.
    """
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def command() -> int:
    """Run the program, and report its failure. This is also the command of the installed Python package."""
    try:
        return begin()
    except BaseException as problem:
        return crashed(problem)


if __name__ == "__main__":
    sys.exit(command())

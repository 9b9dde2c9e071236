"""Start goldnode-node: as `python -m goldnode.node`, and as `__main__` of the self-contained file.

Python caches no byte code of modules in a zip archive. It would compile each module again at every start. So the first start by root after a
boot compiles the whole archive into one file below PLACE: a zip archive of byte code, from which Python imports like from any other.

* One process makes the copy: it holds a lock. Another one that starts meanwhile runs from the archive, and waits for nothing.
* The copy appears in one step, by a rename, and nothing is added to it later.
* Every start verifies the checksum of the copy before it imports from it. A damaged copy is made again.
* A process imports through its own open file of the copy. Deleting or replacing the copy takes nothing from a process that runs.

Where no sound copy can be had (another user, no room, a directory that others can write to), the program runs from its archive.

Every failure of the program, in its imports too, ends here: exit status 3, "could not check", and one line with the reason and the fix.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
else:
    try:
        import _signal as signal  # what `signal` is made of; see process.py
    except ImportError:
        import signal

# In /run: gone at the next boot, so that no power cut can leave half of it.
PLACE = "/run/goldnode/program"
STAMP, LOCK = "stamp", "lock"
DAY = 86400.0
SEAL = 8  # hexadecimal digits of a CRC-32: the end of the archive, of all bytes before; the head of a copy, of all bytes after
COULD_NOT_CHECK = 3
DAMAGED = "Run site.yml for this host, or fetch the file again."


def ordinary() -> None:
    """Reset inherited process settings. With SIGCHLD ignored the kernel reports no exit status; and the umask
    of the caller must not decide who can read our files: secret files get a mode of their own.
    """
    os.umask(0o022)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def settle(archive: str) -> str:
    """Let modules come from the compiled copy of `archive`, where root has one or can make one. Return the digest of the file.

    Raises ImportError where the file is not what was built.
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
        except Exception:  # noqa: S110 - no copy can be made, or none be found quickly: only time is lost
            pass
    if copy:
        sys.path[0] = copy
    return "sha256:" + digest


def verify(archive: str, data: bytes) -> None:
    """Raise ImportError unless `archive`, whose bytes are `data`, ends with its own checksum: Python verifies none of what it imports."""
    import zlib

    if b"%0*x" % (SEAL, zlib.crc32(data[:-SEAL])) != data[-SEAL:]:
        raise ImportError(f"{archive} is damaged: its checksum is wrong")


def marked(status: os.stat_result) -> str:
    """Return what differs after every change of a file: its change time cannot be set, and a file in another's place is another inode."""
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_ctime_ns}"


def known(archive: str) -> "str | None":
    """Return the digest of the file as an earlier start of this boot took it, if it is still that file. Reading and hashing it takes as
    long as the rest of a cached answer."""
    try:
        if not trusted():
            return None
        with open(os.path.join(PLACE, STAMP), encoding="ascii") as opened:
            mark, _, digest = opened.read(200).rpartition(" ")
        return digest if len(digest) == 64 and digest.isalnum() and mark == marked(os.stat(archive)) else None
    except (OSError, ValueError):
        return None


def stamp(mark: str, digest: str) -> None:
    """Write what `known` reads. A file changed in the last moments is left out: a second change could come within the same tick."""
    import time

    if time.time_ns() - int(mark.rpartition(" ")[2]) < 2_000_000_000:
        return
    fresh = os.path.join(PLACE, f".{STAMP}-{os.getpid()}")
    with open(fresh, "w", encoding="ascii") as opened:
        opened.write(f"{mark} {digest}")
    os.rename(fresh, os.path.join(PLACE, STAMP))


def safe(directory: str) -> bool:
    """Whether it is a directory, no link, that only root can write to."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return False
    return found.st_mode & 0o170022 == 0o040000 and found.st_uid == 0


def trusted() -> bool:
    """Return whether only root can have written to PLACE."""
    return safe(os.path.dirname(PLACE)) and safe(PLACE)


def named(digest: str) -> str:
    """Return the name of the copy for this very Python: byte code of another may differ."""
    import zlib

    return os.path.join(PLACE, f"{digest}-{zlib.crc32(sys.version.encode()):08x}")


def compiled(digest: str) -> "str | None":
    """Open and verify the copy of the archive with this digest. Return the path to import from, None where there is no sound copy."""
    import zlib

    if not trusted():
        return None
    try:
        handle = os.open(named(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        # With the number of the process, so that its children can import from there too.
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
    except OSError:  # without /proc, or a medium that cannot be read
        pass
    os.close(handle)
    return None


def make(data: bytes, digest: str) -> "str | None":
    """Compile the archive into its copy, unless another process is doing that, and remove copies of earlier versions. Return what `compiled`
    returns of it."""
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
        if copy := compiled(digest):  # made between the caller's look and the lock
            return copy
        for entry in os.scandir(PLACE):  # younger ones may be of a program that is installed beside this one
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
                    # PEP 552: the magic number, the flag of byte code that is compared with no source, and no hash of one.
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
    """Have modules of zip archives loaded once. `get_filename` of zipimport reads and compiles the whole module to find its name, and Python asks
    for that before it loads the module: a check would spend as long on that as on all it reads."""
    import zipimport

    class Importer(zipimport.zipimporter):
        """The standard importer, which names a file by looking into the archive's directory alone."""

        def get_filename(self, fullname: str) -> str:
            """Return the path of a module's file, in the archive."""
            path = f"{self.archive}/{self.prefix}{fullname.rpartition('.')[2]}"
            return f"{path}/__init__.py" if self.is_package(fullname) else f"{path}.py"

    sys.path_hooks.insert(0, Importer)
    sys.path_importer_cache.pop(sys.path[0], None)


def begin() -> int:
    """Run the command of `sys.argv`. Return the exit status."""
    ordinary()
    archive = getattr(getattr(__spec__, "loader", None), "archive", None)
    engine = None
    if archive:
        # Started from its copy, by a process that has verified it, it does not look for one.
        engine = None if __file__.endswith(".pyc") else settle(archive)
        load_once()

    from goldnode.node.start import leave, main

    try:
        status = main(engine, archive)
    except SystemExit as ended:  # argparse
        status = ended.code if isinstance(ended.code, int) else COULD_NOT_CHECK if ended.code else 0
    return leave(status)


def crashed(problem: BaseException) -> int:
    """Report in one line why the program failed. Return the exit status: a crash is no verdict. Never raises."""
    try:
        from goldnode.node.fault import report  # no other start has anything to report

        report(problem)
    except BaseException:  # also this module may be damaged
        line = f"goldnode-node: {type(problem).__name__}: {problem}. {DAMAGED}\n"
        try:  # noqa: SIM105 - contextlib would be one more module that may be damaged
            os.write(2, line.encode("ascii", "backslashreplace"))
        except OSError:  # nobody reads it
            pass
    return COULD_NOT_CHECK


if __name__ == "__main__":
    try:
        status = begin()
    except BaseException as problem:
        os._exit(
            crashed(problem)
        )  # the interpreter's own end would write what could not be written once more, and return 120
    sys.exit(status)

"""What Python runs: as `python -m goldnode.node`, and as `__main__` of the self-contained file, whose start it makes quick.

Python keeps no bytecode of what lies in a zip archive: each start would compile every module anew, which is most of its time. So the file,
run by root, is unpacked once per boot below PLACE, under the digest of its own bytes, and runs from there, where Python keeps the bytecode
of what was used. Whatever stands in the way (another user, no space, a directory that others can write to): it runs from the archive.
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

# In /run: gone at the next boot, so that nothing is left to remove, to go stale, or to be torn by a power cut.
PLACE = "/run/goldnode/program"
STAMP = "stamp"
DAY = 86400.0


def ordinary() -> None:
    """Take back what whoever started this may have left to it. While SIGCHLD is ignored, the kernel tells nobody how a program has ended; and who
    may read what is made here is no matter of their umask: what is secret is made with a mode of its own."""
    os.umask(0o022)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def settle(archive: str) -> str:
    """Put the unpacked sources first on the path where that is safe. Returns the digest of the file."""
    mine = os.geteuid() == 0
    found = known(archive) if mine else None
    if found is not None:
        sys.path[0] = os.path.join(PLACE, found)
        return "sha256:" + found
    import hashlib

    with open(archive, "rb") as opened:
        data = opened.read()
        mark = marked(os.fstat(opened.fileno()))
    digest = hashlib.sha256(data).hexdigest()
    here = os.path.join(PLACE, digest)
    try:
        if mine and (safe(here) or unpack(data, here)) and safe(PLACE) and safe(os.path.dirname(PLACE)):
            sys.path[0] = here
            stamp(mark, digest)
    except OSError:
        pass
    return "sha256:" + digest


def marked(status: os.stat_result) -> str:
    """What changes with every change of a file: nobody sets a change time, and a file put in another's place is another inode."""
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_ctime_ns}"


def known(archive: str) -> "str | None":
    """The digest of the file as an earlier start of this boot took it, where the file is still that one and lies unpacked: to read and
    hash it takes as long as the rest of a cached answer."""
    try:
        if not (safe(PLACE) and safe(os.path.dirname(PLACE))):
            return None
        with open(os.path.join(PLACE, STAMP), encoding="ascii") as opened:
            mark, _, digest = opened.read(200).rpartition(" ")
        whole = len(digest) == 64 and digest.isalnum() and mark == marked(os.stat(archive))
        return digest if whole and safe(os.path.join(PLACE, digest)) else None
    except (OSError, ValueError):
        return None


def stamp(mark: str, digest: str) -> None:
    """Keep what `known` reads. A file changed in the last moments is left out: a second change could come within the same tick."""
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


def unpack(data: bytes, here: str) -> bool:
    """Make `here` from the archive in one step, and take away what earlier versions left. Returns whether it is there and safe."""
    import io
    import shutil
    import tempfile
    import time
    import zipfile

    os.makedirs(PLACE, 0o755, exist_ok=True)
    if not (safe(PLACE) and safe(os.path.dirname(PLACE))):
        return False
    for entry in os.scandir(PLACE):
        if time.time() - entry.stat(follow_symlinks=False).st_mtime > DAY:  # a younger one may still run
            shutil.rmtree(entry.path, ignore_errors=True)
    fresh = tempfile.mkdtemp(dir=PLACE)
    try:
        zipfile.ZipFile(io.BytesIO(data)).extractall(fresh)
        os.rename(fresh, here)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return safe(here)


if __name__ == "__main__":
    ordinary()
    archive = getattr(getattr(__spec__, "loader", None), "archive", None)
    engine = settle(archive) if archive else None

    from goldnode.node.start import leave, main

    sys.exit(leave(main(engine, archive), archive))

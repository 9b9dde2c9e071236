"""Versions of goldnode: that of the package, and the digest of the node program."""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from pathlib import Path

from goldnode.core.files import cache_directory


def version() -> str:
    """Return goldnode's version, by the metadata of the package that is installed (PEP 376)."""
    for folder in sys.path:
        # `importlib.metadata` imports the packages `email` and `inspect`: a third of the start of a command.
        for file in Path(folder or ".").glob("goldnode-*.dist-info/METADATA"):
            for line in file.read_text(encoding="utf-8").split("\n\n")[0].splitlines():
                if line.startswith("Version: "):
                    return line.removeprefix("Version: ")
    # As an archive, or a checkout that is not installed.
    from importlib import metadata

    try:
        return metadata.version("goldnode")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def program_digest() -> str:
    """Return ``sha256:`` and the digest of the node program, from the cache if its sources are those of an earlier call.

    The program itself is not cached: it is always built from the sources. Raises GoldnodeError as
    :func:`.program_file.binding` does.
    """
    from goldnode.core import program_file  # start-up time: a check needs `version` alone

    # The builder and zlib decide the bytes, too.
    key = hashlib.sha256(f"{sys.version} {zlib.ZLIB_RUNTIME_VERSION}".encode())
    for name, content in program_file.inputs().items():
        key.update(f"\0{name}\0{len(content)}\0".encode() + content)
    cached = cache_directory() / "program" / key.hexdigest()
    try:
        with cached.open(encoding="ascii") as opened:
            status, digest = os.fstat(opened.fileno()), opened.read()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022 and len(digest) == 71:
            return digest
    except (OSError, ValueError):
        pass
    digest = program_file.payload(content=False)["sha256"]
    _store(cached, digest)
    return digest


def _store(path: Path, digest: str) -> None:
    """Cache a digest in place of the earlier ones. Errors are ignored: the cache is optional."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in path.parent.iterdir():
            old.unlink()
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(digest, encoding="ascii")
        fresh.chmod(0o644)
        fresh.replace(path)
    except OSError:
        return

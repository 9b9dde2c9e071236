"""Unfinished work of dpkg, and whether files are those of their packages. Reads only.

The rules are those of `dpkg --verify` and `dpkg --audit`, which the tests run. Files below /usr/share are
left out: `path-exclude` of minimal installations leaves out documentation on purpose.
"""

from __future__ import annotations

import hashlib
import os

from ..ground.host import Host
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, MutableMapping, Optional

DATABASE = "/var/lib/dpkg"
UPDATES = f"{DATABASE}/updates"


class AlteredFile(NamedTuple):
    """A file that is not as its package installed it. `why` completes "the file …"."""

    package: str
    path: str
    why: str


def unfinished(host: Host) -> List[str]:
    """Return the records that an interrupted dpkg left. apt refuses all work until they are merged."""
    names = (path.rpartition("/")[2] for path in host.glob(UPDATES, "*"))
    return [f"{UPDATES}/{name}" for name in names if name.isdigit()]


def diversions(host: Host) -> Dict[str, List[str]]:
    """Return dpkg's diversions: path -> [where other packages' file is, package that diverts]."""
    lines = (host.text(f"{DATABASE}/diversions") or "").splitlines()
    return {lines[at]: lines[at + 1 : at + 3] for at in range(0, len(lines) - 2, 3)}


def sums(host: Host, package: str, architecture: str) -> Dict[str, str]:
    """Return the MD5 of the files of a package, by path; empty if it states none."""
    for name in (f"{package}:{architecture}", package):
        text = host.text(f"{DATABASE}/info/{name}.md5sums")
        if text is not None:
            rows = (line.split("  ", 1) for line in text.splitlines() if "  " in line)
            return {f"/{path}": digest for digest, path in rows}
    return {}


def altered(
    host: Host,
    packages: Iterable[str],
    *,
    architecture: str,
    known: MutableMapping[str, str],
    only: Optional[str] = None,
    since: Optional[float] = None,
) -> List[AlteredFile]:
    """Return the files that are missing or have other content.

    :param known: path -> identity of files that were verified before; verified ones are added.
    :param only: the one path to verify, as the loader names it; None for all.
    :param since: read only files that changed after this time and after dpkg unpacked their package.
    """
    faults, moved = [], diversions(host)
    for package in packages:
        newer = since
        if since is not None:
            newer = max(since, _unpacked(host, package, architecture))
        for path, digest in sums(host, package, architecture).items():
            if path.startswith("/usr/share/") or (only and not _same(path, only)):
                continue
            if path in moved and moved[path][1] != package:
                path = moved[path][0]
            why = _fault(host, path, digest, known=known, newer=newer)
            if why:
                faults.append(AlteredFile(package, path, why))
    return faults


def _unpacked(host: Host, package: str, architecture: str) -> float:
    """Return when dpkg listed the files of a package, which it does after it has put them in place."""
    lists = (f"{DATABASE}/info/{name}.list" for name in (f"{package}:{architecture}", package))
    times = [row.st_mtime for row in map(host.lstat, lists) if row]
    return times[0] if times else 0.0


def _same(one: str, other: str) -> bool:
    """Return whether two paths are one file where /lib is a link to /usr/lib."""
    first, second = (path[4:] if path.startswith("/usr/lib") else path for path in (one, other))
    return first == second


def _fault(
    host: Host, path: str, digest: str, *, known: MutableMapping[str, str], newer: Optional[float]
) -> Optional[str]:
    try:
        if newer is not None and os.stat(host.located(path)).st_ctime <= newer:
            return None
        handle = open(host.located(path), "rb")  # noqa: SIM115 - closed below; the error belongs to this call
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except PermissionError:  # an ordinary user cannot read it, and nothing is known of it
        return None
    with handle:
        status = os.fstat(handle.fileno())
        # Whoever restores the time of the change needs the clock: ctime cannot be set.
        identity = f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        if known.get(path) == f"{identity}:{digest}":
            return None
        content = hashlib.md5(usedforsecurity=False)
        while True:
            block = handle.read(1 << 20)
            if not block:
                break
            content.update(block)
    if content.hexdigest() != digest:
        return "has other content than its package"
    known[path] = f"{identity}:{digest}"
    return None

"""Digests of the inputs of an initramfs, to skip rebuilds that would produce the same image.

Debian's driver packages request a new initramfs at each update, although it contains no part of the
driver. The GPU is needed only long after the root filesystem, and goldnode keeps the driver's
modules and their rivals out of the image. mkinitramfs takes 20 to 30 s of CPU time to produce the
same image. The rebuild is skipped if all of these are unchanged since the image in /boot was built:

* ``configuration``: /etc without the parts that no initramfs-tools script reads (:data:`PASSING`), the
  scripts of initramfs-tools, and modprobe.d
* ``contents``: every file of the node that is in the image
* ``modules``: the modules that could be included, and the dependencies of those in the image
* ``firmware``: the firmware that modules in the image request, and which of it is installed
* ``names``: programs and udev files, since scripts include some programs if they are installed
* ``packages``: name and version of all packages except the driver's own

In case of doubt (another image, no record, a file that cannot be read) the image is rebuilt. Only
initramfs-tools is supported.
"""

from __future__ import annotations

import hashlib
import json
import os

from ..effective import initramfs
from ..ground.host import Host
from .names import in_family
from .observe import load_json, packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set

FILE = "/var/lib/goldnode/initramfs.json"  # release -> {image, parts}
TOOLS = "/usr/share/initramfs-tools"
MAKER = "/usr/sbin/mkinitramfs"
CONFIGURATION = ("/etc", TOOLS, "/usr/lib/modprobe.d", "/lib/modprobe.d", "/run/modprobe.d")
# Parts of /etc that initramfs-tools generates itself or that package managers and goldnode write,
# and the driver's own directory. The relevant files of the latter are linked from
# /etc/modprobe.d, and links are followed.
PASSING = (
    "/etc/ld.so.cache", "/etc/ld.so.cache~", "/etc/goldnode", "/etc/apt", "/etc/kernel", "/etc/nvidia",
    "/etc/systemd/system", "/etc/cdi", "/etc/default/grub.d", "/etc/update-motd.d",
    "/etc/profile.d", "/etc/mtab",
)  # fmt: skip
NAMES = (
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
    "/usr/lib/udev",
    "/lib/udev",
    "/usr/lib/systemd/network",
)
FIRMWARE = ("/lib/firmware", "/usr/lib/firmware")
# mkinitramfs copies only these modules.* files, which come with the kernel. depmod
# regenerates the others in the image.
COPIED = ("modules.builtin", "modules.order")
PACKED = (
    "",
    ".xz",
    ".zst",
    ".gz",
)  # suffixes of a module on the node; in the image it is uncompressed


def keep(
    host: Host, releases: Iterable[str], family: Sequence[str], configuration: Optional[str]
) -> None:
    """Record the inputs of the images of `releases`.

    `configuration` is its digest from before the build, or None if it is unknown.
    """
    known: Dict[str, Any] = {
        name: row
        for name, row in (load_json(host, FILE) or {}).items()
        if host.exists(_image(name))
    }
    for release in releases:
        known.pop(release, None)
        parts_now = parts(host, release, family)
        # A change during the build may or may not be in the image, so such an image gets no record.
        if parts_now is not None and configuration == parts_now["configuration"]:
            known[release] = {"image": _identity(host, release), "parts": parts_now}
    host.write(FILE, (json.dumps(known, sort_keys=True) + "\n").encode(), 0o600)


def differences(host: Host, release: str, family: Sequence[str]) -> Optional[List[str]]:
    """Return the parts that changed since the image of a release was built, or None if that is unknown."""
    known = (load_json(host, FILE) or {}).get(release)
    if not isinstance(known, dict) or known.get("image") != _identity(host, release):
        return None
    now = parts(host, release, family)
    if now is None:
        return None
    return [name for name, digest in now.items() if known["parts"].get(name) != digest]


def parts(host: Host, release: str, family: Sequence[str]) -> Optional[Dict[str, str]]:
    """Return the current digest of each part for the image of a release, or None if one cannot be read."""
    try:
        configured = configuration(host)
        inside = initramfs.contents(host.located(_image(release))).names
        names = sorted(
            {
                name.rpartition("/")[2].partition(".ko")[0].replace("-", "_")
                for name in inside
                if ".ko" in name
            }
        )
        wanted = host.run("modinfo", "-k", release, "-F", "firmware", *names) if names else None
        if configured is None or (wanted is not None and wanted.rc != 0):
            return None
        rows = {
            "contents": _contents(host, inside, release),
            "modules": _modules(host, release, set(names)),
            "firmware": _firmware(host, release, wanted.out.split("\n") if wanted else []),
            "names": (path for place in NAMES for path in _walk(host, place)),
            "packages": (
                f"{name} {row['version']} {row['state']}"
                for name, row in sorted(packages(host).items())
                if not in_family(name, family)
            ),
        }
        return {
            "configuration": configured,
            **{name: _digest(lines) for name, lines in rows.items()},
        }
    except (OSError, ValueError, initramfs.InitramfsError):
        return None


def configuration(host: Host) -> Optional[str]:
    """Return the digest of the part `configuration`.

    None if it cannot be read or initramfs-tools is not installed.
    """
    if not host.exists(MAKER) or not host.exists(f"{TOOLS}/hook-functions"):
        return None
    try:
        return _digest(_file(host, path) for place in CONFIGURATION for path in _walk(host, place))
    except OSError:
        return None


def _digest(lines: Iterable[str]) -> str:
    whole = hashlib.sha256()
    for line in lines:
        whole.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return whole.hexdigest()


def _image(release: str) -> str:
    return f"/boot/initrd.img-{release}"


def _identity(host: Host, release: str) -> Optional[str]:
    """Return the digest of an image.

    Timestamps and inodes would not do: two disks built from one record contain copies of the same
    files.
    """
    try:
        return _hashed(host.located(_image(release)))
    except OSError:
        return None


def _hashed(real: str) -> str:
    whole = hashlib.sha256()
    with open(real, "rb") as opened:
        for data in iter(lambda: opened.read(1 << 20), b""):
            whole.update(data)
    return whole.hexdigest()


def _walk(host: Host, place: str) -> Iterator[str]:
    """Yield the paths below a directory in order, without PASSING.

    A link to a directory (/bin) yields nothing: its target is listed under its own path.
    """
    top = host.located(place)
    if os.path.islink(top):
        return
    for where, folders, files in os.walk(top):
        here = place + where[len(top) :]
        folders[:] = sorted(name for name in folders if f"{here}/{name}" not in PASSING)
        linked = [name for name in folders if os.path.islink(f"{where}/{name}")]
        for name in sorted([*files, *linked]):
            if f"{here}/{name}" not in PASSING:
                yield f"{here}/{name}"


def _file(host: Host, path: str) -> str:
    """Return a path with its state: mode and digest of a file, or target of a link and the file behind it."""
    here = host.located(path)
    link = os.readlink(here) if os.path.islink(here) else ""
    real = host.real(path)
    try:
        status = os.stat(real)
    except FileNotFoundError:
        return f"{path} -> {link} nothing"
    if not os.path.isfile(real):
        return f"{path} -> {link} {status.st_mode:o}"
    return f"{path} -> {link} {status.st_mode:o} {_hashed(real)}"


def _contents(host: Host, inside: Sequence[str], release: str) -> Iterator[str]:
    """Yield the node's files that are in the image. Modules are uncompressed there, so try each suffix."""
    for name in sorted(inside):
        path = f"/{name}"
        base = name.rpartition("/")[2]
        if path in PASSING or (base.startswith("modules.") and not base.startswith(COPIED)):
            continue
        for packed in PACKED if ".ko" in base else PACKED[:1]:
            if os.path.lexists(host.located(path + packed)) and not os.path.isdir(
                host.located(path + packed)
            ):
                yield _file(host, path + packed)


def _modules(host: Host, release: str, inside: Set[str]) -> Iterator[str]:
    """Yield the kernel's own modules, and the dependencies of those in the image (modules.dep(5))."""
    names = []
    for line in (host.text(f"/lib/modules/{release}/modules.dep") or "").splitlines():
        path = line.partition(":")[0]
        if path.rpartition("/")[2].partition(".ko")[0].replace("-", "_") in inside:
            names.append(line)
        elif path.startswith("kernel/"):
            names.append(path)
    for name in ("modules.softdep", "modules.weakdep"):
        for line in (host.text(f"/lib/modules/{release}/{name}") or "").splitlines():
            words = line.split()
            if len(words) > 1 and words[1].replace("-", "_") in inside:
                names.append(line)
    yield from sorted(names)


def _firmware(host: Host, release: str, wanted: Iterable[str]) -> Iterator[str]:
    """Yield the requested firmware files, each with the paths at which it is installed."""
    for name in sorted(set(filter(None, wanted))):
        there = [
            f"{place}{inner}{packed}"
            for place in FIRMWARE
            for inner in (
                f"/{name}",
                f"/updates/{name}",
                f"/{release}/{name}",
                f"/updates/{release}/{name}",
            )
            for packed in PACKED
            if os.path.lexists(host.located(f"{place}{inner}{packed}"))
        ]
        yield f"{name} {' '.join(there)}"

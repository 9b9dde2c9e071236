"""What shapes an initramfs, as digests: kept when goldnode has had one made, and looked at before packages have it made anew.

Debian's driver packages ask for a new initramfs at each update, though none of the driver is in it: its modules are for a GPU that is needed
long after the root filesystem is there, and goldnode keeps them and their rivals out. mkinitramfs takes 20 to 30 s of CPU for the same
image. It is spared where all of this is as it was when the image that lies in /boot was made:

* ``configuration``: /etc, without what no script of initramfs-tools reads (:data:`PASSING`); initramfs-tools' own scripts; modprobe.d
* ``contents``: every file of the node that is in the image
* ``modules``: which modules are there to be taken, and which ones those in the image need
* ``firmware``: which firmware the modules in the image ask for, and which of it is there
* ``names``: programs and udev's files, for scripts that take a program where there is one
* ``packages``: name and version of all packages but the driver's own

Anything else that is found (another image, no record, a look that fails) is a doubt, and then it is made. Only initramfs-tools is understood.
"""

from __future__ import annotations

import hashlib
import os

from .. import quickjson as json
from ..host import Host
from . import initramfs
from .names import in_family
from .observe import load_json, packages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set

FILE = "/var/lib/goldnode/initramfs.json"  # release -> {image, parts}
TOOLS = "/usr/share/initramfs-tools"
MAKER = "/usr/sbin/mkinitramfs"
CONFIGURATION = ("/etc", TOOLS, "/usr/lib/modprobe.d", "/lib/modprobe.d", "/run/modprobe.d")
# Below /etc: what initramfs-tools makes itself, what packages' managers and goldnode write, and the driver's own folder, of which links in
# /etc/modprobe.d show what counts. The links are followed.
PASSING = (
    "/etc/ld.so.cache", "/etc/ld.so.cache~", "/etc/goldnode", "/etc/apt", "/etc/kernel", "/etc/nvidia", "/etc/systemd/system", "/etc/cdi",
    "/etc/default/grub.d", "/etc/update-motd.d", "/etc/profile.d", "/etc/mtab",
)  # fmt: skip
NAMES = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/lib/udev", "/lib/udev", "/usr/lib/systemd/network")
FIRMWARE = ("/lib/firmware", "/usr/lib/firmware")
# Of a kernel's modules.*, mkinitramfs copies those that come with the kernel; depmod makes the others anew inside the image.
COPIED = ("modules.builtin", "modules.order")
PACKED = ("", ".xz", ".zst", ".gz")  # how a module may lie on the node that is unpacked in the image


def keep(host: Host, releases: Iterable[str], family: Sequence[str], configuration: Optional[str]) -> None:
    """Record what the images of `releases` were made from. `configuration`: its digest before they were made; None: it cannot be told."""
    known: Dict[str, Any] = {
        name: row for name, row in (load_json(host, FILE) or {}).items() if host.exists(_image(name))
    }
    for release in releases:
        known.pop(release, None)
        found = parts(host, release, family)
        # What was changed while it was made may be in it, or not.
        if found is not None and configuration == found["configuration"]:
            known[release] = {"image": _identity(host, release), "parts": found}
    host.write(FILE, (json.dumps(known, sort_keys=True) + "\n").encode(), 0o600)


def differences(host: Host, release: str, family: Sequence[str]) -> Optional[List[str]]:
    """The parts that are not what the image of a release was made from; None where that cannot be told."""
    known = (load_json(host, FILE) or {}).get(release)
    if not isinstance(known, dict) or known.get("image") != _identity(host, release):
        return None
    found = parts(host, release, family)
    return (
        None
        if found is None
        else [name for name, digest in found.items() if known["parts"].get(name) != digest]
    )


def parts(host: Host, release: str, family: Sequence[str]) -> Optional[Dict[str, str]]:
    """Digest of each part for the image of a release, as the node is now; None where one cannot be looked at."""
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
        return {"configuration": configured, **{name: _digest(lines) for name, lines in rows.items()}}
    except (OSError, ValueError, initramfs.InitramfsError):
        return None


def configuration(host: Host) -> Optional[str]:
    """The digest of the part of that name; None where this is not initramfs-tools, or cannot be read."""
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
    """What tells an image from one that takes its place: its content, for a disk is built twice with one record, and its files are copies."""
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
    """Paths of the node below a folder, in order; PASSING ones are left out. Of a link to a folder (/bin) nothing: it is there under its own."""
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
    """A path with what it is: mode and digest of a file, where a link leads, and what is there."""
    here = host.located(path)
    link = os.readlink(here) if os.path.islink(here) else ""
    real = host.real(path)
    try:
        found = os.stat(real)
    except FileNotFoundError:
        return f"{path} -> {link} nothing"
    if not os.path.isfile(real):
        return f"{path} -> {link} {found.st_mode:o}"
    return f"{path} -> {link} {found.st_mode:o} {_hashed(real)}"


def _contents(host: Host, inside: Sequence[str], release: str) -> Iterator[str]:
    """The node's files that are in the image; modules unpacked there are found under their packed names."""
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
    """The modules of the kernel's own tree, and of those in the image what they need (modules.dep(5))."""
    found = []
    for line in (host.text(f"/lib/modules/{release}/modules.dep") or "").splitlines():
        path = line.partition(":")[0]
        if path.rpartition("/")[2].partition(".ko")[0].replace("-", "_") in inside:
            found.append(line)
        elif path.startswith("kernel/"):
            found.append(path)
    for name in ("modules.softdep", "modules.weakdep"):
        for line in (host.text(f"/lib/modules/{release}/{name}") or "").splitlines():
            words = line.split()
            if len(words) > 1 and words[1].replace("-", "_") in inside:
                found.append(line)
    yield from sorted(found)


def _firmware(host: Host, release: str, wanted: Iterable[str]) -> Iterator[str]:
    """Which firmware is asked for, and where there is some."""
    for name in sorted(set(filter(None, wanted))):
        there = [
            f"{place}{inner}{packed}"
            for place in FIRMWARE
            for inner in (f"/{name}", f"/updates/{name}", f"/{release}/{name}", f"/updates/{release}/{name}")
            for packed in PACKED
            if os.path.lexists(host.located(f"{place}{inner}{packed}"))
        ]
        yield f"{name} {' '.join(there)}"

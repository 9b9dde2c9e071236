"""Conditions that would make a change fail half-way: read before a change, and refused with the command that cures it.

`seen.obstacles` has these keys; a check reads none of them:

* remains: files of an NVIDIA driver that no package owns, as a .run file installs them
* mounts: mount point -> {readonly, root, type}, of the node's own mount table
* fstab: mount point -> line of /etc/fstab
* dkms: [{folder, why}] of DKMS trees that `dkms` fails on
* now: seconds since the epoch. dates: [{file, date, until}] of the archives' Release files, in such seconds
"""

from __future__ import annotations

import os
import re
import time

from ..ground.host import Host, mount_lines
from .model import Observed, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence

    from ..ground.document import ClassDocument
    from .model import Action

LISTS, DKMS = "/var/lib/apt/lists", "/var/lib/dkms"
# Directories of libraries in which the .run file installs, by its defaults on Debian and Ubuntu.
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
# Directories of a kernel's modules; DKMS of Debian has its own, updates/dkms.
MODULES = ("kernel/drivers/video", "updates", "extra")
DAY = 86400
# mkinitramfs collects an initramfs in the first, apt and maintainer scripts write to the second.
VAR_TMP, TMP = "/var/tmp", "/tmp"  # noqa: S108 - nothing is written there
# Paths of which a change needs room, with the one that has their need if they were not observed.
SHARED = {
    "/boot": "/",
    "/usr": "/",
    "/lib/modules": "/usr",
    "/var": "/",
    "/var/cache/apt/archives": "/var",
    VAR_TMP: "/var",
    TMP: "/",
}


def observe(host: Host, document: ClassDocument) -> Dict[str, Any]:
    """Return `seen.obstacles`, for a plan that changes something. Reads only."""
    driver = document.get("driver")
    nvidia = driver is not None and driver.get("vendor") == "nvidia"
    mounts = _mounts(host) if host.live else {}
    left = _remains(host, document["kernel"]["release"]) if nvidia else []
    return {
        # A container has the libraries of its host, each mounted.
        "remains": [name for name in left if name not in mounts],
        "mounts": mounts,
        "fstab": _fstab(host),
        "dkms": _dkms(host),
        "now": time.time(),
        "dates": _dates(host, document),
    }


def _remains(host: Host, release: str) -> List[str]:
    files = []
    for folder in LIBRARIES:
        for pattern in ("libcuda.so.*.*", "libnvidia-ml.so.*.*"):
            files += [name for name in host.glob(folder, pattern) if not host.is_link(name)]
    for folder in MODULES:
        files += host.glob(f"/lib/modules/{release}/{folder}", "nvidia*.ko*")
    if not files:
        return []
    # A merged /usr has one file under two names, and a package may have either.
    names = {
        name: (name, name[4:] if name.startswith("/usr/") else "/usr" + name) for name in files
    }
    database = f"--admindir={host.located('/var/lib/dpkg')}"
    shown = Host("/").run(
        "dpkg-query", database, "-S", *(n for both in names.values() for n in both)
    )
    host.commands.append(("dpkg-query", "-S"))
    owned = {line.rpartition(": ")[2] for line in shown.out.splitlines()}
    return [name for name, both in names.items() if not owned.intersection(both)]


def _mounts(host: Host) -> Dict[str, Any]:
    """Return the mounts of this process (proc_pid_mountinfo(5)); the last one on a path is in effect."""
    mounts = {}
    for line in mount_lines(host):
        words, _, after = line.partition(" - ")
        fields = words.split(" ")
        if len(fields) > 5:
            at, root = (
                re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[index])
                for index in (4, 3)
            )
            both = f"{fields[5]},{after.split(' ')[-1]}".split(",")
            mounts[at] = {"readonly": "ro" in both, "root": root, "type": after.partition(" ")[0]}
    return mounts


def _fstab(host: Host) -> Dict[str, int]:
    rows = enumerate((host.text("/etc/fstab") or "").splitlines(), 1)
    split = ((number, line.split()) for number, line in rows)
    return {words[1]: number for number, words in split if len(words) > 2 and words[0][0] != "#"}


def _dkms(host: Host) -> List[Dict[str, str]]:
    """Return the versions of modules without a source: every later `dkms` ends at the first of them."""
    broken = []
    for module in host.glob(DKMS, "*"):
        for folder in host.glob(module, "*"):
            name = folder.rpartition("/")[2]
            links = name.startswith("kernel-") or host.is_link(folder)
            if links or name == "original_module" or not host.is_dir(folder):
                continue
            source = f"{folder}/source"
            if os.path.isfile(f"{host.real(source)}/dkms.conf"):
                continue
            why = "has no source"
            if host.is_link(source):
                why = f"has the source {os.readlink(host.located(source))}, without a dkms.conf"
            broken.append({"folder": folder, "why": why})
    return broken


def _dates(host: Host, document: ClassDocument) -> List[Dict[str, Any]]:
    """Return the dates of the Release files that apt has, and of those in archives on the node itself."""
    site: Mapping[str, Any] = document.get("site") or {}
    names = host.glob(LISTS, "*_InRelease") + host.glob(LISTS, "*_Release")
    local = []
    for row in site.get("archives", ()):
        if row["uri"].startswith("file:") and not row.get("accept_expired"):
            folder = "/" + row["uri"][5:].strip("/")
            local += [f"{folder}/dists/{row['suite']}/{name}" for name in ("InRelease", "Release")]
    rows = []
    for name in [*names, *local]:
        text = host.text(name)
        if text is not None:
            until = _field(text, "Valid-Until") if name in local else None
            rows.append({"file": name, "date": _field(text, "Date"), "until": until})
    return rows


def _field(text: str, name: str) -> Optional[float]:
    from email.utils import parsedate_to_datetime  # start-up time: only before a change

    match = re.search(rf"^{name}:[ \t]*(.+?)[ \t]*$", text[:8192], re.MULTILINE)
    try:
        return parsedate_to_datetime(match[1].replace("UTC", "GMT")).timestamp() if match else None
    except (TypeError, ValueError, IndexError):
        return None


# -- refusals. Pure.


def mounted(seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse to write a file that is a mount point, or that is on a read-only file system."""
    mounts: Mapping[str, Any] = seen.obstacles.get("mounts") or {}
    import shlex  # start-up time: only before a change

    refused, readonly = [], set()
    kinds = ("file.", "link", "directory.", "runtime.config")
    written = {action.target for action in actions if action.kind.startswith(kinds)}
    for target in sorted(written):
        if target in mounts:
            line = (seen.obstacles.get("fstab") or {}).get(target)
            also = f", and take line {line} out of /etc/fstab" if line else ""
            refused.append(
                Refusal(
                    "mount-point",
                    f"{target} cannot be replaced: {mounts[target]['root']} is mounted over it.",
                    f"Run `umount {shlex.quote(target)}`{also}, and run again.",
                )
            )
            continue
        place = target
        while place != "/" and place not in mounts:
            place = os.path.dirname(place)
        if (mounts.get(place) or {}).get("readonly"):
            readonly.add(place)
    for place in sorted(readonly):
        refused.append(
            Refusal(
                "read-only",
                f"{place} is mounted read-only, and goldnode has to write there.",
                f"See `dmesg` for why, then `mount -o remount,rw {place}`, and run again.",
            )
        )
    return refused


def remains(seen: Observed) -> List[Refusal]:
    """Refuse to install packages over a driver of a .run file that left no uninstaller."""
    files: Sequence[str] = seen.obstacles.get("remains") or ()
    if not files or seen.runfile:
        return []
    versions = {match[1] for name in files for match in [re.search(r"\.so\.(\d.*)", name)] if match}
    names = list(files)
    for version in sorted(versions):
        folders = {os.path.dirname(name) for name in files if name.endswith(version)}
        names = [name for name in names if not name.endswith(version)]
        names += [f"{folder}/lib*.so.{version}" for folder in sorted(folders)]
    listed = ", ".join(files[:3]) + (" …" if len(files) > 3 else "")
    return [
        Refusal(
            "runfile-remains",
            f"No package owns {listed}: a driver that a .run file installed is left, without its "
            "uninstaller, and packages would mix with it.",
            f'Run `for f in {" ".join(names)}; do dpkg -S "$f" >/dev/null 2>&1 || rm -f "$f"; done; '
            "ldconfig; depmod -a`, and run again.",
        )
    ]


def dkms(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse to install a kernel or to build a module while dkms fails on another module."""
    coming = [package["name"] for package in document["packages"]]
    driver: Mapping[str, Any] = document.get("driver") or {}
    if "dkms" not in (*seen.packages, *coming) and not driver.get("dkms"):
        return []
    return [
        Refusal(
            "dkms-broken",
            f"{row['folder']} {row['why']}: dkms fails on it, and so would the packages.",
            f"Run `rm -r {row['folder']}; find {os.path.dirname(row['folder'])} -xtype l -delete`, "
            "and run again.",
        )
        for row in seen.obstacles.get("dkms") or ()
    ]


def clock(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse if the clock makes apt reject the archives' signatures."""
    now: Optional[float] = seen.obstacles.get("now")
    if now is None:
        return []
    rows = seen.obstacles.get("dates") or ()
    dates = [(row["date"], f"{row['file']} is of") for row in rows if row["date"]]
    try:
        day = time.strptime(str((document.get("lock") or {}).get("resolved")), "%Y-%m-%d")
        import calendar  # start-up time: only before a change

        dates.append((float(calendar.timegm(day)), "the lock was resolved on"))
    except ValueError:
        pass
    latest, what = max(dates, default=(0.0, ""))
    if now < latest - DAY:
        text = f"The clock is wrong: it is {_day(now)} here, and {what} {_day(latest)}. apt would reject signatures."
        return [
            Refusal(
                "clock", text, "Set it: `timedatectl set-ntp true`, or `date -s`, and run again."
            )
        ]
    over = [row for row in rows if row["until"] and row["until"] < now]
    return [
        Refusal(
            "clock",
            f"{row['file']} is valid until {_day(row['until'])}, and it is {_day(now)} here: apt would reject it.",
            "Set the clock if it is wrong (`timedatectl`), otherwise mirror the archive again, and run again.",
        )
        for row in over[:1]
    ]


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))

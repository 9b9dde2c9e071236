"""Deferred initramfs rebuilds: record requests while apt runs, and rebuild once at the end.

apt calls dpkg several times to install a kernel and a driver. Each call ends with the trigger
that rebuilds the initramfs. One driver caused four rebuilds, and each took longer than the
installation of all its packages.

While apt runs, dpkg finds a wrapper named update-initramfs first on its path. The wrapper passes
requests for new kernels through at once, since a kernel must never lack an initramfs. It records
all other requests. If a run is killed, the list remains and the next plan includes the rebuild.

Two kinds of requests are dropped. One is for a new kernel whose initramfs has no changed input
since it was built. The other is for an image that a rebuild would reproduce identically
(:mod:`.shaping`).
"""

from __future__ import annotations

import os

from ..ground.errors import NodeError
from ..ground.host import Host
from ..ground.text import phrase
from . import initramfs_batch, shaping
from .observe import DEFERRED, OWED, owed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Sequence


# How apt-get is called to change a node.
APT_TIME = (
    3600.0  # a module build on a small node takes minutes; an hour means that something hangs
)

APT = (
    "apt-get",
    "-y",
    "--no-install-recommends",
    "-o",
    "DPkg::Lock::Timeout=120",
    # As for the lock. With APT::Get::Phase-Policy, apt otherwise ignores the pins of a phased version, and finds no way
    # to install what depends on it.
    "-o",
    "APT::Get::Always-Include-Phased-Updates=1",
    "-o",
    "Dpkg::Use-Pty=0",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
)
PROGRAM = f"{DEFERRED}/update-initramfs"
MADE = f"{DEFERRED}/made"  # a file per new kernel, of the moment at which its initramfs was begun
REAL = "/usr/sbin/update-initramfs"
# Directories that configure an initramfs, or in which packages add scripts to it. PASSING are changes there
# that have no effect: mkinitramfs builds its own linker cache inside the image.
SHAPING = ("/etc", "/usr/share/initramfs-tools", "/lib/modules/{release}")
PASSING = ("ld.so.cache", "ld.so.cache~")
# apt gives dpkg this path instead of its own (apt.conf(5), DPkg::Path). The initramfs of a new kernel is made at once,
# by the wrapper of mkinitramfs.
OPTIONS = ("-o", f"DPkg::Path={DEFERRED}:{initramfs_batch.TOOLS}:/usr/sbin:/usr/bin:/sbin:/bin")

# With DPKG_MAINTSCRIPT_PACKAGE set, a lone -u only activates the trigger. That is cheap, and dpkg calls the
# wrapper again when it processes the trigger.
TEXT = f"""#!/bin/sh
# goldnode: build one initramfs after all packages of a transaction are installed
case " $* " in
*" -u "*)
    if [ -z "${{DPKG_MAINTSCRIPT_PACKAGE:-}}" ] || [ $# != 1 ]; then
        echo "$*" >>{OWED} && exit 0
    fi
    ;;
" -c -k "*)
    mkdir -p {MADE} && touch "{MADE}/$3"
    ;;
esac
exec {REAL} "$@"
"""


def begin(host: Host) -> None:
    """Install the wrapper.

    Requests left over from an earlier run stay on the list. Its marks of new kernels
    do not apply to this run.
    """
    import shutil

    shutil.rmtree(host.located(MADE), ignore_errors=True)
    host.write(PROGRAM, TEXT.encode(), 0o755)
    initramfs_batch.install(host)


def settle(host: Host, say: Callable[[str], None], family: Sequence[str] = ()) -> None:
    """Run the recorded requests.

    Raises NodeError if update-initramfs fails; all requests then stay recorded.

    :param family: globs of the driver's own packages. They add nothing to an initramfs but
        what :mod:`.shaping` checks.
    """
    import shlex  # start-up time: read-only runs do not need it

    # Digest first: a configuration change during the rebuild makes the record of the new image useless.
    asked = owed(host)
    before = shaping.configuration(host) if asked else None
    made: List[str] = []
    for arguments in asked:
        releases = rebuilt_kernels(host, arguments)
        try:
            if arguments == "-u" and newest_is_fresh(host):
                made += releases
                continue
        except OSError:  # a file vanished during the scan: rebuild to be safe
            pass
        changed = [shaping.differences(host, release, family) for release in releases]
        if changed and not any(rows is None or rows for rows in changed):
            say(
                f"the initramfs of {', '.join(releases)} stays: all that shapes it is as it was "
                "when it was made"
            )
            continue
        why = ", ".join(sorted({name for rows in changed for name in rows or ()}))
        say(f"update-initramfs {arguments}" + phrase(" (changed since: {})", why))
        done = initramfs_batch.update_initramfs(host, say, *shlex.split(arguments))
        if done.rc != 0:
            raise NodeError(
                f"update-initramfs {arguments} fails; the earlier initramfs is kept. {done.tail()}"
            )
        made += releases
    if made:
        shaping.keep(host, dict.fromkeys(made), family, before)
    forget(host)


def rebuilt_kernels(host: Host, arguments: str) -> List[str]:
    """Return the kernels whose initramfs update-initramfs(8) rebuilds for these arguments.

    Empty if goldnode does not understand the arguments.
    """
    words = arguments.split()
    there = [name[len("/boot/initrd.img-") :] for name in host.glob("/boot", "initrd.img-*")]
    # A copy such as initrd.img-REL.bak has no modules, and update-initramfs would not rebuild it.
    there = [name for name in there if host.is_dir(f"/lib/modules/{name}")]
    if words == ["-u"]:
        newest = _newest(host)
        return [newest] if newest in there else []
    if len(words) == 3 and words[:2] == ["-u", "-k"]:
        return [name for name in there if words[2] in ("all", name)]
    return []


def _newest(host: Host) -> str:
    """Return the release that a lone -u selects, or "" if it is unknown."""
    names = [name[len("/boot/initrd.img-") :] for name in host.glob("/boot", "initrd.img-*")]
    sorted_names = host.run("linux-version", "sort", "--reverse", *names)
    return (sorted_names.out.split() or [""])[0] if sorted_names.rc == 0 else ""


def newest_is_fresh(host: Host) -> bool:
    """Return whether a lone -u would only repeat a build of this transaction.

    The build for the newest kernel must have begun after all packages were unpacked. No file below
    /etc and no module of that kernel may have changed since. Return False in case of doubt.
    """
    newest = _newest(host)
    mark = host.path(f"{MADE}/{newest}")
    if not newest or not mark.is_file():
        return False
    begun = mark.stat().st_mtime
    if any(
        entry.name.endswith(".list") and entry.stat().st_mtime >= begun
        # dpkg writes PACKAGE.list when it unpacks a package.
        for entry in os.scandir(host.located("/var/lib/dpkg/info"))
    ):
        return False
    for place in SHAPING:
        for where, _, names in os.walk(host.located(place.format(release=newest))):
            here = [where] if where != host.located("/etc") else []
            if any(
                os.lstat(name).st_ctime >= begun
                # Every new ld.so.cache changes the timestamp of /etc itself, so the
                # directory is not compared.
                for name in (*here, *(f"{where}/{name}" for name in names if name not in PASSING))
            ):
                return False
    return True


def forget(host: Host) -> None:
    """Delete the list of requests, together with the wrappers."""
    import shutil

    shutil.rmtree(host.located(DEFERRED), ignore_errors=True)
    initramfs_batch.remove(host)

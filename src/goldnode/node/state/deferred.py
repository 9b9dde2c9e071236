"""One initramfs for one transaction: what packages ask of update-initramfs while apt is at work is kept, and done once at its end.

apt calls dpkg several times in a transaction of kernel and driver, and each call ends with the trigger that makes the initramfs: four were
seen for one driver, each of which takes longer than all of its packages. While apt runs, dpkg finds a program of this name first on its
path. It lets a new kernel have its initramfs at once, since a kernel must never be there without one, and writes down who wants one made
anew. A run that is killed leaves that list, and the next plan has it done. Where nothing of what goes into an initramfs has changed since a
new kernel got its own, that one is not made twice.
"""

from __future__ import annotations

import os

from ..host import Host
from .model import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List


PLACE = "/var/lib/goldnode/deferred"
PROGRAM = f"{PLACE}/update-initramfs"
OWED = f"{PLACE}/owed"
MADE = f"{PLACE}/made"  # a file per new kernel, of the moment at which its initramfs was begun
REAL = "/usr/sbin/update-initramfs"
# Where what goes into an initramfs is configured, or added to by scripts of packages; and what changes there without meaning anything: the
# linker's cache, of which an initramfs has its own (mkinitramfs), and the folder /etc with it.
SHAPING = ("/etc", "/usr/share/initramfs-tools", "/lib/modules/{release}")
PASSING = ("ld.so.cache", "ld.so.cache~")
# apt gives dpkg this path, whatever its own is (apt.conf(5), DPkg::Path).
OPTIONS = ("-o", f"DPkg::Path={PLACE}:/usr/sbin:/usr/bin:/sbin:/bin")

# With DPKG_MAINTSCRIPT_PACKAGE set, a lone -u only activates the trigger, which costs nothing and leads here again.
TEXT = f"""#!/bin/sh
# goldnode: packages that are installed together get one initramfs, made when all of them are there
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
    """Put the program in its place. What an earlier run still owes stays; what it has begun says nothing of this one."""
    import shutil

    shutil.rmtree(host.located(MADE), ignore_errors=True)
    host.write(PROGRAM, TEXT.encode(), 0o755)


def owed(host: Host) -> List[str]:
    """What update-initramfs was asked for and has not done: its arguments, a line for each call, without repetitions."""
    return list(dict.fromkeys((host.text(OWED) or "").splitlines()))


def settle(host: Host, say: Callable[[str], None]) -> None:
    """Do what is owed. Raises NodeError where update-initramfs fails: then all of it stays owed."""
    import shlex  # what only looks does without it

    asked = owed(host)
    for arguments in asked:
        try:
            if arguments == "-u" and newest_is_fresh(host):
                continue
        except OSError:  # a file went while it was looked at: in doubt
            pass
        say(f"update-initramfs {arguments}")
        done = host.run("update-initramfs", *shlex.split(arguments), timeout=900)
        if done.rc != 0:
            raise NodeError(f"update-initramfs {arguments} fails; the earlier initramfs is kept. {done.tail()}")
    forget(host)


def newest_is_fresh(host: Host) -> bool:
    """Whether a lone -u would make again what was made in this transaction: the newest kernel's initramfs was begun when all packages were
    unpacked, and neither a file below /etc nor a module of that kernel has changed since. Whatever is in doubt is made again."""
    sorted_ = host.run(
        "linux-version", "sort", "--reverse", *(name[len("/boot/initrd.img-") :] for name in host.glob("/boot", "initrd.img-*"))
    )
    newest = (sorted_.out.split() or [""])[0]
    mark = host.path(f"{MADE}/{newest}")
    if sorted_.rc != 0 or not newest or not mark.is_file():
        return False
    begun = mark.stat().st_mtime
    if any(entry.name.endswith(".list") and entry.stat().st_mtime >= begun for entry in os.scandir(host.located("/var/lib/dpkg/info"))):
        return False
    for place in SHAPING:
        for where, _, names in os.walk(host.located(place.format(release=newest))):
            here = [where] if where != host.located("/etc") else []
            if any(os.lstat(name).st_ctime >= begun for name in (*here, *(f"{where}/{name}" for name in names if name not in PASSING))):
                return False
    return True


def forget(host: Host) -> None:
    """Nothing is owed any more."""
    import shutil

    shutil.rmtree(host.located(PLACE), ignore_errors=True)

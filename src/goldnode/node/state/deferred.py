"""One initramfs for one transaction: what packages ask of update-initramfs while apt is at work is kept, and done once at its end.

apt calls dpkg several times in a transaction of kernel and driver, and each call ends with the trigger that makes the initramfs: four were
seen for one driver, each of which takes longer than all of its packages. While apt runs, dpkg finds a program of this name first on its
path. It lets a new kernel have its initramfs at once, since a kernel must never be there without one, and writes down who wants one made
anew. A run that is killed leaves that list, and the next plan has it done. Where nothing of what goes into an initramfs has changed since a
new kernel got its own, that one is not made twice; nor is one whose making would give what it is already (:mod:`.shaping`).
"""

from __future__ import annotations

import os

from ..host import Host
from . import shaping
from .model import NodeError
from .owed import OWED, PLACE, owed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Sequence


PROGRAM = f"{PLACE}/update-initramfs"
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


def settle(host: Host, say: Callable[[str], None], family: Sequence[str] = ()) -> None:
    """Do what is owed. Raises NodeError where update-initramfs fails: then all of it stays owed.

    :param family: globs of the packages that are the driver's own: nothing of theirs goes into an initramfs but what :mod:`.shaping` sees.
    """
    import shlex  # what only looks does without it

    asked = owed(host)
    before = shaping.configuration(host) if asked else None
    made: List[str] = []
    for arguments in asked:
        releases = meant(host, arguments)
        try:
            if arguments == "-u" and newest_is_fresh(host):
                made += releases
                continue
        except OSError:  # a file went while it was looked at: in doubt
            pass
        changed = [shaping.differences(host, release, family) for release in releases]
        if changed and not any(rows is None or rows for rows in changed):
            say(
                f"the initramfs of {', '.join(releases)} stays: all that shapes it is as it was when it was made"
            )
            continue
        why = ", ".join(sorted({name for rows in changed for name in rows or ()}))
        say(f"update-initramfs {arguments}" + (f" (changed since: {why})" if why else ""))
        done = host.run("update-initramfs", *shlex.split(arguments), timeout=900)
        if done.rc != 0:
            raise NodeError(
                f"update-initramfs {arguments} fails; the earlier initramfs is kept. {done.tail()}"
            )
        made += releases
    if made:
        shaping.keep(host, dict.fromkeys(made), family, before)
    forget(host)


def meant(host: Host, arguments: str) -> List[str]:
    """The kernels whose initramfs update-initramfs(8) makes anew when it is called so; none where that is not understood."""
    words = arguments.split()
    there = [name[len("/boot/initrd.img-") :] for name in host.glob("/boot", "initrd.img-*")]
    there = [name for name in there if host.is_dir(f"/lib/modules/{name}")]
    if words == ["-u"]:
        newest = _newest(host)
        return [newest] if newest in there else []
    if len(words) == 3 and words[:2] == ["-u", "-k"]:
        return there if words[2] == "all" else [words[2]] if words[2] in there else []
    return []


def _newest(host: Host) -> str:
    """The release that a lone -u means; empty where that cannot be told."""
    names = [name[len("/boot/initrd.img-") :] for name in host.glob("/boot", "initrd.img-*")]
    found = host.run("linux-version", "sort", "--reverse", *names)
    return (found.out.split() or [""])[0] if found.rc == 0 else ""


def newest_is_fresh(host: Host) -> bool:
    """Whether a lone -u would make again what was made in this transaction: the newest kernel's initramfs was begun when all packages were
    unpacked, and neither a file below /etc nor a module of that kernel has changed since. Whatever is in doubt is made again."""
    newest = _newest(host)
    mark = host.path(f"{MADE}/{newest}")
    if not newest or not mark.is_file():
        return False
    begun = mark.stat().st_mtime
    if any(
        entry.name.endswith(".list") and entry.stat().st_mtime >= begun
        for entry in os.scandir(host.located("/var/lib/dpkg/info"))
    ):
        return False
    for place in SHAPING:
        for where, _, names in os.walk(host.located(place.format(release=newest))):
            here = [where] if where != host.located("/etc") else []
            if any(
                os.lstat(name).st_ctime >= begun
                for name in (*here, *(f"{where}/{name}" for name in names if name not in PASSING))
            ):
                return False
    return True


def forget(host: Host) -> None:
    """Nothing is owed any more."""
    import shutil

    shutil.rmtree(host.located(PLACE), ignore_errors=True)

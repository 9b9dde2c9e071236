"""Execution of an image's programs on a machine of another architecture, by QEMU's user emulation.

The kernel starts a registered interpreter for foreign programs (binfmt_misc). Since Linux 6.7 every user
namespace may have registrations of its own. A build registers the emulator in a user namespace of its own,
so this machine's registrations do not change, and end with the build. The namespace maps every user and
group to itself: files have the owners that they have in a native build.

The kernel opens the emulator at its registration (flag F), so no copy of it gets into an image.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache

from goldnode.core.errors import ImageError
from goldnode.oci.model import MACHINES

# The machine in an ELF header (e_machine), little-endian.
_ELF = {"amd64": r"\x3e\x00", "arm64": r"\xb7\x00"}
# Header of a 64-bit little-endian program; the mask accepts every OS ABI, and ET_EXEC (2) as well as
# ET_DYN (3).
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"

# $1 is the registration, the others are the command. The first shell writes the maps of the second one's user
# namespace, which only a process outside of it may do. --keep-caps: until the maps exist, the second shell
# has no user ID, and would lose its capabilities. -p: if the maps appear while dash asks who it is, it takes
# itself for a set-user-ID program, and becomes nobody. pdeathsig ends it with the first.
_OUTSIDE = """
own=$(readlink /proc/self/ns/user)
unshare --user --keep-caps --mount --propagation private sh -peuc "$INSIDE" sh "$@" &
child=$!
until [ "$(readlink /proc/$child/ns/user || echo gone)" != "$own" ]; do sleep 0.02; done
echo '0 0 4294967295' > /proc/$child/gid_map
echo '0 0 4294967295' > /proc/$child/uid_map
wait $child
"""
_INSIDE = """
until read -r _ < /proc/self/uid_map; do sleep 0.02; done
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc || {
    echo "this kernel has no binfmt_misc per user namespace"; exit 1; }
printf %s "$1" > /proc/sys/fs/binfmt_misc/register
shift
unset INSIDE
exec setpriv --pdeathsig KILL -- "$@"
"""


def native(architecture: str) -> bool:
    """Return whether this machine itself runs programs of `architecture` (dpkg's name)."""
    return MACHINES[architecture] == platform.machine()


def native_architecture() -> str:
    """Return dpkg's name of the architecture of this machine; empty for one without images."""
    return next((name for name in MACHINES if native(name)), "")


def program(architecture: str) -> str:
    """Return the name of the emulator of `architecture`."""
    return f"qemu-{MACHINES[architecture]}-static"


def tool(architecture: str) -> str:
    """Return the name under which recipes record the emulator of `architecture`."""
    return f"emulator-{architecture}"


@cache
def tools() -> dict[str, str]:
    """Return the emulators of this machine with their versions, for the architectures that it does not run
    itself.
    """
    versions = {}
    for architecture in MACHINES:
        if native(architecture) or shutil.which(program(architecture)) is None:
            continue
        done = subprocess.run(
            [program(architecture), "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        version = re.search(r"version (\d[\w.]*)", done.stdout)
        if version is not None:
            versions[tool(architecture)] = f"{program(architecture)} {version[1]}"
    return versions


def used(versions: Mapping[str, str], architecture: str) -> dict[str, str]:
    """Return `versions` without the emulators of other architectures than `architecture`."""
    others = {tool(name) for name in MACHINES} - {tool(architecture)}
    return {name: version for name, version in versions.items() if name not in others}


def runnable(architecture: str) -> bool:
    """Return whether this machine runs programs of `architecture`, itself or by emulation."""
    return native(architecture) or tool(architecture) in tools()


def emulated(architecture: str, command: list[str]) -> list[str]:
    """Return `command` so that programs of `architecture` run below it.

    On a machine of that architecture this is the command itself. Raises ImageError without an emulator.
    """
    if native(architecture):
        return command
    path = shutil.which(program(architecture))
    if path is None:
        raise ImageError(
            f"this machine cannot run programs of {architecture}: {program(architecture)} is not on it",
            remedy=f"install it: apt-get install qemu-user-static; or build on a machine of {architecture}",
        )
    registration = f":goldnode-{architecture}:M::{_MAGIC}{_ELF[architecture]}:{_MASK}:{path}:FC"
    outside = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "--",
        "env",
        f"INSIDE={_INSIDE}",
        "sh",
        "-euc",
        _OUTSIDE,
    ]
    return [*outside, "sh", registration, *command]

"""Handlers for the actions of domain `scratch`.

Each takes the applier and one action, applies the change, and may return a message.
"""

from __future__ import annotations

import os

from ...ground.errors import NodeError
from ...ground.host import mount_lines
from ..domains import scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

    from ..contract import Handler, Writer
    from ..model import Action

MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-m", "0"),
    "xfs": ("mkfs.xfs", "-q"),
}
TIME = 1800  # seconds: a disk may discard all its blocks first


def make(applier: Writer, action: Action) -> str:
    """Format a disk that is still empty. Raises NodeError for any other."""
    host, data = applier.host, action.data
    device, own = str(data["device"]), scratch.label(str(data["mount"]))
    state, why, _ = scratch.inspect(host, device, own)
    if state == scratch.LABELLED:
        return "it has goldnode's file system by now"
    if state != scratch.EMPTY:
        raise NodeError(f"{device} is not formatted: {why}. Nothing was changed on it.")
    # Before the format: a run that is interrupted leaves a trace of what it has begun.
    applier.remember("formatted", [f"{device} {own}"])
    done = host.run(*MAKE[str(data["filesystem"])], "-L", own, device, timeout=TIME)
    state, why, kind = scratch.inspect(host, device, own)
    if done.rc != 0 or state != scratch.LABELLED or kind != data["filesystem"]:
        raise NodeError(f"{data['filesystem']} was not made on {device}: {done.tail(3) or why}.")
    return f"{kind} with label {own} on {device}"


def mount(applier: Writer, action: Action) -> None:
    """Mount a file system of goldnode, which every user may write to."""
    host, data = applier.host, action.data
    name, device = str(data["mount"]), str(data["device"])
    state, why, _ = scratch.inspect(host, device, scratch.label(name))
    if state != scratch.LABELLED:
        raise NodeError(f"{device} is not mounted: {why or f'it is {state}'}.")
    if host.is_dir(name):
        os.chmod(host.located(name), int(scratch.HIDDEN, 8))
    done = host.run(*scratch.mount_command(name, data, device), timeout=120)
    if scratch.mounted(mount_lines(host)).get(name) is None:
        raise NodeError(f"{name} cannot be mounted: {done.tail(3)}. Look at dmesg on the node.")
    os.chmod(host.located(name), int(scratch.MODE, 8))


def remount(applier: Writer, action: Action) -> None:
    """Mount a file system with other options, in its place."""
    host, data = applier.host, action.data
    options = ",".join(["remount", *data["options"]])
    # With the source too: mount(8) otherwise adds to the options in effect, and `relatime` does not end `noatime`.
    source = str(data["device"])
    kind = str(data["filesystem"])
    done = host.run("mount", "-t", kind, "-o", options, source, str(data["mount"]), timeout=120)
    now = scratch.mounted(mount_lines(host)).get(str(data["mount"]))
    if done.rc != 0 or now is None or scratch.lacking(data, now):
        raise NodeError(
            f"{action.target} does not take {options}: {done.tail(3)}. Correct `options` of the class."
        )


def unmount(applier: Writer, action: Action) -> None:
    """Unmount what the class has given up. Raises NodeError while it is in use."""
    if action.target not in scratch.mounted(mount_lines(applier.host)):
        return  # its unit has done it
    done = applier.host.run("umount", action.target, timeout=120)
    if done.rc != 0:
        raise NodeError(
            f"{action.target} stays mounted: {done.tail(2)}. `fuser -vm {action.target}` (package psmisc) shows who uses it."
        )


HANDLERS: Dict[str, Handler] = {
    "scratch.format": make,
    "scratch.mount": mount,
    "scratch.remount": remount,
    "scratch.unmount": unmount,
}

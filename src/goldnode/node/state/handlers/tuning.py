"""Handlers of the actions that domain `tuning` plans: each takes the applier and one action, makes the change, and may tell more."""

from __future__ import annotations

import json

from ... import slots
from ..domains import tuning
from ..model import NodeError
from ..observe import boot_choice, load_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from ..contract import Handler, Writer
    from ..model import Action


def set_value(applier: Writer, action: Action) -> Optional[str]:
    """Write a value of the kernel's, and read it back: what was asked for is what is there, or the difference is told."""
    host, want = applier.host, str(action.data["value"])
    for name in action.data["files"]:
        try:
            # In place: such a file takes a value, and cannot be replaced by another file.
            with open(host.real(name), "w") as opened:
                opened.write(f"{want}\n")
        except OSError as problem:
            raise NodeError(
                f"{name} does not take {want} ({problem.strerror}). Look at dmesg for why, or change `policy.host` of the class."
            ) from None
    got = {str(tuning.chosen(tuning.read(host, name))) for name in action.data["files"]} - {want}
    if not got:
        return f"reads back {want}"
    have = ", ".join(sorted(got))
    if not action.data["name"].startswith("hugepages."):
        raise NodeError(
            f"{action.target} reads back {have} after {want} was written. Another program sets it: find it, or change the class."
        )
    tried = load_json(host, tuning.TRIED) or {}
    tried[action.data["name"]] = {"want": want, "got": have}
    host.write(tuning.TRIED, json.dumps(tried).encode())
    return f"{have} of {want} pages could be reserved: memory is fragmented or in use, and a reboot gives the rest"


def swap_off(applier: Writer, action: Action) -> Optional[str]:
    """swapoff, proved by /proc/swaps. It reads everything back into memory, which takes its time."""
    name = action.data["name"]
    done = applier.host.run("swapoff", name, timeout=1800)
    rows = (applier.host.text("/proc/swaps") or "").splitlines()[1:]
    if any(row.split()[:1] == [name.replace(" ", "\\040")] for row in rows):
        raise NodeError(f"swap {name} stays on ({done.tail(2)}). Free memory on the node, then run again.")
    return "off"


def mask(applier: Writer, action: Action) -> None:
    """`systemctl mask`, as the link it makes, and the record of it."""
    applier.link(action)
    applier.remember("masked", [action.data["unit"]])


def unmask(applier: Writer, action: Action) -> None:
    """Take away a mask of goldnode's own; whatever else stands there by now is somebody's."""
    here = applier.host.path(action.target)
    if here.is_symlink() and str(here.readlink()) == "/dev/null":
        here.unlink()
    applier.remember("masked", [action.data["unit"]], forget=True)


def uncomment(applier: Writer, action: Action) -> None:
    """Give a line back that goldnode had commented out."""
    name, at = action.data["file"], int(action.data["line"]) - 1
    lines = applier.host.lines(name)
    if at < len(lines) and lines[at].startswith(tuning.MARK):
        lines[at] = lines[at][len(tuning.MARK) :]
        applier.host.write_lines(name, lines)


def systemd_defaults(applier: Writer, action: Action) -> Optional[str]:
    """systemd reads its own configuration again: units that start from now on have the new limit."""
    done = applier.host.run("systemctl", "daemon-reload", timeout=120)
    shown = applier.host.run("systemctl", "show", "--property=DefaultLimitMEMLOCK", "--value")
    if shown.out.strip() != action.data["want"]:
        raise NodeError(
            f"systemd has DefaultLimitMEMLOCK {shown.out.strip() or 'unknown'} after it read its configuration, want {action.data['want']}. "
            f"Look at `systemd-analyze cat-config systemd/system.conf`. {done.tail(2)}"
        )
    return "services that run keep their limit until they are restarted"


def command_line(applier: Writer, action: Action) -> Optional[str]:
    """update-grub, proved by the command line of the entry that boots next."""
    applier.update_grub()
    choice = boot_choice(applier.host, applier.document["kernel"]["release"])
    have = (choice["cmdline"] or "").split()
    lacking = [word for word in action.data["words"] if not tuning.carries(have, word)]
    if lacking:
        raise NodeError(
            f"after update-grub the next boot's command line lacks {' '.join(lacking)} ({choice['cmdline']}). "
            "A file of /etc/default/grub.d that is read later sets GRUB_CMDLINE_LINUX anew: make it append instead."
        )
    applier.remember("cmdline", list(action.data["stale"]), forget=True)
    applier.remember("cmdline", list(action.data["words"]))
    return None


def slot_command_line(applier: Writer, action: Action) -> Optional[str]:
    """The words in the entry of the slot that runs."""
    slots.words(applier.host, action.data["words"], action.data["stale"])
    applier.remember("cmdline", list(action.data["stale"]), forget=True)
    applier.remember("cmdline", list(action.data["words"]))
    return None


HANDLERS: Dict[str, Handler] = {
    "tuning.set": set_value,
    "swap.off": swap_off,
    "swap.mask": mask,
    "swap.unmask": unmask,
    "swap.uncomment": uncomment,
    "systemd.defaults": systemd_defaults,
    "cmdline.grub": command_line,
    "cmdline.slot": slot_command_line,
}

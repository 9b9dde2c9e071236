"""Handlers for the actions of domain `tuning`.

Each takes the applier and one action, applies the change, and may return a message.
"""

from __future__ import annotations

import json

from ...effective.boot_choice import boot_choice
from ...ground.errors import NodeError
from .. import slots
from ..domains import tuning
from ..observe import load_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from ..contract import Handler, Writer
    from ..model import Action


def set_value(applier: Writer, action: Action) -> Optional[str]:
    """Write a kernel value and read it back.

    A difference is an error, except for huge pages, where it is recorded.
    """
    host, want = applier.host, str(action.data["value"])
    for name in action.data["files"]:
        try:
            # Written in place: a kernel file cannot be replaced by a rename.
            with open(host.real(name), "w") as opened:
                opened.write(f"{want}\n")
        except OSError as problem:
            raise NodeError(
                f"{name} does not take {want} ({problem.strerror}). Look at dmesg for why, or "
                "change `policy.host` of the class."
            ) from None
    got = {str(tuning.chosen(tuning.read(host, name))) for name in action.data["files"]} - {want}
    if not got:
        return f"reads back {want}"
    have = ", ".join(sorted(got))
    # Fragmented memory may provide fewer huge pages than requested. That is not an error.
    if not action.data["name"].startswith("hugepages."):
        raise NodeError(
            f"{action.target} reads back {have} after {want} was written. Another program sets it: "
            "find it, or change the class."
        )
    tried = load_json(host, tuning.TRIED) or {}
    tried[action.data["name"]] = {"want": want, "got": have}
    host.write(tuning.TRIED, json.dumps(tried).encode())
    return (
        f"{have} of {want} pages could be reserved: memory is fragmented or in use, and a reboot gives "
        "the rest"
    )


def swap_off(applier: Writer, action: Action) -> Optional[str]:
    """Run swapoff, and verify it in /proc/swaps. It is slow, since it reads everything back into memory."""
    name = action.data["name"]
    done = applier.host.run("swapoff", name, timeout=1800)
    rows = (applier.host.text("/proc/swaps") or "").splitlines()[1:]
    # /proc/swaps escapes blanks as \040.
    if any(row.split()[:1] == [name.replace(" ", "\\040")] for row in rows):
        raise NodeError(
            f"swap {name} stays on ({done.tail(2)}). Free memory on the node, then run again."
        )
    return "off"


def mask(applier: Writer, action: Action) -> None:
    """Create the link that `systemctl mask` would create, and record it."""
    applier.link(action)
    applier.remember("masked", [action.data["unit"]])


def unmask(applier: Writer, action: Action) -> None:
    """Remove goldnode's mask. Leave anything else that is there by now."""
    here = applier.host.path(action.target)
    if here.is_symlink() and str(here.readlink()) == "/dev/null":
        here.unlink()
    applier.remember("masked", [action.data["unit"]], forget=True)


def uncomment(applier: Writer, action: Action) -> None:
    """Restore a line that goldnode commented out."""
    name, at = action.data["file"], int(action.data["line"]) - 1
    lines = applier.host.lines(name)
    if at < len(lines) and lines[at].startswith(tuning.MARK):
        lines[at] = lines[at][len(tuning.MARK) :]
        applier.host.write_lines(name, lines)


def systemd_defaults(applier: Writer, action: Action) -> Optional[str]:
    """Make systemd read its configuration again. Units that start from now on get the new limit."""
    done = applier.host.run("systemctl", "daemon-reload", timeout=120)
    shown = applier.host.run("systemctl", "show", "--property=DefaultLimitMEMLOCK", "--value")
    if shown.out.strip() != action.data["want"]:
        raise NodeError(
            f"systemd has DefaultLimitMEMLOCK {shown.out.strip() or 'unknown'} after it read its "
            f"configuration, want {action.data['want']}. "
            f"Look at `systemd-analyze cat-config systemd/system.conf`. {done.tail(2)}"
        )
    return "services that run keep their limit until they are restarted"


def command_line(applier: Writer, action: Action) -> Optional[str]:
    """Run update-grub, and prove it by the command line of the entry that boots next."""
    applier.update_grub()
    choice = boot_choice(applier.host, applier.document["kernel"]["release"])
    have = (choice["cmdline"] or "").split()
    lacking = [word for word in action.data["words"] if not tuning.carries(have, word)]
    if lacking:
        raise NodeError(
            f"after update-grub the next boot's command line lacks {' '.join(lacking)} "
            f"({choice['cmdline']}). "
            "A file of /etc/default/grub.d that is read later overrides GRUB_CMDLINE_LINUX: make it "
            "append instead."
        )
    applier.remember("cmdline", list(action.data["stale"]), forget=True)
    applier.remember("cmdline", list(action.data["words"]))
    return None


def slot_command_line(applier: Writer, action: Action) -> Optional[str]:
    """Set the words in the entry of the running slot."""
    slots.edit_cmdline(applier.host, action.data["words"], action.data["stale"])
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

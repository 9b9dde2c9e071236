"""`goldnode-node slot`: the two root partitions of a disk, for units, hooks, `goldnode disks update` and
administrators.
"""

from __future__ import annotations

import json
import sys

from ..ground.errors import NodeError
from ..state import bootdisk, slots
from . import trial as slot_trial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from ..ground.host import Host, Json

VERBS = """status: show the image of each slot and which slot boots next. back: boot the last good image of the other slot next.
write: write an image from standard input to the other slot. sync: update the boot entry of the running slot after a kernel change.
identity: complete the identity of the disk that runs, or give the disks that are named their own; the first boot does both.
netboot: boot from the network at the next start, once.
good: judge the boot of an image on trial; exit status 1 if it is not good. failed: record why such a boot failed.
bless: remove the counter from the boot entry of a boot that is good, before systemd-bless-boot would.
arm: give the good image that runs its retries, after which the other slot boots; each boot that comes up does.
recovery: write the boot entry with network and ssh that starts when no slot has tries left, and the firmware's boot options
that start the loader again; each boot that comes up does."""


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    parser.epilog = VERBS
    parser.add_argument(
        "verb",
        choices=(
            "status",
            "good",
            "failed",
            "bless",
            "arm",
            "recovery",
            "sync",
            "back",
            "write",
            "identity",
            "netboot",
        ),
        help="see below",
    )
    parser.add_argument(
        "disks",
        nargs="*",
        metavar="DISK",
        help="with identity: disks that have the same GUIDs, or one",
    )
    parser.add_argument(
        "--release",
        metavar="RELEASE",
        help="with sync: kernel release to boot (default: that of the entry)",
    )
    parser.add_argument(
        "--tries",
        type=int,
        choices=range(1, 10),
        default=slots.TRIES,
        metavar="N",
        help="with back and arm: number of boots after which an image that does not come up is given up (default: %(default)s)",
    )
    parser.add_argument(
        "--hook",
        action="store_true",
        help="with sync: run as a hook of dpkg, which never fails and does nothing on nodes without slots",
    )


def run(host: Host, options: Any) -> int:
    """Run the command. Return the exit code. Raises NodeError, which exits with 3."""
    verb = options.verb
    if options.disks and verb != "identity":
        raise NodeError(f"`slot {verb}` takes no disk. See `goldnode-node slot --help`.")
    if verb == "identity":
        from . import identity  # start-up time: once in the life of a disk

        text = identity.named(host, options.disks) if options.disks else identity.complete(host)
        show(options, {"message": text}, text)
        return 0
    if verb == "netboot":
        from . import netboot  # start-up time: once in a while

        text = netboot.boot_once(host)
        show(options, {"message": text}, text)
        return 0
    if verb == "good":
        fine, text = slot_trial.good(host)
        show(options, {"good": fine, "message": text}, text)
        return 0 if fine else 1
    if verb == "failed":
        text = slots.failed(host)
        show(options, {"message": text}, text)
        return 0
    if verb == "bless":
        blessed = slots.bless(host)
        show(options, {"message": blessed}, blessed)
        return 0
    if verb == "arm":
        armed = slots.arm(host, options.tries)
        show(options, {"message": armed}, armed)
        return 0
    if verb == "recovery":
        from . import again, recovery  # start-up time: once in a boot

        done = [text for text in (again.write(host), recovery.write(host)) if text]
        show(options, {"message": "; ".join(done) or None}, "\n".join(done))
        return 0
    if verb == "sync":
        problems = sync(host, options.release, options.hook)
        show(options, {"message": problems}, problems)
        return 0
    if verb == "write":
        try:
            from . import write as slotwrite
        except ImportError:
            raise NodeError(
                "this file does not contain the writer. `goldnode disks update` sends one that does."
            ) from None
        slotwrite.apart()
        state = slotwrite.write(
            host, sys.stdin.buffer, lambda text: print(text, file=sys.stderr, flush=True), True
        )
    elif verb == "back":
        state = slots.back(host, options.tries)
    else:
        known = slots.survey(host)
        if known is None:
            raise NodeError(
                "this node has no slots. Only a disk of layout `ab` that booted with systemd-boot has."
            )
        from ..state.observe import gpu_holders
        from . import recovery

        state = {
            **known,
            "holders": gpu_holders(host),
            "astray": bootdisk.astray(host),
            "recovery": recovery.shown(host, known["place"]),
        }
    if options.format == "json":
        print(json.dumps({"schema": "goldnode.slots/1", **state}, indent=1, sort_keys=True))
    else:
        print(table(state))
    return 0


def show(options: Any, result: Json, text: Optional[str]) -> None:
    """Print the result of a step, as JSON or as text."""
    if options.format == "json":
        print(json.dumps({"schema": "goldnode.slot-step/1", **result}, indent=1, sort_keys=True))
    elif text:
        print(text)


def sync(host: Host, release: Any, hook: bool) -> Optional[str]:
    """Make the running slot boot its current kernel; return a message. A hook never fails: the
    check reports unfinished work.
    """
    try:
        if hook and release:
            where, slot = slots.place(host), slots.running(host)
            if where is None or slot is None or slots.wanted_release(host, where, slot) != release:
                return None  # another kernel than the one that boots: site.yml decides which does
        return slots.sync(host, release)
    except (NodeError, OSError) as problem:
        if not hook:
            raise
        print(
            f"W: goldnode: the slot does not boot the new kernel or initramfs yet: {problem}",
            file=sys.stderr,
        )
        return None


def table(survey: Json) -> str:
    """Return the slots as text."""
    lines = []
    for name, row in survey["slots"].items():
        line = f"slot {name}: {row['image'] or 'no image'}, {row['state']}"
        if row["left"] is not None:
            line += f", {row['left']} tries left"
        if row["unverified"]:
            line += f"; not verified: {row['unverified']}"
        titles = {"running": "runs", "next": "boots next"}
        marks = [title for key, title in titles.items() if name == survey[key]]
        lines.append(f"{line} ({', '.join(marks)})" if marks else line)
    if survey["next"] is None:
        lines.append(f"the next boot is unknown: {survey['why']}")
    if survey["fallback"]:
        lines.append(survey["fallback"])
    if survey.get("recovery"):
        lines.append(survey["recovery"])
    if survey.get("astray"):
        lines.append(f"{survey['astray']}. {bootdisk.REMEDY}")
    return "\n".join(lines)

"""`goldnode-node slot`: the two root partitions of a disk, for units, hooks, `goldnode disks update` and
people.
"""

from __future__ import annotations

import json
import sys

from . import slot_trial, slots
from .state.model import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .host import Host, Json

TEXT = (
    "status: what each slot holds and which boots next. back: have the other slot's last good image boot next. "
    "write: write an image\nfrom standard input into the other slot. sync: have the entry of the slot that runs "
    "follow its kernel. good: judge the boot that tries an image\n(exit code 1: it is not good). failed: note why "
    "such a boot is given up."
)


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    parser.description = TEXT
    parser.add_argument("verb", choices=("status", "good", "failed", "sync", "back", "write"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--release", help="with sync: the kernel to boot; default: the one that the entry boots"
    )
    parser.add_argument(
        "--tries",
        type=int,
        choices=range(1, 10),
        default=slots.TRIES,
        help="with back: boots that it may take",
    )
    parser.add_argument(
        "--hook",
        action="store_true",
        help="with sync: called by a hook of dpkg: do nothing elsewhere, and never fail",
    )


def run(host: Host, options: Any) -> int:
    """Run the command. Faults raise NodeError, reported with exit code 3."""
    verb = options.verb
    if verb == "good":
        fine, text = slot_trial.good(host)
        print(text)
        return 0 if fine else 1
    if verb == "failed":
        print(slots.failed(host))
        return 0
    if verb == "sync":
        return sync(host, options.release, options.hook)
    if verb == "write":
        try:
            from . import slotwrite
        except ImportError:
            raise NodeError(
                "this file does not bring the writer. `goldnode disks update` sends one that does."
            ) from None
        slotwrite.apart()
        found = slotwrite.write(host, sys.stdin.buffer, lambda text: print(text, file=sys.stderr, flush=True))
    elif verb == "back":
        found = slots.back(host, options.tries)
    else:
        known = slots.survey(host)
        if known is None:
            raise NodeError(
                "this node has no slots. Only a disk of layout `ab` that booted with systemd-boot has."
            )
        from .state.observe import gpu_holders

        found = {**known, "holders": gpu_holders(host)}
    print(json.dumps(found, indent=1, sort_keys=True) if options.json else table(found))
    return 0


def sync(host: Host, release: Any, hook: bool) -> int:
    """Make the running slot boot its current kernel.

    A hook never fails, because it would break the package manager. The check reports the unfinished work.
    """
    try:
        if hook and release:
            where, slot = slots.place(host), slots.running(host)
            if where is None or slot is None or slots.wanted_release(host, where, slot) != release:
                return 0  # not the kernel that boots; site.yml selects that one
        told = slots.sync(host, release)
    except (NodeError, OSError) as problem:
        if not hook:
            raise
        print(
            f"W: goldnode: the slot does not boot the new kernel or initramfs yet: {problem}", file=sys.stderr
        )
        return 0
    if told:
        print(told)
    return 0


def table(found: Json) -> str:
    """Return the slots as text for people."""
    lines = []
    for name, row in found["slots"].items():
        marks = [
            word
            for word, true in (("runs", name == found["running"]), ("boots next", name == found["next"]))
            if true
        ]
        tries = f", {row['left']} tries left" if row["left"] is not None else ""
        state = f"{row['state']}{tries}" + (
            f"; not verified: {row['unverified']}" if row["unverified"] else ""
        )
        lines.append(
            f"slot {name}: {row['image'] or 'no image'}, {state}"
            + (f" ({', '.join(marks)})" if marks else "")
        )
    if found["next"] is None:
        lines.append(f"which boots next cannot be told: {found['why']}")
    lines += [found["fallback"]] if found["fallback"] else []
    return "\n".join(lines)

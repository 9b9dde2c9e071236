"""Judgement of a boot that tries a new image: the check of the node, and the units that the class
requires.
"""

from __future__ import annotations

import json
import time
from typing import cast

from ..effective import loader
from ..ground import systemd
from ..ground.host import Host, is_container
from ..state import bootdisk
from ..state.domains import units as units_domain
from ..state.domains.program import CLASS
from ..state.slots import (
    FAILED,
    FOLDER,
    GOOD,
    OWN,
    RETRIED,
    WATCHDOG,
    alone,
    counted,
    known,
    place,
    put,
    put_entry,
    record,
    retried,
    running,
    survey,
    tried,
)
from ..verdict import blame
from ..verdict import check as checking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Tuple

    from ..ground.document import ClassDocument

# Seconds for units to become active or failed, after the boot has started all of them.
SETTLE = 90.0


def failed_units(host: Host, document: Mapping[str, Any]) -> List[str]:
    """Return the units of goldnode, or required by the class, that failed in this boot or have not
    settled after SETTLE seconds.

    systemd restarts a unit that fails at once a few times, and reports `activating` in between. That is
    neither good nor bad yet.
    """
    stated = (document.get("health") or {}).get("baseline", {}).get("services", ())
    named = {
        name if "." in name else f"{name}.service"
        for name in stated
        if isinstance(name, str) and name[:1] not in ("", "-")
    }
    names, end = sorted({*units_domain.UNITS, *named}), time.monotonic() + SETTLE
    while True:
        rows = sorted(systemd.units(host, names).items())
        moving = [
            (name, row)
            for name, row in rows
            if row["ActiveState"] in ("activating", "deactivating")
        ]
        if not moving or time.monotonic() >= end:
            break
        time.sleep(0.5)
    failed = [
        f"unit {name}: failed ({row['Result'] or 'no result'})"
        for name, row in rows
        if row["ActiveState"] == "failed"
    ]
    return failed + [
        f"unit {name}: still {row['ActiveState']} ({row['SubState']}) after {SETTLE:.0f} s"
        for name, row in moving
    ]


def judge(host: Host) -> List[str]:
    """Return the findings against the image on trial; empty if it is good.

    A failed check counts against the image.
    """
    try:
        document = json.loads(host.text(CLASS) or "null")
        if not isinstance(document, dict):
            return [f"{CLASS}: no class document"]
        verdict = checking.check(host, cast("ClassDocument", document), passive=True)
        return blame.against(verdict, OWN) + failed_units(host, document)
    except Exception as problem:  # any failure: an image on which the check fails is not good
        return [f"the check failed: {type(problem).__name__}: {problem}"]


def record_retries(host: Host) -> str:
    """Record how many boots of this good image ended before it was up. Return a message."""
    where, slot = place(host), running(host)
    entry = counted(host, where) if where else None
    lost = ((entry.done or 1) - 1) if entry else 0
    if where is None or slot is None or lost < 1 or bootdisk.astray(host):
        return "this boot tries no image"
    about = known(host, where, slot)
    boots = f"{lost} boots" if lost > 1 else "the boot"
    text = f"{boots} before this one did not come up"
    record(host, where=where, event=RETRIED, slot=slot, about=about, reason=text)
    return f"image {about.get('name')} is good; {text}"


def other_trial(host: Host) -> bool:
    """Return whether this boot tries an image outside the slots: another program, as systemd-sysupdate, has installed it.

    Without the ESP its entry is unknown, and the image is judged.
    """
    if running(host) is not None or not host.live or is_container(host):
        return False
    if loader.variable(host, "LoaderBootCountPath") is None:
        return False
    where = loader.partition(host)
    return where is None or counted(host, where) is not None


def good(host: Host) -> Tuple[bool, str]:
    """Return whether this boot is good, and a message. A boot that tries no image is always good.

    Record boots of a good image that did not come up before this one.
    """
    if retried(host):
        return True, record_retries(host)
    if running(host) is not None and loader.variable(host, "LoaderBootCountPath") is not None:
        if place(host) is None:
            why = "the ESP is not mounted, so that the image that this boot tries cannot be judged"
            return False, why
        stray = bootdisk.astray(host)
        if stray:  # nothing is recorded: the ESP may be that of another disk
            why = f"the image that this boot tries is not blessed: {stray}. {bootdisk.REMEDY}"
            return False, why
    if other_trial(host):
        reasons = judge(host)
        state_of = f"not good: {'; '.join(reasons[:4])}" if reasons else "good"
        return not reasons, f"the image on trial is {state_of}"
    state = survey(host)
    if state is None or state["tried"] is None:
        return True, "this boot tries no image"
    where, slot = state["place"], state["running"]
    reasons = judge(host)
    with alone(host):
        # As they are now: the check takes minutes, in which a package may have changed the kernel.
        about, entry = known(host, where, slot), tried(host, where)
        if reasons or entry is None:
            text = "; ".join(reasons[:4])
            record(host, where=where, event=FAILED, slot=slot, about=about, reason=text)
            return False, f"image {about.get('name')} is not good: {text}"
        text = host.text(f"{where}/loader/entries/{entry.file}") or ""
        # The trial is over, so later boots need no watchdog. In this boot it stays on: systemd cannot
        # release it.
        put_entry(host, where, slot, entry.file, text.replace(f" {WATCHDOG}", ""))
        put(
            host,
            f"{where}/{FOLDER}/{slot}/slot.json",
            (json.dumps({**about, "good": True}, sort_keys=True) + "\n").encode(),
        )
        record(host, where, GOOD, slot, about)
        return True, f"image {about.get('name')} is good"

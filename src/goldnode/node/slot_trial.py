"""Judgement of a trial boot, the first boots of a new image: the check of the node, and the units that the
class requires.
"""

from __future__ import annotations

import json
import time

from . import gate
from .host import Host
from .slots import (
    FAILED,
    FOLDER,
    GOOD,
    OWN,
    WATCHDOG,
    known,
    place,
    put,
    put_entry,
    record,
    running,
    survey,
    tried,
)
from .state import loader
from .state.domains import units as units_domain
from .state.domains.program import CLASS
from .verdict import check as checking
from .verdict import sides

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Tuple

# Seconds for a unit to start or to fail, counted from the end of the boot.
SETTLE = 90.0


def failed_units(host: Host, document: Mapping[str, Any]) -> List[str]:
    """Return the units of goldnode or of the class's baseline that failed, or have not settled in SETTLE
    seconds.

    systemd restarts a failing unit several times, and it is `activating` in between. That is not a result
    yet.
    """
    stated = (document.get("health") or {}).get("baseline", {}).get("services", ())
    named = {
        name if "." in name else f"{name}.service"
        for name in stated
        if isinstance(name, str) and name[:1] not in ("", "-")
    }
    names, end = sorted({*units_domain.UNITS, *named}), time.monotonic() + SETTLE
    while True:
        rows = sorted(gate.units(host, names).items())
        moving = [(name, row) for name, row in rows if row["ActiveState"] in ("activating", "deactivating")]
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
        verdict = checking.check(host, document, passive=True)
        return sides.against(verdict, OWN) + failed_units(host, document)
    except Exception as problem:  # for any reason: this image cannot be checked
        return [f"the check failed: {type(problem).__name__}: {problem}"]


def good(host: Host) -> Tuple[bool, str]:
    """Return whether this boot is good, with a message. A boot that is not a trial is always good."""
    if (
        running(host) is not None
        and loader.variable(host, "LoaderBootCountPath") is not None
        and place(host) is None
    ):
        return False, "the ESP is not mounted, so that nothing can be said of the image that this boot tries"
    found = survey(host)
    if found is None or found["tried"] is None:
        return True, "this boot tries no image"
    where, slot = found["place"], found["running"]
    about, entry = known(host, where, slot), tried(host, where)
    reasons = judge(host)
    if reasons or entry is None:
        text = "; ".join(reasons[:4])
        record(host, where, FAILED, slot, about, text)
        return False, f"image {about.get('name')} is not good: {text}"
    name = f"{where}/loader/entries/{entry.file}"
    text = host.text(name) or ""
    # Later boots are no trial, so they need no watchdog. In this boot systemd continues with the watchdog of
    # the command line, which cannot be revoked.
    put_entry(host, where, slot, entry.file, text.replace(f" {WATCHDOG}", ""))
    put(
        host,
        f"{where}/{FOLDER}/{slot}/slot.json",
        (json.dumps({**about, "good": True}, sort_keys=True) + "\n").encode(),
    )
    record(host, where, GOOD, slot, about)
    return True, f"image {about.get('name')} is good"

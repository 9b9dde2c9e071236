"""Trial boot of a kernel: it becomes the default only if the check after that boot finds no fault.

TRIAL is {release, selector: its GRUB entry, boot_identity: of the boot that armed the trial,
class_digest, failed: why it is not the default, or None}. Until the trial ends the default is
unchanged, so a failed boot falls back to it.
"""

from __future__ import annotations

import json

from ..ground.errors import NodeError
from ..ground.host import Host, boot_identity
from .finding import FINE
from .observe import TRIAL, load_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence

    from ..ground.document import ClassDocument


# Findings that only report that the kernel is not the default yet.
OWN = ("boot.next", "boot.trial")


def against(verdict: Mapping[str, Any]) -> List[str]:
    """Return the faults in a verdict that rule out a kernel: those for which the gate drains the node."""
    rows: Sequence[Mapping[str, Any]] = verdict["findings"]
    bad = [
        row
        for row in rows
        if row["severity"] != "degraded" and row["outcome"] not in FINE and row["id"] not in OWN
    ]
    return [f"{row['id']}: {row['got'] or 'nothing'} (want {row['expected']})" for row in bad]


def settle(host: Host, document: ClassDocument, verdict: Mapping[str, Any]) -> Optional[str]:
    """Finish a trial after a check: make the kernel the default, or record why not.

    Return a message, or None if there is no trial or the node has not rebooted since.
    """
    trial = load_json(host, TRIAL)
    if (
        not trial
        or trial["release"] != document["kernel"]["release"]
        or trial["boot_identity"] == boot_identity(host)
    ):
        return None
    # Start-up time: most checks have no trial to finish.
    from . import (
        apply as applying,
    )

    release, runs = trial["release"], verdict_kernel(host)
    bad = against(verdict) if runs == release else [f"the boot that tried it came up with {runs}"]
    if bad:
        text = "; ".join(bad[:3])
        if trial.get("failed") != text:
            host.write(TRIAL, json.dumps({**trial, "failed": text}, indent=1).encode())
        return f"kernel {release} does not become the default: {text}. The next boot starts the earlier default."
    try:
        with applying.alone(host, 0):
            applying.Applier(host, document, {}, lambda text: None).make_default(release)
    except NodeError as problem:
        return f"kernel {release} is fine, and could not be made the default: {problem}"
    return f"kernel {release} is the default from now on: the check of its boot found nothing against it"


def verdict_kernel(host: Host) -> str:
    """Return the release of the running kernel."""
    return (host.text("/proc/sys/kernel/osrelease") or "unknown").strip()

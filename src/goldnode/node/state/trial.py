"""A kernel that is booted once, to be tried: it becomes the default only when the check of that boot finds nothing against it.

TRIAL is {release, selector: its GRUB entry, boot_identity: of the boot that armed it, class_digest, failed: why it is not the default, or
None}. Until it is settled the default stays what it was, so that the boot after a bad one returns to that by itself.
"""

from __future__ import annotations

from .. import quickjson as json
from ..host import Host, boot_identity
from .finding import FINE
from .model import NodeError
from .observe import TRIAL, load_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional, Sequence


# Findings that only say that it is not the default yet.
OWN = ("boot.next", "boot.trial")


def against(verdict: Mapping[str, Any]) -> List[str]:
    """What a verdict has against a kernel that is tried: everything for which the gate would drain the node."""
    rows: Sequence[Mapping[str, Any]] = verdict["findings"]
    bad = [
        row
        for row in rows
        if row["severity"] != "degraded" and row["outcome"] not in FINE and row["id"] not in OWN
    ]
    return [f"{row['id']}: {row['got'] or 'nothing'} (want {row['expected']})" for row in bad]


def settle(host: Host, document: Mapping[str, Any], verdict: Mapping[str, Any]) -> Optional[str]:
    """After a check: make the kernel that is tried the default, or note why not. Returns what there is to tell; None where nothing is tried
    or its boot has not come yet."""
    trial = load_json(host, TRIAL)
    if (
        not trial
        or trial["release"] != document["kernel"]["release"]
        or trial["boot_identity"] == boot_identity(host)
    ):
        return None
    from . import (
        apply as applying,
    )  # a check that has nothing to settle does not wait for the import of what writes

    release, runs = trial["release"], verdict_kernel(host)
    bad = against(verdict) if runs == release else [f"the boot that tried it came up with {runs}"]
    if bad:
        text = "; ".join(bad[:3])
        if trial.get("failed") != text:
            host.write(TRIAL, json.dumps({**trial, "failed": text}, indent=1).encode())
        return (
            f"kernel {release} does not become the default: {text}. The next boot starts the earlier default."
        )
    try:
        with applying.alone(host, 0):
            applying.Applier(host, document, {}, lambda text: None).make_default(release)
    except NodeError as problem:
        return f"kernel {release} is fine, and could not be made the default: {problem}"
    return f"kernel {release} is the default from now on: the check of its boot found nothing against it"


def verdict_kernel(host: Host) -> str:
    """The kernel that runs."""
    return (host.text("/proc/sys/kernel/osrelease") or "unknown").strip()

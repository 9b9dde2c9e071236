"""The initramfs that a transaction which was cut off has left to be made."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from ..ground.host import Host

PLACE = "/var/lib/goldnode/deferred"
OWED = f"{PLACE}/owed"


def owed(host: Host) -> List[str]:
    """Return the recorded update-initramfs requests: one line of arguments per call, without duplicates."""
    return list(dict.fromkeys((host.text(OWED) or "").splitlines()))

"""Events that wait for a hook."""

from __future__ import annotations

from goldnode.core.site import SiteHook
from goldnode.fleet.events.deliver import wants
from goldnode.fleet.events.outbox import HookState, Outbox

_PAGE = 1000  # events of one query


def waiting(outbox: Outbox, hook: SiteHook, state: HookState) -> int:
    """Return the number of events that a hook wants and does not have."""
    count, seq = 0, state.seq
    while page := outbox.events(seq, _PAGE):
        count += sum(wants(hook, event) for event in page)
        seq = page[-1].seq
    return count

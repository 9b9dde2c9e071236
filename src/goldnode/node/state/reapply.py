"""What a boot, or a driver that is loaded anew, forgets: set again on the node itself, from the class document that lies there."""

from __future__ import annotations

import time

from ..host import Host
from . import preflight
from .apply import Applier, alone
from .domains import policy, tuning
from .engine import difference, look
from .finding import Finding
from .model import BOOT, DEVICE, Action, NodeError, Observed
from .observe import observe_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Mapping, Tuple, TypeAlias


Document: TypeAlias = "Mapping[str, Any]"

PARTS = ("gpu_policy", "host_tuning")
DOMAINS = (policy, tuning)
# The kernel tells of a module before its initialisation has ended; on eight GPUs that takes seconds.
LOADING = 60.0


def reapply(host: Host, document: Document, say: Callable[[str], None]) -> Tuple[List[Action], List[Finding]]:
    """Make GPU policy and host tuning what the class says, as far as a running system forgets them: phases `boot` and `device`.

    Files and links are left to site.yml. Returns what was changed, and the findings of both domains afterwards.

    :raises NodeError: when the node is not of the class, a value is out of range, or something cannot be set.
    """
    with alone(host, 120):
        settled(host, document)
        applied: List[Action] = []
        seen, actions = outstanding(host, document)
        refusals = preflight.identity(document, seen)
        refusals += [refusal for domain in DOMAINS for refusal in domain.refusals(document, seen, actions)]
        if refusals:
            raise NodeError(
                "refused before anything was touched: " + " ".join(refusal.line() for refusal in refusals)
            )
        for _ in range(2):  # a GPU that was reset for MIG has forgotten the rest
            applier = Applier(host, document, {}, say)
            applier.planned = actions
            for action in actions:
                say(action.line())
                applier.apply(action)
            applied += actions
            if not actions:
                break
            seen, actions = outstanding(host, document)
        found = judged(document, seen)
        if (seen.gpu_settings.get("mps") or {}).get(
            "job"
        ):  # it starts when this has ended; the check comes after it, and judges it
            found = [finding for finding in found if finding.id != "policy.sharing"]
        return applied, found


def outstanding(host: Host, document: Document) -> Tuple[Observed, List[Action]]:
    """What is seen, and what of both parts a running system would have to set."""
    seen = look(host, document)
    if any(action.part in PARTS for action in difference(document, seen, {}, (BOOT, DEVICE))[0]):
        observe_use(host, document, seen)  # what would disturb those who use a GPU waits
    actions, _, _ = difference(document, seen, {}, (BOOT, DEVICE))
    return seen, [action for action in actions if action.part in PARTS]


def judged(document: Document, seen: Observed) -> List[Finding]:
    """The findings of both domains."""
    return [finding for domain in DOMAINS for finding in domain.findings(document, seen)]


def settled(host: Host, document: Document) -> None:
    """Wait for the GPU's module where it is being loaded right now."""
    gpu = document.get("gpu")
    state = f"/sys/module/{policy.MODULES.get(gpu['vendor'], '')}/initstate" if gpu else ""
    end = time.monotonic() + LOADING
    while state and (host.text(state) or "live").strip() == "coming" and time.monotonic() < end:
        time.sleep(0.5)

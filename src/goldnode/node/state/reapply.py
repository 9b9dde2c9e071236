"""Reapplication of volatile settings: everything that a boot or a driver reload resets.

Runs on the node, with the class document that is stored there.
"""

from __future__ import annotations

import time

from ..ground.errors import NodeError
from ..ground.host import Host
from . import preflight
from .apply import Applier, alone
from .domains import policy, tuning
from .engine import difference, observed
from .finding import Finding
from .model import BOOT, DEVICE, Action, Observed
from .observe import observe_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Tuple

    from ..ground.document import ClassDocument


PARTS = ("gpu_policy", "host_tuning")
DOMAINS = (policy, tuning)
# The kernel lists a module before its initialization is complete. With eight GPUs, that takes seconds.
LOADING = 60.0


def reapply(
    host: Host, document: ClassDocument, say: Callable[[str], None]
) -> Tuple[List[Action], List[Finding]]:
    """Reapply GPU policy and host tuning, as far as a running system loses them: phases `boot` and `device`.

    Files and links are left to site.yml. Return the applied changes, and the findings
    of both domains afterwards.

    :raises NodeError: if the node is not of the class, a value is out of range, or a setting fails.
    """
    with alone(host, 120):
        settled(host, document)
        applied: List[Action] = []
        seen, actions = outstanding(host, document)
        refusals = preflight.identity(document, seen)
        refusals += [
            refusal for domain in DOMAINS for refusal in domain.refusals(document, seen, actions)
        ]
        if refusals:
            raise NodeError(
                "refused before anything was touched: "
                + " ".join(refusal.line() for refusal in refusals)
            )
        for _ in range(2):  # the reset of a GPU for MIG clears its other settings
            applier = Applier(host, document, {}, say)
            applier.planned = actions
            for action in actions:
                say(action.line())
                applier.apply(action)
            applied += actions
            if not actions:
                break
            seen, actions = outstanding(host, document)
        findings = judged(document, seen)
        # MPS starts after this unit. The check runs even later and evaluates MPS then.
        if (seen.gpu_settings.get("mps") or {}).get("job"):
            findings = [finding for finding in findings if finding.id != "policy.sharing"]
        return applied, findings


def outstanding(host: Host, document: ClassDocument) -> Tuple[Observed, List[Action]]:
    """Return the observed state, and the actions of both parts that a running system needs."""
    seen = observed(host, document)
    if any(action.part in PARTS for action in difference(document, seen, {}, (BOOT, DEVICE))[0]):
        observe_use(host, document, seen)  # changes that would disturb GPU users must wait
    actions, _, _ = difference(document, seen, {}, (BOOT, DEVICE))
    return seen, [action for action in actions if action.part in PARTS]


def judged(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Return the findings of both domains."""
    return [finding for domain in DOMAINS for finding in domain.findings(document, seen)]


def settled(host: Host, document: ClassDocument) -> None:
    """Wait until the GPU's module has finished loading."""
    gpu = document.get("gpu")
    state = f"/sys/module/{policy.MODULES.get(gpu['vendor'], '')}/initstate" if gpu else ""
    end = time.monotonic() + LOADING
    while state and (host.text(state) or "live").strip() == "coming" and time.monotonic() < end:
        time.sleep(0.5)

"""The result of comparing one declared item with the observed value."""

from __future__ import annotations

from ..ground.text import phrase
from ..ground.typed import NamedTuple
from .kinds import HARDWARE, kind
from .model import Observed
from .remedy import ACKNOWLEDGE, GPU_RESET, POLICY, SITE, Remedy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple


MATCH, MISMATCH, NOT_EXPOSED, UNREAD, ELSEWHERE, DEFERRED, SUPPRESSED = (
    "match",
    "mismatch",
    "not_exposed",
    "could_not_read",
    "not_verified_here",
    # Cannot be checked while the GPU is idle, but nothing indicates a fault. The next
    # check under load decides.
    "deferred",
    # Differs, but a waiver gives the reason and the date until which that is accepted.
    "suppressed",
)
# Outcomes that never count against a node, independent of the severity. The gate and the
# trial of a kernel use this.
FINE = (MATCH, NOT_EXPOSED, ELSEWHERE, DEFERRED, SUPPRESSED)


class _Fields(NamedTuple):
    id: str
    outcome: str
    expected: Optional[str]
    got: Optional[str]
    remedy: Optional[Remedy] = None
    subject: Optional[str] = None
    evidence: Tuple[str, ...] = ()
    severity: str = ""
    blast: Optional[str] = None


class Finding(_Fields):
    """One declared item.

    `outcome` is one of those above. `subject` is the object concerned if that is not the whole node
    (a PCI address, an interface, a mount). `evidence` are the readings behind the outcome.
    `severity` (degraded or drain) is the effect of a mismatch on the node. Without it, the row of
    the id in :mod:`.kinds` gives it; LookupError if there is no row. `blast` is the blast radius of
    the remedy.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # mypy goes by the fields

        def __new__(cls, *values: Any, **named: Any) -> Finding:
            finding = super().__new__(cls, *values, **named)
            if finding.severity:
                return finding
            row = kind(finding.id)
            if row is None:
                raise LookupError(
                    f"{finding.id}: a finding without a row in goldnode/node/state/kinds.py"
                )
            return finding._replace(severity=row.severity)

    @property
    def domain(self) -> str:
        """Return the fault domain (:mod:`.kinds`): `hardware` for an id of another version, which blames no image."""
        row = kind(self.id)
        return HARDWARE if row is None else row.domain

    @property
    def steps(self) -> Tuple[str, ...]:
        """Return the steps of the remedy (:mod:`.remedy`)."""
        return self.remedy.steps if self.remedy is not None else ()


def judge_item(
    name: str,
    expected: Optional[str],
    got: Optional[str],
    remedy: Remedy,
    elsewhere: Optional[str] = None,
    *,
    severity: str = "",
) -> Finding:
    """Return a match or a mismatch, or not_verified_here for the reason `elsewhere`."""
    if elsewhere:
        return Finding(name, ELSEWHERE, expected, elsewhere, severity=severity)
    if expected == got:
        return Finding(name, MATCH, expected, got, severity=severity)
    return Finding(name, MISMATCH, expected, got, remedy, severity=severity)


def ordered(findings: List[Finding], sets_gpus: bool) -> List[Finding]:
    """Return the findings with remedies that do no harm when combined. Pure.

    Steps that must precede any restart come first in each remedy that restarts the node or a GPU,
    even if another finding requires them. A GPU reset clears the GPU's settings, which only a boot
    applies automatically. They are applied again after a reset.

    :param sets_gpus: True if the class declares GPU settings.
    """
    urgent = [
        item.remedy
        for item in findings
        if item.outcome == MISMATCH and item.remedy is not None and item.remedy.before
    ]
    return [item._replace(remedy=_in_order(item, urgent, sets_gpus)) for item in findings]


def _in_order(item: Finding, urgent: List[Remedy], sets_gpus: bool) -> Optional[Remedy]:
    remedy = item.remedy
    if remedy is None:
        return None
    text, steps = str(remedy), remedy.steps
    first = SITE if any(SITE in item.steps for item in urgent) else POLICY
    if urgent and remedy.restarts() and not remedy.before and steps[0] not in (SITE, first):
        how = "site.yml" if first == SITE else "`goldnode-node policy apply`, or site.yml"
        why = "; ".join(dict.fromkeys(str(item.before) for item in urgent))
        text, steps = (
            f"Run {how}, before any reboot or GPU reset: {why}. Then: {text}",
            (first, *steps),
        )
    if (
        sets_gpus
        and GPU_RESET in steps
        and not {POLICY, SITE} & set(steps[steps.index(GPU_RESET) :])
    ):
        after = steps.index(GPU_RESET) + 1
        text, steps = (
            f"{text} After a reset: `goldnode-node policy apply`.",
            (*steps[:after], POLICY, *steps[after:]),
        )
    if ACKNOWLEDGE in steps:
        head, ack, tail = text.partition("`goldnode-node ack")
        about = phrase(" --subject '{}'", item.subject)
        if ack:
            text = f"{head}{ack} --id {item.id}{about} --by … --reason …`{tail.partition('`')[2]}"
    return Remedy(text, *steps, before=remedy.before)


def place(seen: Observed) -> Optional[str]:
    """Return why kernel and devices cannot be checked from here, or None if they are this node's own."""
    if not seen.live:
        return "an image does not run"
    return "a container shows the kernel and devices of its host" if seen.container else None

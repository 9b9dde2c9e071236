"""judge(): judge a capture against its class, by a table of small functions that read and change nothing.

A rule returns None for an item that the class does not declare and this hardware does not have. An item that
was declared, by the class or by the facts of its GPU model, and has no value is never a match: it ends as
*not exposed*, *could not read* or *not verified here*. A rule that fails is *could not read*. Equal answers
for all GPUs are one finding. There is one finding per (id, subject).
"""

from __future__ import annotations

from ..ground.optional import optional
from ..probe.values import is_fault
from ..state.finding import DEFERRED, ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD, Finding
from ..state.kinds import NOTHING
from ..state.remedy import PERSON, Remedy
from . import hardware, host_rules, interrupts, links, rules
from .rules import Node, Rule, RuleResult, sanitized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

    from ..ground.document import ClassDocument

# Each of these modules enters its rules into the table when it is imported.
MODULES = (hardware, host_rules, interrupts, links)
TABLE: Tuple[Rule, ...] = tuple(rules.TABLE)
# The remedies of what could not be read and of what there is no way to read, unless the rule has a better one.
SILENT = {
    UNREAD: Remedy(
        "Run `goldnode-node capture`: it shows what could not be read, and why. Fix that, then check again.",
        PERSON,
    ),
    NOT_EXPOSED: Remedy(
        "This driver or kernel does not show what is declared: take another one, correct the class, or suppress it with a reason.",
        PERSON,
    ),
}


def judge(document: ClassDocument, capture: Mapping[str, Any], deltas: Any = None) -> List[Finding]:
    """Return the findings about a capture. Pure.

    :param deltas: the result of :func:`.deltas.step` for the stored state and this capture; None without a
        stored state.
    """
    node = Node(document, capture, deltas)
    findings = _sections(node)
    for entry in TABLE:
        if entry.each:
            findings += _each(node, entry)
        else:
            findings += [_finding(entry, result, result.subject) for result in _ask(node, entry)]
    once: Dict[Tuple[str, Optional[str]], Finding] = {}
    for finding in findings:
        key = (finding.id, finding.subject)
        if key not in once or rank(finding) > rank(once[key]):
            once[key] = finding
    return list(once.values())


def rank(finding: Finding) -> Tuple[int, bool]:
    """Return the weight of a finding against a node."""
    order = (MATCH, DEFERRED, ELSEWHERE, NOT_EXPOSED, UNREAD, MISMATCH)
    return (
        order.index(finding.outcome) if finding.outcome in order else len(order),
        finding.severity == "drain",
    )


def _sections(node: Node) -> List[Finding]:
    """Report a reader that failed completely: the values it would have read are unknown."""
    findings = []
    for name, value in sorted(node.capture.items()):
        # `gpu.library` reports the faults of these two, with the remedy of NVML's return code.
        if not is_fault(value) or name in ("gpu_error", "gpus"):
            continue
        section = sanitized(name, 40)
        result = node.absent(value, f"section {section}")
        if result is not None and result.outcome == UNREAD:
            remedy = Remedy("Run `goldnode-node capture` on the node.", PERSON)
            findings.append(
                Finding(f"capture.{section}", UNREAD, result.expected, result.got, remedy)
            )
    return findings


def _ask(node: Node, entry: Rule, *gpu: Any) -> List[RuleResult]:
    """Return the answers of a rule. A rule that fails answers *could not read*."""
    try:
        answer = entry.judge(node, *gpu)
        if answer is None:
            return []
        return [answer] if isinstance(answer, RuleResult) else list(answer)
    except Exception as problem:  # a capture of another make must not end the check, nor pass
        text = sanitized(f"the rule failed: {type(problem).__name__}: {problem}")
        return [RuleResult(UNREAD, "values of the schema", text)]


def _each(node: Node, entry: Rule) -> List[Finding]:
    """Apply a rule to all GPUs. Return one finding if all match, otherwise one for each that does not."""
    result = [
        (str(gpu.get("address")), answer) for gpu in node.gpus for answer in _ask(node, entry, gpu)
    ]
    # Hundreds of matches on a node with many GPUs hide what is wrong: equal ones are one finding.
    wrong = [
        _finding(entry, answer, address) for address, answer in result if answer.outcome != MATCH
    ]
    if wrong or not result:
        return wrong
    texts = list(dict.fromkeys(str(answer.expected) for _, answer in result))
    text = texts[0] if len(texts) == 1 else "as declared of each"
    number = f"{len(result)} GPUs" if len(result) > 1 else "1 GPU"
    return [Finding(entry.kind.id, MATCH, text, f"{text} on {number}")]


def _finding(entry: Rule, result: RuleResult, subject: Optional[str]) -> Finding:
    row = entry.kind
    severity = result.severity or row.severity
    if result.outcome == MATCH:
        return Finding(
            row.id, MATCH, result.expected, result.got, subject=subject, severity=severity
        )
    about = sanitized(subject, 80) if subject is not None else None
    remedy, blast = result.remedy or row.remedy, result.blast or row.blast
    if result.outcome in SILENT and result.remedy is None:
        # The remedy of a fault is no advice while it is unknown whether there is a fault.
        remedy, blast = SILENT[result.outcome], NOTHING
    return Finding(
        row.id,
        outcome=result.outcome,
        expected=optional(sanitized, result.expected),
        got=None if result.got is None else sanitized(result.got, 240),
        remedy=remedy.about(about or "the node") if remedy is not None else None,
        subject=about,
        evidence=tuple(sanitized(item, 200) for item in result.evidence),
        severity=severity,
        blast=blast,
    )

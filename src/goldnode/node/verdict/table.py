"""judge(): judge a capture against its class, by a table of small functions that read and change nothing.

A rule returns None for an item that the class does not declare and this hardware does not have. An item that
was declared, by the class or by the facts of its GPU model, and has no value is never a match: it ends as
*not exposed*, *could not read* or *not verified here*. A rule that fails is *could not read*. Equal answers
for all GPUs are one finding. There is one finding per (id, subject).
"""

from __future__ import annotations

from ..probe.values import is_fault
from ..state.finding import DEFERRED, ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD, Finding
from ..state.kinds import NOTHING
from ..state.remedy import PERSON, Remedy
from . import hardware, host_rules, links, rules
from .rules import Node, Rule, Said, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

# Each of these modules enters its rules into the table when it is imported.
MODULES = (hardware, host_rules, links)
TABLE: Tuple[Rule, ...] = tuple(rules.TABLE)
# The remedies of what could not be read and of what there is no way to read, unless the rule has a better one.
SILENT = {
    UNREAD: Remedy(
        "Fix the cause that `gpu.library` and `goldnode-node capture` report, then check again.", PERSON
    ),
    NOT_EXPOSED: Remedy(
        "This driver or kernel does not show what is declared: take another one, correct the class, or suppress it with a reason.",
        PERSON,
    ),
}


def judge(document: Mapping[str, Any], capture: Mapping[str, Any], deltas: Any = None) -> List[Finding]:
    """The findings about a capture. Pure.

    :param deltas: what :func:`.deltas.step` made of the kept state and this capture; None: nothing was kept.
    """
    node = Node(document, capture, deltas)
    found = _sections(node)
    for entry in TABLE:
        if entry.each:
            found += _each(node, entry)
        else:
            found += [_finding(entry, said, said.subject) for said in _ask(node, entry)]
    once: Dict[Tuple[str, Optional[str]], Finding] = {}
    for finding in found:
        key = (finding.id, finding.subject)
        if key not in once or rank(finding) > rank(once[key]):
            once[key] = finding
    return list(once.values())


def rank(finding: Finding) -> Tuple[int, bool]:
    """How much a finding says against a node."""
    order = (MATCH, DEFERRED, ELSEWHERE, NOT_EXPOSED, UNREAD, MISMATCH)
    return (
        order.index(finding.outcome) if finding.outcome in order else len(order),
        finding.severity == "drain",
    )


def _sections(node: Node) -> List[Finding]:
    """A reader that failed as a whole: what it would have said is not known."""
    found = []
    for name, value in sorted(node.capture.items()):
        if is_fault(value) and value.get("fault") != NOT_EXPOSED and name not in ("gpu_error", "gpus"):
            said = node.absent(value, f"section {plain(name, 40)}")
            if said is not None:
                found.append(
                    Finding(
                        f"capture.{plain(name, 40)}",
                        UNREAD,
                        said.expected,
                        said.got,
                        Remedy("Run `goldnode-node capture` on the node.", PERSON),
                    )
                )
    return found


def _ask(node: Node, entry: Rule, *gpu: Any) -> List[Said]:
    """Return the answers of a rule. A rule that fails answers *could not read*."""
    try:
        answer = entry.judge(node, *gpu)
        if answer is None:
            return []
        return [answer] if isinstance(answer, Said) else list(answer)
    except Exception as problem:  # a capture of another make must not end the check, nor pass
        return [
            Said(
                UNREAD, "values of the schema", plain(f"the rule failed: {type(problem).__name__}: {problem}")
            )
        ]


def _each(node: Node, entry: Rule) -> List[Finding]:
    """A rule on all GPUs: one finding where they all match, else one for each that does not."""
    said = [(str(gpu.get("address")), answer) for gpu in node.gpus for answer in _ask(node, entry, gpu)]
    wrong = [_finding(entry, answer, address) for address, answer in said if answer.outcome != MATCH]
    if wrong or not said:
        return wrong
    texts = list(dict.fromkeys(str(answer.expected) for _, answer in said))
    text = texts[0] if len(texts) == 1 else "as declared of each"
    return [Finding(entry.kind.id, MATCH, text, f"{text} on {len(said)} GPU{'s' if len(said) > 1 else ''}")]


def _finding(entry: Rule, said: Said, subject: Optional[str]) -> Finding:
    row = entry.kind
    severity = said.severity or row.severity
    if said.outcome == MATCH:
        return Finding(row.id, MATCH, said.expected, said.got, None, subject, severity=severity)
    about = plain(subject, 80) if subject is not None else None
    remedy, blast = said.remedy or row.remedy, said.blast or row.blast
    if said.outcome in SILENT and said.remedy is None:
        # The remedy of a fault is no advice while it is unknown whether there is a fault.
        remedy, blast = SILENT[said.outcome], NOTHING
    return Finding(
        row.id,
        said.outcome,
        None if said.expected is None else plain(said.expected),
        None if said.got is None else plain(said.got, 240),
        remedy.about(about or "the node") if remedy is not None else None,
        about,
        tuple(plain(item, 200) for item in said.evidence),
        severity,
        blast,
    )

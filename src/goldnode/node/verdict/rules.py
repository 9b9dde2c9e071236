"""The table of rules: registration of rules, their answers, and access to the values of a capture."""

from __future__ import annotations

from ..ground.json_lines import as_list as as_list
from ..ground.json_lines import as_map as as_map
from ..ground.typed import NamedTuple
from ..probe.values import is_fault
from ..state.finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD
from ..state.kinds import KINDS, Kind
from ..state.remedy import Remedy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import (
        Any,
        Callable,
        Dict,
        Iterable,
        List,
        Mapping,
        Optional,
        Tuple,
        TypeAlias,
        Union,
    )

    from ..ground.document import ClassDocument


Json: TypeAlias = "Dict[str, Any]"
# Sources that describe GPUs and no host.
PARTIAL = ("nvidia-smi-xml", "nvidia-smi-text")


BY_FACTS = "the facts of"  # how the source of a value begins that no class declares


class RuleResult(NamedTuple):
    """Answer of a rule about one subject. None for severity, remedy and blast: the rule's own."""

    outcome: str
    expected: Optional[str]
    got: Optional[str]
    evidence: Tuple[str, ...] = ()
    severity: Optional[str] = None
    remedy: Optional[Remedy] = None
    blast: Optional[str] = None
    subject: Optional[str] = None


Answer: TypeAlias = "Union[RuleResult, Iterable[RuleResult], None]"


class Rule(NamedTuple):
    """One rule: the row of its findings and its function."""

    kind: Kind
    judge: Callable[..., Answer]
    each: bool  # called once per GPU, not once per node


TABLE: List[Rule] = []


def _register(name: str, each: bool) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    row = KINDS.get(name)
    if row is None or row.remedy is None or row.blast is None:
        raise LookupError(
            f"{name}: the rule needs a row with remedy and blast radius in goldnode/node/state/kinds.py"
        )

    def enter(function: Callable[..., Answer]) -> Callable[..., Answer]:
        TABLE.append(Rule(row, function, each))
        return function

    return enter


def rule(name: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a function ``(node)``. In its remedy, SUBJECT is replaced by the subject of the finding."""
    return _register(name, each=False)


def gpu_rule(name: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a function ``(node, gpu)``, called once for each GPU that answers."""
    return _register(name, each=True)


def sanitized(value: Any, most: int = 160) -> str:
    """Return a text of a capture as one line without control characters.

    Captures come from other machines.
    """
    text = str(value)[: 4 * most]
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text)
    text = " ".join(text.split())
    if len(text) > most:
        text = text[: most - 1] + "…"
    return text


def ok(expected: Any, got: Any = None) -> RuleResult:
    """Return a match."""
    return RuleResult(MATCH, str(expected), str(expected if got is None else got))


def bad(
    expected: Any,
    got: Any,
    *evidence: str,
    severity: Optional[str] = None,
    remedy: Optional[Remedy] = None,
    blast: Optional[str] = None,
    subject: Optional[str] = None,
) -> RuleResult:
    """Return a mismatch."""
    return RuleResult(
        MISMATCH,
        expected=str(expected),
        got=str(got),
        evidence=evidence,
        severity=severity,
        remedy=remedy,
        blast=blast,
        subject=subject,
    )


def ok_if(
    good: Any,
    expected: Any,
    got: Any,
    *evidence: str,
    severity: Optional[str] = None,
    remedy: Optional[Remedy] = None,
    blast: Optional[str] = None,
) -> RuleResult:
    """Return a match if the value is good, otherwise a mismatch with what was read."""
    if good:
        return ok(expected)
    return bad(expected, got, *evidence, severity=severity, remedy=remedy, blast=blast)


def equal(expected: Any, got: Any, *evidence: str) -> RuleResult:
    """Return a match if both are equal, otherwise a mismatch."""
    return ok_if(expected == got, expected, got, *evidence)


def wrong_or_ok(wrong: List[RuleResult], seen: Any, expected: Any, got: Any = None) -> Answer:
    """Return what is wrong; without that a match, or None if nothing was seen that could be judged."""
    if wrong or not seen:
        return wrong or None
    return ok(expected, got)


def about(subject: str, result: Optional[RuleResult]) -> List[RuleResult]:
    """Return the result of one subject as a list; empty without a result."""
    return [] if result is None else [result._replace(subject=subject)]


def fetch(place: Any, path: str) -> Any:
    """Return the value at a dotted path, or the first fault on the way to it.

    None if a key is missing or its parent is not a mapping.
    """
    for key in path.split("."):
        if not isinstance(place, dict):
            return None
        if "fault" in place:
            return place
        place = place.get(key)
    return place


def is_guest(capture: Mapping[str, Any]) -> bool:
    """Return whether the capture is of a virtual machine."""
    return as_map(capture.get("identity")).get("virtual") not in (None, "none")


def is_number(value: Any) -> bool:
    """Return whether it is a number that can be compared: no flag, and not NaN."""
    # A flag is an int in Python, and NaN is the one value that differs from itself.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def number_of(value: Any) -> Any:
    """Return a number that can be compared, otherwise None."""
    return value if is_number(value) else None


def text_of(value: Any) -> Optional[str]:
    """Return a text, otherwise None."""
    return value if isinstance(value, str) else None


def shown(value: Any) -> str:
    """Return a value for a person: a flag as on or off."""
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def rows_of(value: Any) -> List[Json]:
    """Return the mappings of a list; empty without a list."""
    return [row for row in as_list(value) if isinstance(row, dict)]


class Node:
    """Input of the rules: the class document, the capture, and the changes of counters
    (:class:`.deltas.Deltas`).
    """

    def __init__(
        self, document: ClassDocument, capture: Mapping[str, Any], deltas: Any = None
    ) -> None:
        self.document = document
        self.capture = capture
        self.deltas = deltas
        health = as_map(document.get("health"))
        self.limits = as_map(health.get("limits"))
        self.facts = as_map(health.get("gpu"))
        self.models = as_map(health.get("models"))  # facts by PCI id, for a node without a class
        self.baseline = as_map(document.get("baseline") or health.get("baseline"))
        self.gpu_baseline = as_map(self.baseline.get("gpu"))
        self.overrides = {
            str(row.get("address")): row
            for row in as_list(self.gpu_baseline.get("overrides"))
            if isinstance(row, dict)
        }
        # One program's output does not describe the host.
        self.partial = capture.get("source") in PARTIAL
        identity = as_map(capture.get("identity"))
        self.container = bool(identity.get("container")) and not self.partial
        self.simulated = bool(capture.get("simulated"))
        self.declared = as_map(document.get("gpu"))
        self.vendor = self.declared.get("vendor")
        self.listed = rows_of(capture.get("gpus"))
        self.gpus = [
            row for row in self.listed if not is_fault(row) and row.get("lost") is not True
        ]
        self.pci = as_map(capture.get("pci"))
        self.uptime = number_of(capture.get("uptime"))

    def facts_of(self, gpu: Mapping[str, Any]) -> Json:
        """Return the facts of a GPU's model: those of the class, or without one of its PCI id."""
        return as_map(self.models.get(str(gpu.get("pci_id")))) or self.facts

    def limit(self, name: str, default: Any = None) -> Any:
        """Return a limit of the class document; `default` if the document of an older goldnode does not have
        it.
        """
        value = self.limits.get(name)
        return default if value is None else value

    def wants(self, gpu: Mapping[str, Any], name: str) -> Tuple[Any, Optional[str]]:
        """Return the expected value for a GPU and its origin: an override by address, the class's baseline,
        or the facts. (None, None) if there is none.
        """
        for row, why in self.sources(gpu):
            if row.get(name) not in (None, [], {}):
                return row[name], why
        return None, None

    def sources(self, gpu: Mapping[str, Any]) -> List[Tuple[Json, str]]:
        """Return what may state values of a GPU, with its name for a person: the most specific first."""
        row = self.overrides.get(str(gpu.get("address")), {})
        reason = self.gpu_baseline.get("reason")
        return [
            (row, f"by design here: {sanitized(row.get('reason'))}"),
            (
                self.gpu_baseline,
                f"by design: {sanitized(reason)}" if reason else "the class's baseline",
            ),
            (self.facts_of(gpu), f"{BY_FACTS} {self.declared.get('model')}"),
        ]

    def elsewhere(self) -> Optional[str]:
        """Return why the host around the GPUs cannot be judged from this capture; None if it can."""
        if self.partial:
            return "the output of nvidia-smi does not have it"
        if self.container:
            return "a container shows the hardware of its host"
        return None

    def absent(self, value: Any, expected: Optional[str]) -> Optional[RuleResult]:
        """Return the answer for a missing value; None if it was not declared and this node does not have it.

        :param expected: the value that the class or the facts state, otherwise None.
        """
        missing = value is None or (is_fault(value) and value.get("fault") == NOT_EXPOSED)
        if missing and expected is None:
            return None
        if value is None:
            outcome = ELSEWHERE if self.partial else UNREAD
            return RuleResult(outcome, expected, "not in this capture")
        if is_fault(value):
            text = sanitized(value.get("text"))
            if is_number(value.get("rc")):
                text += f" (return code {value['rc']})"
        else:
            text = f"not understood: {sanitized(repr(value), 60)}"
        outcome = NOT_EXPOSED if missing else UNREAD
        return RuleResult(outcome, expected or "something that can be read", text)

    def number(
        self, place: Any, path: str, expected: Optional[str] = None
    ) -> Tuple[Any, Optional[RuleResult]]:
        """Return the number at a path, or the answer if there is none."""
        value = fetch(place, path)
        return (value, None) if is_number(value) else (None, self.absent(value, expected))

    def flag(
        self, place: Any, path: str, expected: Optional[str] = None
    ) -> Tuple[Optional[bool], Optional[RuleResult]]:
        """Return the flag at a path, or the answer if there is none."""
        value = fetch(place, path)
        return (value, None) if isinstance(value, bool) else (None, self.absent(value, expected))

    def section(self, name: str, expected: str) -> Tuple[Json, Optional[RuleResult]]:
        """Return a section for which the class has declarations, or the result if it cannot be judged."""
        here = self.elsewhere()
        if here:
            return {}, RuleResult(ELSEWHERE, expected, here)
        value = self.capture.get(name)
        if isinstance(value, dict) and not is_fault(value):
            return value, None
        return {}, self.absent(value, expected)

    def counted(self, *key: str) -> Any:
        """Return the change of a counter (:class:`.deltas.Delta`); None if it was not read."""
        return self.deltas.of(*key) if self.deltas is not None else None

    def faster(self, most: Any, *key: str) -> Any:
        """Return the change of a counter that grows by more than `most` a minute; otherwise None."""
        delta = self.counted(*key)
        if not most or delta is None or delta.per_minute is None or delta.per_minute <= most:
            return None
        return delta

    def day(self, *key: str) -> float:
        """Return by how much a counter of corrected errors has grown within a day; 0 if that is unknown."""
        delta = self.counted(*key)
        return (delta.day if delta is not None else None) or 0.0

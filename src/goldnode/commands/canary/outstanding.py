"""Tests before a return over ssh: deliver results to the gate of a node, and run what is outstanding there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.core.errors import GoldnodeError
from goldnode.node.gate.return_tests import CAUSES
from goldnode.node.ground.optional import optional

if TYPE_CHECKING:
    from goldnode.canary.session import CanaryRun
    from goldnode.canary.suite import CanaryClass, Suite
    from goldnode.documents.canary import CanaryDocument
    from goldnode.documents.return_tests import ReturnTestsDocument
    from goldnode.fleet.nodes.return_delivery import HeldNode

COHORT_JOB = "cohort_all_reduce"


@dataclass(frozen=True)
class NodeOutcome:
    """Result of the suite on a node: the document and its file, or the error.

    `tests`: what the gate of the node wants since then; None if it was not asked. `undelivered`: why it was not.
    """

    node: str
    document: CanaryDocument | None = None
    file: Path | None = None
    error: GoldnodeError | None = None
    tests: ReturnTestsDocument | None = None
    undelivered: GoldnodeError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the outcome for the document of the command."""
        fields: dict[str, Any] = {
            "node": self.node,
            "file": optional(str, self.file),
            "result": self.document.model_dump(by_alias=True) if self.document else None,
            "error": optional(str, self.error),
        }
        # Runs that ask no gate have neither key in their document.
        if self.tests is not None or self.undelivered is not None:
            fields["tests"] = (
                self.tests.model_dump(by_alias=True) if self.tests is not None else None
            )
            fields["undelivered"] = optional(str, self.undelivered)
        return fields

    @property
    def held(self) -> bool:
        """Return whether the gate of the node still wants tests, or that is not known."""
        if self.undelivered is not None:
            return True
        return self.tests is not None and any(row.outstanding for row in self.tests.causes)

    @property
    def idle(self) -> bool:
        """Return whether the node had nothing to run."""
        return self.document is None and self.error is None and self.tests is not None

    @property
    def settled(self) -> bool:
        """Return whether a person has nothing to do: no test is outstanding, nothing ran, and the gate is open."""
        return self.idle and not self.held and self.tests is not None and self.tests.open

    def lines(self) -> list[str]:
        """Return what became of the tests, for a person."""
        from goldnode.fleet.nodes.return_delivery import summary  # start-up time: it loads pydantic

        if self.undelivered is not None:
            return [f"{self.node}: the results did not reach its gate: {self.undelivered}"]
        return summary(self.node, self.tests) if self.tests is not None else []


def delivered(node: HeldNode, outcome: NodeOutcome) -> NodeOutcome:
    """Deliver the result of a run to the gate of the node."""
    if outcome.document is None:
        return outcome
    try:
        return replace(outcome, tests=node.deliver([outcome.document]))
    except GoldnodeError as problem:
        return replace(outcome, undelivered=problem)


def deliver_stored(
    node: HeldNode, read: Callable[[str], Iterable[CanaryDocument]]
) -> ReturnTestsDocument:
    """Deliver the stored results of a node that may end its tests. Raises GoldnodeError."""
    from goldnode.fleet.nodes.return_delivery import fitting, outstanding

    tests = node.ask()
    if not outstanding(tests):
        return tests
    stored = fitting(read(node.name), tests)
    # Nothing to send saves a second connection.
    return node.deliver(stored) if stored else tests


@dataclass
class OutstandingRuns:
    """Runs of exactly those jobs that the gates of nodes want.

    `start` makes the run of a node from a request, `execute` runs it and stores its result. `class_of` returns the parts of
    a class for the suite.
    """

    suite: Suite
    read: Callable[[str], Iterable[CanaryDocument]]
    start: Callable[[str, Mapping[str, Any]], CanaryRun]
    execute: Callable[[CanaryRun], NodeOutcome]
    class_of: Callable[[str], CanaryClass]
    tier: str
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # classes are compiled by one thread at a time

    def run(self, node: HeldNode) -> NodeOutcome:
        """Deliver stored results, run what is outstanding then, and deliver that."""
        from goldnode.canary import suite as suites
        from goldnode.fleet.nodes.return_delivery import outstanding

        try:
            tests = deliver_stored(node, self.read)
            # A single node cannot run it.
            jobs = tuple(job for job in outstanding(tests) if job != COHORT_JOB)
            if len(jobs) < len(outstanding(tests)):
                self.say(
                    f"{node.name}: {COHORT_JOB} runs over several nodes: `goldnode canary cohort`"
                )
            if not jobs:
                return NodeOutcome(node.name, tests=tests)
            with self._lock:
                class_ = self.class_of(tests.class_)
            request = suites.request(self.suite, jobs, class_=class_, tier=self.tier)
            outcome = self.execute(self.start(node.name, request))
        except GoldnodeError as problem:
            return NodeOutcome(node.name, error=problem)
        done = delivered(node, outcome)
        # Without an answer after the delivery, the earlier one still shows what the gate wants.
        return replace(done, tests=done.tests or tests)


def declaring_hosts(inventory: Mapping[str, Any]) -> list[str]:
    """Return the hosts of an inventory whose class declares tests that the gate enforces. Raises GoldnodeError."""
    from goldnode.classdoc.cache import ClassDocuments
    from goldnode.inventory.listing import hosts_of_group

    documents = ClassDocuments()
    known: dict[str, set[str]] = {}
    hosts: set[str] = set()
    for name in documents.names():
        if any(documents.return_tests(name, cause) for cause in CAUSES):
            hosts |= hosts_of_group(name, dict(inventory), known)
    return sorted(hosts)

"""Active tests before a node returns to service: the class names canary jobs, and their results decide.

Only results count that began after the node was taken out of service, and that are of its latest boot. No result is no pass.
:func:`goldnode.node.gate.return_tests.unmet` is that rule, for the gate on the node too, which enforces the causes other than rollouts.
Every return of a node that a run has drained asks here: rollouts (push and channel), site.yml, rollback.yml, disks update.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from goldnode.canary import results
from goldnode.catalog.models import NodeClass
from goldnode.classdoc.cache import ClassDocuments
from goldnode.core.errors import GoldnodeError
from goldnode.core.file_cache import FileCache
from goldnode.documents.canary import CanaryDocument
from goldnode.documents.gate import GateDocument
from goldnode.fleet.drain.command import CommandDrainer
from goldnode.fleet.drain.protocol import DrainCaller, Drainer, SchedulerDrainer
from goldnode.fleet.drain.record import DrainRecords, FoundRecords
from goldnode.node.gate.return_tests import unmet

Cause = Literal["repair", "xid", "rollout", "absence"]
CAUSES: tuple[Cause, ...] = ("repair", "xid", "rollout", "absence")
Results = Callable[[str], Iterable[CanaryDocument]]
DAY = 86400.0  # seconds


def jobs_of(class_: NodeClass, cause: Cause) -> tuple[str, ...]:
    """Return the jobs that must pass before a node of a class returns after `cause`."""
    declared = class_.return_tests
    if declared is None:
        return ()
    jobs: list[str] = getattr(declared, f"after_{cause}")
    return tuple(jobs)


def stored(directory: Path) -> Results:
    """Return the reader of the results of a node: in its own directory, and files that lie directly in `directory`.

    A controller asks again and again, so a file that has not changed is read once, and those of
    other nodes not at all.
    """
    cache = FileCache(results.load)

    def read(node: str) -> Iterable[CanaryDocument]:
        if not directory.is_dir():
            return
        own = results.folder_of(node, directory)
        flat = sorted(path for path in directory.glob("*.json") if not path.name.startswith("."))
        for path in (*results.files([own] if own.is_dir() else []), *flat):
            document = cache.get(path)
            if document.node == node:
                yield document

    return read


@dataclass(frozen=True)
class OutstandingTests:
    """The jobs that must pass after one cause, and the results of nodes."""

    cause: Cause
    jobs: Sequence[str]
    read: Results
    class_: str = "CLASS"

    def outstanding(self, node: str, since: str, boot: str | None = None) -> str:
        """Return why a node must not return yet; empty if all jobs have passed.

        :param since: UTC, as in results; the time at which the node was taken out of service, or changed.
        :param boot: the kernel's id of the node's present boot, where the caller can read it.
        """
        if not self.jobs:
            return ""
        try:
            documents = [document for document in self.read(node) if document.started >= since]
        except (GoldnodeError, OSError) as problem:
            return f"the results of its tests cannot be read: {problem}"
        wrong = [item.text() for item in unmet(self.jobs, map(_result, documents), since, boot)]
        if not wrong:
            return ""
        command = f"goldnode canary run {node} --how ssh -i INVENTORY --class {self.class_} --before-return {self.cause}"
        return f"tests before its return: {'; '.join(wrong)}. Run `{command}`"


def held_by_gate(text: str) -> str:
    """Return why the gate of a node does not let it return, by the state of the gate; empty if it wants no tests.

    :param text: the file on the node. One that cannot be read shows no pass.
    """
    try:
        tests = GateDocument.model_validate_json(text).tests
    except ValidationError:
        tests = None
    if tests is None:
        return "its gate does not show which tests it wants. Run `goldnode-node check` on it"
    held = [
        f"({row.cause}) {'; '.join(row.outstanding)}" for row in tests.causes if row.outstanding
    ]
    if not held:
        return ""
    return f"its gate wants tests before its return: {', '.join(held)}. Run `goldnode canary run --outstanding -i INVENTORY`"


def of_class(name: str, cause: Cause) -> OutstandingTests:
    """Return the tests that a class of this site wants, by the results in .goldnode/canary. Raises GoldnodeError."""
    jobs = ClassDocuments().return_tests(name, cause)
    return OutstandingTests(cause, jobs, stored(results.DIRECTORY), name)


def drained_at(
    drainer: Drainer,
    node: str,
    records: DrainRecords | None,
    clock: Callable[[], float] = time.time,
) -> str | None:
    """Return when a run took a node out of service, in UTC as in results.

    None if no run holds it: its return changes nothing, so no test is asked. A command without a
    record cannot show the time; then it is a day ago.
    """
    if isinstance(drainer, SchedulerDrainer):
        held = drainer.state_of(node).held
        return held.time if held is not None else None
    if not isinstance(drainer, CommandDrainer):
        return None  # without a scheduler the node was never out of service
    stored = records.read() if records is not None else FoundRecords()
    record = stored.node or stored.local
    if record is None:
        return DrainCaller(clock=lambda: clock() - DAY).now()
    return None if record.in_service is False else record.since


def _result(document: CanaryDocument) -> dict[str, Any]:
    """Return a document as the rule for results reads it, without its samples."""
    jobs = [{"name": job.name, "state": job.state, "why": job.why} for job in document.jobs]
    return {"started": document.started, "boot_id": document.boot_id, "jobs": jobs}

"""Results of the canary suite for the gate of a node, which holds the node until its tests have passed.

A controller asks the node over ssh which tests are outstanding, and sends it the results of its
present boot. The node validates and judges them (`goldnode-node return-tests`): the answer is the
node's, never the controller's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from goldnode.core.errors import GoldnodeError
from goldnode.documents.canary import CanaryDocument
from goldnode.documents.return_tests import ReturnTestsDocument
from goldnode.fleet.nodes.reach import REACH, SshNode, last_line
from goldnode.node.ground.host import PROGRAM

TIME = 180.0  # seconds for one call: a check of the node, with its calls of the scheduler
MOST = 32  # results of one call
SAMPLES = 4 << 20  # bytes of one call, far below what a node reads


@dataclass(frozen=True)
class HeldNode:
    """A node whose gate holds it for tests, by the name of the inventory. `reach` raises GoldnodeError without ssh."""

    name: str
    reach: Callable[[], SshNode]

    def ask(self) -> ReturnTestsDocument:
        """Return the tests of the node. Raises GoldnodeError."""
        return self._call()

    def deliver(self, documents: Sequence[CanaryDocument]) -> ReturnTestsDocument:
        """Send results, and return the tests after the node has judged itself again. Raises GoldnodeError."""
        rows = [without_samples(document) for document in documents[-MOST:]]
        data = json.dumps(rows).encode()
        if len(data) > SAMPLES:
            raise GoldnodeError(
                f"{self.name}: its results have {len(data)} bytes",
                remedy="run the jobs again, and deliver these",
            )
        return self._call("--results", "--node", self.name, stdin=data)

    def _call(self, *words: str, stdin: bytes | None = None) -> ReturnTestsDocument:
        done = self.reach().run(
            PROGRAM, "return-tests", "--format", "json", *words, stdin=stdin, timeout=TIME
        )
        try:
            return ReturnTestsDocument.model_validate_json(done.stdout)
        except ValidationError as problem:
            shown = last_line(done.stderr)
            if done.returncode == 255:
                raise GoldnodeError(
                    f"{self.name}: {shown or 'ssh failed'}", remedy=REACH
                ) from problem
            # No program, none that can be executed, or one from before this command.
            if done.returncode in (126, 127) or "invalid choice" in shown:
                raise GoldnodeError(
                    f"{self.name} has no goldnode-node with tests before a return",
                    remedy=f"run `ansible-playbook site.yml --limit {self.name}`",
                ) from problem
            first = problem.errors()[0]
            shown = shown or f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise GoldnodeError(
                f"{self.name}: its tests cannot be read: {shown}",
                remedy=f"run `goldnode-node return-tests` on {self.name} as root",
            ) from problem


def without_samples(document: CanaryDocument) -> dict[str, object]:
    """Return a document without the samples of its jobs, which the node does not read."""
    content = document.model_dump(by_alias=True)
    for job in content["jobs"]:
        job["metrics"], job["facts"] = [], {}
    return content


def fitting(
    documents: Iterable[CanaryDocument], tests: ReturnTestsDocument
) -> list[CanaryDocument]:
    """Return the results that may end an outstanding test of a node, by their time."""
    since = [row.since for row in tests.causes if row.outstanding and row.since is not None]
    of_this_boot = [
        document
        for document in documents
        if since and document.started >= min(since) and document.boot_id == tests.boot_id
    ]
    return sorted(of_this_boot, key=lambda document: document.started)


def outstanding(tests: ReturnTestsDocument) -> list[str]:
    """Return the names of the outstanding jobs of all causes, each once."""
    return list(dict.fromkeys(job for row in tests.causes for job in row.missing))


def summary(name: str, tests: ReturnTestsDocument) -> list[str]:
    """Return what became of a node, line by line."""
    shown = [f"{name}: refused: {text}" for text in tests.refused]
    shown += [f"{name}: unknown: {text}" for text in tests.unknown]
    simulated = " (simulated hardware)" if tests.simulated else ""
    held = [
        f"{name} stays out of service ({row.cause}): {'; '.join(row.outstanding)}"
        for row in tests.causes
        if row.outstanding
    ]
    if held:
        return shown + held
    if tests.error:
        return [
            *shown,
            f"{name}: no test is outstanding, but its gate could not act: {tests.error}",
        ]
    if not tests.open:
        return [
            *shown,
            f"{name}: no test is outstanding; its gate is closed: {'; '.join(tests.reasons)}",
        ]
    if tests.drained is not None:
        return [*shown, f"{name}: no test is outstanding; it is still drained, see its scheduler"]
    return [*shown, f"{name}: no test is outstanding, and its gate is open{simulated}"]

"""Controllers as processes: nodes in a file that all of them see, and one clock that runs fast.

The nodes are simulated. Processes, signals and the PostgreSQL between them are real.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.unit.fleet.control.controlled import LIMITS, START
from tests.unit.fleet.rollout import documents

from goldnode.fleet.control.controller import ControllerParts, ControllerSettings, RolloutController
from goldnode.fleet.rollout.document import loads
from goldnode.fleet.rollout.model import (
    Answer,
    Direction,
    NodeObservation,
    SchedulerObservation,
    StepPhase,
)
from goldnode.fleet.rollout.parts import NodeTask, Observation
from goldnode.fleet.shared.identity import rollout_run
from goldnode.fleet.store import controllers, database, log, nodes, observations, status, tables
from goldnode.fleet.store.controllers import Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.nodes import StoredNode
from goldnode.node.ground import drained

SPEED = 60.0  # simulated seconds in a second
QUIET = 60.0  # simulated seconds after which another controller takes over
STOPPED = 3  # seconds after which the server ends the transaction of a stopped process


@dataclass(frozen=True)
class SharedNodes:
    """The nodes, in a file of SQLite, with each deed on them."""

    path: str
    began: float  # of the clock

    def now(self) -> float:
        return START + (time.time() - self.began) * SPEED

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        connection.row_factory = sqlite3.Row
        try:
            yield connection
        finally:
            connection.close()

    def create(self, names: Iterable[str]) -> None:
        with self.opened() as connection:
            connection.execute(
                "CREATE TABLE node (name PRIMARY KEY, digest, boots, in_service, reason)"
            )
            connection.execute("CREATE TABLE deed (at, holder, node, deed, attempt)")
            connection.executemany(
                "INSERT INTO node VALUES (?, ?, 1, 1, '')",
                [(name, documents.OLD) for name in names],
            )

    def seen(self, names: Iterable[str] | None = None) -> list[SchedulerObservation]:
        at, wanted = self.now(), None if names is None else set(names)
        with self.opened() as connection:
            return [
                SchedulerObservation(row["name"], at, bool(row["in_service"]), 0.0, row["reason"])
                for row in connection.execute("SELECT * FROM node")
                if wanted is None or row["name"] in wanted
            ]

    def deeds(self) -> list[tuple[str, str, str, int]]:
        with self.opened() as connection:
            query = "SELECT holder, node, deed, attempt FROM deed ORDER BY rowid"
            return [tuple(row) for row in connection.execute(query)]


class SharedWorker:
    """Takes a moment for each task, then does it, whatever another process has done since."""

    def __init__(self, shared: SharedNodes, holder: str, run: str) -> None:
        self.shared, self.holder, self.run = shared, holder, run
        self.under_way: dict[NodeTask, float] = {}
        self.random = random.Random(holder)  # noqa: S311 - delays

    def work(self, tasks: Collection[NodeTask]) -> None:
        now = time.monotonic()
        self.under_way = {
            task: self.under_way.get(task, now + self.random.uniform(0.1, 0.5)) for task in tasks
        }

    def results(self) -> list[Observation]:
        found: list[Observation] = []
        for task, due in self.under_way.items():
            if time.monotonic() >= due:
                with self.shared.opened() as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    found += self._do(connection, task)
                    connection.execute("COMMIT")
        return found

    def _do(self, connection: sqlite3.Connection, task: NodeTask) -> Iterator[Observation]:
        row = connection.execute("SELECT * FROM node WHERE name = ?", (task.node,)).fetchone()
        at = self.shared.now()
        deed = ""
        if task.phase is StepPhase.GRANTED and row["in_service"]:
            deed = "drained"
            mark = drained.reason(self.run, "c", "2026-11-02T08:00:00Z", "rollout")
            connection.execute(
                "UPDATE node SET in_service = 0, reason = ? WHERE name = ?", (mark, task.node)
            )
        elif task.phase is StepPhase.APPLYING:
            wanted = (
                documents.NEW if task.direction is Direction.FORWARD else str(task.prior.digest)
            )
            if row["in_service"]:
                return  # a node that serves is not changed
            if row["digest"] != wanted or f"boot-{row['boots']}" == task.prior.boot_id:
                deed = "applied"
                connection.execute(
                    "UPDATE node SET digest = ?, boots = boots + 1 WHERE name = ?",
                    (wanted, task.node),
                )
            row = connection.execute("SELECT * FROM node WHERE name = ?", (task.node,)).fetchone()
            yield NodeObservation(
                task.node, at, f"boot-{row['boots']}", row["digest"], Answer.PASSES
            )
        elif task.phase is StepPhase.RETURNING and not row["in_service"]:
            held = drained.mark(row["reason"])
            if held is not None and held.run == self.run:
                deed = "returned"
                connection.execute(
                    "UPDATE node SET in_service = 1, reason = '' WHERE name = ?", (task.node,)
                )
        if deed:
            values = (at, self.holder, task.node, deed, task.attempt)
            connection.execute("INSERT INTO deed VALUES (?, ?, ?, ?, ?)", values)
        row = connection.execute("SELECT * FROM node WHERE name = ?", (task.node,)).fetchone()
        yield SchedulerObservation(task.node, at, bool(row["in_service"]), 0.0, row["reason"])

    def close(self) -> None:
        self.under_way = {}


class SharedScheduler:
    """Reads the state of all nodes."""

    def __init__(self, shared: SharedNodes) -> None:
        self.shared = shared

    def asks(self, name: str) -> bool:
        return True

    def read(self, names: Iterable[str]) -> list[SchedulerObservation]:
        return self.shared.seen(names)


def control(address: str, text: str, shared: SharedNodes, holder: str, log: str) -> None:
    """Be a controller until the rollout has ended."""
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(message)s")
    database._STOPPED_SECONDS = STOPPED
    settings = loads(text).settings
    store = StoreDatabase(address)
    own = ControllerSettings(holder, scheduler=20.0, quiet=QUIET, clock=shared.now)
    worker = SharedWorker(shared, holder, rollout_run(settings.name))
    controller = RolloutController(
        store, settings, ControllerParts(worker, SharedScheduler(shared)), own
    )
    while True:
        report = controller.tick()
        if report.problem:
            logging.warning("problem: %s", report.problem)
        if report.ended:
            break
        time.sleep(0.05)
    controller.close()
    store.close()


def submitted(address: str, text: str, shared: SharedNodes, count: int) -> None:
    """Submit a rollout over `count` nodes to a migrated store, with everything observed once."""
    settings = loads(text).settings
    names = [f"n{number:02}" for number in range(count)]
    shared.create(names)
    store = StoreDatabase(address)
    stored = [
        StoredNode(name, settings.class_, f"r{place % 6}", f"l{place % 2}")
        for place, name in enumerate(names)
    ]
    given = Submission(
        settings.name,
        node_class=settings.class_,
        target=settings.target,
        document=text,
        limits=LIMITS,
        author="alice@c",
    )
    store.run(lambda c: nodes.put(c, stored, {}, "test", START))
    store.run(lambda c: controllers.submit(c, given, START))
    first: list[NodeObservation | SchedulerObservation] = [*shared.seen()]
    first += [
        NodeObservation(name, START, "boot-1", documents.OLD, Answer.PASSES) for name in names
    ]
    store.run(lambda c: observations.record(c, first, "test"))
    store.close()


class ControllerProcesses:
    """Processes that control one rollout. Signals stop and continue them."""

    def __init__(
        self, address: str, text: str, shared: SharedNodes, count: int, logs: Path
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.logs = [logs / f"controller-{number}.log" for number in range(count)]
        self.processes = [
            context.Process(
                target=control, args=(address, text, shared, f"m{number}/1", str(log)), daemon=True
            )
            for number, log in enumerate(self.logs)
        ]
        for process in self.processes:
            process.start()

    def signal(self, number: int, kind: signal.Signals) -> None:
        """Send a signal to one process."""
        pid = self.processes[number].pid
        if pid is not None and self.processes[number].is_alive():
            os.kill(pid, kind)

    def close(self) -> None:
        """End all processes."""
        for number, process in enumerate(self.processes):
            self.signal(number, signal.SIGCONT)
            process.kill()
            process.join()

    def problems(self) -> list[str]:
        """Return what the controllers reported."""
        return [
            line
            for log in self.logs
            if log.exists()
            for line in log.read_text().splitlines()
            if "problem: " in line
        ]


def described(store: StoreDatabase, shared: SharedNodes, processes: ControllerProcesses) -> str:
    """Return what the store, the nodes and the controllers say of a rollout that has not finished."""
    with store.read() as connection:
        found = status.status(connection)
        actions = Counter(row["action"] for row in log.entries(connection))
        alarms = connection.execute(tables.log.select().where(tables.log.c.action == "Alarm")).all()
        steps = connection.execute(tables.step.select()).all()
    fields = ("name", "phase", "wave", "epoch", "holder", "why")
    parts = {
        "rollouts": [{name: one[name] for name in fields} for one in found["rollouts"]],
        "freezes": [one["reason"] for one in found["freezes"]],
        "alarms": [json.loads(row.content)["text"] for row in alarms],
        "holds": [
            (one["node"], one["owner"], one["kind"], one["reason"]) for one in found["holds"]
        ],
        "steps": dict(Counter(f"{row.direction} {row.phase}" for row in steps)),
        "out of service": {item.node: item.reason for item in shared.seen() if not item.in_service},
        "log": dict(actions),
        "exit codes": [process.exitcode for process in processes.processes],
        "problems": processes.problems()[-5:],
    }
    return "\n".join(f"{name}: {value}" for name, value in parts.items())


def audit_log(rows: Iterable[object]) -> list[str]:
    """Return the violations in the log of a rollout: lines of an old epoch, grants that were made twice."""
    epoch, found = 0, []
    granted: set[tuple[str, int]] = set()
    for row in rows:
        kind, line_epoch = row["action"], row["epoch"]  # type: ignore[index]
        content = json.loads(row["content"])  # type: ignore[index]
        if kind == "TakeOver":
            epoch = line_epoch
        elif line_epoch is not None and line_epoch != epoch:
            found.append(f"line {row['seq']} of epoch {line_epoch} under epoch {epoch}: {content}")  # type: ignore[index]
        if kind == "Grant":
            key = (content["node"], content["attempt"])
            if key in granted:
                found.append(f"granted twice: {key}")
            granted.add(key)
    return found

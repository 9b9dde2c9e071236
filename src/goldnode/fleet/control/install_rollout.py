"""The parts of a controller for a rollout that installs its nodes again: drained, installed from the network, judged, returned.

The image of a build comes from a channel of the published directory that points to it: the target of the rollout, and for the way
back the state from which it moves. A node that has the wanted build, and has booted since, needs no installation.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from goldnode.core.errors import GoldnodeError
from goldnode.disks.netboot import InstallAgain
from goldnode.fleet.control.reinstall import Reinstaller, ReinstallError
from goldnode.fleet.nodes.reach import SshNode
from goldnode.fleet.rollout import node_state
from goldnode.fleet.rollout.model import Answer, Direction, NodeObservation, StepPhase
from goldnode.fleet.rollout.parts import NodeTask, NodeWorker, Observation
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.text import clean

LOGGER = logging.getLogger("goldnode.rollout")
# Seconds until a node is read again, or an installation is tried again that failed for another reason than the node.
AGAIN = 60.0
JUDGED = 1800.0  # seconds from the installed node to its verdict
POLL = 10.0
_IMAGE = "/usr/lib/goldnode/disk/image.json"
_READ = f"{node_state.READ}\necho '--- image'; cat {_IMAGE} 2>/dev/null"


@dataclass(frozen=True)
class InstallReader:
    """A NodeReader over ssh: the build that a node runs, its boot and its verdict."""

    reach: Callable[[str], SshNode]
    clock: Callable[[], float] = time.time
    parallel: int = 16

    def read(self, names: Iterable[str]) -> list[NodeObservation]:
        """See NodeReader."""
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="read") as threads:
            return [seen for seen in threads.map(self.one, names) if seen is not None]

    def one(self, name: str) -> NodeObservation | None:
        """Return what a node reports now; None while it does not answer."""
        at = self.clock()
        done = self.reach(name).run("sh", "-c", _READ, timeout=60)
        if done.returncode == 255:
            return None
        text, _, image = done.stdout.decode("utf-8", "replace").rpartition("--- image\n")
        try:
            build = as_dict(json.loads(image)).get("build_id")
        except ValueError:
            build = None
        seen = node_state.observe(name, at, node_state.read(text))
        return replace(seen, digest=build if isinstance(build, str) else None)


@dataclass
class _Installation:
    """An installation that a task wants."""

    task: NodeTask
    due: float = 0.0
    running: Future[NodeObservation] | None = None
    refused: str | None = None  # why it ended without the build; it is not tried again


@dataclass
class InstallWorker:
    """A NodeWorker that installs nodes again.

    :param target: the build that the rollout moves to.
    :param channels: returns build -> the channel that points to it now.
    :param others: drains nodes and returns them; it gets no task to apply.
    """

    rollout: str
    node_class: str
    target: str
    channels: Callable[[], Mapping[str, str]]
    installer: Reinstaller
    reader: InstallReader
    others: NodeWorker
    parallel: int = 8
    clock: Callable[[], float] = time.time
    _wanted: dict[tuple[str, Direction, int], _Installation] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _pool: ThreadPoolExecutor | None = None

    def __post_init__(self) -> None:
        self.installer = replace(self.installer, stopped=self._stop.is_set)

    def work(self, tasks: Collection[NodeTask]) -> None:
        """See NodeWorker. An installation that has begun goes on by itself; its result is dropped."""
        self.others.work([task for task in tasks if task.phase is not StepPhase.APPLYING])
        keys = {
            (task.node, task.direction, task.attempt): task
            for task in tasks
            if task.phase is StepPhase.APPLYING
        }
        self._wanted = {
            key: self._wanted.get(key) or _Installation(task) for key, task in keys.items()
        }
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.parallel, thread_name_prefix="install")
        for wanted in self._wanted.values():
            if wanted.running is None and not wanted.refused and self.clock() >= wanted.due:
                wanted.running = self._pool.submit(self._install, wanted.task)

    def results(self) -> list[Observation]:
        """See NodeWorker.

        A result is repeated for as long as the controller has its task: the controller may have lost it with the store, or have
        found it too old to count.
        """
        observed: list[Observation] = []
        for wanted in self._wanted.values():
            name = wanted.task.node
            if wanted.running is not None and wanted.running.done():
                running, wanted.running = wanted.running, None
                wanted.due = self.clock() + AGAIN
                try:
                    observed.append(running.result())
                except ReinstallError as problem:  # the node itself, or its installer, has refused
                    wanted.refused, wanted.due = clean(problem.message)[:300], 0.0
                except GoldnodeError as problem:
                    LOGGER.warning("%s: %s", name, problem)
                except Exception:  # a program of the site must not end the controller
                    LOGGER.exception("%s: the installation failed", name)
            if wanted.refused and self.clock() >= wanted.due:
                wanted.due = self.clock() + AGAIN
                observed.append(NodeObservation(name, self.clock(), not_applied=wanted.refused))
        return [*observed, *self.others.results()]

    def close(self) -> None:
        """See NodeWorker."""
        self._stop.set()
        self._wanted = {}
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self.others.close()

    def _install(self, task: NodeTask) -> NodeObservation:
        forward = task.direction is Direction.FORWARD
        build = self.target if forward else task.prior.digest or ""
        seen = self.reader.one(task.node)
        if not _has(seen, build, task):
            channel = self.channels().get(build)
            if channel is None:
                raise ReinstallError(f"no channel of {self.node_class} points to build {build}")
            self.installer.check(task.node, self.node_class, channel)
            way = f"{task.direction.value} {task.attempt}"
            said = self.installer.install(
                InstallAgain(task.node, f"rollout {self.rollout} {way}", channel)
            )
            LOGGER.info("%s: %s", task.node, said)
        return self._judged(task, build)

    def _judged(self, task: NodeTask, build: str) -> NodeObservation:
        """Return the node once its check has judged the new boot."""
        end = self.installer.clock() + JUDGED
        while True:
            seen = self.reader.one(task.node)
            if seen is not None and _has(seen, build, task) and seen.verdict is not Answer.UNKNOWN:
                return seen
            if self.installer.clock() > end or self._stop.is_set():
                raise GoldnodeError(f"{task.node} has no verdict of {build} yet")
            self.installer.sleep(POLL)


def _has(seen: NodeObservation | None, build: str, task: NodeTask) -> bool:
    """Return whether a node runs a build, in another boot than before its step."""
    return (
        seen is not None and seen.digest == build and seen.boot_id not in (None, task.prior.boot_id)
    )

"""Silences of an Alertmanager for nodes that a rollout or a repair has drained, until they return or have failed.

A drain does not silence: the node still runs jobs, whose alerts count. A step that ends, well or not,
ends its silence with it, so a node that comes back broken alerts. Each silence has the deadline of its
step, or of its repair, as its end, and is gone by then whatever happens to the controller.

The Alertmanager is asked what it has, and only silences with the own author, comment and
matcher are changed. One that a person has made or edited is none of them.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import and_, select

from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, SiteHookAlertmanager
from goldnode.fleet.events.hooks import EventHookError, alertmanager
from goldnode.fleet.store import repairs, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.log import LogLine, append
from goldnode.fleet.store.rollouts import SILENCE
from goldnode.fleet.store.status import HELD_PHASES

LOGGER = logging.getLogger("goldnode.rollout")
_EVERY = 60.0  # seconds between two comparisons, where no step has changed
_NEAR = 1.0  # seconds between two ends that are the same


@dataclass(frozen=True)
class NodeSilence:
    """A silence that is wanted: one label of one node, until the deadline of its step."""

    node: str
    label: str
    until: float

    @property
    def matcher(self) -> dict[str, Any]:
        """Return the matcher. Alertmanager anchors regular expressions at both ends."""
        value = f"{re.escape(self.node)}(:[0-9]+)?"
        return {"name": self.label, "value": value, "isRegex": True, "isEqual": True}


@dataclass
class NodeSilences:
    """The silences of one rollout in each Alertmanager of the site."""

    store: StoreDatabase
    rollout: str
    holder: str
    hooks: Mapping[str, SiteHookAlertmanager]
    resolve: Callable[[str], Path]
    clock: Callable[[], float] = time.time
    _due: float = 0.0
    _last: dict[tuple[str, str], float] = field(
        default_factory=dict
    )  # hook and node -> end in the log
    _problems: dict[str, str] = field(default_factory=dict)
    _one: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "silences"), repr=False
    )
    _running: Future[None] | None = None

    @property
    def author(self) -> str:
        """Return the author of silences by which they are recognised."""
        return f"goldnode rollout {self.rollout}"

    def comment(self, node: str) -> str:
        """Return the comment of the silences of a node."""
        return f"goldnode: rollout {self.rollout} changes {node}; removed when the node returns or has failed"

    def wake(self, changed: bool) -> None:
        """Compare in the background, if a step may have changed or some time has passed. Never waits."""
        now = time.monotonic()
        if self._running is not None and not self._running.done():
            self._due = 0.0 if changed else self._due
        elif changed or now >= self._due:
            self._due = now + _EVERY
            self._running = self._one.submit(self.update)

    def close(self) -> None:
        """Begin nothing more. Silences of nodes in flight stay until their ends, or for the next controller."""
        self._one.shutdown(wait=False, cancel_futures=True)

    def update(self) -> None:
        """Make, extend and remove silences. An Alertmanager that does not answer is logged, and asked again later."""
        try:
            held = self._held()
        except GoldnodeError as problem:
            LOGGER.error("silences: %s", problem)
            return
        for name, hook in self.hooks.items():
            try:
                self._compare(name, hook, held)
            except GoldnodeError as problem:
                if self._problems.get(name) != str(problem):
                    LOGGER.error("silences of hook %s: %s", name, problem)
                self._problems[name] = str(problem)
            else:
                self._problems.pop(name, None)

    def _held(self) -> dict[str, float]:
        """Return the nodes that the rollout has drained and changes, each with the deadline of its step."""
        step, hold = tables.step, tables.hold
        query = (
            select(step.c.node, step.c.deadline)
            .join(hold, and_(hold.c.node == step.c.node, hold.c.owner == step.c.rollout))
            .where(
                step.c.rollout == self.rollout,
                step.c.phase.in_(HELD_PHASES),
                hold.c.kind == "planned",
            )
        )
        with self.store.read() as connection:
            return {row.node: row.deadline for row in connection.execute(query)}

    def _compare(self, name: str, hook: SiteHookAlertmanager, held: Mapping[str, float]) -> None:
        now = self.clock()
        wanted = {
            (node, label): NodeSilence(node, label, until)
            for node, until in held.items()
            for label in hook.silence
            if until > now
        }
        present: dict[tuple[str, str], dict[str, Any]] = {}
        over = []
        for key, item in self._own(hook):
            if key in wanted and key not in present:
                present[key] = item
            else:
                over.append((key[0], item["id"]))
        missing = [
            (silence, present.get(key))
            for key, silence in wanted.items()
            if key not in present or abs(_seconds(present[key]["endsAt"]) - silence.until) > _NEAR
        ]
        for node in sorted({node for node, _ in over}):
            self._record(name, node, until=0.0)
        for node, until in sorted({(silence.node, silence.until) for silence, _ in missing}):
            self._record(name, node, until=until)
        for _, id_ in over:
            alertmanager(hook, "DELETE", f"silence/{id_}", self.resolve)
        for silence, before in missing:
            content = {
                "matchers": [silence.matcher],
                "startsAt": before["startsAt"] if before else _text(now),
                "endsAt": _text(silence.until),
                "createdBy": self.author,
                "comment": self.comment(silence.node),
            }
            if before is not None:
                content["id"] = before["id"]
            alertmanager(hook, "POST", "silences", self.resolve, content)

    @property
    def stream(self) -> str | None:
        """Return the rollout whose log gets the lines; None for the log of the store."""
        return self.rollout

    def _own(self, hook: SiteHookAlertmanager) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
        """Yield the silences in force that this rollout has made, each with its node and label."""
        answer = alertmanager(hook, "GET", "silences", self.resolve)
        try:
            rows = json.loads(answer)
            items = [one for one in rows if one["status"]["state"] in ("active", "pending")]
            known = [(one, one["createdBy"], one["comment"], one["matchers"]) for one in items]
        except (ValueError, KeyError, TypeError) as problem:
            raise EventHookError(f"{hook.url} has no list of silences: {problem!r}") from problem
        begin, end = self.comment("\0").split("\0")
        for one, author, comment, matchers in known:
            if author != self.author or not (comment.startswith(begin) and comment.endswith(end)):
                continue
            node = comment[len(begin) : len(comment) - len(end)]
            label = matchers[0]["name"] if len(matchers) == 1 else ""
            if matchers == [NodeSilence(node, label, 0.0).matcher]:
                yield (node, label), one

    def _record(self, hook: str, node: str, until: float) -> None:
        """Write to the log what follows; 0: the silences end. An attempt that is repeated has no further line."""
        if self._last.get((hook, node)) == until:
            return
        content = {"action": SILENCE, "node": node, "hook": hook, "until": until, "on": until > 0}
        line = LogLine(
            self.clock(),
            who=self.holder,
            action=SILENCE,
            subject=node,
            content=content,
            rollout=self.stream,
        )
        self.store.run(lambda connection: append(connection, line))
        self._last[hook, node] = until


class RepairSilences(NodeSilences):
    """The silences of nodes that the ladder has out of service, until they return or have a ticket."""

    @property
    def author(self) -> str:
        """See NodeSilences."""
        return "goldnode repairs"

    @property
    def stream(self) -> str | None:
        """See NodeSilences. The log of the ladder has its transitions only: they are its state."""
        return None

    def comment(self, node: str) -> str:
        """See NodeSilences."""
        return f"goldnode: {node} is repaired; removed when it returns or has a ticket"

    def _held(self) -> dict[str, float]:
        with self.store.read() as connection:
            return repairs.silenced(connection)


def silences_of(site: Site, store: StoreDatabase, rollout: str, holder: str) -> NodeSilences | None:
    """Return the silences of a rollout; None where no Alertmanager of the site declares labels of nodes."""
    hooks = _hooks(site)
    return NodeSilences(store, rollout, holder, hooks, site.resolve) if hooks else None


def silences_of_repairs(site: Site, store: StoreDatabase, holder: str) -> RepairSilences | None:
    """Return the silences of repairs; None where no Alertmanager of the site declares labels of nodes."""
    hooks = _hooks(site)
    return RepairSilences(store, "", holder, hooks, site.resolve) if hooks else None


def _hooks(site: Site) -> dict[str, SiteHookAlertmanager]:
    return {
        name: hook.alertmanager
        for name, hook in site.events.hooks.items()
        if hook.alertmanager is not None and hook.alertmanager.silence
    }


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

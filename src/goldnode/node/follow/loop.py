"""One pass of `follow`: read the channel, and take the one step that this node can take now.

A node starts nothing without leave. It has leave from the first yes of the lock service until that says that
it has not. The node records in STATE what it begins, before it begins. Each pass continues from there and from what
the node runs, so a pass may be cut off at any point.

* The channel is away, refused or expired: nothing starts. A node with a step goes on asking and reporting.
* The lock service is away: nothing starts and nothing stops. The node keeps its slot and reports again.

A node is in one :class:`FollowState`. Each arrow is a method of :class:`Follower`, with what has to hold for it::

              begin: the channel wants a state, it is proved and
              staged, the service gives leave, no GPU is in use
    STEADY ─────────────────────────────────────────────────▶ BEGUN
      ▲ ▲                                                    │  │ ▲
      │ └──────────── resume: the rollout was stopped ───────┤  └─┘ resume: it waits
      │                                                      │
      │ conclude: the service says that        apply: the    │ apply: the state is in place
      │ the node has no slot any more          state fails   │
      │                                            ┌─────────┤
      │                                            ▼         ▼
      └───────────────────────────────────────── ENDED ◀── APPLIED
                                                        a boot

An arrow whose condition does not hold is a postponement: the pass reports why it waits, and the timer tries again. The
node counts no tries, because only the rollout ends a step.
"""

from __future__ import annotations

import json
import time
from enum import Enum

from ..ground.errors import NodeError
from ..ground.host import Host
from ..ground.typed import NamedTuple
from . import channel, evidence
from .channel import Wish
from .lockservice import PRE_REBOOT, REPORT, STEADY_STATE
from .machine import FELL_BACK, PROGRAM, NotAppliedError
from .repository import ChannelAwayError, ChannelTooLongError
from .settings import STEP
from .trust import ChannelRefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from ..ground.host import Json
    from .lockservice import LockAnswer, LockClient
    from .machine import Machine, Observation
    from .settings import Settings
    from .trust import Trusted, Verifier

FILE = STEP
SCHEMA = "goldnode.follow-step/1"
APPLYING, RETURNING = "applying", "returning"  # phases of a step


class Outcome(NamedTuple):
    """Result of a pass: one line for a person, and whether the channel or this node needs one."""

    text: str
    problem: bool = False


class FollowState(Enum):
    """Where a node is on its way to a state. It follows from the record of its step and from what runs."""

    STEADY = "no step has begun"
    BEGUN = "a step has begun, and what it applies is not in place"
    APPLIED = "the state is in place, and has not booted"
    ENDED = "the state has booted or could not be applied, and the service does not know it yet"


class FollowStep(NamedTuple):
    """The record of a step: the wanted state, the boot before, why it failed, and whether it is applied."""

    wish: Wish
    boot_id: Optional[str]
    failed: Optional[str] = None
    applied: bool = False

    def state(self, seen: Observation) -> FollowState:
        """Return the state of a node that has this record and runs what was observed."""
        booted = seen.boot_id != self.boot_id
        # A pass may be cut off between the last write of the new state and the record of it.
        if self.failed or (booted and (self.applied or seen.digest == self.wish.digest)):
            return FollowState.ENDED
        return FollowState.APPLIED if self.applied else FollowState.BEGUN


class Follower:
    """A node that follows a channel. `run` is one pass."""

    def __init__(
        self,
        host: Host,
        settings: Settings,
        verifier: Verifier,
        service: LockClient,
        machine: Machine,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.host, self.settings, self.verifier = host, settings, verifier
        self.service, self.machine, self.clock = service, machine, clock
        self.trusted: Optional[Trusted] = None

    def run(self) -> Outcome:
        """Take the step that the node can take now. Raises NodeError for faults of this node."""
        document, why, bad = None, "", False
        try:
            document = self.document()
        except ChannelAwayError as problem:
            why = str(problem)
        except (ChannelRefusedError, ChannelTooLongError) as problem:
            why, bad = str(problem), True
        try:
            outcome = self._pass(document)
        except ChannelAwayError as problem:
            outcome = Outcome(f"nothing is started or stopped: {problem}")
        return Outcome(f"{why} {outcome.text}".strip(), bad or outcome.problem)

    def document(self) -> Json:
        """Return the verified document of the node's class. Raises ChannelRefusedError, or ChannelAwayError."""
        trusted = self.trusted = self.verifier.refresh()
        node_class = self.settings.node_class
        name = f"orders/{node_class}.json"
        released_apart = self.verifier.find(trusted, name) is not None
        if (
            not released_apart
        ):  # a channel of goldnode before the roles were apart: targets has the orders too
            name = f"{node_class}.json"
        data = self.verifier.target(trusted, name)
        if data is None:
            raise ChannelRefusedError(
                f"the channel {self.settings.channel} has no class {node_class}: "
                "add the nodes of the class to the store, and publish again."
            )
        document = channel.read(data, node_class)
        if released_apart:
            document["images"] = self._released(trusted, document)
        return document

    def _released(self, trusted: Trusted, document: Json) -> Json:
        """Return the image of what the node shall move to. Raises ChannelRefusedError unless that was released.

        Orders are signed online. They choose among the states that the offline keys of `targets` have signed.
        """
        wanted = channel.wish(document, self.settings.node, self.clock())
        if wanted is None:
            return {}
        place = f"{self.settings.node_class}/{wanted.digest}"
        name = f"images/{place}.root.gz"
        image = self.verifier.find(trusted, name)
        if image is not None:
            return {wanted.digest: channel.image(trusted.path_of(name, image), image)}
        if self.verifier.find(trusted, f"states/{place}") is None:
            raise ChannelRefusedError(
                f"rollout {wanted.rollout} is to {wanted.digest}, which the keys of targets have not released: refused. "
                "Release it with `goldnode rollout publish --targets-key`."
            )
        return {}

    def _pass(self, document: Optional[Json]) -> Outcome:
        step = self._step()
        seen = self.machine.observe(step.wish if step else None)
        wanted = None
        if document is not None:
            wanted = channel.wish(document, self.settings.node, self.clock())
        # Another wish takes the place of a step that has begun.
        if step is not None and wanted in (None, step.wish):
            state = step.state(seen)
            if state is FollowState.ENDED:
                return self._conclude(step, seen)
            if state is FollowState.APPLIED:
                return self._boot(step.wish)
            return self._resume(document, step, seen)
        if document is not None and wanted is not None and not _is_there(wanted, seen):
            return self._begin(document, wanted, seen)
        self._report(seen, wanted.rollout if wanted else None)
        return Outcome("nothing is started." if document is None else _idle(document, wanted))

    # Transitions

    def _begin(self, document: Json, wanted: Wish, seen: Observation) -> Outcome:
        """STEADY to BEGUN: stage a state and ask for leave; with leave, apply it."""
        takes_reports = self._report(seen, wanted.rollout)
        if wanted.kind != self.machine.kind:
            return Outcome(
                f"rollout {wanted.rollout} is to a {wanted.kind}, and {self.machine.why}",
                problem=True,
            )
        denied = channel.denial(document, wanted)
        frozen = channel.freeze(document, self.settings.node)
        # In a freeze, only a service that tells old leave from new leave may be asked.
        if denied or (frozen and not takes_reports):
            return Outcome(f"waits: {denied or frozen}")
        if not seen.settled:
            return Outcome("waits: the image that runs is still tried")
        unproved = evidence.refusal(self.host, self.settings, document, wanted, self.clock())
        if unproved:
            return Outcome(f"waits: {unproved}", problem=True)
        missing = self._staged(document, wanted)
        if missing:
            return Outcome(f"waits: {missing}", problem=True)
        answer = self._leave(wanted, seen)
        waits = _waits(answer, wanted) or (frozen if answer.phase != APPLYING else None)
        if waits:
            return Outcome(f"waits: {waits}")
        return self._apply(document, wanted, seen)

    def _resume(self, document: Optional[Json], step: FollowStep, seen: Observation) -> Outcome:
        """BEGUN to BEGUN: a pass was cut off while it applied, and the node runs the state before."""
        self._report(seen, step.wish.rollout)
        if document is None:
            return Outcome("what was begun waits, and the node keeps its slot")
        answer = self._leave(step.wish, seen)
        denied = channel.denial(document, step.wish)
        waits = denied or _waits(answer, step.wish) or self._staged(document, step.wish)
        if waits:
            if answer.yes and answer.phase == RETURNING:
                self._forget()  # the rollout was stopped: the node stays as it is
            return Outcome(f"was cut off, and waits: {waits}", problem=True)
        return self._apply(document, step.wish, seen)

    def _apply(self, document: Json, wanted: Wish, seen: Observation) -> Outcome:
        """BEGUN to APPLIED and a boot, or to ENDED if the state cannot be applied. The node has leave."""
        used = self.machine.in_use()
        if used:
            return Outcome(f"has leave, and waits: a GPU is in use by {used}")
        step = FollowStep(wanted, seen.boot_id)
        self._store(step)  # before anything changes: without the record a cut would hide the slot
        program = None
        if wanted.kind == "disk" and self.trusted is not None:
            program = self.verifier.target(self.trusted, PROGRAM)
        try:
            if wanted.digest != seen.digest:
                self.machine.apply(document, wanted, program)
        except NotAppliedError as problem:
            step = step._replace(failed=str(problem))
            self._store(step)
            return self._conclude(step, seen)
        self._store(step._replace(applied=True))
        return self._boot(wanted)

    def _boot(self, wanted: Wish) -> Outcome:
        """APPLIED to ENDED: boot. A pass that was cut off before, or during the shutdown, does it again."""
        self.machine.reboot()
        return Outcome(f"boots {wanted.digest}")

    def _conclude(self, step: FollowStep, seen: Observation) -> Outcome:
        """ENDED to STEADY: report the result until the service says that the node has no slot any more."""
        if not step.failed and not seen.settled:
            return Outcome("the image that runs is still tried")
        if not step.failed and seen.digest != step.wish.digest:
            # It was applied and has booted, and another state runs.
            software = seen.software if seen.fell_back_from else [FELL_BACK, *seen.software]
            seen = seen._replace(fell_back_from=step.wish.digest, software=software)
        more: Dict[str, Any] = {**seen.fields(), "rollout": step.wish.rollout}
        what = f"runs {seen.digest}, {seen.verdict}"
        if seen.fell_back_from:
            what = f"fell back from {seen.fell_back_from}"
        if step.failed:
            what = step.failed
            # The verdict judges the state before, and not the one that failed.
            more.update(not_applied=step.failed, verdict=None, software=None, hardware=None)
        answer = self.service.ask(STEADY_STATE, more)
        if not answer.yes:
            return Outcome(f"{what}; keeps its slot: {answer.why or answer.kind}", problem=True)
        if answer.phase:
            return Outcome(f"{what}; keeps its slot while the rollout judges it ({answer.phase})")
        self._forget()
        return Outcome(f"{what}; its step has ended")

    # Questions

    def _report(self, seen: Observation, rollout: Optional[str]) -> bool:
        """Report what the node runs. Return whether the service takes reports: other FleetLock servers do not."""
        try:
            return self.service.ask(REPORT, {**seen.fields(), "rollout": rollout}).yes
        except ChannelAwayError:
            return False

    def _staged(self, document: Json, wanted: Wish) -> Optional[str]:
        """Return why a state cannot be applied yet; None if it can, or if the node runs it."""
        if wanted.digest == self.machine.observe(None).digest:
            return None
        return self.machine.stage(document, wanted)

    def _leave(self, wanted: Wish, seen: Observation) -> LockAnswer:
        more = {
            "rollout": wanted.rollout,
            "wants": wanted.digest if wanted.direction == channel.FORWARD else None,
            "digest": seen.digest,
            "boot_id": seen.boot_id,
            "granted_only": True,  # order, windows and cohorts are the controller's; other servers ignore this
        }
        return self.service.ask(PRE_REBOOT, more)

    # The record

    def _step(self) -> Optional[FollowStep]:
        """Return the step that was begun. A damaged file is an error: the node may have a slot."""
        text = self.host.text(FILE)
        if text is None:
            return None
        try:
            stored = json.loads(text)
            if stored["schema"] != SCHEMA:
                raise ValueError
            wanted = Wish(*(str(stored[name]) for name in Wish._fields))
            return FollowStep(wanted, stored["boot_id"], stored["failed"], bool(stored["applied"]))
        except (ValueError, KeyError, TypeError):
            raise NodeError(
                f"{FILE} is damaged, so it is unknown whether this node has a slot. Compare `goldnode fleet status`, "
                "then remove the file."
            ) from None

    def _store(self, step: FollowStep) -> None:
        content = {"schema": SCHEMA, **step._asdict(), **step.wish._asdict()}
        del content["wish"]
        self.host.write(FILE, (json.dumps(content, sort_keys=True) + "\n").encode())

    def _forget(self) -> None:
        self.host.remove(FILE)


def _is_there(wanted: Wish, seen: Observation) -> bool:
    """Return whether nothing is left to do. On the way back the rollout wants another boot in any case."""
    return wanted.direction == channel.FORWARD and wanted.digest == seen.digest


def _waits(answer: LockAnswer, wanted: Wish) -> Optional[str]:
    """Return why an answer is no leave to begin; None if it is."""
    if not answer.yes:
        return answer.why or answer.kind
    if answer.phase is None and answer.target is None:
        return None  # another FleetLock server, which knows no steps
    if answer.phase != APPLYING:
        return f"has a slot; the rollout's step is {answer.phase}"
    if answer.target != wanted.digest:
        return f"the step is to {answer.target}, and the channel wants {wanted.digest}"
    return None


def _idle(document: Json, wanted: Optional[Wish]) -> str:
    if wanted is not None:
        return f"is at {wanted.digest}, as rollout {wanted.rollout} wants"
    return f"nothing to do: {channel.lines(document)[0]}"

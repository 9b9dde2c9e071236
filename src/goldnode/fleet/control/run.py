"""Run the controller of a rollout until the rollout ends, and report what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from goldnode.fleet.control.controller import ControllerReport, RolloutController
from goldnode.fleet.rollout.lines import action_sentence
from goldnode.fleet.rollout.model import RolloutPhase, Wait
from goldnode.fleet.store import rollouts
from goldnode.fleet.store.errors import StoreUnavailableError

_STANDBY = "another controller has this rollout; this one waits to take over"


@dataclass
class RolloutRun:
    """Ticks of one controller.

    `tell` gets one line for each action, and one whenever the reasons to wait have changed. `stop`
    ends the run after the present tick: nodes stay where they are, and the next controller
    continues.
    """

    controller: RolloutController
    tell: Callable[[str], None]
    stay: bool = False  # go on after the end, for deferred nodes
    stop: threading.Event = field(default_factory=threading.Event)
    _told: object = None  # the reasons to wait that were printed last

    def run(self) -> RolloutPhase | None:
        """Return the phase in which the rollout ended; None if the run was stopped before."""
        ended = None
        try:
            while not self.stop.is_set():
                report = self.controller.tick()
                self._report(report)
                ended = report.phase if report.ended else None
                # The holder may have ended the rollout while this controller waited.
                if not report.holds and not report.problem:
                    ended = self._ended_elsewhere()
                if ended is not None and not self.stay:
                    return ended
                # Actions have consequences: decide again at once, but leave room for a signal.
                self.stop.wait(0.05 if report.actions else self.controller.own.tick)
            return ended
        finally:
            self.controller.close()

    def _report(self, report: ControllerReport) -> None:
        waves = [wave.name for wave in self.controller.settings.waves]
        for action in report.actions:
            text = action_sentence(action, waves)
            if text is not None:
                self.tell(text)
        known: object = report.problem or {
            (wait.subject, wait.reason, wait.owner) for wait in report.waits
        }
        lines = [report.problem] if report.problem else waiting(report.waits)
        if not report.holds and not report.problem:
            known = _STANDBY
            lines = [_STANDBY]
        if known and known != self._told:
            for line in lines:
                self.tell(line)
        self._told = known or self._told

    def _ended_elsewhere(self) -> RolloutPhase | None:
        """Return the phase of a rollout that another controller has brought to its end."""
        controller = self.controller
        try:
            with controller.store.read() as connection:
                return rollouts.ended(connection, controller.settings.name)
        # A controller that waits must outlive the failover of the store.
        except StoreUnavailableError:
            return None


def waiting(waits: Sequence[Wait]) -> list[str]:
    """Return the reasons to wait, one line each, with the end of the wait in local time where it is known."""
    lines = []
    for wait in waits:
        until = ""
        if wait.until is not None:
            until = f" until {datetime.fromtimestamp(wait.until, UTC).astimezone():%a %H:%M}"
        owner = "" if wait.owner == "goldnode" else f" ({wait.owner})"
        lines.append(f"waits{until}: {wait.subject}: {wait.reason}{owner}")
    return list(dict.fromkeys(lines))

"""The time of a controller: it never goes back, also where the clock of the machine does.

The state of a rollout has times: an observation counts for a step if it is newer than the step's
last change. After the machine's clock was set back, no observation would be newer until the clock
has caught up. So a controller takes up the time where the store has it. While its machine is
behind, its time passes at half the speed: waits and deadlines still end, and the two meet again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SPEED = 0.5  # while the clock of the machine is behind


class SteadyClock:
    """A clock that all parts of a controller share. Several threads may call it.

    :param machine: the clock of the machine, in seconds since the epoch.
    :param elapsed: a clock that is never set.
    """

    def __init__(
        self,
        machine: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self.machine, self._elapsed = machine, elapsed
        self._lock = threading.Lock()
        self._last, self._at = machine(), elapsed()

    def __call__(self) -> float:
        """Return the time."""
        with self._lock:
            now, at = self.machine(), self._elapsed()
            self._last = max(
                now, self._last + (_SPEED * (at - self._at) if now < self._last else 0.0)
            )
            self._at = at
            return self._last

    def follow(self, at: float) -> None:
        """Go on from a time that the store has, if it is later."""
        self()
        with self._lock:
            self._last = max(self._last, at)

    def behind(self) -> float:
        """Return the seconds by which the clock of the machine is behind this one."""
        return max(0.0, self() - self.machine())


def machine_time(clock: Callable[[], float]) -> float:
    """Return the time of the machine: for windows, and for marks that others read."""
    return clock.machine() if isinstance(clock, SteadyClock) else clock()


def behind(clock: Callable[[], float]) -> float:
    """Return the seconds by which the clock of the machine is behind `clock`; 0 for the clock of the machine itself."""
    return clock.behind() if isinstance(clock, SteadyClock) else 0.0

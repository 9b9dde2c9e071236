"""Waiting for dpkg's lock: what counts is that the plan found it free, not that it was free once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from goldnode.node.ground.host import Host
from goldnode.node.state import engine
from goldnode.node.state.model import Plan, Refusal

FREE = Plan(
    (),
    refusals=(),
    notes=(),
    waiting=(),
    reboot=(),
    class_digest="sha256:0",
    boot_identity="boot",
    state="present",
)
LOCKED = Plan(
    (),
    refusals=(Refusal("dpkg-locked", "", ""),),
    notes=(),
    waiting=(),
    reboot=(),
    class_digest="sha256:0",
    boot_identity="boot",
    state="present",
)
OTHER = Plan(
    (),
    refusals=(Refusal("gpu-in-use", "", ""),),
    notes=(),
    waiting=(),
    reboot=(),
    class_digest="sha256:0",
    boot_identity="boot",
    state="present",
)

# What the plans find, one after the other; who holds the lock between them; the seconds allowed; how many plans are made.
WAITS: dict[str, tuple[list[Plan], list[str | None], float, int]] = {
    "free at once": ([FREE], [], 120, 1),
    "free after a while": ([LOCKED, FREE], ["7 (apt)", "7 (apt)", None], 120, 2),
    "free for a moment, then taken by the same run's next call": (
        [LOCKED, LOCKED, FREE],
        [None, "8 (dpkg)", None],
        120,
        3,
    ),
    "refused for something else": ([OTHER], [], 120, 1),
    "nobody waits": ([LOCKED], ["7 (apt)"], 0, 1),
    "never free": ([LOCKED, LOCKED], ["7 (apt)"] * 9, 2, 2),
}


@pytest.mark.parametrize("case", WAITS)
def test_a_plan_waits_until_it_finds_the_lock_free(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    plans, holders, seconds, made = WAITS[case]
    found, held, clock = iter(plans), iter(holders), [0.0]
    monkeypatch.setattr(
        engine,
        "time",
        SimpleNamespace(
            monotonic=lambda: clock[0], sleep=lambda length: clock.__setitem__(0, clock[0] + length)
        ),
    )
    monkeypatch.setattr(engine, "dpkg_lock_holder", lambda host: next(held))
    asked: list[Plan] = []

    def now() -> Plan:
        asked.append(next(found))
        return asked[-1]

    shown: list[str] = []
    assert engine.unlocked(Host("/"), seconds, now, shown.append) is plans[-1]
    assert len(asked) == made
    # A person who watches learns once who is waited for, and for how long at most.
    waited = [holder for holder in holders if holder is not None] if seconds else []
    line = f"waiting up to {seconds:.0f} s for dpkg's lock, held by process {(waited or [''])[0]}"
    assert shown == [line] * bool(waited)

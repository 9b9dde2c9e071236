"""Generated sequences of calls against a model of the ledger, on a real SQLite."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.unit.fleet.store.fleets import ALICE, CLASS, NEW, NOW, fill, take_hold, wish

from goldnode.fleet.store import controllers, grants, orders
from goldnode.fleet.store.backup import check_counters
from goldnode.fleet.store.controllers import Controller, Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import GrantRefusedError, StaleEpochError, StoreError
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.orders import Scope

NODES, RACKS = 8, 3
_NUMBER = st.integers(0, NODES - 1)
_LIMIT = st.integers(1, 4)


class LedgerMachine(RuleBasedStateMachine):
    """The store and a model of it: which node has which holds, and which limits apply."""

    template: Path

    @initialize(planned=_LIMIT, failed=_LIMIT, total=_LIMIT, rack=st.integers(1, 2))
    def start(self, planned: int, failed: int, total: int, rack: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.store = StoreDatabase(str(shutil.copy(self.template, self.directory / "fleet.db")))
        self.holds: dict[int, dict[str, str]] = {number: {} for number in range(NODES)}
        self.frozen: set[tuple[str, str]] = set()
        self.now = NOW
        self.epoch = 0
        self.limit(planned, failed, total, rack)

    @rule(planned=_LIMIT, failed=_LIMIT, total=_LIMIT, rack=st.integers(1, 2))
    def limit(self, planned: int, failed: int, total: int, rack: int) -> None:
        self.limits = (planned, failed, total, rack)
        fill(
            self.store,
            NODES,
            FleetLimits(str(planned), str(failed), str(total), {"rack": rack}),
            racks=RACKS,
        )

    @rule(number=_NUMBER)
    def grant(self, number: int) -> None:
        expected = self.may_go(number)
        try:
            self.store.run(lambda c: grants.grant(c, wish(number, now=self.now)))
            granted = True
        except GrantRefusedError:
            granted = False
        assert granted == (expected or self.holds[number].get("lock") == "planned")
        if granted:
            self.holds[number]["lock"] = "planned"

    @rule(number=_NUMBER)
    def give_back(self, number: int) -> None:
        answer = self.store.run(
            lambda c: grants.give_back(c, wish(number, now=self.now, boot_id="b1"))
        )
        planned = self.holds[number].get("lock") == "planned"
        assert answer.released == planned
        assert (answer.refusal is not None) == (
            not planned and "failed" in self.holds[number].values()
        )
        if answer.released:
            del self.holds[number]["lock"]

    @rule(number=_NUMBER, kind=st.sampled_from(["failed", "person"]))
    def fact(self, number: int, kind: str) -> None:
        self.store.run(lambda c: take_hold(c, f"n{number:02}", kind, f"by-{kind}", ALICE))
        self.holds[number].setdefault(f"by-{kind}", kind)

    @rule(number=_NUMBER)
    def release(self, number: int) -> None:
        try:
            self.store.run(lambda c: grants.release(c, f"n{number:02}", ALICE))
        except StoreError:
            assert not self.holds[number]
        self.holds[number] = {}

    @rule()
    def overdue(self) -> None:
        self.store.run(lambda c: grants.overdue(c, self.now + 10**9))
        for holds in self.holds.values():
            if holds.get("lock") == "planned":
                holds["lock"] = "failed"

    @rule(jump=st.sampled_from([-1e7, -3600.0, 0.5, 59.0, 3600.0]))
    def set_clock(self, jump: float) -> None:
        """Another service answers, or the clock of this one was set. No limit depends on it."""
        self.now += jump

    @rule(holder=st.sampled_from(["c/1", "c/2"]), quiet=st.sampled_from([0.0, 60.0]))
    def take_over(self, holder: str, quiet: float) -> None:
        """Whatever the clocks are, an epoch is given once, and only its controller writes."""
        if not self.epoch:
            given = Submission(
                "r1",
                node_class="other",
                target=NEW,
                document="rollout: r1",
                limits=FleetLimits("1", "1", "1"),
                author="ann",
            )
            self.store.run(lambda c: controllers.submit(c, given, NOW))
        got = self.store.run(lambda c: controllers.take_over(c, "r1", holder, self.now, quiet))
        assert got in (None, self.epoch + 1)
        self.epoch = got or self.epoch
        for epoch in range(max(1, self.epoch - 1), self.epoch + 1):
            old = Controller("r1", epoch, holder)
            stale = pytest.raises(StaleEpochError) if epoch < self.epoch else nullcontext()
            with stale:
                self.store.run(lambda c: old.beat(c, self.now))  # noqa: B023

    @rule(
        scope=st.sampled_from([Scope(), Scope("class", CLASS), Scope("rack", "r1")]),
        on=st.booleans(),
    )
    def freeze(self, scope: Scope, on: bool) -> None:
        work = orders.freeze if on else orders.unfreeze
        changed = self.store.run(lambda c: work(c, scope, ALICE))
        key = (scope.kind, scope.subject)
        assert changed == ((key in self.frozen) != on)
        self.frozen = self.frozen | {key} if on else self.frozen - {key}

    @invariant()
    def counters_match(self) -> None:
        if hasattr(self, "store"):
            with self.store.read() as connection:
                check_counters(connection)

    def may_go(self, number: int) -> bool:
        planned, failed, total, rack = self.limits
        kinds = [set(holds.values()) for holds in self.holds.values()]
        rack_now = sum(
            "planned" in kinds[other] for other in range(NODES) if other % RACKS == number % RACKS
        )
        frozen = {("all", ""), ("class", CLASS), ("rack", f"r{number % RACKS}")} & self.frozen
        return (
            not self.holds[number]
            and not frozen
            and sum("planned" in kind for kind in kinds) < planned
            and sum(list(holds.values()).count("failed") for holds in self.holds.values()) <= failed
            and sum(bool(kind) for kind in kinds) < total
            and rack_now < rack
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)


def run(template: Path, examples: int, steps: int) -> None:
    LedgerMachine.template = template
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_sequence_of_calls_passes_a_limit(migrated: Path) -> None:
    run(migrated, 8, 25)


@pytest.mark.long
def test_no_long_sequence_of_calls_passes_a_limit(migrated: Path) -> None:
    run(migrated, 300, 40)

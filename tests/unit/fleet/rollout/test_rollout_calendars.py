"""Freeze calendars in the decision, the check, the simulator and the views. Files are read elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.fleet.control.controlled import START, controlled
from tests.unit.fleet.rollout.documents import settings, written
from tests.unit.fleet.rollout.schedules import Fleet

from goldnode.fleet.control.controller import RolloutController
from goldnode.fleet.rollout.calendars import coming
from goldnode.fleet.rollout.check import KnownOfClass, check
from goldnode.fleet.rollout.faults import parse
from goldnode.fleet.rollout.lines import sentence
from goldnode.fleet.rollout.model import Alarm, CalendarReading, FreezeSpan, Grant
from goldnode.fleet.rollout.plan import CALENDARS, plan
from goldnode.fleet.rollout.simulate import Simulation, made_up
from goldnode.fleet.rollout.view import view
from goldnode.fleet.store import rollout_view
from goldnode.fleet.store.rollout_view import RolloutReader

DAY = 86400.0
SECURITY = ("timeout: 1h", "timeout: 1h\nlane: security\noverride_calendars: {stop: CVE-2026-1}")


def reading(*spans: tuple[float, float], problem: str | None = None) -> CalendarReading:
    """Return the reading of the calendar `stop`, with freezes by their days."""
    freezes = tuple(FreezeSpan(begin * DAY, end * DAY, f"freeze {begin:g}") for begin, end in spans)
    return CalendarReading("stop", 0.0, 60 * DAY, freezes, problem)


def decided(
    directory: Path, item: CalendarReading | None, *changes: tuple[str, str], days: float = 0.0
) -> tuple[list[str], list[str], float | None]:
    """Return who has leave at a time, the reasons to wait, and when the first ends."""
    fleet = Fleet(replace(settings(directory, *changes), calendars=("stop",)))
    fleet.now = days * DAY
    if item is not None:
        fleet.observations.record(item)
    fleet.settle()
    found = plan(fleet.settings, fleet.state, fleet.observations, fleet.now)
    granted = [line.action.node for line in fleet.log if isinstance(line.action, Grant)]
    waits = [wait for wait in found.waits if wait.subject == "grants"]
    return granted, [wait.reason for wait in waits], waits[0].until if waits else None


@pytest.mark.parametrize(
    ("days", "item", "reason", "until"),
    [
        (1.0, reading((1, 2)), "calendar stop: freeze 1", 2.0),
        (1.5, reading((1, 2), (2, 3), (4, 5)), "calendar stop: freeze 1", 3.0),
        (1.5, reading((0, 1), (1, 9), (3, 4)), "calendar stop: freeze 1", 9.0),
        (
            1.0,
            reading(problem="it is gone"),
            "calendar stop could not be checked: it is gone",
            None,
        ),
        (1.0, None, "calendar stop could not be checked: it has not been read", None),
        (
            61.0,
            reading(),
            "calendar stop could not be checked: its events were read up to an earlier day",
            None,
        ),
    ],
)
def test_no_node_is_taken_in_a_freeze_or_without_a_reading(
    tmp_path: Path, days: float, item: CalendarReading | None, reason: str, until: float | None
) -> None:
    granted, reasons, end = decided(tmp_path, item, days=days)
    assert granted == []
    assert reasons == [reason]
    assert end == (None if until is None else until * DAY)


@pytest.mark.parametrize("days", [0.0, 0.99, 2.0])
def test_nodes_are_taken_outside_of_freezes(tmp_path: Path, days: float) -> None:
    granted, reasons, _ = decided(tmp_path, reading((1, 2)), days=days)
    assert len(granted) == 2
    assert not any("calendar" in reason for reason in reasons)


def test_wait_without_an_end_names_a_person(tmp_path: Path) -> None:
    fleet = Fleet(replace(settings(tmp_path), calendars=("stop",)))
    fleet.settle()
    found = plan(fleet.settings, fleet.state, fleet.observations, fleet.now)
    assert CALENDARS in [wait.owner for wait in found.waits]


def test_freeze_wakes_the_rollout_at_its_end(tmp_path: Path) -> None:
    fleet = Fleet(replace(settings(tmp_path), calendars=("stop",)))
    fleet.observations.record(reading((0, 2)))
    fleet.settle()
    assert plan(fleet.settings, fleet.state, fleet.observations, fleet.now).wake_at == 2 * DAY


@pytest.mark.parametrize("item", [reading((0, 2)), reading(problem="it is gone")])
def test_security_rollout_overrides_by_name_and_the_log_has_it(
    tmp_path: Path, item: CalendarReading
) -> None:
    fleet = Fleet(replace(settings(tmp_path, SECURITY), calendars=("stop",)))
    fleet.observations.record(item)
    fleet.settle()
    actions = [line.action for line in fleet.log]
    alarms = [one for one in actions if isinstance(one, Alarm) and one.code == "calendar"]
    assert len(alarms) == 1
    assert "overrides calendar stop (CVE-2026-1)" in alarms[0].text
    first = next(place for place, one in enumerate(actions) if isinstance(one, Grant))
    assert actions.index(alarms[0]) < first


def test_override_outside_of_the_security_lane_has_no_effect(tmp_path: Path) -> None:
    change = ("timeout: 1h", "timeout: 1h\noverride_calendars: {stop: please}")
    granted, reasons, _ = decided(tmp_path, reading((0, 2)), change)
    assert granted == []
    assert reasons == ["calendar stop: freeze 0"]
    found = check(written(tmp_path, change), size=40)
    assert found.refused
    assert "only a rollout of the security lane" in str(found.findings[0])


def test_check_names_an_unknown_calendar_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    known = KnownOfClass(calendars=[replace(reading(problem="it is gone"), calendar="stopp")])
    found = [
        str(item) for item in check(written(tmp_path, SECURITY), size=40, known=known).findings
    ]
    assert any('no freeze calendar "stop"' in item and "stopp" in item for item in found), found
    assert any(
        "stopp could not be checked: it is gone. No node is taken" in item for item in found
    ), found


def test_simulated_rollout_waits_for_the_end_of_a_freeze(tmp_path: Path) -> None:
    given, nodes = settings(tmp_path), made_up(40, settings(tmp_path).origin)
    grants: list[float] = []

    def watch(state: object, action: object, now: float) -> None:
        if isinstance(action, Grant):
            grants.append(now)

    run = Simulation(given, nodes, parse(()), 1, watch, calendars=[reading((0.2, 3))]).run()
    assert run.end == "completed"
    assert grants
    assert not [at for at in grants if 0.2 * DAY <= at < 3 * DAY]


def test_freezes_that_come_are_in_the_order_of_time() -> None:
    rows = coming(
        [reading((5, 6), (1, 2)), replace(reading((3, 4)), calendar="other")], 2.5 * DAY, 2
    )
    assert [(name, span.begin / DAY) for name, span in rows] == [("other", 3), ("stop", 5)]


class Calendars:
    """The calendars of a site, which a test changes."""

    def __init__(self) -> None:
        self.item = CalendarReading("stop", START, START + 60 * DAY)

    def read(self) -> list[CalendarReading]:
        return [self.item]


def test_controller_records_readings_and_a_view_without_the_files_has_them(
    tmp_path: Path, migrated: Path
) -> None:
    where = tmp_path / "fleet.db"
    where.write_bytes(migrated.read_bytes())
    found = controlled(tmp_path, str(where), 12)
    store, calendars = found.store(), Calendars()
    freeze = FreezeSpan(START - 1, START + DAY, "year end")
    calendars.item = replace(calendars.item, spans=(freeze,))
    made = found.controller(store, "c/1")
    controller = RolloutController(
        store,
        replace(found.settings, calendars=("stop",)),
        replace(made.parts, calendars=calendars),
        made.own,
    )
    for _ in range(6):
        found.world.now += 61
        controller.tick()
        controller._threads.submit(int).result()  # the reading has ended
    facts = RolloutReader(found.settings.name).read(store)
    document = view(facts, found.world.now)
    held = [wait for wait in document.waits if wait.reason == "calendar stop: year end"]
    assert [wait.until for wait in held] == ["2027-01-16T08:00:00Z"]
    assert document.states == {"waiting": 2, "not in a wave yet": 10}
    with store.read() as connection:
        lines = [row for row in rollout_view.lines(connection) if row["action"] == "Calendar"]
    assert [sentence(line) for line in lines] == [
        "calendar stop has 1 freeze until 2027-03-16T08:00:00Z; the first: year end"
    ]
    calendars.item = replace(calendars.item, spans=())
    for _ in range(6):
        found.world.now += 61
        controller.tick()
        controller._threads.submit(int).result()
    assert len(found.world.served) == 2
    controller.close()

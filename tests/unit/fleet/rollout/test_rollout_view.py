"""What a person sees of a rollout: snapshots of the text, one node explained, the page, and the live view in a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console
from sqlalchemy import update
from tests.unit.fleet.control.controlled import START, ControlledRollout, controlled
from tests.unit.fleet.rollout import documents

from goldnode.commands.rollout import text as rollout_text
from goldnode.commands.rollout import watch as rollout_watch
from goldnode.commands.schema.kinds import schema
from goldnode.documents.rollout_status import RolloutStatusDocument
from goldnode.fleet.control.controller import RolloutController
from goldnode.fleet.rollout.explain import explain
from goldnode.fleet.rollout.model import Answer, BackScope, RequirementResult
from goldnode.fleet.rollout.view import RolloutFacts, view
from goldnode.fleet.store import orders, rollout_view, tables
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.grants import PersonsOrder
from goldnode.fleet.store.orders import Scope
from goldnode.fleet.store.rollout_view import RolloutReader

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
APPROVED = ("timeout: 1h", "timeout: 1h\nauthor: ann\napprove: {first: [oncall]}")
QUERY = ("- boot: {base_rate: 0.2%}", "- boot: {base_rate: 0.2%}\n- command: {run: [/bin/accept]}")
FREEZE = (
    "require:\n- boot: {base_rate: 0.2%}\n",
    "require:\n- boot: {base_rate: 0.2%}\non_fail: {do: freeze}\n",
)
OLD, NEW = documents.OLD, documents.NEW


class Watched:
    """A rollout in a store with its controller, which a test runs tick by tick."""

    def __init__(
        self, directory: Path, migrated: Path, *changes: tuple[str, str], count: int = 12
    ) -> None:
        where = str(shutil.copy(migrated, directory / "fleet.db"))
        self.found: ControlledRollout = controlled(directory, where, count, *FAST, *changes)
        self.world = self.found.world
        self.store = StoreDatabase(where)
        document = (directory / "rollout.yml").read_text(encoding="utf-8")
        with self.store.write() as connection:
            connection.execute(update(tables.rollout).values(document=document))
        self.reader = RolloutReader("r1")
        self.controller: RolloutController | None = None

    def ticks(self, number: int) -> Watched:
        self.controller = self.controller or self.found.controller(self.store)
        for _ in range(number):
            self.controller.tick()
        return self

    def person(self, who: str = "bob@login1", reason: str = "cable work") -> PersonsOrder:
        return PersonsOrder(who, self.world.now, reason)

    def facts(self) -> RolloutFacts:
        return self.reader.read(self.store)

    def document(self) -> RolloutStatusDocument:
        found = view(self.facts(), self.world.now)
        jsonschema.validate(found.model_dump(by_alias=True, mode="json"), schema("rollout-status"))
        return found

    def fresh(self) -> RolloutStatusDocument:
        """Return the document of a reader that has read nothing before."""
        return view(RolloutReader("r1").read(self.store), self.world.now)

    def text(self) -> str:
        """Return the text without the two digests, which fill lines."""
        return rollout_text.text(self.document()).replace(OLD, "OLD").replace(NEW, "NEW")

    def explained(self, node: str) -> list[str]:
        return [reason.text for reason in explain(self.facts(), node, self.world.now).reasons]


def shown(text: str) -> str:
    return textwrap.dedent(text).strip()


def test_queued_rollout_without_a_controller(tmp_path: Path, migrated: Path) -> None:
    assert Watched(tmp_path, migrated, APPROVED).text() == shown(
        """
        rollout r1 of class l4: queued
        from OLD
        to   NEW
        no controller has taken it, since 2027-01-15T08:00:00Z

        held back by:
        - rollout: no controller runs it, since 2027-01-15T08:00:00Z
          `goldnode rollout run DOCUMENT`

        wave      state  size            nodes  by state  soak until  approvals
        1 canary  later  2, pool canary  0      -         -           -
        2 first   later  6               0      -         -           oncall: missing
        3 all     later  to 100%         0      -         -           -

        requirement  answer   reason                                 at
        boot         unknown  0 of 0 nodes have passed, 1 is needed  -

        out of service  kind     nodes
        class l4        planned  0, no limit
        class l4        failed   0, no limit
        class l4        total    0, no limit

        nodes: 12 not in a wave yet
        """
    )


def test_wave_that_waits_for_an_approval(tmp_path: Path, migrated: Path) -> None:
    assert Watched(tmp_path, migrated, APPROVED).ticks(40).text() == shown(
        """
        rollout r1 of class l4: running, wave 1 of 3 (canary)
        from OLD
        to   NEW
        controller c/1, epoch 1, last sign of life 2027-01-15T08:39:00Z

        held back by:
        - wave first: approval by oncall is missing
          `goldnode rollout approve r1 first --role oncall --reason REASON`

        wave      state    size            nodes  by state  soak until            approvals
        1 canary  present  2, pool canary  2      2 done    2027-01-15T08:23:00Z  -
        2 first   later    6               0      -         -                     oncall: missing
        3 all     later    to 100%         0      -         -                     -

        requirement  answer  reason                                  at
        boot         pass    2 of 2 nodes have passed, 2 are needed  -

        out of service  kind     nodes
        class l4        planned  0 of 4
        class l4        failed   0 of 8
        class l4        total    0 of 10

        nodes: 2 done, 10 not in a wave yet
        """
    )


def test_approval_of_a_document_that_was_replaced_is_missing(
    tmp_path: Path, migrated: Path
) -> None:
    found = Watched(tmp_path, migrated, APPROVED).ticks(40)
    found.store.run(lambda c: orders.approve(c, "r1", "first", "oncall", found.person()))
    edited = (tmp_path / "rollout.yml").read_text(encoding="utf-8").replace("nodes: 6", "nodes: 7")
    with found.store.write() as connection:
        connection.execute(update(tables.rollout).values(document=edited))
    [held] = [item for item in found.fresh().waits if item.subject == "wave first"]
    assert held.reason.startswith(
        "approval by oncall is missing: bob@login1 has approved an earlier document."
    )
    assert held.remedy == "goldnode rollout approve r1 first --role oncall --reason REASON"
    assert [wave.approvals[0].who for wave in found.fresh().waves if wave.approvals] == [None]
    found.store.run(lambda c: orders.approve(c, "r1", "first", "oncall", found.person()))
    assert [wave.approvals[0].who for wave in found.fresh().waves if wave.approvals] == [
        "bob@login1"
    ]


def test_frozen_rollout_with_an_overdue_node_and_a_quiet_controller(
    tmp_path: Path, migrated: Path
) -> None:
    found = Watched(tmp_path, migrated)
    found.world.faults["n07"] = "silent"
    found.ticks(6)
    found.store.run(lambda c: orders.freeze(c, Scope("rollout", "r1"), found.person()))
    found.world.now += 7200
    found.ticks(2)
    found.world.now += 300
    assert found.text() == shown(
        """
        rollout r1 of class l4: running, wave 1 of 3 (canary)
        from OLD
        to   NEW
        controller c/1, epoch 1, quiet since 2027-01-15T10:07:00Z

        held back by:
        - rollout: its controller c/1 has been quiet since 2027-01-15T10:07:00Z
          `goldnode rollout run DOCUMENT`
        - rollout: frozen by bob@login1: cable work
          `goldnode rollout unfreeze --rollout r1 --reason REASON`

        wave      state    size            nodes  by state           soak until            approvals
        1 canary  present  2, pool canary  2      1 done, 1 overdue  2027-01-15T10:26:00Z  -
        2 first   later    6               0      -                  -                     -
        3 all     later    to 100%         0      -                  -                     -

        requirement  answer   reason                                                                                                       at
        boot         unknown  1 of 2 nodes have passed, 2 are needed; failed so far: 0 by software, 1 did not return, 0 by hardware, of 2  -

        out of service  kind     nodes
        class l4        planned  0 of 4
        class l4        failed   1 of 8
        class l4        total    1 of 10

        nodes: 1 done, 10 not in a wave yet, 1 overdue
          overdue: n07

        node  state    cause
        n07   overdue  did not report in time after the change was applied
        `goldnode rollout explain NODE` has more
        """
    )
    assert found.explained("n07") == [
        "it is overdue since 2027-01-15T10:06:00Z: did not report in time after the change was applied. Examine it, then release it"
    ]
    assert found.explained("n06") == ["it is in the new state since 2027-01-15T08:03:00Z"]
    assert found.explained("n01") == ["no wave has it yet: a wave takes its nodes when it begins"]


class Unanswered:
    """A requirement whose command has no answer."""

    def read(self, requirement: str, wave: int) -> RequirementResult:
        return RequirementResult(requirement, wave, Answer.UNKNOWN, START + 3000, "exit status 3")

    def close(self) -> None:
        """Nothing runs."""


def test_requirement_that_holds_a_wave_back_is_named_with_its_answer(
    tmp_path: Path, migrated: Path
) -> None:
    found = Watched(tmp_path, migrated, QUERY)
    found.found.requirements = Unanswered()
    found.ticks(26)
    deadline = time.monotonic() + 10
    while not found.facts().observations.requirements and time.monotonic() < deadline:
        found.ticks(1)
    document = found.document()
    assert [(item.name, item.answer, item.reason, item.at) for item in document.requirements] == [
        ("boot", "pass", "2 of 2 nodes have passed, 2 are needed", None),
        ("command", "unknown", "exit status 3", "2027-01-15T08:50:00Z"),
    ]
    assert "requirement command is unknown: exit status 3" in [
        wait.reason for wait in document.waits
    ]


def test_view_of_a_rolled_back_rollout_names_nodes_and_reason(
    tmp_path: Path, migrated: Path
) -> None:
    found = Watched(tmp_path, migrated)
    found.world.faults.update(dict.fromkeys(found.world.names, "module"))
    assert found.ticks(6).text() == shown(
        """
        rollout r1 of class l4: rolled-back, wave 1 of 3 (canary): module nvidia does not build: on 2 nodes of the first two waves
        from OLD
        to   NEW
        controller c/1, epoch 1, last sign of life 2027-01-15T08:05:00Z

        wave      state    size            nodes  by state     soak until  approvals
        1 canary  stopped  2, pool canary  2      2 back-done  -           -
        2 first   later    6               0      -            -           -
        3 all     later    to 100%         0      -            -           -

        requirement  answer  reason                                                           at
        boot         fail    module nvidia does not build: on 2 nodes of the first two waves  -

        out of service  kind     nodes
        class l4        planned  0 of 4
        class l4        failed   0 of 8
        class l4        total    0 of 10

        nodes: 2 back-done, 10 not in a wave yet
          back-done: n06 n07
        denied: NEW: module nvidia does not build: on 2 nodes of the first two waves
        """
    )


def test_rollback_by_a_person_is_no_failed_requirement(tmp_path: Path, migrated: Path) -> None:
    found = Watched(tmp_path, migrated).ticks(8)
    found.store.run(
        lambda c: orders.roll_back(c, "r1", BackScope.WAVE, found.person(reason="too slow"))
    )
    document = found.document()
    assert document.phase == "rolling-back"
    assert document.why == "too slow (rolled back by bob@login1)"
    assert [item.answer for item in document.requirements] == ["pass"]
    assert [wait.reason for wait in document.waits] == [
        "2 nodes have not returned to the earlier state"
    ]
    found.ticks(6)
    assert found.document().phase == "rolled-back"
    assert found.document().controller.remedy is None


def test_wide_rollback_of_a_completed_rollout_begins_again(tmp_path: Path, migrated: Path) -> None:
    found = Watched(tmp_path, migrated).ticks(120)
    assert found.document().phase == "completed"
    assert found.document().ended is not None
    assert found.store.run(lambda c: orders.roll_back(c, "r1", BackScope.ALL, found.person()))
    assert found.document().ended is None
    found.ticks(60)
    assert found.document().phase == "rolled-back"
    assert {node.digest for node in found.world.nodes.values()} == {OLD}
    assert all(node.in_service for node in found.world.nodes.values())


def test_freeze_of_a_rollout_that_a_person_froze_keeps_both_reasons(
    tmp_path: Path, migrated: Path
) -> None:
    found = Watched(tmp_path, migrated, FREEZE)
    found.world.faults.update(dict.fromkeys(found.world.names, "module"))
    found.ticks(1)
    found.store.run(lambda c: orders.freeze(c, Scope("rollout", "r1"), found.person()))
    found.ticks(6)
    lines = len(_lines(found))
    found.ticks(6)
    assert len(_lines(found)) == lines  # it is not frozen again and again
    (freeze,) = found.document().freezes
    assert freeze.who == "bob@login1"
    assert freeze.reason.startswith("cable work; goldnode: module nvidia does not build")
    assert found.store.run(lambda c: orders.unfreeze(c, Scope("rollout", "r1"), found.person()))
    assert not found.document().freezes


def _lines(found: Watched) -> list[dict[str, object]]:
    with found.store.read() as connection:
        return rollout_view.lines(connection, "r1")


def test_reader_sees_what_changed_since_it_read(tmp_path: Path, migrated: Path) -> None:
    found = Watched(tmp_path, migrated)
    assert found.document().phase == "queued"
    found.ticks(30)
    time.sleep(0.2)  # a reader replays the log at most a quarter of its time
    assert found.document().states == found.fresh().states


def test_ambiguous_or_unknown_rollout_is_an_error(tmp_path: Path, migrated: Path) -> None:
    found = Watched(tmp_path, migrated)
    with found.store.read() as connection:
        assert rollout_view.chosen(connection, None) == "r1"
        with pytest.raises(StoreError, match='no rollout "r2"; it has r1'):
            rollout_view.chosen(connection, "r2")
    with found.store.write() as connection:
        row = dict(connection.execute(tables.rollout.select()).mappings().one())
        connection.execute(tables.rollout.insert().values({**row, "name": "r2"}))
    with (
        found.store.read() as connection,
        pytest.raises(StoreError, match="2 rollouts are under way: r1, r2"),
    ):
        rollout_view.chosen(connection, None)


# The page and the terminal


def test_page_is_self_contained_escaped_and_labelled(tmp_path: Path, migrated: Path) -> None:
    found = Watched(tmp_path, migrated)
    found.world.faults["n07"] = "image"
    found.ticks(6)
    order = found.person(reason="<script>alert(1)</script> & more")
    found.store.run(lambda c: orders.freeze(c, Scope(), order))
    document = found.document()
    page = rollout_text.html(document)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page
    assert not re.search(r"""(src|href)=["'](?!#)|url\(|@import""", page)
    assert "Simulated" not in page
    assert "<b>Simulated.</b>" in rollout_text.html(document.model_copy(update={"simulated": True}))
    assert rollout_text.text(document.model_copy(update={"simulated": True})).startswith(
        "SIMULATED"
    )
    # Keyboard and small screens: regions that scroll have a focus, cells have labels.
    assert page.count('class="scroll" tabindex="0" role="region"') == page.count("<table>")
    assert all("data-label=" in cell for cell in re.findall(r"<td[^>]*>", page))
    assert 'name="viewport"' in page


def test_live_view_fits_a_narrow_terminal(tmp_path: Path, migrated: Path) -> None:
    found = Watched(tmp_path, migrated).ticks(8)
    document = found.document().model_copy(update={"simulated": True})
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(rollout_watch.rendered(document, "the store cannot be reached", console.width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 60
    assert text.startswith("SIMULATED")
    for part in (
        "wave 1 of 3 (canary)",
        "2 done",
        "the store cannot be reached",
        "soak",
        "0 of 4",
        "boot",
    ):
        assert part in text


def test_watch_in_a_terminal_shows_changes_and_ends_with_an_interrupt(
    tmp_path: Path, migrated: Path
) -> None:
    found = Watched(tmp_path, migrated).ticks(6)
    shown_size = {"COLUMNS": "100", "LINES": "45", "TERM": "xterm-256color"}
    words = ["rollout", "status", "--watch", "--every", "0.2", "--fleet-store", found.found.where]
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from goldnode.cli import main; main()", *words],
        stdin=child,
        stdout=child,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **shown_size},
        cwd=tmp_path,
    )
    os.close(child)
    try:
        _wait_for(parent, "wave 1 of 3")
        found.store.run(lambda c: orders.freeze(c, Scope(), found.person(reason="seen live")))
        _wait_for(parent, "seen live")
        process.send_signal(signal.SIGINT)
        end = _wait_for(parent, "\x1b[?1049l")  # the screen is as it was before
        assert "Traceback" not in end
        assert process.wait(20) in (0, 130)
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def _wait_for(terminal: int, text: str) -> str:
    seen, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 0.5)
        if ready:
            try:
                seen += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the program has closed the terminal
                break
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} was not shown: {seen[-2000:]!r}")

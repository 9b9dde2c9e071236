"""Every remedy is carried out in the simulator: the fault goes or a person is asked for, and nothing else becomes worse."""

from __future__ import annotations

import re

import pytest
from tests.faults import carried
from tests.faults.run import Bases
from tests.faults.table import ROWS, Row

from goldnode.node.state import remedy
from goldnode.node.state.kinds import KINDS

# Faults of the host, of which no remedy is about GPUs; the table of rules has their steps.
HOST = (
    r"net\.",
    r"ib\.",
    r"storage\.",
    r"memory\.",
    r"host\.",
    r"time\.",
    r"cpu\.",
    r"machine\.",
    r"events\.",
    r"runtime\.",
    "check",
)
FAULTS = [row for row in ROWS if not row.trap and row.find and not row.find.startswith(HOST)]
# Rules whose remedy a program can carry out to its end, and for which no row of the table has a fault.
UNSEEN = {"driver.agree": "as F14", "host.blocked": "a task in state D, in the tests of the rules"}


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.name)
def test_remedy_of_a_fault_is_carried_out(row: Row, bases: Bases) -> None:
    for result in carried.run(row, bases):
        finding = result.finding
        assert finding["steps"], f"{finding['id']}: {finding['remedy']}"
        assert set(finding["steps"]) <= set(remedy.STEPS)
        if carried.restarts(finding["steps"]) and carried.spoils(result.before):
            assert finding["steps"][0] in (remedy.POLICY, remedy.SITE), (
                f"{finding['id']}: {finding['remedy']}"
            )
        assert carried.judge(result) == [], f"{finding['remedy']} ({finding['steps']})"


def test_every_rule_whose_remedy_a_program_can_end_has_a_fault_in_the_table() -> None:
    alone = [
        row.id
        for row in KINDS.values()
        if row.remedy and not set(row.remedy.steps) & {*carried.HUMAN, remedy.COMMAND}
    ]
    unseen = {name for name in alone if not any(re.fullmatch(row.find, name) for row in FAULTS)}
    assert unseen == set(UNSEEN)

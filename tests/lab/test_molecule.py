"""The molecule scenarios of one release each, whole. Each must leave the count of what its nodes' verification showed."""

from __future__ import annotations

import pytest
from tests.lab.molecule import REAL, ROOT, run

TESTING = "debian14"  # on Debian's own archive
SCENARIOS = sorted(
    path.parent.name
    for path in ROOT.glob("molecule/*/molecule.yml")
    if path.parent.name not in (REAL, TESTING)
)
ACTIONS = ("create", "check", "converge", "idempotence", "verify")


@pytest.mark.lab
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str) -> None:
    run(scenario, *ACTIONS)


@pytest.mark.real
@pytest.mark.long
def test_scenario_of_debian_14_on_the_archive_of_today() -> None:
    run(TESTING, *ACTIONS)

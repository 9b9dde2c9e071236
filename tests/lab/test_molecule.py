"""The molecule scenarios, whole. Each must leave the count of what its nodes' verification showed."""

from __future__ import annotations

import pytest
from tests.lab.molecule import REAL, ROOT, run

SCENARIOS = sorted(
    path.parent.name for path in ROOT.glob("molecule/*/molecule.yml") if path.parent.name != REAL
)


@pytest.mark.lab
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str) -> None:
    run(scenario, "create", "check", "converge", "idempotence", "verify")

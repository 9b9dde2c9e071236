"""The tutorials and guides that need nodes, images or the network, followed as printed. See tests/documented.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import documented
from tests.documented import LONG, Scenario

pytestmark = [pytest.mark.lab, pytest.mark.long]


@pytest.mark.parametrize("scenario", LONG, ids=lambda scenario: scenario.name)
def test_documented_commands_run(scenario: Scenario, tmp_path: Path) -> None:
    documented.online(tmp_path).follow(scenario)

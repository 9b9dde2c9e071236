"""pytest plugin that writes the collected tests and their markers to the file named in
GOLDNODE_TEST_COLLECTED.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    found: dict[str, dict[str, list[str]]] = {}
    for item in session.items:
        found.setdefault(item.nodeid.partition("::")[0], {})[item.nodeid] = sorted(
            {mark.name for mark in item.iter_markers()}
        )
    Path(os.environ["GOLDNODE_TEST_COLLECTED"]).write_text(json.dumps(found), encoding="utf-8")

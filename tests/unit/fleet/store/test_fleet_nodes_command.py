"""Command `goldnode fleet nodes`: limits that are not in force are no silent success."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import select
from tests.unit.fleet.store.fleets import CLASS, rollout

from goldnode.cli import main
from goldnode.fleet.store import tables
from goldnode.fleet.store.database import StoreDatabase

FILE = """\
classes:
  {name}:
    limits: {{planned: {planned}}}
    nodes: {{n00: {{rack: r0}}, n01: {{rack: r1}}}}
"""


def test_limits_are_in_force_or_the_command_names_the_rollout_whose_limits_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "fleet.db"

    def nodes(planned: int) -> tuple[str, int]:
        (tmp_path / "fleet.yml").write_text(
            FILE.format(name=CLASS, planned=planned), encoding="utf-8"
        )
        done = CliRunner().invoke(
            main, ["fleet", "nodes", "fleet.yml", "--fleet-store", str(place)]
        )
        assert done.exit_code == 0, done.output
        with store.read() as connection:
            query = select(tables.buffer.c.planned_limit).where(tables.buffer.c.scope == "class")
            return done.stderr, connection.scalar(query) or 0

    store = StoreDatabase(str(place))
    assert nodes(1) == ("", 1)
    rollout(store)
    told, limit = nodes(0)
    assert limit == 2
    assert f"class {CLASS}" in told
    assert "rollout kernel" in told
    store.close()

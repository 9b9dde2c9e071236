"""What a controller does after a commit: deny list and power cycles."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.fleet.control.controlled import controlled

from goldnode.fleet.control.duties import ControllerDuties
from goldnode.fleet.shared import denylist
from goldnode.fleet.store import orders
from goldnode.fleet.store.denials import DenyListWriter
from goldnode.fleet.store.grants import PersonsOrder

# After a commit


@pytest.fixture
def where(tmp_path: Path, migrated: Path) -> str:
    path = tmp_path / "fleet.db"
    shutil.copy(migrated, path)
    return str(path)


def test_denied_states_are_written_when_they_change_and_not_again(
    tmp_path: Path, where: str
) -> None:
    found = controlled(tmp_path, where, 4)
    store, path = found.store(), tmp_path / "denied.json"
    duties = ControllerDuties(
        store, found.settings.name, "c/1", deny_list=DenyListWriter(store, path, None)
    )
    duties(())
    first = path.stat().st_mtime_ns
    duties(())
    assert path.stat().st_mtime_ns == first
    ann = PersonsOrder("ann@c", found.world.now, "it is slow")
    store.run(lambda c: orders.deny(c, found.settings.class_, found.settings.target, ann))
    duties(())
    from goldnode.core.deny_list import DenyListPlace

    (row,) = denylist.read(DenyListPlace(str(path), True, None))
    assert (row.digest, row.reason) == (found.settings.target, "it is slow")
    duties.close()
    store.close()


def test_unwritable_deny_list_does_not_stop_a_controller(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = controlled(tmp_path, where, 4)
    store = found.store()
    (tmp_path / "file").write_text("", encoding="utf-8")
    duties = ControllerDuties(
        store,
        found.settings.name,
        "c/1",
        deny_list=DenyListWriter(store, tmp_path / "file/denied.json", None),
    )
    duties(())
    assert "the deny list is not up to date" in caplog.text
    duties.close()
    store.close()


def test_overdue_node_is_power_cycled_once_by_any_controller(tmp_path: Path, where: str) -> None:
    fast = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
    found = controlled(
        tmp_path, where, 12, *fast, **{f"n{number:02}": "silent" for number in range(12)}
    )
    found.run(ticks=200)
    store, calls = found.store(), tmp_path / "calls"
    power = ("sh", "-c", f"echo {{node}} >>{calls}")
    lines: list[str] = []
    for holder in ("c/1", "c/2"):
        duties = ControllerDuties(
            store, found.settings.name, holder, power=power, tell=lines.append
        )
        duties(())
        duties._one.shutdown(wait=True)
    names = calls.read_text(encoding="utf-8").split()
    assert names
    assert len(names) == len(set(names)) == len(lines)
    store.close()

"""The record of a drain as the node itself sees it: it travels with each plan, and a removal leaves it for the run that returns the node."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from goldnode.node.ground import drained
from goldnode.node.ground.host import Host
from goldnode.node.state.engine import plan_absent
from goldnode.node.state.handlers.removal import remove_directory


def test_the_record_is_passed_on_as_it_is(tmp_path: Path) -> None:
    host = Host(str(tmp_path), live=True)
    assert drained.text(host) == ""
    host.write(drained.FILE, b"{torn")
    assert drained.text(host) == "{torn"
    assert drained.text(Host(str(tmp_path))) == "", "an image is in no service"
    host.write(drained.FILE, b"")
    assert drained.text(host) == "empty"
    host.write(drained.FILE, b"x" * 100_000)
    assert len(drained.text(host)) == 8192
    host.remove(drained.FILE)
    host.path(drained.FILE).mkdir()
    assert drained.text(host).startswith("cannot be read")


def test_a_run_lasts_as_long_as_its_record_is_young(tmp_path: Path) -> None:
    host = Host(str(tmp_path), live=True)
    assert not drained.lasts(host)
    host.write(drained.FILE, b"{}")
    assert drained.lasts(host)
    old = time.time() - drained.LEASE - 60
    os.utime(host.path(drained.FILE), (old, old))
    assert not drained.lasts(host)


def test_a_removal_leaves_the_record(tmp_path: Path) -> None:
    """What returns the node must not go before the return; goldnode has gone from the node all the same."""
    host = Host(str(tmp_path), live=True)
    host.write(
        "/var/lib/dpkg/status",
        b"Package: base\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n\n",
    )
    for name in ("state.json", "classes/index.json", "drain.json"):
        host.write(f"/var/lib/goldnode/{name}", b"{}")

    def planned() -> list[str]:
        found = plan_absent(host)
        assert found.drain == "{}"
        return [action.target for action in found.actions if action.kind == "directory.remove"]

    assert "/var/lib/goldnode" in planned()
    applier: Any = SimpleNamespace(host=host)
    remove_directory(
        applier,
        next(
            action for action in plan_absent(host).actions if action.target == "/var/lib/goldnode"
        ),
    )
    assert [path.name for path in (tmp_path / "var/lib/goldnode").iterdir()] == ["drain.json"]
    assert planned() == []
    host.remove(drained.FILE)
    remove_directory(applier, SimpleNamespace(target="/var/lib/goldnode"))  # type: ignore[arg-type]
    assert not (tmp_path / "var/lib/goldnode").exists()

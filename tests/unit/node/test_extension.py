"""An extension of the engine goes the whole way: a fake domain is planned, applied, checked and removed by what its record says."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.node.test_cases import document

from goldnode.node.host import Host
from goldnode.node.state import apply as applying
from goldnode.node.state import engine, removal
from goldnode.node.state import record as records
from goldnode.node.state.domains.files import Wanted
from goldnode.node.state.finding import MATCH, Finding
from goldnode.node.state.observe import MANAGED
from goldnode.node.verdict import check

PATH = "/etc/modprobe.d/goldnode-time.conf"


def fake(path: str = PATH) -> Any:
    """Return a domain that wants one file of the part `gpu_policy`, whatever the class."""
    return SimpleNamespace(
        __name__="time",
        observe=lambda host, document, seen: None,
        wanted=lambda document, seen: [Wanted(path, "time = 1\n", "gpu_policy", "the class wants the time")],
        plan=lambda document, seen: ([], [], []),
        refusals=lambda document, seen, actions: [],
        findings=lambda document, seen: [Finding("policy.time", MATCH, "1", "1")],
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return an empty root, with the fake domain registered."""
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    domains = (*engine.DOMAINS, fake())
    monkeypatch.setattr(engine, "DOMAINS", domains)
    monkeypatch.setattr(check, "DOMAINS", domains)
    return Host(str(tmp_path))


def planned(found: Any) -> list[str]:
    return [action.target for action in found.part("gpu_policy") if action.target == PATH]


def test_a_domain_is_planned_applied_checked_and_removed(root: Host) -> None:
    wanted = document()
    before = engine.plan(root, wanted, {})
    assert planned(before) == [PATH]
    applier = applying.Applier(root, wanted, {}, lambda text: None, "gpu_policy")
    own = [action for action in before.part("gpu_policy") if action.target == PATH]
    records.before_files(root, own)
    for action in own:
        applier.apply(action)
    assert root.text(PATH) == "time = 1\n"
    assert planned(engine.plan(root, wanted, {})) == []
    assert "policy.time" in {finding["id"] for finding in check.check(root, wanted)["findings"]}
    # By its path it would be the driver's; the record says whose it is.
    assert removal.part_of(PATH, {}) == "gpu_driver"
    taken = [action for action in engine.plan_absent(root).actions if action.target == PATH]
    assert [(action.kind, action.part) for action in taken] == [("file.remove", "gpu_policy")]


def unobserved(actions: Any) -> list[str]:
    """Return the files that a plan writes and no later run would read back."""
    return [
        action.target
        for action in actions
        if action.kind == "file.write"
        and not any(fnmatch(action.target, f"{folder}/{pattern}") for folder, pattern in MANAGED)
    ]


def test_every_file_of_a_class_is_observed(root: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A domain whose file has no row in observe.MANAGED would write it in every run."""
    assert unobserved(engine.plan(root, document(), {}).actions) == []
    monkeypatch.setattr(engine, "DOMAINS", (fake("/srv/time.conf"),))
    assert unobserved(engine.plan(root, document(), {}).actions) == ["/srv/time.conf"]

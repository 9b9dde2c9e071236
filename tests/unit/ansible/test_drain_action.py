"""The action `goldnode_drain` in a rollout: each phase is a run of Ansible of its own, and any of them may be killed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import constants
from ansible.plugins.action import ActionBase
from tests.unit.fleet.drain import test_drain as fakes
from tests.unit.fleet.drain.test_drain import Killed, Steps, World

from goldnode.ansible.action import goldnode_drain
from goldnode.ansible.action.goldnode_drain import ActionModule

NOTE = (
    "fan replaced {{ 7 * 6 }}, watch it"  # a person's words, which no run may take for a template
)


class Templar:
    """Refuses what a person wrote, as Ansible would evaluate it."""

    def template(self, value: Any) -> Any:
        assert value != NOTE
        return value


@pytest.fixture(autouse=True)
def _without_ansible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(
        ActionBase,
        "validate_argument_spec",
        lambda self, spec: (
            None,
            {**{name: one.get("default") for name, one in spec.items()}, **self.given},
        ),
    )
    monkeypatch.setattr(
        constants, "config", SimpleNamespace(get_config_value=lambda *_, **__: "off")
    )


def phase(world: World, state: str, kill: int | None = None, **prior: Any) -> dict[str, Any] | None:
    """Run one phase of a step with the store's copy of the prior state; None if it was killed."""
    action = ActionModule.__new__(ActionModule)
    task = SimpleNamespace(any_errors_fatal=False)
    action.__dict__.update(
        given={"state": state}, _templar=Templar(), shell=world.shell, _task=task
    )
    world.fake.steps = Steps(kill)
    task_vars = {
        "inventory_hostname": "n1",
        "goldnode_drain": world.name,
        "goldnode_drain_command": ["drain"],
        "goldnode_resume_command": ["resume"],
        "goldnode_root": str(world.root),
        "goldnode_rollout": "r1",
        "goldnode_prior_in_service": True,
        **prior,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(goldnode_drain, "choose", lambda *_: world.fake.scheduler())
        try:
            return action.run(None, task_vars)
        except Killed:
            return None


def test_note_of_a_node_in_service_is_restored_although_its_record_is_lost(tmp_path: Path) -> None:
    world = fakes.fakes(tmp_path, "slurm", quick=True)
    assert isinstance(world.fake, fakes.FakeSlurm)
    world.fake.update(f"Reason={NOTE}")
    before = world.fake.seen()
    assert phase(world, "drained", goldnode_prior_reason=NOTE)
    world.file.unlink()
    found = phase(world, "resumed", goldnode_prior_reason=NOTE)
    assert found is not None
    assert found["drain"]["in_service"]
    assert world.fake.seen() == before


@pytest.mark.parametrize("kind", fakes.KINDS)
def test_return_that_was_killed_at_any_call_is_ended_by_the_next(tmp_path: Path, kind: str) -> None:
    """The next controller has no fact of the drain, and finds no record if the return was complete."""
    for kill in range(1, 12):
        world = fakes.fakes(tmp_path / str(kill), kind, quick=True)
        before = world.fake.seen()
        assert phase(world, "drained")
        phase(world, "resumed", kill)
        found = phase(world, "resumed")
        assert found is not None
        assert found["drain"]["in_service"], kill
        assert found["drain"]["note"] is None, kill
        assert world.fake.seen() == before, kill
        assert not world.file.exists(), kill


@pytest.mark.parametrize("kind", fakes.KINDS)
def test_drain_of_a_person_after_a_return_stays(tmp_path: Path, kind: str) -> None:
    """The controller was killed after the return, before it could report that."""
    world = fakes.fakes(tmp_path, kind, quick=True)
    assert phase(world, "drained")
    assert phase(world, "resumed")
    world.fake.drain_by("bad fan, ann")
    wanted = world.fake.seen()
    assert phase(world, "resumed")
    assert world.fake.seen() == wanted


@pytest.mark.parametrize("kind", fakes.KINDS)
def test_node_that_a_person_had_drained_stays_so_although_its_record_is_lost(
    tmp_path: Path, kind: str
) -> None:
    world = fakes.fakes(tmp_path, kind, quick=True)
    world.fake.drain_by("bad fan, ann")
    before = world.fake.seen()
    prior: dict[str, Any] = {
        "goldnode_prior_in_service": False,
        "goldnode_prior_reason": "bad fan, ann",
    }
    assert phase(world, "drained", **prior)
    world.file.unlink()
    found = phase(world, "resumed", **prior)
    assert found is not None
    assert not found["drain"]["in_service"]
    assert "n1 is out of service" in found["msg"] or "n1 was out of service before" in found["msg"]
    assert world.fake.seen() == before

"""The environment of commands of a site."""

from __future__ import annotations

import pytest

from goldnode.core.command_environment import NAMES, SECRETS, named, without_secrets
from goldnode.core.environment import FOREIGN, ON_NODES, VARIABLES


def test_named_variables_are_inherited_and_no_others() -> None:
    have = {"PATH": "/bin", "SLURM_CONF": "/s", "AWS_SECRET_ACCESS_KEY": "c4n4ry", "OWN": "1"}
    assert named(own=have) == {"PATH": "/bin", "SLURM_CONF": "/s"}
    assert named(["OWN", "ABSENT"], have) == {"PATH": "/bin", "SLURM_CONF": "/s", "OWN": "1"}


def test_secrets_of_goldnode_are_never_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    documented = [row for row in (*VARIABLES, *ON_NODES, *FOREIGN) if "assword" in row.meaning]
    assert sorted(row.name for row in documented) == sorted(SECRETS)
    assert set(NAMES).isdisjoint(SECRETS)
    for name in SECRETS:
        monkeypatch.setenv(name, "c4n4ry")
    monkeypatch.setenv("OWN", "1")
    assert "c4n4ry" not in without_secrets().values()
    assert without_secrets()["OWN"] == "1"

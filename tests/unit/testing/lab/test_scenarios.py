"""molecule counts a missing playbook or an empty scenario as success; these files must be what they are meant to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.stacks import lab, legs

from goldnode.classdoc.load import load_catalog
from goldnode.testing.lab.images import RELEASES

ROOT = Path(__file__).parents[4]
BASE = yaml.safe_load((ROOT / ".config/molecule/config.yml").read_text())
# Of these each is a release; the one other goes between real stacks.
SCENARIOS = sorted(
    path.parent.name
    for path in ROOT.glob("molecule/*/molecule.yml")
    if path.parent.name != "stacks"
)


def place(value: str) -> Path:
    return Path(value.replace("${MOLECULE_PROJECT_DIRECTORY}", str(ROOT)))


def test_every_release_has_its_scenario() -> None:
    assert sorted(RELEASES) == SCENARIOS


def test_the_base_configuration_is_where_molecule_looks() -> None:
    assert (ROOT / ".git").exists(), (
        "molecule finds .config/molecule/config.yml only in a git checkout"
    )
    assert BASE["scenario"]["test_sequence"] == [
        "destroy", "create", "check", "converge", "idempotence", "verify", "destroy"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["create", "converge", "verify", "destroy"])
def test_playbooks_exist(name: str) -> None:
    plays = yaml.safe_load(place(BASE["ansible"]["playbooks"][name]).read_text())
    assert plays


def test_converge_is_the_projects_own_playbook() -> None:
    path = place(BASE["ansible"]["playbooks"]["converge"])
    (play,) = yaml.safe_load(path.read_text())
    assert (path.parent / play["ansible.builtin.import_playbook"]).resolve() == ROOT / "site.yml"


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("ANSIBLE_ROLES_PATH", "roles_path"),
        ("ANSIBLE_LIBRARY", "library"),
        ("ANSIBLE_ACTION_PLUGINS", "action_plugins"),
        ("ANSIBLE_VARS_PLUGINS", "vars_plugins"),
    ],
)
def test_molecule_finds_the_same_code_as_ansible_cfg(variable: str, setting: str) -> None:
    lines = (ROOT / "ansible.cfg").read_text().splitlines()
    reported = dict(line.split(" = ", 1) for line in lines if " = " in line)
    path = place(BASE["ansible"]["env"][variable])
    assert path == ROOT / reported[setting]
    assert path.is_dir()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios_name_a_class_of_their_stack(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = yaml.safe_load((ROOT / "molecule" / scenario / "molecule.yml").read_text())["ansible"][
        "env"
    ]
    monkeypatch.setenv("GOLDNODE_CATALOG", str(place(BASE["ansible"]["env"]["GOLDNODE_CATALOG"])))
    catalog = load_catalog()
    node_class = catalog.classes[env["GOLDNODE_SCENARIO_CLASS"]].item
    assert node_class.stack == env["GOLDNODE_SCENARIO_STACK"]
    system = catalog.stacks[node_class.stack].item.os
    assert f"{system.id}{system.version}".replace(".", "") == env[
        "GOLDNODE_SCENARIO_OS"
    ].removesuffix("-standin")
    assert scenario == env["GOLDNODE_SCENARIO_OS"]


def test_the_scenario_of_real_stacks_names_what_its_legs_go_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = yaml.safe_load((ROOT / "molecule/stacks/molecule.yml").read_text())
    assert found["scenario"]["test_sequence"].index("side_effect") < found["scenario"][
        "test_sequence"
    ].index("verify")
    for name in found["ansible"]["playbooks"].values():
        assert yaml.safe_load((ROOT / "molecule/stacks" / name).read_text())
    env = found["ansible"]["env"]
    monkeypatch.setenv("GOLDNODE_CATALOG", str(place(BASE["ansible"]["env"]["GOLDNODE_CATALOG"])))
    catalog = load_catalog()
    stacks = [catalog.classes[name].item.stack for name in legs.CLASSES]
    assert stacks == [env["GOLDNODE_SCENARIO_STACK"], env["GOLDNODE_SCENARIO_OTHER_STACK"]]
    assert {catalog.stacks[name].item.exercised for name in stacks} == {"debian-archive"}
    assert env["GOLDNODE_SCENARIO_CLASS"] == legs.CLASSES[0]
    assert env["GOLDNODE_SCENARIO_OS"] == lab.OS

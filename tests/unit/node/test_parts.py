"""The parts of a class exist once, in `state/model.py`. Lists that cannot import them are validated here."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from goldnode.ansible.modules import goldnode_state
from goldnode.node.state.model import PARTS

ROOT = Path(__file__).parents[3]
ADD = "a part is added in src/goldnode/node/state/model.py; docs/adding.md lists the places that follow"


def test_every_part_has_its_role_and_every_role_its_part() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir()}
    assert not set(PARTS) - roles, f"no roles/{', roles/'.join(sorted(set(PARTS) - roles))}: {ADD}"
    assert not roles - set(PARTS), f"no part for the roles {sorted(roles - set(PARTS))}: {ADD}"
    for part in PARTS:
        tasks = yaml.safe_load((ROOT / f"roles/{part}/tasks/main.yml").read_text())
        applied = [
            task["goldnode_state"]["part"] for task in tasks if "part" in task.get("goldnode_state", {})
        ]
        assert part == "node_class" or applied == [part], f"roles/{part}/tasks/main.yml applies {applied}"
        assert (ROOT / f"roles/{part}/meta/argument_specs.yml").is_file(), (
            f"roles/{part} has no argument_specs.yml"
        )


def test_site_yml_applies_the_parts_in_their_order() -> None:
    named = re.findall(r"import_role: \{name: (\w+)", (ROOT / "site.yml").read_text())
    missing = [part for part in PARTS if part not in named]
    assert not missing, f"site.yml has no import_role of {missing}: {ADD}"
    assert list(dict.fromkeys(named)) == list(PARTS), f"site.yml imports the roles in another order: {ADD}"


def test_the_module_takes_every_part() -> None:
    documented = yaml.safe_load(goldnode_state.DOCUMENTATION)["options"]["part"]["choices"]
    module = "src/goldnode/ansible/modules/goldnode_state.py"
    lacks = [part for part in PARTS if part not in documented]
    assert tuple(documented) == PARTS, (
        f"DOCUMENTATION of {module} lacks {lacks or 'the order of PARTS'}: {ADD}"
    )
    lacks = [part for part in PARTS if part not in goldnode_state.PARTS]
    assert goldnode_state.PARTS == PARTS, f"PARTS of {module} lacks {lacks or 'the order of PARTS'}: {ADD}"

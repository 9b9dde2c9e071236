"""The parts of a class exist once, in `state/model.py`. Lists that cannot import them are validated here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from goldnode.ansible.modules import goldnode_state
from goldnode.documents.plan import PartName
from goldnode.node.state.model import PARTS

ROOT = Path(__file__).parents[4]
ADD = "a part is added in src/goldnode/node/state/model.py; docs/adding.md lists the places that follow"


def test_every_part_has_its_role_and_every_role_its_part() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir()}
    assert not set(PARTS) - roles, f"no roles/{', roles/'.join(sorted(set(PARTS) - roles))}: {ADD}"
    assert not roles - set(PARTS), f"no part for the roles {sorted(roles - set(PARTS))}: {ADD}"
    for part in PARTS:
        tasks = yaml.safe_load((ROOT / f"roles/{part}/tasks/main.yml").read_text())
        applied = [
            task["goldnode_state"]["part"]
            for task in tasks
            if "part" in task.get("goldnode_state", {})
        ]
        assert part == "node_class" or applied == [part], (
            f"roles/{part}/tasks/main.yml applies {applied}"
        )
        for name in ("argument_specs.yml", "main.yml"):
            assert (ROOT / f"roles/{part}/meta/{name}").is_file(), (
                f"roles/{part}/meta has no {name}: {ADD}"
            )


def test_site_yml_applies_the_parts_in_their_order() -> None:
    named = re.findall(r"import_role: \{name: (\w+)", (ROOT / "site.yml").read_text())
    missing = [part for part in PARTS if part not in named]
    assert not missing, f"site.yml has no import_role of {missing}: {ADD}"
    assert list(dict.fromkeys(named)) == list(PARTS), (
        f"site.yml imports the roles in another order: {ADD}"
    )


def test_site_yml_has_a_tag_for_every_part() -> None:
    """A part that `site_selected` lacks would make `--tags PART` end the play and change nothing."""
    first = yaml.safe_load((ROOT / "site.yml").read_text())[0]
    tags = set(re.findall(r"'(\w+)'", first["vars"]["site_selected"]))
    missing = [part for part in PARTS if part not in tags]
    assert not missing, f"site_selected in site.yml lacks {missing}: {ADD}"
    unknown = sorted(tags - {"all", "tagged", "goldnode", *PARTS})
    assert not unknown, f"site_selected in site.yml has {unknown}, which are no parts"
    for task in first["tasks"]:
        role = task.get("ansible.builtin.import_role", {})
        if "tasks_from" not in role and role:
            assert task["tags"] == ["goldnode", role["name"]], (
                f"the import of {role['name']} in site.yml needs `tags: [goldnode, {role['name']}]`: {ADD}"
            )


def test_the_plan_document_has_every_part() -> None:
    lacks = [part for part in PARTS if part not in get_args(PartName)]
    assert get_args(PartName) == PARTS, (
        f"PartName in src/goldnode/documents/plan.py lacks {lacks or 'the order of PARTS'}; "
        f"then run `goldnode schema`: {ADD}"
    )


@pytest.mark.parametrize(
    "page",
    ["site.yml", "docs/how-to/install.md", "docs/architecture.md", "release/collection/README.md"],
)
def test_every_part_is_documented(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [part for part in PARTS[1:] if not re.search(rf"\b{part}\b", text)]
    assert not missing, f"{page} does not name {missing}: {ADD}"


def test_the_module_takes_every_part() -> None:
    documented = yaml.safe_load(goldnode_state.DOCUMENTATION)["options"]["part"]["choices"]
    module = "src/goldnode/ansible/modules/goldnode_state.py"
    lacks = [part for part in PARTS if part not in documented]
    assert tuple(documented) == PARTS, (
        f"DOCUMENTATION of {module} lacks {lacks or 'the order of PARTS'}: {ADD}"
    )
    lacks = [part for part in PARTS if part not in goldnode_state.PARTS]
    assert goldnode_state.PARTS == PARTS, (
        f"PARTS of {module} lacks {lacks or 'the order of PARTS'}: {ADD}"
    )

"""docs/reference/configuration.md: what it would be made as now, a meaning for every key, and a row for every environment variable that is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.unit.test_hygiene import tracked

from goldnode.commands.schema import reference
from goldnode.commands.schema.kinds import WRITTEN
from goldnode.core import environment

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/configuration.md"
ROWS = {
    name: row
    for table in (
        environment.VARIABLES,
        environment.ON_NODES,
        environment.FOREIGN,
        environment.FOR_TESTS,
    )
    for row in table
    for name in row.name.split(", ")
}
# Set by goldnode itself, for a child or a container of its own.
INNER = {
    "GOLDNODE_CANARY_RUN",
    "GOLDNODE_EVENT",  # a field of the journal: docs/how-to/events.md
    "GOLDNODE_SLOT_MOUNTS",
    "GOLDNODE_STANDIN_TOOLKIT",
    # Of commands of a site, for which goldnode sets them: docs/how-to/rollouts.md and docs/how-to/follow.md.
    "GOLDNODE_CLASS",
    "GOLDNODE_DIRECTION",
    "GOLDNODE_ROLLOUT",
    "GOLDNODE_TARGET",
    "GOLDNODE_WAVE",
}


def test_page_equals_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), (
        "run `goldnode schema --format markdown --out docs/reference/configuration.md`"
    )


def test_every_kind_of_file_is_on_it() -> None:
    assert set(reference.FILES) == set(WRITTEN)


@pytest.mark.parametrize("kind", WRITTEN)
def test_every_key_has_a_type_and_a_meaning(kind: str) -> None:
    rows = [row for key in reference.keys(kind) for row in key.all()]
    assert [
        row.path for row in rows if not (row.type and row.default and row.meaning.endswith("."))
    ] == []
    assert all(len(row.type) < 100 and len(row.meaning) < 160 for row in rows), (
        "a cell of a table is no place for a paragraph"
    )
    paths = [row.path for row in rows]
    assert len(paths) == len(set(paths))
    section = reference.section(kind)
    assert all(section.count(f"`{path}` |") + section.count(f"[`{path}`](") == 1 for path in paths)


@pytest.mark.parametrize(("kind", "model"), WRITTEN.items())
def test_no_key_of_a_model_is_left_out(kind: str, model: type[BaseModel]) -> None:
    mine = [row.alias or name for name, row in model.model_fields.items() if not row.exclude]
    assert [key.path for key in reference.keys(kind)] == mine


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("class", "| `gate` | `report`, `drain`, `block` | `report` | Effect of a bad verdict"),
        ("class", "| `gpu.count` | whole number, 1 or more | *required* | Number of GPUs"),
        (
            "class",
            "| `policy.power_limit_watts` | whole number, 1 or more | `null` | Power limit of each GPU, W",
        ),
        ("class", "| `policy.host.memlock` | `unlimited` or whole number, 1 or more | `null` |"),
        (
            "class",
            "| `policy.host.hugepages` | map of `2M`, `1G` to whole number, 0 or more | `{}` |",
        ),
        ("class", "| `policy.host.network.NAME.mtu` | whole number, 68 to 65535 | *required* |"),
        ("class", "| [`policy.host`](#class-policyhost) | keys | `{}` |"),
        ("class", "| [`images`](#class-images) | list of text or keys | `[]` |"),
        ("class", "| `baseline.memory.tolerance` | number, 0 or more, below 1 | `null` |"),
        ("class", "| `suppressions[].expires` | date, `YYYY-MM-DD` | *required* |"),
        ("stack", "| [`driver`](#stack-driver) | keys or `null` | *required* |"),
        ("site", "| `modules` | `dkms`, `prebuilt` | `dkms` |"),
        ("site", "| `gate.drain` | list of text, one at least | *required* |"),
        ("disks", "| `hygiene.waivers[].reason` | text, 8 characters or more | *required* |"),
        ("images", "| `backends.NAME.releases[].source` | `built` or keys | `null` |"),
    ],
)
def test_section_has_the_row_of_a_key(kind: str, row: str) -> None:
    assert f"\n{row}" in reference.section(kind)


def test_tables_hold_together_and_links_lead_somewhere() -> None:
    text = reference.page()
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block
        assert all(line.count("`") % 2 == 0 for line in block.splitlines()), block
    anchors = [
        reference.anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")
    ]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= set(anchors)
    for link in re.findall(r"\]\(([^#)][^#)]*)", text):
        assert (PAGE.parent / link).exists(), link


def read() -> dict[str, set[str]]:
    """Every GOLDNODE_ variable that a program of goldnode's names, with the files that do."""
    found: dict[str, set[str]] = {}
    for path in tracked():
        place = path.relative_to(ROOT)
        if (
            place.parts[0] in ("src", "scripts", "roles", "integrations")
            and place.name != "environment.py"
        ):
            for name in re.findall(
                r"\bGOLDNODE_[A-Z0-9_]*[A-Z]\b", path.read_text("utf-8", "replace")
            ):
                found.setdefault(name, set()).add(str(place))
    return found


def test_every_variable_that_is_read_has_a_row() -> None:
    missing = {
        name: sorted(files)
        for name, files in read().items()
        if name not in ROWS and name not in INNER
    }
    assert missing == {}, "add a row to src/goldnode/core/environment.py"


def test_every_row_is_of_a_variable_that_is_read() -> None:
    named = read()
    assert [
        row.name for row in (*environment.VARIABLES, *environment.ON_NODES) if row.name not in named
    ] == []
    tests = "\n".join(
        path.read_text("utf-8", "replace")
        for path in tracked()
        if path.relative_to(ROOT).parts[0] in ("tests", "molecule")
    )
    assert [row.name for row in environment.FOR_TESTS if row.name not in tests] == []

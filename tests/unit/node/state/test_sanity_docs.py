"""The table of findings in docs/reference/sanity.md is that of the program. `python -m tests.unit.node.state.test_sanity_docs` writes it."""

from __future__ import annotations

from pathlib import Path

from goldnode.node.state.kinds import KINDS, Kind
from goldnode.node.state.remedy import STEPS

PAGE = Path(__file__).parents[4] / "docs/reference/sanity.md"
BEGIN, END = "<!-- findings -->\n", "<!-- /findings -->"


def line(row: Kind) -> str:
    """One line of the table: id, fault domain, severity, what is judged, remedy, its blast radius and its steps."""
    remedy = (row.remedy or "computed from the readings").replace("|", "\\|")
    steps = ", ".join(row.remedy.steps) if row.remedy else ""
    about = row.about.replace("|", "\\|")
    return f"| `{row.id}` | {row.domain} | {row.severity} | {about} | {remedy} | {row.blast or ''} | {steps} |"


def table() -> str:
    """The table of all findings, by id."""
    rows = [
        "| Finding | Domain | Severity | Judged | Remedy | Also affects | Steps |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*rows, *(line(KINDS[name]) for name in sorted(KINDS))]) + "\n"


def test_the_page_has_every_finding_as_it_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    differs = [line for line in table().splitlines() if line not in written]
    assert "\n".join(written) + "\n" == table(), (
        f"docs/reference/sanity.md has not: {differs or 'only what it should'}; run: python -m tests.unit.node.state.test_sanity_docs"
    )


def test_every_remedy_names_the_next_step() -> None:
    for row in KINDS.values():
        if row.remedy is not None:
            assert row.remedy.endswith("."), row.id
            assert row.remedy.steps, row.id
            assert set(row.remedy.steps) <= set(STEPS), row.id
            assert row.blast in ("nothing", "process", "gpu", "node", "hardware"), row.id


if __name__ == "__main__":
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(head + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")

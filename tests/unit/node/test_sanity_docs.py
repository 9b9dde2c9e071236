"""The table of findings in docs/sanity.md is the table of rules. `python -m tests.unit.node.test_sanity_docs` writes it anew."""

from __future__ import annotations

from pathlib import Path

from goldnode.node.state.remedy import STEPS
from goldnode.node.verdict.table import TABLE

PAGE = Path(__file__).parents[3] / "docs/sanity.md"
BEGIN, END = "<!-- rules -->\n", "<!-- /rules -->"


def table() -> str:
    """One row for each rule: its id, what a mismatch means, what its remedy takes along, what it holds, what to do, and as which steps."""
    rows = ["| finding | severity | takes along | holds | next | steps |", "|---|---|---|---|---|---|"]
    for rule in sorted(TABLE):
        text = " ".join((rule.judge.__doc__ or "").split()).partition(". ")[0].rstrip(".").replace("|", "\\|")
        remedy = rule.remedy.replace("|", "\\|")
        rows.append(
            f"| `{rule.id}` | {rule.severity} | {rule.blast} | {text} | {remedy} | {', '.join(rule.remedy.steps)} |"
        )
    return "\n".join(rows) + "\n"


def test_the_page_has_every_rule_as_it_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table()


def test_every_rule_says_what_it_is_for_and_names_the_next_step() -> None:
    for rule in TABLE:
        assert (rule.judge.__doc__ or "").strip().endswith("."), rule.id
        assert rule.remedy.endswith("."), rule.id
        assert rule.remedy.steps, rule.id
        assert set(rule.remedy.steps) <= set(STEPS), rule.id
        assert rule.severity in ("degraded", "drain")
        assert rule.blast in ("nothing", "process", "gpu", "node", "hardware")


if __name__ == "__main__":
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(head + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")

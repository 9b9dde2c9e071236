"""python -m tests.e2e.drift: write the page of the table (docs/reference/drift.md)."""

from __future__ import annotations

from tests.e2e.drift.table import BY_ENGINE, BY_SITE, PAGE, DriftRow, rows

HEAD = """# Drift of a node

<!-- Written by python -m tests.e2e.drift. Do not edit: change tests/e2e/drift/table.yml. -->

This page lists changes that people, images, configuration management and installers make on a node, and the answer of goldnode to each.
Every row runs on a node in a container with systemd, apt, dkms, initramfs-tools and stand-in packages (class `e2e_drift`): the change, the
check, the plan, the repair, and the check again, which must be as before. `tests/e2e/test_drift.py` has the commands
(`tests/e2e/drift/table.yml`) and runs the rows: a choice by default, all with `--all` ([proof](../proof.md#with---all-only)).

* *repaired*: goldnode owns what was changed, and `site.yml` puts it back; the second column names the change of the plan.
* *reported*: a person or a program wrote something that goldnode does not own. `check` and `plan` name file and line, `site.yml` refuses to
  change the node, and the test takes the change back by the commands of the remedy.
"""
TITLES = {
    "trial": "The 43 changes of a trial of 2026-11-27\n\nOf these, 17 had been silent and 3 were found by the check alone. The record of "
    "the trial names the silent ones; the others are inferred from their kinds.",
    "own": "Further changes",
    "harmless": "Changes without effect\n\nNeither `check` nor the plan may say anything about these.",
}


def _answer(row: DriftRow) -> str:
    named = (row.plan or "the program itself").rstrip(": ")
    if row.repair in (BY_ENGINE, BY_SITE):
        return f"repaired: `{named}`"
    return f"reported: `{named}`"


def page() -> str:
    """Return the text of docs/reference/drift.md."""
    lines, table = [HEAD], rows()
    for kind, title in TITLES.items():
        chosen = [row for row in table if row.kind == kind]
        head, _, text = title.partition("\n\n")
        lines.append(f"## {head} ({len(chosen)})\n" if kind != "trial" else f"## {head}\n")
        lines += [f"{text}\n"] * bool(text)
        if kind == "harmless":
            lines += ["| Change |", "|---|", *(f"| {_name(row)} |" for row in chosen), ""]
            continue
        lines += ["| Change | Finding | Plan |", "|---|---|---|"]
        for row in chosen:
            lines.append(
                f"| {_name(row)} | {', '.join(f'`{item}`' for item in row.check)} | {_answer(row)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _name(row: DriftRow) -> str:
    return row.id.replace("-", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

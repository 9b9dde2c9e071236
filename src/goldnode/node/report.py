"""Texts for people: a verdict as a table, a plan as a list."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from .state.model import PRESENT

MARKS = {
    "match": "ok",
    "mismatch": "DIFFERS",
    "not_exposed": "not exposed",
    "could_not_read": "COULD NOT READ",
    "not_verified_here": "not verified here",
}


def verdict_table(verdict: Mapping[str, Any]) -> str:
    """One line per finding; the first line says it when the hardware is simulated, the last one sums up."""
    lines: List[str] = []
    if verdict["simulated"]:
        lines.append("SIMULATED HARDWARE: nothing below speaks of a real GPU")
    # A verdict of an older goldnode does not say what its stack was tested with.
    stack = f"  stack {verdict['stack']} (exercised: {verdict['exercised']})" if "exercised" in verdict else ""
    lines.append(f"class {verdict['class']}  at {verdict['time']}{stack}")
    lines += finding_lines(verdict["findings"])
    lines += [f"  {f['id']}: {f['remedy']}" for f in verdict["findings"] if f["outcome"] in ("mismatch", "could_not_read") and f["remedy"]]
    counts = verdict["counts"]
    said = ", ".join(f"{number} {MARKS[outcome].lower()}" for outcome, number in counts.items() if number)
    lines.append(f"verdict: {verdict['status']} (exit code {verdict['exit_code']}): {said}")
    return "\n".join(lines)


def finding_lines(findings: Sequence[Mapping[str, Any]]) -> List[str]:
    """Findings as the rows of a table, under its head."""
    rows = [("item", "outcome", "expected", "got")]
    for finding in findings:
        got = finding["got"] if finding["outcome"] != "match" else ""
        rows.append((finding["id"], MARKS[finding["outcome"]], str(finding["expected"]), str(got)))
    widths = [min(max(len(row[i]) for row in rows), limit) for i, limit in enumerate((36, 18, 48, 999))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths[:3]) + "  ---", *lines[1:]]


def plan_text(plan: Mapping[str, Any]) -> str:
    """What would be done, part by part, with reasons; then what stands against it, and whether a reboot follows."""
    lines: List[str] = []
    parts = list(plan["parts"].items())
    for part, actions in parts if plan["state"] == PRESENT else reversed(parts):
        lines += [f"{part}:"] + [f"  {line}" for line in actions] if actions else []
    lines += [f"refused: {refusal['message']} {refusal['remedy']}" for refusal in plan["refusals"]]
    present = plan["state"] == PRESENT
    lines += [f"{'waits for a drain' if present else 'waiting'}: {item['subject']}: {item['message']}" for item in plan["waiting"]]
    lines += [f"{'not verified here' if present else 'note'}: {note['message']}" for note in plan["notes"]]
    lines += [f"reboot needed: {reason}" for reason in plan["reboot"]["after"]]
    return "\n".join(lines) if plan["actions"] or plan["refusals"] else "\n".join(["nothing to do", *lines])

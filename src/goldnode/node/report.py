"""Text output for people: a verdict as a table, a plan as a list."""

from __future__ import annotations

from .state.model import PRESENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Sequence, Tuple


MARKS = {
    "match": "ok",
    "mismatch": "DIFFERS",
    "not_exposed": "not exposed",
    "could_not_read": "COULD NOT READ",
    "not_verified_here": "not verified here",
    "deferred": "deferred",
    "suppressed": "accepted",
}
# Order of the outcomes, most urgent first.
FIRST = ("mismatch", "could_not_read", "not_exposed", "not_verified_here", "deferred", "suppressed")
WIDTH = 120
# Up to this number, items that could not be read for the same reason have one row each; more share a row.
SAME = 3


def verdict_table(verdict: Mapping[str, Any]) -> str:
    """Return the verdict as text.

    The first line labels simulated hardware. Findings other than matches follow, worst first and equal ones
    in one row, each with remedy, readings and blast radius. Then come the matches in short, and a summary in
    the last line.
    """
    lines: List[str] = []
    if verdict["simulated"]:
        lines.append("SIMULATED HARDWARE: nothing below speaks of a real GPU")
    # Verdicts of older versions of goldnode do not have `exercised`.
    stack = (
        f"  stack {verdict['stack']} (exercised: {verdict['exercised']})" if "exercised" in verdict else ""
    )
    lines.append(f"class {verdict['class']}  at {verdict['time']}{stack}")
    if verdict.get("recorded"):
        record = verdict["recorded"]
        lines.append(
            f"a record of {record['hostname'] or 'some node'}, made at {record['time']} "
            f"({record['source']}); nothing of this machine was read"
        )
    rows = sorted((f for f in verdict["findings"] if f["outcome"] != "match"), key=_urgency)
    grouped, silent = _apart(_grouped(rows))
    if grouped or silent:
        lines += finding_lines(
            [{**found[0], "id": _named(found)} for found in grouped] + [_together(found) for found in silent]
        )
    for found in grouped:
        lines += _advice(found)
    for found in silent:
        lines += [f"  {_together(found)['id']}: {found[0]['remedy']}"]
        lines += _wrapped("    ", list(dict.fromkeys(str(finding["id"]) for finding in found)))
    fine = [f["id"] for f in verdict["findings"] if f["outcome"] == "match"]
    lines += _wrapped(f"ok ({len(fine)}): ", list(dict.fromkeys(fine)))
    counts = verdict["counts"]
    said = ", ".join(
        f"{number} {MARKS.get(outcome, outcome).lower()}" for outcome, number in counts.items() if number
    )
    lines.append(f"verdict: {verdict['status']} (exit code {verdict['exit_code']}): {said}")
    return "\n".join(lines)


def _urgency(finding: Mapping[str, Any]) -> Tuple[int, bool]:
    outcome = finding["outcome"]
    return (FIRST.index(outcome) if outcome in FIRST else 0, finding["severity"] != "drain")


def _grouped(findings: Sequence[Mapping[str, Any]]) -> List[List[Mapping[str, Any]]]:
    """Group the findings that differ only in their subject, in the order of each group's first finding."""
    groups: Dict[Any, List[Mapping[str, Any]]] = {}
    for finding in findings:
        key = (finding["id"], finding["outcome"], finding["severity"], finding["expected"], finding["got"])
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _apart(
    groups: List[List[Mapping[str, Any]]],
) -> Tuple[List[List[Mapping[str, Any]]], List[List[Mapping[str, Any]]]]:
    """Return the groups, and separately those that could not be read for the same reason, joined.

    A hanging driver thus appears once.
    """
    alike: Dict[Any, List[Mapping[str, Any]]] = {}
    for found in groups:
        if found[0]["outcome"] == "could_not_read":
            alike.setdefault((found[0]["got"], found[0]["remedy"]), []).extend(found)
    silent = {key: found for key, found in alike.items() if len({finding["id"] for finding in found}) > SAME}
    rest = [
        found
        for found in groups
        if found[0]["outcome"] != "could_not_read" or (found[0]["got"], found[0]["remedy"]) not in silent
    ]
    return rest, list(silent.values())


def _together(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the single row for items that could not be read for the same reason."""
    return {
        **found[0],
        "id": f"{len({finding['id'] for finding in found})} items",
        "expected": "something that can be read",
    }


def _named(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the id of a group with its subjects."""
    subjects = [str(finding.get("subject")) for finding in found if finding.get("subject")]
    if not subjects:
        return str(found[0]["id"])
    return f"{found[0]['id']} {subjects[0]}" + (f" and {len(subjects) - 1} more" if len(subjects) > 1 else "")


def _advice(found: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return remedy, blast radius and readings of one group."""
    first = found[0]
    if first["outcome"] not in ("mismatch", "could_not_read", "suppressed", "not_exposed"):
        return []
    lines = []
    if first["remedy"] and first["outcome"] != "suppressed":
        blast = first.get("blast")
        lines.append(
            f"  {first['id']}: {first['remedy']}"
            + (f" [takes along: {blast}]" if blast and blast != "nothing" else "")
        )
    elif first["outcome"] == "suppressed":
        lines.append(f"  {first['id']}:")
    subjects = [str(finding["subject"]) for finding in found if finding.get("subject")]
    lines += _wrapped("    on ", subjects) if len(subjects) > 1 else []
    lines += [
        f"    {text}"
        for text in list(dict.fromkeys(text for finding in found for text in finding.get("evidence") or ()))[
            :6
        ]
    ]
    return lines


def _wrapped(head: str, words: Sequence[str]) -> List[str]:
    """Return the words after a head, wrapped to :data:`WIDTH`."""
    lines, line = [], head
    for word in words:
        if len(line) + len(word) > WIDTH and line.strip():
            lines.append(line.rstrip())
            line = " " * min(len(head), 8)
        line += word + " "
    return [*lines, line.rstrip()] if words else []


def finding_lines(findings: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return the findings as rows of a table, with its head."""
    rows = [("item", "outcome", "expected", "got")]
    for finding in findings:
        got = finding["got"] if finding["outcome"] != "match" else ""
        rows.append(
            (
                finding["id"],
                MARKS.get(finding["outcome"], finding["outcome"]),
                str(finding["expected"]),
                str(got),
            )
        )
    widths = [min(max(len(row[i]) for row in rows), limit) for i, limit in enumerate((36, 18, 48, 999))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths[:3]) + "  ---", *lines[1:]]


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return the planned changes of each part with reasons, the refusals, and whether a reboot follows."""
    lines: List[str] = []
    parts = list(plan["parts"].items())
    # Removal undoes the parts in reverse order.
    for part, actions in parts if plan["state"] == PRESENT else reversed(parts):
        lines += [f"{part}:"] + [f"  {line}" for line in actions] if actions else []
    lines += [f"refused: {refusal['message']} {refusal['remedy']}" for refusal in plan["refusals"]]
    present = plan["state"] == PRESENT
    lines += [
        f"{'waits for a drain' if present else 'waiting'}: {item['subject']}: {item['message']}"
        for item in plan["waiting"]
    ]
    lines += [f"{'not verified here' if present else 'note'}: {note['message']}" for note in plan["notes"]]
    lines += [f"reboot needed: {reason}" for reason in plan["reboot"]["after"]]
    lines += [f"no reboot as the node is now: {text}" for text in plan["reboot"].get("held", ())]
    return "\n".join(lines) if plan["actions"] or plan["refusals"] else "\n".join(["nothing to do", *lines])

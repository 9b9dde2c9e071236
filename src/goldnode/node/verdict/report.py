"""Text output: a verdict as a table, a plan as a list."""

from __future__ import annotations

from ..ground.text import phrase
from ..state.model import PRESENT
from ..state.remedy import FOLLOWS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple


MARKS = {
    "match": "ok",
    "mismatch": "DIFFERS",
    "not_exposed": "not exposed",
    "could_not_read": "COULD NOT READ",
    "not_verified_here": "not verified here",
    "deferred": "deferred",
    "suppressed": "accepted",
}
# Outcomes by urgency; the table lists the first ones at the top.
FIRST = ("mismatch", "could_not_read", "not_exposed", "not_verified_here", "deferred", "suppressed")
WIDTH = 120
SAME = 3  # up to this many items that could not be read for the same reason have a row each; more share one


def verdict_table(verdict: Mapping[str, Any]) -> str:
    """Return the verdict as text: mismatches first, worst at the top, then the matches in short.

    Equal findings share a row. Each row has its remedy, readings and blast radius. The first line
    labels simulated hardware, the last one sums up.
    """
    lines: List[str] = []
    if verdict["simulated"]:
        lines.append("SIMULATED HARDWARE: nothing below speaks of a real GPU")
    stack = ""
    if "exercised" in verdict:  # verdicts of older versions lack the key
        stack = f"  stack {verdict['stack']} (exercised: {verdict['exercised']})"
    if "undeclared" in verdict:
        name = f"class {verdict['class']}, without its stack" if verdict["class"] else "no class"
        lines.append(f"{name}  at {verdict['time']}  judged by the facts of {verdict['facts']}")
        lines.append(_detected(verdict["detected"]))
    else:
        lines.append(f"class {verdict['class'] or 'unknown'}  at {verdict['time']}{stack}")
    if verdict.get("recorded"):
        record = verdict["recorded"]
        lines.append(
            f"a record of {record['hostname'] or 'an unnamed node'}, "
            f"made at {record['time'] or 'an unknown time'} "
            f"({record['source']}); nothing of this machine was read"
        )
    rows = sorted((f for f in verdict["findings"] if f["outcome"] != "match"), key=_urgency)
    grouped, silent = _apart(_grouped(rows))
    if grouped or silent:
        lines += finding_lines(
            [{**group[0], "id": _named(group)} for group in grouped]
            + [_together(group) for group in silent]
        )
    # The remedies follow the table, so that its columns stay narrow enough for a terminal.
    for group in grouped:
        lines += _advice(group)
    for group in silent:
        lines.append(f"  {_together(group)['id']}: {group[0]['remedy']}")
        lines += _wrapped("    ", list(dict.fromkeys(str(finding["id"]) for finding in group)))
    fine = [f["id"] for f in verdict["findings"] if f["outcome"] == "match"]
    head = "judged, and good" if "undeclared" in verdict else "ok"
    lines += _wrapped(f"{head} ({len(fine)}): ", list(dict.fromkeys(fine)))
    lines += _undeclared(verdict, {str(finding["id"]) for group in silent for finding in group})
    counts = verdict["counts"]
    reported = ", ".join(
        f"{number} {MARKS.get(outcome, outcome).lower()}"
        for outcome, number in counts.items()
        if number
    )
    lines.append(f"verdict: {verdict['status']} (exit code {verdict['exit_code']}): {reported}")
    return "\n".join(lines)


# Reasons of a verdict without a class why something could not be read.
REASONS = {
    "permission": "no permission; root reads it (`sudo goldnode-node check`)",
    "no_driver": "no GPU driver answers",
    "missing": "not on this machine",
    "source": "not shown here",
    "other": "failed",
}


def _detected(hardware: Mapping[str, Any]) -> str:
    """Return the line on GPUs and platform."""
    gpus = ", ".join(hardware["gpus"]) or "no GPU"
    driver = phrase(", driver {}", hardware["driver"])
    return f"found: {gpus}{driver}" + "".join(f"; {text}" for text in hardware["platform"])


def _undeclared(verdict: Mapping[str, Any], shown: Set[str]) -> List[str]:
    """Return what a verdict without a class adds: what could not be read, what no class declares, and advice.

    `shown`: ids that share a row above; they are not listed again.
    """
    if "undeclared" not in verdict:
        return []
    driver = [f["id"] for f in verdict["driver"] if f["outcome"] == "match"]
    lines = _wrapped("driver, judged, and good: ", driver)
    unread = [
        (row, [name for name in row["items"] if name not in shown]) for row in verdict["unread"]
    ]
    if any(items for _, items in unread):
        lines.append("could not be read:")
    for row, items in unread:
        lines += _wrapped(f"  {REASONS[row['why']]} ({row['got']}): ", items)
    judged = {finding["id"] for finding in verdict["findings"]}
    for head, part in (
        (
            "not declared, not judged: ",
            [row for row in verdict["undeclared"] if row["item"] not in judged],
        ),
        (
            "not declared, judged by range and by equal GPUs only: ",
            [row for row in verdict["undeclared"] if row["item"] in judged],
        ),
    ):
        rows = [f"{row['item']} ({row['found']})" for row in part]
        lines += _wrapped(head, [f"{row}," for row in rows[:-1]] + rows[-1:])
    if verdict["undeclared"]:
        lines.append(
            "  A class declares which of these values are right. `goldnode adopt` proposes one from running nodes, "
            "`goldnode check-node FILE --class CLASS` judges a capture by one."
        )
    return lines + [f"advice: {text}" for text in verdict["advice"]]


def _urgency(finding: Mapping[str, Any]) -> Tuple[int, bool]:
    # An outcome of a later version sorts first, so that it is not overlooked.
    outcome = finding["outcome"]
    return (FIRST.index(outcome) if outcome in FIRST else 0, finding["severity"] != "drain")


def _grouped(findings: Sequence[Mapping[str, Any]]) -> List[List[Mapping[str, Any]]]:
    """Return groups of findings that differ only in their subject, in the order of the first finding of each
    group.
    """
    groups: Dict[Any, List[Mapping[str, Any]]] = {}
    for finding in findings:
        key = (
            finding["id"],
            finding["outcome"],
            finding["severity"],
            finding["expected"],
            finding["got"],
        )
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _apart(
    groups: List[List[Mapping[str, Any]]],
) -> Tuple[List[List[Mapping[str, Any]]], List[List[Mapping[str, Any]]]]:
    """Separate the groups into those with rows of their own, and items that could not be read for the same
    reason.

    The latter share a row, so that a hanging driver is reported once.
    """
    alike: Dict[Any, List[Mapping[str, Any]]] = {}
    for group in groups:
        if group[0]["outcome"] == "could_not_read":
            alike.setdefault(_reason(group[0]), []).extend(group)
    silent = {
        key: group
        for key, group in alike.items()
        if len({finding["id"] for finding in group}) > SAME
    }
    rest = [
        group
        for group in groups
        if group[0]["outcome"] != "could_not_read" or _reason(group[0]) not in silent
    ]
    return rest, list(silent.values())


def _reason(finding: Mapping[str, Any]) -> Any:
    """Return what items share that could not be read for the same reason: a cause, or reading and remedy."""
    follows = str(finding["remedy"]).endswith(FOLLOWS)
    return finding["remedy"] if follows else (finding["got"], finding["remedy"])


def _together(group: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the shared row of items that could not be read for the same reason."""
    # The most frequent reading represents all of them.
    readings = [finding["got"] for finding in group]
    return {
        **group[0],
        "got": max(readings, key=readings.count),
        "id": f"{len({finding['id'] for finding in group})} items",
        "expected": "something that can be read",
    }


def _named(group: Sequence[Mapping[str, Any]]) -> str:
    """Return the id of the findings, with their subjects."""
    subjects = [str(finding.get("subject")) for finding in group if finding.get("subject")]
    name = " ".join([str(group[0]["id"]), *subjects[:1]])
    return f"{name} and {len(subjects) - 1} more" if len(subjects) > 1 else name


def _advice(group: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return remedy, blast radius and readings of one group."""
    first = group[0]
    if first["outcome"] not in ("mismatch", "could_not_read", "suppressed", "not_exposed"):
        return []
    lines = []
    if first["outcome"] == "suppressed":
        lines.append(f"  {first['id']}:")
    elif first["remedy"]:
        affects = ""
        if first.get("blast") not in (None, "", "nothing"):
            affects = f" [also affects: {first['blast']}]"
        lines.append(f"  {first['id']}: {first['remedy']}{affects}")
    subjects = [str(finding["subject"]) for finding in group if finding.get("subject")]
    if len(subjects) > 1:
        lines += _wrapped("    on ", subjects)
    evidence = dict.fromkeys(text for finding in group for text in finding.get("evidence") or ())
    return lines + [f"    {text}" for text in list(evidence)[:6]]


def _wrapped(head: str, words: Sequence[str]) -> List[str]:
    """Return words after a head, wrapped to lines of about WIDTH characters."""
    lines, line = [], head
    for word in words:
        if len(line) + len(word) > WIDTH and line.strip():
            lines.append(line.rstrip())
            line = " " * min(len(head), 8)
        line += word + " "
    return [*lines, line.rstrip()] if words else []


def finding_lines(findings: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return the findings as rows of a table, with a header."""
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
    widths = [
        min(max(len(row[i]) for row in rows), limit) for i, limit in enumerate((36, 18, 48, 999))
    ]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths[:3]) + "  ---", *lines[1:]]


def notes_of(plan: Mapping[str, Any]) -> List[str]:
    """Return the notes of a plan, one line each. A declared part that differs was verified, and is only not changed."""
    present = plan["state"] == PRESENT
    return [
        f"{'not verified here' if present and not of_part(row) else 'note'}: {row['message']}"
        for row in plan["notes"]
    ]


def of_part(note: Mapping[str, str]) -> bool:
    """Return whether a note is on a part that the class declares and goldnode does not install."""
    return note["subject"].startswith("parts.")


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return the planned changes, part by part, with reasons; then refusals, notes, and whether a reboot
    follows.
    """
    lines: List[str] = []
    parts, waiting = list(plan["parts"].items()), "waits for a drain"
    if plan["state"] != PRESENT:
        parts.reverse()  # removal undoes the parts in reverse order
        waiting = "waiting"
    for part, actions in parts:
        if actions:
            lines += [f"{part}:", *(f"  {line}" for line in actions)]
    lines += [f"refused: {refusal['message']} {refusal['remedy']}" for refusal in plan["refusals"]]
    lines += [f"{waiting}: {item['subject']}: {item['message']}" for item in plan["waiting"]]
    lines += notes_of(plan)
    lines += [f"reboot needed: {reason}" for reason in plan["reboot"]["after"]]
    lines += [f"no reboot as the node is now: {text}" for text in plan["reboot"].get("held", ())]
    if not plan["actions"] and not plan["refusals"]:
        lines.insert(0, "nothing to do")
    return "\n".join(lines)

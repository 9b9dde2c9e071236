"""Report of a check as text for a person, as JSON (schema goldnode.check/1), and as SARIF 2.1.0 for tools."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from goldnode.compat.check import registry, rules_of_nodes
from goldnode.compat.model import CompatFinding, CompatRule, DeclaredAt
from goldnode.core.dataclass import dataclass
from goldnode.core.errors import CatalogError, GoldnodeError
from goldnode.core.progress import text_width
from goldnode.core.release import version
from goldnode.core.site import acceptance, exception_entry, file_to_edit
from goldnode.facts import host as facts
from goldnode.node.ground.text import phrase

SCHEMA = "goldnode.check/1"
SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
WIDTH = 110

_LEVELS = {"block": "error", "warn": "warning", "unknown": "note"}


@dataclass(frozen=True)
class CompatReport:
    """Subjects and findings of a check.

    `subjects` are in output order, each with the place of its declaration. `not_checked` are
    sentences without full stop.
    """

    subjects: Sequence[tuple[str, DeclaredAt | None]]
    findings: Sequence[CompatFinding]
    not_checked: Sequence[str] = field(default_factory=list)
    read: Sequence[str] = field(default_factory=list)  # of lock files and the like
    images: int = 0
    requirements: int = 0
    # (class, stack, the lock's error)
    unlocked: Sequence[tuple[str, str, str]] = field(default_factory=list)
    # Faults of catalog files whose items could not be checked
    faults: Sequence[GoldnodeError] = field(default_factory=list)

    @property
    def fatal(self) -> bool:
        """Return whether any subject must not be used."""
        return any(finding.fatal for finding in self.findings)

    def counts(self) -> dict[str, int]:
        """Return the number of unaccepted findings per severity, and the number of accepted ones."""
        numbers = {
            name: sum(
                1 for item in self.findings if item.severity == name and item.accepted is None
            )
            for name in _LEVELS
        }
        return {
            **numbers,
            "accepted": sum(1 for item in self.findings if item.accepted is not None),
        }


# For a person


def text(report: CompatReport, base: Path | None = None) -> str:
    """Return the report as text: findings by subject with reason, source and remedy, then a summary line.

    Paths below `base` (by default the working directory) are relative to it.
    """
    lines: list[str] = []
    fine: list[str] = []
    shown: set[int] = set()
    for subject, place in report.subjects:
        # The subject of a workload is "image X on class Y": list it under the class.
        mine = [
            item
            for item in report.findings
            if item.subject == subject or item.subject.endswith(f" on {subject}")
        ]
        shown |= {id(item) for item in mine}
        if not mine:
            fine.append(subject)
            continue
        lines += [
            heading(subject, place, base),
            *(line for item in mine for line in _finding(item, subject, base)),
            "",
        ]
    rest: dict[str, list[CompatFinding]] = {}
    for item in report.findings:
        if id(item) not in shown:
            rest.setdefault(item.subject, []).append(item)
    for subject, items in rest.items():
        lines += [
            heading(subject, items[0].place, base),
            *(line for item in items for line in _finding(item, subject, base)),
            "",
        ]
    if fine:
        lines += [*_wrapped("nothing found: ", ", ".join(fine), ""), ""]
    return "\n".join([*lines, *last_lines(report)])


def heading(subject: str, place: DeclaredAt | None, base: Path | None = None) -> str:
    """Return the line above the findings of a subject."""
    return f"{subject}  ({where(place, base)})" if place is not None else subject


def where(place: DeclaredAt, base: Path | None = None) -> str:
    """Return a place as FILE:LINE."""
    file = _relative(place.file, base or Path.cwd())
    return file if place.line is None else f"{file}:{place.line}"


def mark(finding: CompatFinding) -> str:
    """Return the label of a finding: its severity, or "accepted"."""
    return "accepted" if finding.accepted is not None else finding.severity


def _finding(item: CompatFinding, subject: str, base: Path | None) -> list[str]:
    about = item.subject.removesuffix(f" on {subject}") if item.subject != subject else ""
    reported = f"{about}: {item.message}" if about else item.message
    lines = _wrapped(f"  {mark(item):<8} ", f"{_sentence(reported)} [{item.rule}]", " " * 11)
    if item.accepted is not None:
        lines += _wrapped(" " * 11 + f"accepted ({item.severity}): ", item.accepted, " " * 13)
    if item.remedy:
        lines += _wrapped(" " * 11 + "instead: ", item.remedy, " " * 13)
    if _may_be_accepted(item):
        lines += [
            f"{' ' * 11}or accept it, in {file_to_edit()}:",
            f"{' ' * 13}exceptions:",
            f"{' ' * 13}  - {exception_entry(item.rule, item.subject)}",
        ]
    if item.sources:
        lines += _wrapped(" " * 11 + "source: ", "; ".join(_origins(item.sources)), " " * 13)
    if item.doubt:
        lines += _wrapped(" " * 11 + "in doubt: ", item.doubt, " " * 13)
    if item.place is not None:
        lines.append(" " * 11 + f"at: {where(item.place, base)}")
    return lines


def _origins(sources: Iterable[facts.Origin]) -> list[str]:
    """Return the titles of sources with their keys in the facts, grouped by file."""
    files: dict[str, list[facts.Origin]] = {}
    for origin in sources:
        files.setdefault(origin.place, []).append(origin)
    return [
        f"{', '.join(item.title for item in items)} ({file}: {', '.join(item.key for item in items)})"
        for file, items in files.items()
    ]


def last_lines(report: CompatReport) -> list[str]:
    """Return the summary: how much was checked and found, and what was not checked."""
    kinds: dict[str, int] = {}
    for subject, _ in report.subjects:
        kind = subject.split(" ")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    plural = {"class": "classes"}
    things = [
        f"{count} {kind if count == 1 else plural.get(kind, kind + 's')}"
        for kind, count in kinds.items()
    ]
    things += [f"{report.images} image{'s' * (report.images != 1)}"] if report.images else []
    if report.requirements:
        things.append(f"{report.requirements} requirements file{'s' * (report.requirements != 1)}")
    counts = report.counts()
    totals = ", ".join(
        f"{count} {name}" for name, count in counts.items() if count or name == "block"
    )
    rules = f"{rules_of_nodes()} rules of nodes"
    if report.images or report.requirements:
        rules = f"{len(registry())} rules"
    line = (
        f"{', '.join(things)} validated against {rules} and facts of {facts.compiled()}: {totals}."
    )
    line += phrase(" Read: {}.", "; ".join(report.read))
    line += phrase(" Not checked: {}.", "; ".join(report.not_checked))
    line += f" {not_applicable(report.unlocked)}" if report.unlocked else ""
    return _wrapped("", line, "")


def not_applicable(unlocked: Sequence[tuple[str, str, str]]) -> str:
    """Return the sentence about classes that `site.yml` will refuse; empty if `unlocked` is empty.

    `unlocked` has (class, stack, the lock's error).
    """
    if not unlocked:
        return ""
    stacks: dict[str, list[str]] = {}
    for name, stack, _ in unlocked:
        stacks.setdefault(stack, []).append(name)
    why = {
        stack: "no lock" if "has no lock" in problem else "no lock that is good"
        for _, stack, problem in unlocked
    }
    reported = "; ".join(
        f"{', '.join(names)}: {why[stack]} (goldnode lock {stack})"
        for stack, names in stacks.items()
    )
    return f"{len(unlocked)} class{'es' * (len(unlocked) > 1)} cannot be applied yet: {reported}."


def brief(finding: CompatFinding) -> str:
    """Return a finding as one line with its FILE:LINE, for a run that has named the class already."""
    reason = refusal(finding)
    line = f"[{reason['code']}] {reason['message']} {reason['remedy']}".rstrip()
    return line if finding.place is None else f"{line} ({where(finding.place)})"


# Rules about support and known faults, which the owner of a node may accept for a time. The others
# are about what cannot work.
_ACCEPTABLE = (
    "driver-branch",
    "end-of-life",
    "known-bad",
    "os-support",
    "security-floor",
    "toolkit-floor",
)


def _remedy(finding: CompatFinding) -> str | None:
    """Return the remedy of a finding, with the way to accept it where that is a decision of the owner."""
    if not _may_be_accepted(finding):
        return finding.remedy
    paste = acceptance(finding.rule, finding.subject)
    return f"{finding.remedy}, or {paste}" if finding.remedy else paste


def _may_be_accepted(finding: CompatFinding) -> bool:
    return finding.fatal and finding.rule in _ACCEPTABLE


def refusal(finding: CompatFinding) -> dict[str, str]:
    """Return a finding of a class in the form of a plan's refusals: complete sentences."""
    about = "" if finding.subject.startswith("class ") else f"{finding.subject}: "
    remedy = _remedy(finding) or ""
    return {
        "code": finding.rule,
        "subject": finding.subject,
        "message": _sentence(about + finding.message),
        "remedy": (_sentence(remedy[:1].upper() + remedy[1:]) if remedy else ""),
    }


def error(finding: CompatFinding) -> CatalogError:
    """Return a finding of a class as an error with file and line."""
    about = "" if finding.subject.startswith("class ") else f"{finding.subject}: "
    place = finding.place or DeclaredAt(Path())
    return CatalogError(
        f"{about}{finding.message} [{finding.rule}]",
        file=place.file,
        line=place.line,
        remedy=_remedy(finding),
    )


def explain(rule: CompatRule) -> str:
    """Return what a rule compares, why, and its sources."""
    origins = [
        str(origin) + phrase(", {}", origin.where)
        for file, keys in rule.facts.items()
        for origin in facts.origins(file, list(keys))
    ]
    lines = [f"{rule.id}: {rule.title}", "", *_wrapped("", rule.explanation, ""), ""]
    if not origins:
        return "\n".join([*lines, "It rests on no one source: each finding names its own."])
    return "\n".join(
        [
            *lines,
            "It rests on:",
            *(line for origin in origins for line in _wrapped("- ", origin, "  ")),
        ]
    )


def _wrapped(first: str, reported: str, after: str) -> list[str]:
    return textwrap.wrap(
        reported,
        text_width(WIDTH),
        initial_indent=first,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _sentence(reported: str) -> str:
    return reported if reported.endswith((".", "!", "?")) else reported + "."


# For programs


def document(report: CompatReport) -> dict[str, Any]:
    """Return the report as a JSON document (schema goldnode.check/1); paths are absolute."""
    return {
        "schema": SCHEMA,
        "facts": str(facts.compiled()),
        "fatal": report.fatal,
        "subjects": [
            {"subject": subject, "place": _place(place)} for subject, place in report.subjects
        ],
        "images": report.images,
        "requirements": report.requirements,
        "counts": report.counts(),
        "findings": [
            {
                "rule": item.rule,
                "severity": item.severity,
                "fatal": item.fatal,
                "subject": item.subject,
                "message": item.message,
                "remedy": item.remedy,
                "doubt": item.doubt,
                "accepted": item.accepted,
                "row": item.row,
                "sources": [dataclasses.asdict(origin) for origin in item.sources],
                "place": _place(item.place),
            }
            for item in report.findings
        ],
        "read": list(report.read),
        "not_checked": list(report.not_checked),
        "unlocked": [
            {"class": name, "stack": stack, "message": message}
            for name, stack, message in report.unlocked
        ],
    }


def _place(place: DeclaredAt | None) -> dict[str, Any] | None:
    return None if place is None else {"file": str(place.file), "line": place.line}


def sarif(report: CompatReport) -> dict[str, Any]:
    """Return the report as a SARIF 2.1.0 log.

    block is an error, warn a warning, unknown a note; accepted findings are suppressed results.
    Files are relative to the root of their repository (uriBaseId SRCROOT), so that the log is the
    same on every machine.
    """
    rules = list(registry().values())
    index = {rule.id: number for number, rule in enumerate(rules)}
    return {
        "$schema": SARIF,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "goldnode",
                        "semanticVersion": version(),
                        "rules": [
                            {
                                "id": rule.id,
                                "shortDescription": {"text": rule.title},
                                "fullDescription": {"text": rule.explanation},
                                "help": {
                                    "text": f"{rule.explanation} See `goldnode check --explain {rule.id}`."
                                },
                            }
                            for rule in rules
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {
                    "SRCROOT": {"description": {"text": "The root of the repository."}}
                },
                "properties": {
                    "facts": str(facts.compiled()),
                    "notChecked": list(report.not_checked),
                },
                "results": [_result(item, index) for item in report.findings],
            }
        ],
    }


def _result(item: CompatFinding, index: dict[str, int]) -> dict[str, Any]:
    reported = [_sentence(f"{item.subject}: {item.message}")]
    reported += [_sentence(f"Instead: {item.remedy}")] if item.remedy else []
    reported += [_sentence(f"Source: {'; '.join(_origins(item.sources))}")] if item.sources else []
    reported += [_sentence(f"In doubt: {item.doubt}")] if item.doubt else []
    level = _LEVELS[item.severity]
    if item.fatal:
        level = "error"
    elif item.severity == "block":
        level = "warning"  # it is accepted
    result: dict[str, Any] = {
        "ruleId": item.rule,
        "ruleIndex": index[item.rule],
        "level": level,
        "message": {"text": " ".join(reported)},
        "properties": {"severity": item.severity, "subject": item.subject},
    }
    if item.place is not None:
        location: dict[str, Any] = {"artifactLocation": _artifact(item.place.file)}
        if item.place.line is not None:
            location["region"] = {"startLine": item.place.line}
        result["locations"] = [{"physicalLocation": location}]
    if item.accepted is not None:
        # SARIF's form of an accepted result: viewers hide it, and keep its reason.
        result["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": item.accepted}
        ]
    return result


def _artifact(file: Path) -> dict[str, str]:
    from urllib.parse import quote  # start-up time: only for SARIF

    path = file.absolute()
    root = next((parent for parent in path.parents if (parent / ".git").exists()), None)
    if root is None:
        return {"uri": path.as_uri()}
    return {"uri": quote(path.relative_to(root).as_posix()), "uriBaseId": "SRCROOT"}


def dumps(value: dict[str, Any]) -> str:
    """Serialize a JSON document for output."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _relative(file: Path, base: Path) -> str:
    try:
        return str(file.absolute().relative_to(base.absolute()))
    except ValueError:
        return str(file)

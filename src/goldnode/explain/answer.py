"""Explanation of a text: runs the readers and merges their answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from goldnode.explain import boot, dependencies, documents, logs, system, tables, versions
from goldnode.explain.model import TextAnswer, TextReading, merged, of_symptom
from goldnode.facts import xid
from goldnode.facts.symptoms import component_of_line, near, of_line, symptoms
from goldnode.node.ground.text import clean

Reader = Callable[[Sequence[str]], TextReading | None]

# In this order: a reader gets the lines that those before it left.
READERS: tuple[Reader, ...] = (
    documents.xml,
    documents.query,
    documents.fabric,
    tables.smi,
    tables.topology,
    tables.dcgm,
    tables.lspci,
    tables.kubernetes,
    system.slurm,
    system.ras,
    system.ibstat,
    boot.boot,
    logs.nccl,
    logs.tracebacks,
    logs.kernel,
    documents.bug_report,
)
_SHOWN = 160  # characters of a line that an answer quotes
# A description has few lines; more without any known message is a log of something else.
_DESCRIPTION = 12
_DECORATION = re.compile(r"^[\W_]*$")
# A command behind its prompt is no output.
_COMMAND = re.compile(r"^\s*(?:[\w.-]+@[\w.-]+[^$#]{0,60}[$#]|\$) \S")
# Lines that apt adds to an error: hashes, dates, and that it continues with old indexes.
_OF_APT = re.compile(
    r"^\s+(?:Hashes of expected file:|- (?:Filesize|SHA\d+|MD5Sum):|Release file created at:)"
    r"|^E: (?:Some index files failed to download|Unable to fetch some archives)"
)

# Lines around an error that say nothing more: what systemd does with a unit, what is for information or was ignored, advice that a
# program prints with each error, headings of `nvidia-smi -q`, and commands of root.
_BESIDE = re.compile(
    r"systemd(?:\[\d+\])?: (?:Starting|Started|Stopping|Stopped|Reached target) |: (?:Main|Control) process exited, code="
    r"|: Scheduled restart job|: Failed with result |level=(?:info|debug)\b|; ignoring\"?$"
    r"|CUDA kernel errors might be asynchronously reported|For debugging consider passing CUDA_LAUNCH_BLOCKING"
    r"|Compile with `?TORCH_USE_CUDA_DSA|Press any key to continue|^\s*Try .{1,60}--help"
    r"|^\s*vGPU Software Licensed Product$|^\s*Product Name +: |^\s*Host VGPU Mode +: |^\s*# \S"
    r"|^\s*[\u00d7\u25cf\u25cb] [\w@.-]+ - |^\s+(?:Active|Loaded|Process|Main PID|TriggeredBy|Docs|CPU|Tasks|Memory|CGroup|Invocation|Duration): "
)


@dataclass(frozen=True)
class Explanation:
    """Result of an explanation.

    `forms` are the recognized forms with their notes, `similar` the symptoms near a description with their
    nearness (0 to 1), `unread` the lines that no reader recognized.
    """

    forms: tuple[tuple[str, str], ...]
    answers: tuple[TextAnswer, ...]
    similar: tuple[tuple[TextAnswer, float], ...]
    unread: tuple[tuple[int, str], ...]  # number of the line from 1, and its text

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `goldnode explain`, without its schema."""
        return {
            "recognized": [{"form": form, "notes": notes} for form, notes in self.forms],
            "answers": [answer.document() for answer in self.answers],
            "similar": [
                {**answer.document(), "nearness": round(nearness, 2)}
                for answer, nearness in self.similar
            ],
            "not_recognized": [{"line": number, "text": text} for number, text in self.unread],
        }


def explain(text: str, driver: str | None = None) -> Explanation:
    """Explain a text. `driver` is the version of this node's driver, where it is known.

    A number alone is an Xid. Lines are cleaned of what cannot be printed before anything quotes them.
    """
    bare = re.fullmatch(r"\s*(?:S?Xid\s*)?(\d{1,6})\s*", text, re.IGNORECASE)
    if bare and int(bare.group(1)) in xid.codes():
        answer = logs.of_xid(int(bare.group(1)), text=text, line=0, subject=None)
        return Explanation((), (answer,), (), ())
    whole = tables.dcgm_json(text)
    # Records of the kernel's ring have the lines of one message joined by this escape.
    lines = [
        clean(line.replace("\t", "    ").rstrip())
        for line in text.replace("\\x0a", "\n").splitlines()
    ]
    readings = [whole] if whole else _read(lines)
    taken = set().union(*(reading.used for reading in readings))
    answers = [answer for reading in readings for answer in reading.answers]
    left = [number for number in range(len(lines)) if number not in taken]
    for number in left:
        for row in of_line(lines[number])[:1]:
            answers.append(of_symptom(row, text=lines[number], line=number))
            taken.add(number)
    unsettled = _unsettled(answers, lines)
    settled, answers = len(unsettled) < len(answers), unsettled
    ids = {answer.id for answer in answers}
    if any(name.startswith("archive-") for name in ids):
        taken.update(number for number in left if _OF_APT.match(lines[number]))
    if "no-package-for-this-system" in ids:
        taken.update(number for number in left if dependencies.is_row(lines[number]))
    if answers:
        taken.update(number for number in left if _BESIDE.search(lines[number]))
    else:
        # No row knows any line: which program reports an error is what remains.
        answers.extend(_components(lines, left, taken))
    answers = versions.completed(merged(answers), "\n".join(lines), driver)
    unread = tuple(
        (number + 1, lines[number][:_SHOWN])
        for number in left
        if number not in taken
        and not _DECORATION.match(lines[number])
        and not _COMMAND.match(lines[number])
    )
    described = not readings and not answers and not settled and 0 < len(unread) <= _DESCRIPTION
    similar = near(text) if described else []
    return Explanation(
        forms=tuple((reading.form, ", ".join(reading.notes)) for reading in readings),
        answers=tuple(answers),
        similar=tuple((of_symptom(row, text="", line=0), close) for row, close in similar),
        unread=() if similar else unread,
    )


def _unsettled(answers: Sequence[TextAnswer], lines: Sequence[str]) -> list[TextAnswer]:
    """Return the answers without those that a later line of the text withdraws."""
    unsettled = []
    for answer in answers:
        row = symptoms().get(answer.id)
        later = lines[answer.line :] if row and row.settled_by else ()
        if not any(re.search(str(row and row.settled_by), line) for line in later):
            unsettled.append(answer)
    return unsettled


def _components(lines: Sequence[str], left: Sequence[int], taken: set[int]) -> list[TextAnswer]:
    """Return the components that report an error in the lines `left`, and mark these lines as read."""
    answers = []
    for number in left:
        row = component_of_line(lines[number])
        if row is not None:
            answers.append(of_symptom(row, text=lines[number], line=number))
            taken.add(number)
    return answers


def _read(lines: Sequence[str]) -> list[TextReading]:
    readings = []
    blank = list(lines)
    for reader in READERS:
        reading = reader(blank)
        if reading is not None:
            readings.append(reading)
            for number in reading.used:
                blank[number] = ""
    return readings

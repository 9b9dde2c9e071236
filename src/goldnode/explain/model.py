"""Answers, and the result of one reader."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from goldnode.facts.symptoms import Symptom, subject_of, symptoms


@dataclass(frozen=True)
class TextAnswer:
    """One thing that the text proves or names, and what follows from it.

    `line` counts from 1 and is that of the first occurrence, `more` are other lines that say it in other words,
    `count` counts occurrences. `effect` is what it means for a node: "none", "degraded", "drain", or None where
    the text is about a job. `here` are patterns of finding ids that answer on the node, `run` the command of
    goldnode-node that reports them.
    """

    id: str
    title: str
    text: str
    line: int
    more: tuple[str, ...] = ()
    count: int = 1
    layer: str | None = None
    subject: str | None = None
    effect: str | None = None
    causes: tuple[str, ...] = ()
    check: str | None = None
    run: str | None = None
    here: tuple[str, ...] = ()
    fix: str | None = None
    versions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the answer as a row of goldnode.explain/1."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
        }


@dataclass
class TextReading:
    """Result of one reader: the recognized form, the lines it used (from 0), notes and answers."""

    form: str
    used: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    answers: list[TextAnswer] = field(default_factory=list)


def of_symptom(
    name: str | Symptom,
    *,
    text: str,
    line: int,
    subject: str | None = None,
    title: str | None = None,
) -> TextAnswer:
    """Return the answer that a symptom of the table gives. `line` counts from 0."""
    row = symptoms()[name] if isinstance(name, str) else name
    return TextAnswer(
        id=row.id,
        title=title or row.title,
        text=text.strip(),
        line=line + 1,
        layer=row.layer,
        subject=subject or subject_of(row, text),
        effect=row.effect,
        causes=row.causes,
        check=row.check,
        run=row.run,
        here=row.here,
        fix=row.fix,
        sources=tuple(str(origin) for origin in row.sources),
    )


_NUMBERS = re.compile(r"\d+")
_MORE = 3


def merged(answers: Sequence[TextAnswer]) -> list[TextAnswer]:
    """Return the answers with one row for each id and subject, counted, in the order of their first lines.

    One without a subject goes with one of the same title that has it.
    """
    rows: dict[tuple[str, str | None], TextAnswer] = {}
    named = {(one.id, one.title): one.subject for one in reversed(answers) if one.subject}
    for answer in sorted(answers, key=lambda one: one.line):
        subject = answer.subject or named.get((answer.id, answer.title))
        answer = replace(answer, subject=subject)
        key = (answer.id, subject)
        if key in rows:
            first = rows[key]
            more = first.more
            # Lines that differ by numbers only, such as their times, say the same.
            same = {_NUMBERS.sub("", text) for text in (first.text, *more)}
            if len(more) < _MORE and _NUMBERS.sub("", answer.text) not in same:
                more = (*more, answer.text)
            rows[key] = replace(first, count=first.count + answer.count, more=more)
        else:
            rows[key] = answer
    return list(rows.values())

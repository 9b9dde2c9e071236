"""A file of a project that states Python packages, while it is read: the ground of the readers of its forms."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from goldnode.compat.model import DeclaredAt, declared
from goldnode.compat.requirement_lines import (
    RequirementLine,
    RequirementReading,
    add_requirement,
)
from goldnode.core.errors import WorkloadError


@dataclass
class ProjectFile:
    """A file to read: its content, the extras and groups that are named with it, and its place."""

    path: Path
    text: str
    extras: tuple[str, ...]
    place: DeclaredAt | None
    content: dict[str, Any] = field(default_factory=dict)  # of TOML

    def line(self, pattern: str) -> int:
        """Return the number of the first line that matches; 1 if none does."""
        match = re.search(pattern, self.text, re.M)
        return 1 if match is None else self.text.count("\n", 0, match.start()) + 1

    @cached_property
    def line_of(self) -> dict[str, int]:
        """Return the number of the first line ``name = "NAME"`` of a lock file in TOML, by name."""
        lines: dict[str, int] = {}
        for number, text in enumerate(self.text.splitlines(), 1):
            if text.startswith('name = "'):
                lines.setdefault(text[8:-1], number)
        return lines

    def error(self, message: str, remedy: str, line: int | None = None) -> WorkloadError:
        """Return an error about the file."""
        return WorkloadError(message, file=self.path, line=line, remedy=remedy)


@dataclass(frozen=True)
class ReadNote:
    """The parts of a file that were read, and those that were left out; phrases without full stop."""

    read: str
    left_out: str | None = None


def pin(reading: RequirementReading, line: RequirementLine, name: str, version: str) -> None:
    """Pin a package of a lock file. A lock may hold several versions of it; the first that applies is taken."""
    if name not in reading.pins:
        add_requirement(RequirementLine(line.file, line.number, f"{name}=={version}"), reading)


def left_out(
    file: ProjectFile, names: Iterable[str], kind: str = "extras and groups"
) -> str | None:
    """Return what of a file was not named, and so not read; None if nothing is left."""
    listed = sorted(names)
    if not listed:
        return None
    return f"{kind} of {file.path.name} that are not named: {', '.join(listed)}"


def require_known_extras(file: ProjectFile, offered: Iterable[str]) -> None:
    """Raise WorkloadError for an extra or a group that the file does not have."""
    known = sorted(offered)
    unknown = [name for name in file.extras if name not in known]
    if unknown:
        raise WorkloadError(
            f"{file.path} has no extra or group {unknown[0]}",
            **declared(file.place or DeclaredAt(file.path)),
            remedy=f"name one of {', '.join(known)}" if known else "name the file without extras",
        )


def rows_of(value: Any) -> list[Any]:
    """Return a list, a list of one value, or an empty list for nothing."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]

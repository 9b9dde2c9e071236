"""Patterns of a `.dockerignore`: which files of a directory are left out, as Docker's builders decide it.

The rules are those of moby/patternmatcher (`ignorefile` and `patternmatcher`), which is what the classic builder and
BuildKit read the file with. `tests/cases/dockerignore.json` has the answers of the real builders.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.errors import ImageError

IGNORE = ".dockerignore"

# Docker joins its patterns to regular expressions, where these are no operators (patternmatcher's shouldEscape).
_ESCAPED = frozenset(".+()|{}$")
_REMEDY = "correct the pattern; a `\\` before a character takes it literally"


@dataclass(frozen=True)
class IgnorePattern:
    """One pattern. `keeps`: it begins with `!`, and takes files back that an earlier one left out."""

    text: str
    expression: re.Pattern[str]
    keeps: bool


@dataclass(frozen=True)
class IgnoreFile:
    """Patterns in the order of the file; the last one that matches decides."""

    patterns: tuple[IgnorePattern, ...] = ()
    file: Path | None = None

    def leaves_out(self, path: str) -> bool:
        """Return whether a path, relative to the directory, is left out.

        Docker enters a directory that is left out only for a pattern `!DIRECTORY/…` that names it in full:
        `!**/x` takes nothing back below it.
        """
        parts = path.split("/")
        folders = ["/".join(parts[:count]) for count in range(1, len(parts))]
        return any(
            self._matched(one) and not self._entered(one) for one in folders
        ) or self._matched(path)

    def _entered(self, folder: str) -> bool:
        return any(row.keeps and f"{row.text}/".startswith(f"{folder}/") for row in self.patterns)

    def _matched(self, path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        out = False
        for pattern in self.patterns:
            # Only a pattern that could change the answer is asked.
            if pattern.keeps == out and any(map(pattern.expression.fullmatch, above)):
                out = not pattern.keeps
        return out


def load_ignore(file: Path) -> IgnoreFile:
    """Read a file of patterns. Raises ImageError with file and line."""
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as problem:
        raise ImageError(
            f"the patterns cannot be read: {problem.strerror}", file=file, remedy="correct its name"
        ) from problem
    return IgnoreFile(tuple(_patterns(text.removeprefix("\ufeff"), file)), file)


def _patterns(text: str, file: Path) -> Iterator[IgnorePattern]:
    for number, line in enumerate(text.split("\n"), 1):
        # A comment begins in the first column: ` #x` is a pattern.
        if line.startswith("#") or not (pattern := line.strip()):
            continue
        keeps = pattern.startswith("!")
        pattern = _cleaned(pattern[1:].strip() if keeps else pattern)
        if not pattern:
            raise ImageError(
                'a "!" alone is no pattern', file=file, line=number, remedy="write !PATTERN"
            )
        if pattern.startswith(
            "!"
        ):  # `!!x`, or a `!` that only follows `./`: Docker takes it for its own
            keeps, pattern = True, pattern[1:]
        if not _well_formed(pattern):
            raise ImageError(
                f'"{line.strip()}" is no pattern', file=file, line=number, remedy=_REMEDY
            )
        try:
            yield IgnorePattern(pattern, re.compile(_expression(pattern), re.DOTALL), keeps)
        except re.error:
            raise ImageError(
                f'"{line.strip()}" is no pattern', file=file, line=number, remedy=_REMEDY
            ) from None


def _cleaned(pattern: str) -> str:
    """Return a pattern as Go's filepath.Clean does, relative to the directory; `""` stays."""
    if not pattern:
        return ""
    # posixpath keeps two slashes at the beginning, Go does not.
    clean = re.sub(r"^//", "/", posixpath.normpath(pattern))
    return clean[1:] if len(clean) > 1 and clean.startswith("/") else clean


def _well_formed(pattern: str) -> bool:
    """Return whether Go's filepath.Match accepts the pattern: Docker asks it before it reads the pattern its own way."""
    place = 0
    while place < len(pattern):
        if pattern[place] == "\\":
            place += 2
            if place > len(pattern):
                return False
        elif pattern[place] == "[":
            end = _class_end(pattern, place)
            if end is None:
                return False
            place = end
        else:
            place += 1
    return True


def _class_end(pattern: str, start: int) -> int | None:
    """Return the place after a class `[…]` that starts at `start`; None if it is malformed."""
    place = start + 1 + (pattern[start + 1 : start + 2] == "^")
    empty = True
    while place < len(pattern):
        if pattern[place] == "]" and not empty:
            return place + 1
        for bound in range(2):
            if pattern[place : place + 1] in ("", "-", "]"):
                return None
            place += 1 + (pattern[place] == "\\")
            if bound or pattern[place : place + 1] != "-":
                break
            place += 1
        empty = False
    return None


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern, as patternmatcher's `compile` writes it."""
    text, place = "", 0
    if pattern.startswith("**"):
        rest = pattern[2:].removeprefix("/")
        # `**/x` without a further operator is compared as the end of the path.
        if rest and not re.search(r"[*?\[\]\\]", rest):
            end = re.escape(pattern[2:])
            return f".*{end}|{re.escape(rest)}" if pattern[2:].startswith("/") else f".*{end}"
    while place < len(pattern):
        char = pattern[place]
        place += 1
        if char == "*" and pattern[place : place + 1] == "*":
            place += 1 + (pattern[place + 1 : place + 2] == "/")
            text += ".*" if place >= len(pattern) else "(.*/)?"
        elif char == "*":
            text += "[^/]*"
        elif char == "?":
            text += "[^/]"
        elif char == "\\":
            text += "\\" + pattern[place : place + 1]
            place += 1
        else:
            text += f"\\{char}" if char in _ESCAPED else char
    return text

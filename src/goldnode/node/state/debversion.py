"""Comparison of Debian package versions (Debian Policy, section 5.6.12: epoch, upstream part, revision)."""

from __future__ import annotations

DIGITS = "0123456789"
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple


def _weight(text: str) -> List[int]:
    """Return the sort key of a non-digit run: `~` before the end, letters before everything else."""
    # The end counts as 0, so 1.0~rc1 is older than 1.0 (deb-version(7)).
    return [-1 if char == "~" else ord(char) + 256 * (not char.isalpha()) for char in text] + [0]


def _head(text: str) -> Tuple[str, int, str]:
    """Return the leading non-digit run, the number after it (0 if absent), and the rest."""
    start = next((at for at, letter in enumerate(text) if letter in DIGITS), len(text))
    rest = text[start:].lstrip(DIGITS)
    return text[:start], int(text[start : len(text) - len(rest)] or 0), rest


def _compare(left: str, right: str) -> int:
    """Compare as Policy describes: alternately a non-digit run (maybe empty) and a number (0 if absent)."""
    while left or right:
        (a, m, left), (b, n, right) = _head(left), _head(right)
        if (_weight(a), m) != (_weight(b), n):
            return -1 if (_weight(a), m) < (_weight(b), n) else 1
    return 0


def compare(left: str, right: str) -> int:
    """Return -1, 0 or 1 if the version `left` is older than, equal to or newer than `right`."""

    def split(version: str) -> Tuple[int, str, str]:
        epoch, colon, rest = version.partition(":")
        if not colon:
            epoch, rest = "0", version
        # Policy: the revision follows the last hyphen, if there is a hyphen.
        upstream, _, revision = rest.rpartition("-")
        return int(epoch), upstream or rest, revision if upstream else ""

    first, second = split(left), split(right)
    if first[0] != second[0]:
        return -1 if first[0] < second[0] else 1
    return _compare(first[1], second[1]) or _compare(first[2], second[2])

"""Names of nodes folded into ranges, as Slurm writes them: node[001-004,007]."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)


def fold(names: Iterable[str]) -> str:
    """Return the names, those that differ in their last number alone as one range.

    Only numbers of equal width are folded, so that each name can be written out again.
    """
    groups: dict[tuple[str, int, str], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match is None or len(match[2]) > 18:
            plain.append(name)
        else:
            groups.setdefault((match[1], len(match[2]), match[3]), []).append(int(match[2]))
    texts = [_group(*key, sorted(numbers)) for key, numbers in groups.items()]
    return ",".join(sorted(plain + texts))


def _group(before: str, width: int, after: str, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{before}{numbers[0]:0{width}}{after}"
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = (
        f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}"
        for low, high in ranges
    )
    return f"{before}[{','.join(shown)}]{after}"

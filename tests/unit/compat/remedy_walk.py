"""Follow printed remedies from a blocked combination: carry one out, judge again, until nothing blocks or a remedy is words alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from goldnode.compat import check
from goldnode.compat.model import CompatFinding, CompatHost, Workload

LONGEST = 8  # remedies one after the other


@dataclasses.dataclass(frozen=True)
class WalkEnd:
    """The end of a walk: `block` is None if nothing blocks any more, else a block whose remedy names no change."""

    remedies: tuple[str, ...]
    block: CompatFinding | None = None
    endless: bool = False

    def __str__(self) -> str:
        if self.block is None:
            return " -> ".join((*self.remedies, "ok"))
        where = f"[{self.block.row or self.block.rule}] {self.block.message}: {self.block.remedy}"
        return " -> ".join((*self.remedies, where))


def walk(
    host: CompatHost | None, workloads: Sequence[Workload], done: tuple[str, ...] = ()
) -> WalkEnd:
    """Follow remedies until nothing blocks; of several, the first that leads there."""
    blocks = [
        item
        for item in check.check(host, workloads)
        if item.severity == "block" and item.accepted is None
    ]
    if not blocks:
        return WalkEnd(done)
    if len(done) == LONGEST:
        return WalkEnd(done, blocks[0], endless=True)
    dead = None
    for block in blocks:
        for text, changed in _changed(block, host, workloads):
            end = walk(*changed, (*done, text))
            if end.block is None:
                return end
            dead = dead or end
    return dead or WalkEnd(done, blocks[0])


def _changed(
    block: CompatFinding, host: CompatHost | None, workloads: Sequence[Workload]
) -> Iterator[tuple[str, tuple[CompatHost | None, list[Workload]]]]:
    """Yield what each option of a printed remedy makes of the combination."""
    own = next((item for item in workloads if block.subject.startswith(item.subject)), None)
    for option in block.options:
        if option.change is not None:
            another, changed = option.change((host, own))
            rest = [changed if item is own else item for item in workloads]
            yield option.text, (another, [item for item in rest if item is not None])

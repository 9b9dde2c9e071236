"""Placement of MIG instances on a GPU, as the driver does it.

A GPU instance takes neighbouring memory slices from one of the first slices that its profile allows, a number of compute slices
(the digit of its name), and media engines. A layout exists if all of its instances find a place. `gpus.yml`, `mig_tables`,
has slices, first slices and engines of each board.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any

from goldnode.core.dataclass import dataclass
from goldnode.facts.host import GpuModel, Origin, load, origins


@dataclass(frozen=True)
class MigProfile:
    """A GPU instance profile: `size` memory slices from one of `starts`, and at most `instances` of it on one GPU."""

    names: tuple[str, ...]
    size: int
    starts: tuple[int, ...]
    instances: int
    engines: Mapping[str, int]
    first_branch: int | None

    @property
    def compute(self) -> int:
        """Return the number of compute slices: 3 for 3g.20gb."""
        return int(self.names[0].partition("g")[0])


@dataclass(frozen=True)
class MigTable:
    """The profiles of a board with the drivers of some branches, or of all."""

    id: str
    memory_slices: int
    compute_slices: int
    engines: Mapping[str, int]
    profiles: tuple[MigProfile, ...]
    first_branch: int | None
    last_branch: int | None
    origins: tuple[Origin, ...]

    def profile(self, name: str) -> MigProfile | None:
        """Return the profile of this name, None without one."""
        return next((row for row in self.profiles if name in row.names), None)

    def serves(self, branch: int) -> bool:
        """Return whether drivers of this branch are known to have this table."""
        return (self.first_branch or 0) <= branch <= (self.last_branch or branch)


@dataclass(frozen=True)
class MigFault:
    """A layout that cannot be made: the reason, and the largest part of it that can."""

    message: str
    origins: tuple[Origin, ...]
    possible: tuple[str, ...] = ()
    profile: str | None = None  # the one at fault, if it is one


def tables(gpu: GpuModel) -> tuple[MigTable, ...]:
    """Return the tables of a GPU model; none if the facts have no positions for it."""
    return tuple(table for table in _all() if table.id in gpu.mig_tables)


@cache
def _all() -> tuple[MigTable, ...]:
    return tuple(
        table(row, origins("gpus.yml", row["source"])) for row in load("gpus.yml")["mig_tables"]
    )


def table(row: Mapping[str, Any], stated: tuple[Origin, ...] = ()) -> MigTable:
    """Return the table that a row of `mig_tables` states; `stated` are its origins.

    The audit gives none: it reads rows that are not in force yet.
    """
    profiles = tuple(
        MigProfile(
            names=tuple(item["name"].split("|")),
            size=item["size"],
            starts=tuple(item["starts"]),
            instances=item["instances"],
            engines=item.get("engines") or {},
            first_branch=item.get("first_branch"),
        )
        for item in row["profiles"]
    )
    return MigTable(
        id=row["id"],
        memory_slices=row["memory_slices"],
        compute_slices=row["compute_slices"],
        engines=row["engines"],
        profiles=profiles,
        first_branch=row.get("first_branch"),
        last_branch=row.get("last_branch"),
        origins=stated,
    )


def fault(gpu: GpuModel, branch: int | None, layout: Sequence[str]) -> MigFault | None:
    """Return why drivers of `branch` (None: any) cannot make `layout` on one GPU; None if they can, or nothing is known.

    Where the branches between two tables are unknown, a layout of either is accepted.
    """
    known = tables(gpu)
    own = [table for table in known if branch is None or table.serves(branch)] or known
    reasons = [_fault(table, branch, layout) for table in own]
    if None in reasons:
        return None
    return next((reason for reason in reasons if reason is not None), None)


def _fault(table: MigTable, branch: int | None, layout: Sequence[str]) -> MigFault | None:
    wanted = []
    for name in layout:
        profile = table.profile(name)
        if profile is None:
            with_driver = (
                "" if branch is None or not table.first_branch else f" with driver branch {branch}"
            )
            return MigFault(
                f'"{name}" is not one of its profiles{with_driver}', table.origins, profile=name
            )
        if branch is not None and (profile.first_branch or 0) > branch:
            message = f'"{name}" needs driver branch {profile.first_branch} or later, and the stack has {branch}'
            return MigFault(message, table.origins, profile=name)
        wanted.append(profile)
    if placement(table, wanted) is not None:
        return None
    return MigFault(_reason(table, wanted), table.origins, possible=_possible(table, layout))


def placement(table: MigTable, wanted: Sequence[MigProfile]) -> tuple[int, ...] | None:
    """Return a first memory slice for each profile, in their order; None if they do not fit together."""
    if _too_many(table, wanted) is not None:
        return None
    # The largest first: the search ends soonest.
    order = sorted(range(len(wanted)), key=lambda index: -wanted[index].size)
    chosen = _place([wanted[index] for index in order], frozenset())
    if chosen is None:
        return None
    starts = dict(zip(order, chosen, strict=True))
    return tuple(starts[index] for index in range(len(wanted)))


def _place(wanted: Sequence[MigProfile], taken: frozenset[int]) -> tuple[int, ...] | None:
    if not wanted:
        return ()
    first, *rest = wanted
    for start in first.starts:
        own = frozenset(range(start, start + first.size))
        if own & taken:
            continue
        others = _place(rest, taken | own)
        if others is not None:
            return (start, *others)
    return None


def _too_many(table: MigTable, wanted: Sequence[MigProfile]) -> str | None:
    """Return the limit besides memory slices that a layout exceeds, in words; None if it exceeds none."""
    compute = sum(row.compute for row in wanted)
    if compute > table.compute_slices:
        return f"{compute} compute slices of one GPU, which has {table.compute_slices}"
    for profile, count in Counter(row.names for row in wanted).items():
        limit = next(row.instances for row in table.profiles if row.names == profile)
        if count > limit:
            return f"{count} instances of {profile[0]}, and one GPU has at most {limit}"
    for engine, total in table.engines.items():
        used = sum(row.engines.get(engine, 0) for row in wanted)
        if used > total:
            return f"{used} {engine.upper()} engines of one GPU, which has {total}"
    return None


def _reason(table: MigTable, wanted: Sequence[MigProfile]) -> str:
    limit = _too_many(table, wanted)
    if limit is not None:
        return f"the MIG profiles need {limit}"
    memory = sum(row.size for row in wanted)
    if memory > table.memory_slices:
        return f"the MIG profiles need {memory} memory slices of one GPU, which has {table.memory_slices}"
    starts = "; ".join(
        f"{row.names[0]} takes {row.size} memory slices from {', '.join(map(str, row.starts))}"
        for row in dict.fromkeys(wanted)
    )
    return f"no placement holds the MIG profiles together: {starts}"


def _possible(table: MigTable, layout: Sequence[str]) -> tuple[str, ...]:
    """Return the largest part of a layout that can be made, in its order."""
    for part in _parts(layout):
        rows = [row for row in map(table.profile, part) if row is not None]
        if placement(table, rows) is not None:
            return part
    return ()


def _parts(layout: Sequence[str]) -> Iterator[tuple[str, ...]]:
    # More than twice the largest number of instances is refused without a search.
    whole = layout[:16]
    for size in range(len(whole), 0, -1):
        yield from dict.fromkeys(combinations(whole, size))

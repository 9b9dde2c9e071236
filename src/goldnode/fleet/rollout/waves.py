"""Assignment of nodes to waves, and the rank that decides who goes first within one."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from goldnode.documents.rollout import RolloutPool
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.model import FleetNode


@lru_cache(maxsize=1 << 16)  # each wave orders all units that are left
def rank(rollout: str, unit: str) -> int:
    """Return the rank of a node or cohort. It differs between rollouts, so no node is always first."""
    return int.from_bytes(hashlib.sha256(f"{rollout}\0{unit}".encode()).digest()[:8])


def unit_of(node: FleetNode, whole_cohorts: bool) -> str:
    """Return the name of the unit that moves together with a node: its cohort, or the node alone."""
    return f"cohort {node.cohort}" if whole_cohorts and node.cohort is not None else node.name


def units(nodes: Iterable[FleetNode], whole_cohorts: bool) -> dict[str, list[FleetNode]]:
    """Return the units with their nodes."""
    groups: dict[str, list[FleetNode]] = {}
    for node in nodes:
        groups.setdefault(unit_of(node, whole_cohorts), []).append(node)
    return groups


SOON = 3600.0  # seconds: nodes that are free within the same hour go in the order of their rank


def choose(
    settings: RolloutSettings,
    wave: int,
    nodes: Iterable[FleetNode],
    taken: Container[str] = (),
    now: float = 0.0,
    *,
    out: Container[str] = (),
) -> tuple[str, ...]:
    """Return the nodes of a wave that begins now. `taken` are the nodes of the waves before it.

    `out` are nodes with a hold: they are not held back as known good.

    Nodes in service that are free soon come first, in the order of their rank; lemons come last. A
    wave so chosen waits for no long job. A cohort that moves whole is in one wave.
    """
    nodes = list(nodes)
    moved = sum(node.name in taken for node in nodes)
    item = settings.waves[wave]
    held = () if item.reserve else reserve(settings, nodes, _Either(taken, out))
    order = _Order(settings, nodes, _Either(taken, held), now)
    if item.pool is not None:
        pool = settings.pools.get(item.pool)
        return () if pool is None else order.pool(pool)
    reserved = {host for pool in settings.pools.values() for host in pool.hosts or ()}
    if item.nodes is not None:
        return order.take(item.nodes, reserved)
    wanted = math.ceil((item.share or 0) * len(nodes) - 1e-9) - moved
    return order.take(wanted, set() if item.share == 1 else reserved)


def reserve(
    settings: RolloutSettings, nodes: Iterable[FleetNode], moved: Container[str] = ()
) -> tuple[str, ...]:
    """Return the nodes that are held back: in service, in the state `from`, and one of each rack before two of any.

    The choice depends on the nodes alone, so each caller has the same one. A node that fails is
    replaced by the next; `moved` are the nodes that a wave has. Nodes that a pool names are not held back.
    """
    if not settings.known_good:
        return ()
    named = {host for pool in settings.pools.values() for host in pool.hosts or ()}
    groups = units(nodes, settings.limits.whole_cohorts)
    fit = [
        unit
        for unit, members in groups.items()
        if all(
            node.name not in moved
            and node.name not in named
            and node.in_service is not False
            and node.digest in (None, settings.origin)
            and node.lemon is not True
            for node in members
        )
    ]
    # The other end of the ranks: the nodes that would go last anyway.
    fit.sort(key=lambda unit: (-rank(settings.name, unit), unit))
    names: list[str] = []
    for unit in _spread(fit, groups, "rack"):
        if len(names) >= settings.known_good:
            break
        names += [node.name for node in groups[unit]]
    return tuple(sorted(names))


@dataclass(frozen=True)
class _Either:
    """Names of two collections."""

    first: Container[str]
    second: Container[str]

    def __contains__(self, name: object) -> bool:
        return name in self.first or name in self.second


def further(
    settings: RolloutSettings,
    nodes: Iterable[FleetNode],
    taken: Container[str],
    count: int,
    now: float,
) -> tuple[str, ...]:
    """Return `count` nodes, or more in whole units, that no wave has taken yet and that can move now."""
    nodes = list(nodes)
    order = _Order(settings, nodes, _Either(taken, reserve(settings, nodes, taken)), now)
    order.order = [
        unit
        for unit in order.order
        if all(node.in_service and node.digest == settings.origin for node in order.units[unit])
    ]
    return order.take(count)


class _Order:
    """Units that no earlier wave has taken, in the order in which a wave takes them."""

    def __init__(
        self, settings: RolloutSettings, nodes: list[FleetNode], taken: Container[str], now: float
    ) -> None:
        self.settings = settings
        groups = units(nodes, settings.limits.whole_cohorts)
        self.units = {
            unit: members
            for unit, members in groups.items()
            if not any(node.name in taken for node in members)
        }
        self.order = sorted(self.units, key=lambda unit: self._key(unit, now))

    def _key(self, unit: str, now: float) -> tuple[bool, bool, int, int, str]:
        members = self.units[unit]
        free_at = max(node.free_at for node in members)
        return (
            any(node.lemon is True for node in members),
            not all(node.in_service and node.digest == self.settings.origin for node in members),
            max(0, int((free_at - now) // SOON)),
            rank(self.settings.name, unit),
            unit,
        )

    def take(self, count: int, reserved: Container[str] = ()) -> tuple[str, ...]:
        """Return the nodes of the first units that have `count` nodes together, or fewer if there are no more."""
        return self._first(
            (
                unit
                for unit in self.order
                if not any(node.name in reserved for node in self.units[unit])
            ),
            count,
        )

    def pool(self, pool: RolloutPool) -> tuple[str, ...]:
        """Return the nodes of a pool."""
        if pool.hosts is not None:
            wanted = set(pool.hosts)
            chosen = (
                unit for unit in self.order if any(node.name in wanted for node in self.units[unit])
            )
            return self._first(chosen, len(self.units) * 2**20)
        fit = [unit for unit in self.order if self._fits(unit, pool)]
        if pool.spread is not None:
            fit = _spread(fit, self.units, pool.spread)
        return self._first(fit, pool.nodes or 0)

    def _first(self, order: Iterable[str], count: int) -> tuple[str, ...]:
        names: list[str] = []
        for unit in order:
            if len(names) >= count:
                break
            names += [node.name for node in self.units[unit]]
        return tuple(names)

    def _fits(self, unit: str, pool: RolloutPool) -> bool:
        """Return whether a unit may be a canary: no lemon, no tag in `never`, in service and in the state `from`."""
        return all(
            node.lemon is not True
            and not set(node.tags) & set(pool.never)
            and node.in_service is not False
            and node.digest in (None, self.settings.origin)
            for node in self.units[unit]
        )


def _spread(order: list[str], members: Mapping[str, list[FleetNode]], by: str) -> list[str]:
    """Return units so that the first of each rack or leaf precede the second of any."""
    seen: Counter[object] = Counter()
    rows = []
    for place, unit in enumerate(order):
        group = getattr(members[unit][0], by)
        rows.append((seen[group], place, unit))
        seen[group] += 1
    return [unit for _, _, unit in sorted(rows)]


def assign(settings: RolloutSettings, nodes: Collection[FleetNode]) -> tuple[tuple[str, ...], ...]:
    """Return the nodes of each wave, as if all waves began now. A node that no wave takes is in none of them."""
    waves: list[tuple[str, ...]] = []
    taken: set[str] = set()
    for wave in range(len(settings.waves)):
        waves.append(choose(settings, wave, nodes, taken))
        taken.update(waves[-1])
    return tuple(waves)

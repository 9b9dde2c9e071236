"""The ledger of nodes that are out of service: who holds them, and from which buffer each is paid."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

from goldnode.fleet.rollout.model import FleetNode, Hold, HoldKind, Outage


class Ledger:
    """Holds of all owners, with counts that stay current as holds come and go.

    A node with several holds is out once. The limits of racks and leaves count planned nodes: a
    node that failed blocks no other, until the failed buffer is spent.
    """

    def __init__(self, nodes: Mapping[str, FleetNode], holds: Iterable[Hold] = ()) -> None:
        self._nodes = nodes
        self.by_node: dict[str, dict[str, Hold]] = {}
        self.ended: list[Outage] = []  # in the order of their ends
        # Kind -> ends of its outages, and the sum of their lengths up to each.
        self._sums: dict[HoldKind, tuple[list[float], list[float]]] = {}
        self.kinds: Counter[HoldKind] = Counter()  # nodes by the hold that they are paid from
        self.planned_racks: Counter[str] = Counter()
        self.planned_leaves: Counter[str] = Counter()
        for hold in holds:
            self.put(hold)

    def put(self, hold: Hold) -> None:
        """Add a hold, or replace the one of the same owner."""
        before = self.of(hold.node, hold.owner)
        if before is not None:
            self._end(before, hold.since)
        self._count(hold.node, -1)
        self.by_node.setdefault(hold.node, {})[hold.owner] = hold
        self._count(hold.node, 1)

    def _end(self, hold: Hold, at: float) -> None:
        if hold.kind is not HoldKind.PERSON:
            self.add(Outage(hold.since, max(at, hold.since), hold.kind))

    def add(self, outage: Outage) -> None:
        """Add an outage that ended after all that were added before."""
        self.ended.append(outage)
        ends, sums = self._sums.setdefault(outage.kind, ([], [0.0]))
        ends.append(outage.end)
        sums.append(sums[-1] + outage.end - outage.begin)

    def used(self, kind: HoldKind, since: float) -> float:
        """Return the node-seconds of the outages of a kind that ended after `since`."""
        ends, sums = self._sums.get(kind, ([], [0.0]))
        return sums[-1] - sums[bisect_right(ends, since)]

    def drop(self, node: str, owner: str, at: float) -> None:
        """End a hold. There may be none."""
        before = self.of(node, owner)
        if before is None:
            return
        self._end(before, at)
        self._count(node, -1)
        del self.by_node[node][owner]
        if not self.by_node[node]:
            del self.by_node[node]
        self._count(node, 1)

    def of(self, node: str, owner: str) -> Hold | None:
        """Return the hold of one owner."""
        return self.by_node.get(node, {}).get(owner)

    def others(self, node: str, owner: str) -> list[Hold]:
        """Return the holds of all other owners."""
        return [hold for name, hold in self.by_node.get(node, {}).items() if name != owner]

    def all(self) -> list[Hold]:
        """Return all holds."""
        return [hold for holds in self.by_node.values() for hold in holds.values()]

    @property
    def out(self) -> int:
        """Return the number of nodes that are out of service for any reason."""
        return len(self.by_node)

    @property
    def planned(self) -> int:
        """Return the number of nodes that the planned buffer pays."""
        return self.kinds[HoldKind.PLANNED]

    @property
    def failed(self) -> int:
        """Return the number of nodes that the failed buffer pays."""
        return self.kinds[HoldKind.FAILED]

    def _count(self, name: str, by: int) -> None:
        holds = self.by_node.get(name)
        if not holds:
            return
        kinds = {hold.kind for hold in holds.values()}
        kind = next(
            one for one in (HoldKind.PLANNED, HoldKind.FAILED, HoldKind.PERSON) if one in kinds
        )
        self.kinds[kind] += by
        node = self._nodes.get(name)
        if kind is HoldKind.PLANNED and node is not None:
            if node.rack is not None:
                self.planned_racks[node.rack] += by
            if node.leaf is not None:
                self.planned_leaves[node.leaf] += by

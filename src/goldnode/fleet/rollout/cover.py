"""Canaries that hold each hardware variant of a class.

A change may break one board revision, VBIOS or NIC firmware only. Canaries by chance hold a variant of
one node in a hundred seldom, and the change is stopped when the variant turns up in the last wave. The
choice is a greedy set cover: the next node is the one that has most variants which still lack nodes.
Each variant is wanted twice, since one failed node stops no change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from goldnode.fleet.rollout.model import FleetNode
from goldnode.fleet.rollout.waves import rank
from goldnode.fleet.shared.variants import HardwareVariant, Variants

EACH = 2  # nodes of each variant: `same_cause` of a document


@dataclass(frozen=True)
class VariantCount:
    """Nodes of a variant in the class, and among the canaries."""

    variant: HardwareVariant
    nodes: int
    canaries: int


def counts(
    nodes: Sequence[FleetNode], variants: Variants, canaries: Collection[str]
) -> list[VariantCount]:
    """Return the variants of kinds of which the class has more than one, the rarest first."""
    names = [node.name for node in nodes]
    total = Counter(one for name in names for one in variants.get(name, ()))
    held = Counter(one for name in names if name in canaries for one in variants.get(name, ()))
    kinds = Counter(variant.kind for variant in total)
    rows = [
        VariantCount(variant, total[variant], held[variant])
        for variant in total
        if kinds[variant.kind] > 1
    ]
    return sorted(rows, key=lambda row: (row.nodes, row.variant))


def uncovered(rows: Sequence[VariantCount], each: int = EACH) -> list[VariantCount]:
    """Return the variants of which the canaries hold fewer than `each` nodes, and fewer than there are."""
    return [row for row in rows if row.canaries < min(each, row.nodes)]


def canaries(
    name: str,
    nodes: Sequence[FleetNode],
    variants: Variants,
    *,
    least: int,
    each: int = EACH,
    never: Collection[str] = (),
) -> list[str]:
    """Return canaries that hold each variant `each` times, as far as there are nodes; `least` nodes or more.

    Among equally good nodes those in racks without a canary go first, then the order of the rollout
    `name` decides, so that the same nodes are not canaries each time.

    :param never: tags of nodes that are no canary. Neither are lemons.
    """
    fit = [node for node in nodes if node.lemon is not True and not set(node.tags) & set(never)]
    fit.sort(key=lambda node: (node.in_service is False, rank(name, node.name), node.name))
    wanted = {row.variant: min(each, row.nodes) for row in counts(fit, variants, ())}
    chosen: list[str] = []
    racks: Counter[str | None] = Counter()
    while fit:
        missing = {variant for variant, number in wanted.items() if number > 0}
        if not missing and len(chosen) >= least:
            break
        best = max(
            fit,
            key=lambda node: (
                len(variants.get(node.name, frozenset()) & missing),
                -racks[node.rack],
            ),
        )
        fit.remove(best)
        chosen.append(best.name)
        racks[best.rack] += 1
        for variant in variants.get(best.name, ()):
            if variant in wanted:
                wanted[variant] -= 1
    return sorted(chosen)

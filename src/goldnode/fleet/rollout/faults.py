"""Faults that a simulated rollout can have, with their default rates and the sources of these."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from goldnode.core.errors import GoldnodeError, nearest


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault. `unit` is the unit of its rate."""

    name: str
    default: float
    unit: str
    text: str


SHARE, PER_DAY, PER_THOUSAND = "share of the nodes", "per day", "per 1,000 node-days"
# hardware: InfiniteHBD-Trace, 400 GPU servers in 349 days. absent: the base rate that documents assume.
KINDS = {
    kind.name: kind
    for kind in (
        FaultKind("module", 1.0, SHARE, "the kernel module does not build; the node falls back"),
        FaultKind("image", 1.0, SHARE, "the new state fails its boot check"),
        FaultKind(
            "variant",
            0.01,
            SHARE,
            "the new state fails its boot check on all nodes of one hardware variant, this share of them",
        ),
        FaultKind(
            "late",
            1.0,
            SHARE,
            "the new state passes its boot check and fails hours later, in service",
        ),
        FaultKind(
            "slow",
            1.0,
            SHARE,
            "the new state is 10 % slower; only the requirement `floors` can see it",
        ),
        FaultKind("absent", 0.002, SHARE, "the node never returns from its boot"),
        FaultKind(
            "busy", 0.01, SHARE, "the node is granted, and its work never ends: it is never drained"
        ),
        FaultKind("lying", 0.01, SHARE, "the node reports the new state from its old boot"),
        FaultKind("hardware", 4.18, PER_THOUSAND, "hardware fails and is repaired, changed or not"),
        FaultKind("killed", 4.0, PER_DAY, "the controller is killed, and loses its memory"),
        FaultKind("partition", 2.0, PER_DAY, "a rack is cut off for an hour"),
        FaultKind("no-data", 1.0, SHARE, "queries and commands have no answer"),
    )
}
# Days until a node is repaired: median 0.85, 90 % within 13 (the same trace), as a log-normal distribution.
REPAIR_MEDIAN, REPAIR_SIGMA = 0.85, math.log(13 / 0.85) / 1.2816
OUT_AT_ONCE = 0.023  # mean share of nodes under repair (the same trace)


@dataclass(frozen=True)
class SimulatedFaults:
    """The rate of each kind of fault; 0 where it does not occur."""

    rates: tuple[tuple[str, float], ...] = ()

    def rate(self, name: str) -> float:
        """Return the rate of a kind."""
        return dict(self.rates).get(name, 0.0)

    def text(self) -> str:
        """Return the faults as on the command line."""
        return ", ".join(f"{name}={_shown(name, rate)}" for name, rate in self.rates) or "none"


def _shown(name: str, rate: float) -> str:
    return f"{rate:.4g}" if KINDS[name].unit != SHARE else f"{100 * rate:.4g}%"


def parse(written: Sequence[str]) -> SimulatedFaults:
    """Return the faults of KIND or KIND=RATE. Raises GoldnodeError."""
    rates: dict[str, float] = {}
    for item in written:
        name, given, value = item.partition("=")
        kind = KINDS.get(name)
        if kind is None:
            raise GoldnodeError(
                f'there is no fault "{name}"',
                remedy=nearest(name, KINDS) or f"use one of {', '.join(KINDS)}",
            )
        rates[name] = _rate(kind, value) if given else kind.default
    return SimulatedFaults(tuple(rates.items()))


def _rate(kind: FaultKind, value: str) -> float:
    percent = value.endswith("%")
    try:
        rate = float(value.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        rate = math.nan
    highest = 1.0 if kind.unit == SHARE else 1e6
    if not 0 <= rate <= highest or (percent and kind.unit != SHARE):
        share = kind.unit == SHARE
        unit = kind.unit if share else f"number {kind.unit}"
        example = "5%" if share else f"{kind.default:g}"
        raise GoldnodeError(
            f'the rate of fault "{kind.name}" is "{value}", expected a {unit}',
            remedy=f"write {kind.name}={example}",
        )
    return rate


def repair(random_: random.Random) -> float:
    """Return the seconds of one repair."""
    return random_.lognormvariate(math.log(REPAIR_MEDIAN), REPAIR_SIGMA) * 86400

"""Find the slow or wrong nodes of a cohort by runs over parts of it: adaptive group testing with repeats. Pure.

A run over a part fails if the part has a bad node. Halving finds one in about 2 log2(n) tests; it is left out, and
the rest is tested again, until the rest passes or a limit is reached. A node is named only if it fails with two
companions that pass with each other. Two nodes that fail together, and pass with others, are a bad link.

Noise: a run gives the wrong answer with a probability of at most `noise`, independently. A test is repeated until
one answer leads by k. It is then wrong with a probability of at most 1 / (1 + ((1 - noise) / noise)^k): Wald's
sequential probability ratio test, as the gambler's ruin has it. k is the smallest for which all tests together
are wrong with a probability of at most `error` (union bound).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Literal

Ask = Callable[[tuple[str, ...]], bool | None]
_UNKNOWN = 3  # runs in a row that could not check, after which a test has no answer


@dataclass(frozen=True)
class BisectSettings:
    """Settings. `most`: bad nodes and links after which the search ends. `most_runs`: runs of all tests together."""

    noise: float = 0.05
    error: float = 0.05
    most: int = 4
    most_runs: int = 2000

    def tests(self, members: int) -> int:
        """Return the most tests of a search."""
        return (self.most + 1) * (2 * ceil(log2(max(members, 2))) + 8)

    def lead(self, members: int) -> int:
        """Return by how many answers one must lead."""
        lead = 1
        while self.tests(members) * wrong(self.noise, lead) > self.error:
            lead += 1
        return lead


def wrong(noise: float, lead: int) -> float:
    """Return the greatest probability that a test ends wrong (0 <= noise < 0.5)."""
    return 0.0 if noise <= 0 else 1 / (1 + ((1 - noise) / noise) ** lead)


@dataclass
class BisectResult:
    """Result of a search. `open`: groups that fail together, and in which nothing could be named."""

    answer: Literal["passed", "failed", "could_not_check"] = "passed"
    bad: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    open: list[tuple[str, ...]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    tests: int = 0
    runs: int = 0
    lead: int = 1
    error: float = 0.0  # bound of the probability that any test of this search is wrong


class _UnknownError(Exception):
    """A test has no answer."""


class _Search:
    def __init__(self, names: Sequence[str], ask: Ask, settings: BisectSettings) -> None:
        self.names, self.ask, self.settings = tuple(names), ask, settings
        self.result = BisectResult(lead=settings.lead(len(names)))
        self.good: set[str] = set()
        self.known: dict[frozenset[str], bool] = {}

    def fails(self, part: Iterable[str]) -> bool:
        """Return whether a part of two nodes or more fails. Raises _UnknownError."""
        chosen = set(part)
        key = frozenset(chosen)
        if key not in self.known:
            members = tuple(name for name in self.names if name in chosen)
            self.known[key] = self._voted(members)
            self.result.tests += 1
            if not self.known[key]:
                self.good |= chosen
        return self.known[key]

    def _voted(self, members: tuple[str, ...]) -> bool:
        lead = unknown = 0
        while abs(lead) < self.result.lead:
            if self.result.runs >= self.settings.most_runs:
                raise _UnknownError(f"{self.settings.most_runs} runs were not enough")
            self.result.runs += 1
            answer = self.ask(members)
            if answer is None:
                unknown += 1
                if unknown == _UNKNOWN:
                    shown = ", ".join(members[:8]) + (" …" if len(members) > 8 else "")
                    raise _UnknownError(f"{_UNKNOWN} runs in a row could not check {shown}")
                continue
            unknown = 0
            lead += 1 if answer else -1
        return lead > 0

    def search(self) -> BisectResult:
        """Return what was found."""
        result, rest = self.result, list(self.names)
        try:
            while len(rest) > 1 and self.fails(rest):
                result.answer = "failed"
                if len(result.bad) + len(result.links) + len(result.open) >= self.settings.most:
                    result.reasons.append(
                        f"the other {len(rest)} nodes fail still; the search ended at {self.settings.most}"
                    )
                    break
                gone = self._one(tuple(rest))
                rest = [name for name in rest if name not in gone]
            if len(rest) == 1 and rest[0] not in self.good:
                result.reasons.append(f"{rest[0]} is left over: no node passes with it")
        except _UnknownError as problem:
            result.reasons.append(str(problem))
            if not result.bad and not result.links:
                result.answer = "could_not_check"
        result.error = min(1.0, result.tests * wrong(self.settings.noise, result.lead))
        return result

    def _one(self, part: tuple[str, ...]) -> tuple[str, ...]:
        """Name one cause in a part that fails, and return what is left out for the next search."""
        while len(part) > 3:
            half = len(part) // 2
            left, right = part[:half], part[half:]
            if self.fails(left):
                part = left
            elif self.fails(right):
                part = right
            else:
                return self._link(left, right)
        if len(part) == 3:
            pairs = [(part[0], part[1]), (part[1], part[2]), (part[0], part[2])]
            failing = next((pair for pair in pairs if self.fails(pair)), None)
            if failing is None:
                return self._unnamed(part)
            part = failing
        return self._pair(part[0], part[1])

    def _pair(self, one: str, other: str) -> tuple[str, ...]:
        """Name a node of a pair that fails, or the link between them."""
        guilty = [self._guilty(name, (one, other)) for name in (one, other)]
        gone = tuple(name for name, bad in zip((one, other), guilty, strict=True) if bad)
        if gone:
            self.result.bad += gone
            return gone
        if guilty == [False, False]:
            self.result.links.append((one, other))
            return (other,)
        return self._unnamed((one, other))

    def _guilty(self, name: str, pair: tuple[str, str]) -> bool | None:
        """Return whether a node fails with two companions that pass with each other; None without such companions."""
        friends = self._companions(pair)
        if not friends:
            return None
        return all(self.fails((name, friend)) for friend in friends)

    def _companions(self, pair: tuple[str, str]) -> list[str]:
        """Return two nodes outside a pair that pass with each other; those that passed before are tried first."""
        others = [name for name in self.names if name not in pair and name not in self.result.bad]
        others.sort(key=lambda name: name not in self.good)
        # A few are tried: without noise one good pair exists among any five nodes of which two are bad.
        for number, one in enumerate(others[:5]):
            for other in others[number + 1 : 5]:
                if not self.fails((one, other)):
                    return [one, other]
        return []

    def _link(self, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        """Name the pair across two halves that pass each by itself."""
        halves = [left, right]
        for place in (0, 1):
            while len(halves[place]) > 1:
                own, fixed = halves[place], halves[1 - place]
                half = len(own) // 2
                for part in (own[:half], own[half:]):
                    if self.fails((*part, *fixed)):
                        halves[place] = part
                        break
                else:
                    return self._unnamed((*halves[0], *halves[1]))
        one, other = halves[0][0], halves[1][0]
        return self._pair(one, other) if self.fails((one, other)) else self._unnamed((one, other))

    def _unnamed(self, part: tuple[str, ...]) -> tuple[str, ...]:
        self.result.open.append(part)
        shown = ", ".join(part[:8]) + (" …" if len(part) > 8 else "")
        self.result.reasons.append(f"these fail together, and none of them by itself: {shown}")
        return part


def bisect(names: Sequence[str], ask: Ask, settings: BisectSettings | None = None) -> BisectResult:
    """Find the bad nodes and links of a cohort.

    :param ask: runs the all-reduce over some nodes: True it failed, False it passed, None it could not check.
    """
    return _Search(names, ask, settings or BisectSettings()).search()

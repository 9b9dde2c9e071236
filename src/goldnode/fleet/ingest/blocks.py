"""Blocks of a capture: the rows of one key, in the order in which the capture has them, and a digest of each.

A capture whose block has the items and values of an earlier one (its base) does not store it again.
The digests are of 64 bits: equal blocks have equal ones on every machine, and those of different
blocks are equal by chance once in 10^19.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from goldnode.fleet.ingest.flatten import Flattener
from goldnode.fleet.ingest.keys import KeyKind, kind
from goldnode.fleet.ingest.precision import step

Words = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int32]
_WIDE = 64  # bytes of a text that is hashed together with others; longer ones are rare
# Odd constants of the finalizer of SplitMix64 (Steele, Lea, Flood 2014), which spreads each bit over the word.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
COMPARED = (KeyKind.FACT, KeyKind.IDENTITY)  # kinds of facts that a digest of a section is of
_MOST_SHARED = 1_000  # forms of captures in memory


class CaptureBase(NamedTuple):
    """A capture that is stored whole: its time in milliseconds, and the digests of its blocks, sorted by key."""

    time: int
    keys: Words
    items: Words
    values: Words

    def packed(self) -> bytes:
        """Return the digests as bytes, for a file."""
        return np.concatenate([self.keys, self.items, self.values]).astype("<u8").tobytes()


def is_packed(data: bytes) -> bool:
    """Return whether bytes have the form of packed digests."""
    return bool(data) and len(data) % 24 == 0


def unpacked(time: int, data: bytes) -> CaptureBase:
    """Return the base in packed digests."""
    keys, items, values = np.frombuffer(data, "<u8").astype(np.uint64, copy=False).reshape(3, -1)
    return CaptureBase(time, keys, items, values)


@dataclass(frozen=True)
class Ordered:
    """The rows of a capture in one table, by blocks. `starts` and `counts` are of the blocks, `keys` their codes."""

    keys: Codes
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    items: Codes  # code of each row's item
    values: Any  # code of each fact, or each number
    places: npt.NDArray[np.int16]  # of each row in its block

    def replaced(self, items: Codes, values: Any) -> Ordered:
        """Return the same blocks with other items and values."""
        return Ordered(
            self.keys, self.starts, self.counts, items=items, values=values, places=self.places
        )

    def chosen(self, blocks: npt.NDArray[np.bool_]) -> Ordered:
        """Return these blocks alone."""
        rows = np.repeat(blocks, self.counts)
        counts = self.counts[blocks]
        starts = np.cumsum(counts) - counts
        return Ordered(
            self.keys[blocks],
            starts,
            counts,
            items=self.items[rows],
            values=self.values[rows],
            places=self.places[rows],
        )


@dataclass(frozen=True)
class CaptureBlocks:
    """A capture as blocks of facts and of numbers, and its digests. `order`: the blocks by the digest of their key."""

    facts: Ordered
    numbers: Ordered
    base: CaptureBase
    order: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.facts.values) + len(self.numbers.values)

    def compared(self, base: CaptureBase) -> BlockChanges | None:
        """Return what differs from a base; None where the base has a key that is gone."""
        own = self.base
        if own.keys is base.keys or np.array_equal(own.keys, base.keys):
            items, values = own.items != base.items, own.values != base.values
        else:
            if not np.isin(base.keys, own.keys, assume_unique=True).all():
                return None
            place = np.minimum(np.searchsorted(base.keys, own.keys), len(base.keys) - 1)
            new = base.keys[place] != own.keys
            items, values = new | (base.items[place] != own.items), base.values[place] != own.values
        changed = np.empty(len(own.keys), np.bool_)
        with_items = np.empty(len(own.keys), np.bool_)
        changed[self.order], with_items[self.order] = items | values, items
        facts = len(self.facts.keys)
        return BlockChanges(
            self.facts.chosen(changed[:facts]),
            with_items[:facts][changed[:facts]],
            self.numbers.chosen(changed[facts:]),
            with_items[facts:][changed[facts:]],
        )


class BlockChanges(NamedTuple):
    """Blocks that differ from those of a base, and whether their items differ too."""

    facts: Ordered
    fact_items: npt.NDArray[np.bool_]
    numbers: Ordered
    number_items: npt.NDArray[np.bool_]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.facts.values) + len(self.numbers.values)


class ByKey(NamedTuple):
    """The blocks of a capture sorted by key, which the order of codes is not, and where their rows are."""

    keys: list[str]
    counts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


def by_key(rows: Ordered, names: Sequence[str]) -> ByKey:
    """Return rows in the order of their keys, which have these names."""
    own = [names[code] for code in rows.keys.tolist()]
    order = sorted(range(len(own)), key=own.__getitem__)
    counts = rows.counts[order]
    first = np.repeat(rows.starts[order] - np.cumsum(counts) + counts, counts)
    return ByKey([own[one] for one in order], counts, first + np.arange(len(first)))


class _Column:
    """Values by code, which grows."""

    def __init__(self, kind: Any) -> None:
        self._values = np.empty(1024, kind)
        self.count = 0

    def extend(self, values: Any) -> None:
        end = self.count + len(values)
        if end > len(self._values):
            grown = np.empty(max(end, 2 * len(self._values)), self._values.dtype)
            grown[: self.count] = self._values[: self.count]
            self._values = grown
        self._values[self.count : end] = values
        self.count = end

    def __getitem__(self, codes: Any) -> Any:
        return self._values[codes]


class BlockReader:
    """Makes the blocks of the capture that a Flattener has last added. `exact`: numbers as they are."""

    def __init__(self, flattener: Flattener, exact: bool = True) -> None:
        self._flattener = flattener
        self._exact = exact
        self._fact_keys: dict[str, int] = {}  # key of facts -> code
        self._facts, self._fact_blocks = _Column(np.uint64), _Column(np.int32)
        self._fact_key_words, self._number_key_words = _Column(np.uint64), _Column(np.uint64)
        self._items, self._steps = _Column(np.uint64), _Column(np.float64)
        self._orders: dict[bytes, tuple[npt.NDArray[np.int64], Words]] = {}
        self._shared_sections: dict[bytes, tuple[list[str], Codes]] = {}
        self.compared: list[bool] = []  # by the code of a key of facts
        self._sections: list[str] = []  # likewise

    @property
    def fact_keys(self) -> list[str]:
        """Keys of facts, by code."""
        return list(self._fact_keys)

    def take(self, time: int) -> CaptureBlocks:
        """Return the blocks of the rows, and remove the rows."""
        self._learn()
        rows = self._flattener.rows
        items = np.frombuffer(rows.items, np.int32).copy()
        fact_items = _expanded(items, rows.fact_starts, len(rows.facts))
        number_items = _expanded(items, rows.number_starts, len(rows.numbers))
        facts = np.frombuffer(rows.facts, np.int32).copy()
        keys = np.frombuffer(rows.keys, np.int32).copy()
        numbers = np.frombuffer(rows.numbers, np.float64).copy()
        rows.cut((0,) * 6)
        of_facts = _ordered(self._fact_blocks[facts], fact_items, facts)
        of_numbers = _ordered(keys, number_items, self.rounded(numbers, keys))
        return self.digested(of_facts, of_numbers, time)

    def rounded(self, numbers: npt.NDArray[np.float64], keys: Codes) -> npt.NDArray[np.float64]:
        """Return numbers of these keys as they are stored."""
        if not self._exact:
            steps = self._steps[keys]
            chosen = steps > 0
            numbers[chosen] = np.round(numbers[chosen] / steps[chosen]) * steps[chosen]
        return numbers

    def digested(self, facts: Ordered, numbers: Ordered, time: int) -> CaptureBlocks:
        """Return the blocks of these rows with their digests."""
        self._learn()
        values = np.concatenate([self._facts[facts.values], mixed(numbers.values.view(np.uint64))])
        items = self._items[np.concatenate([facts.items, numbers.items])]
        weights = _WEIGHTS[np.concatenate([facts.places, numbers.places])]
        starts = np.concatenate([facts.starts, numbers.starts + len(facts.values)])
        order, names = self._order(facts.keys, numbers.keys)
        values *= weights
        items *= weights
        digests = [
            np.add.reduceat(words, starts)[order] if len(starts) else words
            for words in (items, values)
        ]
        return CaptureBlocks(facts, numbers, CaptureBase(time, names, *digests), order)

    def fact_blocks(self, codes: Codes) -> Codes:
        """Return the code of the key of each of these facts."""
        self._learn()
        blocks: Codes = self._fact_blocks[codes]
        return blocks

    def sections(self, facts: Ordered, codes: Sequence[int]) -> dict[str, str]:
        """Return a digest of the facts of each section that one of these keys is in."""
        wanted = {self._sections[code] for code in codes}
        return {
            name: digests[0] for name, digests in self.section_digests([facts]) if name in wanted
        }

    def section_digests(self, captures: Sequence[Ordered]) -> Iterator[tuple[str, list[str]]]:
        """Yield each section with the digest of its facts in each of these captures, which have the same blocks.

        It is the sum of the products of two odd words, modulo 2^64: one of the fact, and one of the
        item. Their order thus has no effect.
        """
        self._learn()
        first = captures[0]
        sections, numbers = self._block_sections(first.keys)
        chosen = numbers >= 0
        rows = np.repeat(chosen, first.counts)
        if not rows.any():
            return
        counts = first.counts[chosen]
        keys = np.repeat(self._fact_key_words[first.keys[chosen]], counts)
        values = self._facts[np.stack([one.values for one in captures])[:, rows]]
        items = self._items[np.stack([one.items for one in captures])[:, rows]]
        words = mixed(values ^ keys) | np.uint64(1)
        words *= items | np.uint64(1)
        sums = np.add.reduceat(words, np.cumsum(counts) - counts, axis=1)
        for number, name in enumerate(sections):
            own = numbers[chosen] == number
            if own.any():
                yield name, [f"{total:016x}" for total in sums[:, own].sum(axis=1).tolist()]

    def _block_sections(self, codes: Codes) -> tuple[list[str], Codes]:
        """Return the sections of blocks, and the number of that of each block; -1 for one that is not compared.

        Captures of equal nodes share them.
        """
        place = codes.tobytes()
        if place not in self._shared_sections:
            if len(self._shared_sections) > _MOST_SHARED:
                self._shared_sections.clear()
            names: dict[str, int] = {}
            numbers = [
                names.setdefault(self._sections[code], len(names)) if self.compared[code] else -1
                for code in codes.tolist()
            ]
            self._shared_sections[place] = (list(names), np.array(numbers, np.int32))
        return self._shared_sections[place]

    def _learn(self) -> None:
        """Hash what the Flattener has not had before."""
        known = self._flattener
        new = known.fact_list[self._facts.count :]
        items = known.item_list[self._items.count :]
        if new or items:
            # At once: of a few texts, the calls of numpy take longer than the texts.
            facts = [f"{fault}\0{value}" if fault else value for _, value, fault in new]
            words = hashed(facts + items)
            self._facts.extend(words[: len(facts)])
            self._items.extend(words[len(facts) :])
            codes = [self._fact_keys.setdefault(key, len(self._fact_keys)) for key, _, _ in new]
            self._fact_blocks.extend(codes)
        if len(self._fact_keys) > self._fact_key_words.count:
            names = list(self._fact_keys)[self._fact_key_words.count :]
            self._fact_key_words.extend(hashed([f"fact {name}" for name in names]))
            self.compared += [kind(name, number=False) in COMPARED for name in names]
            self._sections += [name.partition(".")[0] for name in names]
        if texts := known.key_list[self._number_key_words.count :]:
            self._number_key_words.extend(hashed([f"number {name}" for name in texts]))
            self._steps.extend([step(name) or 0.0 for name in texts])

    def _order(self, facts: Codes, numbers: Codes) -> tuple[npt.NDArray[np.int64], Words]:
        """Return the order of blocks by the digests of their keys, and these. Captures of equal nodes share them."""
        place = facts.tobytes() + b"/" + numbers.tobytes()
        if place not in self._orders:
            if len(self._orders) > _MOST_SHARED:
                self._orders.clear()
            words = np.concatenate([self._fact_key_words[facts], self._number_key_words[numbers]])
            order = np.argsort(words)
            self._orders[place] = (order, words[order])
        return self._orders[place]


class GroupRows(NamedTuple):
    """The dictionaries of a group of rows, and the blocks of the capture that it has last added."""

    flattener: Flattener
    reader: BlockReader
    blocks: CaptureBlocks


def _expanded(items: Codes, starts: Any, total: int) -> Codes:
    """Return the item of each row."""
    ends = np.empty(len(items), np.int32)
    first = np.frombuffer(starts, np.int32)
    ends[:-1], ends[-1] = first[1:], total
    return np.repeat(items, ends - first)


def _ordered(blocks: Codes, items: Codes, values: Any) -> Ordered:
    """Return rows ordered by the code of their block; within it they stay in their order."""
    # `flatten.MOST_VALUES` bounds the keys of a file: numbers of sixteen bits are sorted by their digits.
    order = np.argsort(blocks.astype(np.uint16), kind="stable")
    blocks = blocks[order]
    first = np.ones(len(blocks), np.bool_)
    np.not_equal(blocks[1:], blocks[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(blocks) - starts[-1:]
    places = (np.arange(len(blocks)) - np.repeat(starts, counts)).astype(np.int16)
    return Ordered(
        blocks[starts], starts, counts, items=items[order], values=values[order], places=places
    )


def mixed(words: Words) -> Words:
    """Return words whose every bit depends on every bit of those given."""
    words = words + _GOLDEN
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        words ^= words >> np.uint64(shift)
        words *= factor
    words ^= words >> np.uint64(31)
    return words


# One odd word for each place in a block: the order of its rows counts. `flatten.MOST_VALUES` bounds the places.
_WEIGHTS: Words = mixed(np.arange(1 << 16, dtype=np.uint64)) | np.uint64(1)


def hashed(texts: Sequence[str]) -> Words:
    """Return a hash of each text, the same on every machine."""
    # None has a null byte: `clean` has escaped it. Texts are encoded at once in a third of the time.
    encoded = "\0".join(texts).encode("utf-8", "surrogatepass").split(b"\0")
    if len(encoded) != len(texts):
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    if max(map(len, encoded), default=0) > _WIDE:
        for place, text in enumerate(encoded):
            if len(text) > _WIDE:
                encoded[place] = hashlib.blake2b(text, digest_size=32).digest()
    words = np.array(encoded, f"S{_WIDE}").view("<u8").astype(np.uint64, copy=False)
    words = mixed(words.reshape(len(encoded), _WIDE // 8) ^ _WEIGHTS[: _WIDE // 8])
    # Numpy fills with null bytes: the length makes a text that ends in them another one.
    lengths = np.array(list(map(len, texts)), np.uint64)
    return mixed((words * _WEIGHTS[: _WIDE // 8]).sum(axis=1, dtype=np.uint64) ^ lengths)

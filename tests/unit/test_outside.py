"""Parsers of what comes from outside refuse or read any input: structure-aware changes of real input, and what was found."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.suite.fuzz import FOUND, changed
from tests.suite.outside import PARSERS, check, stored

_SLOWEST = 5.0  # seconds for one input, on a busy machine


@pytest.mark.parametrize("name", PARSERS)
def test_stored_inputs_are_read_or_refused(name: str) -> None:
    for data in stored(name, FOUND):
        began = time.process_time()
        check(name, data)
        assert time.process_time() - began < _SLOWEST


@pytest.mark.parametrize("name", PARSERS)
def test_seeds_are_read(name: str) -> None:
    parser = PARSERS[name]
    assert parser.inputs()
    for data in parser.inputs():
        check(name, data)
        check(name, data[: len(data) // 2])
    check(name, b"")


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), extra=st.binary(max_size=40))
def test_any_input_is_read_or_refused(name: str, seed: int, extra: bytes) -> None:
    parser = PARSERS[name]
    chance = random.Random(seed)  # noqa: S311 - no secret
    data = changed(chance.choice(parser.inputs()), parser.kind, chance, extra)
    check(name, data)


@pytest.mark.parametrize("name", [name for name, row in PARSERS.items() if row.kind == "json"])
def test_deep_and_long_documents_are_refused(name: str) -> None:
    for data in (
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"1" * 50_000,
        b'{"a": ' + b"1" * 50_000 + b"}",
        b'"' + b"a" * 10**6 + b'"',
    ):
        check(name, data)


def test_each_found_case_names_its_search() -> None:
    for path in FOUND.glob("*.json"):
        assert path.stem in PARSERS, path
        for row in json.loads(path.read_text()):
            assert row["found"], path
            bytes.fromhex(row["input"])

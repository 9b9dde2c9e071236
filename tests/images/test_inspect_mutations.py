"""Many mutations of every format that the inspection reads: each ends in a result."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.inspect.test_hidden import MUTATIONS, SEEDS, judge, mutated

pytestmark = [pytest.mark.images, pytest.mark.long]


@pytest.mark.parametrize(("name", "seed"), SEEDS, ids=[name for name, _ in SEEDS])
@settings(max_examples=3000)
@given(changes=MUTATIONS, cut=st.none() | st.integers(0, 1 << 20))
def test_mutated_content_ends_in_a_result(
    name: str, seed: bytes, changes: list[tuple[int, bytes]], cut: int | None
) -> None:
    judge(name, mutated(seed, changes, cut))

"""Tolerances of single elements: ULP, relative, absolute, NaN and infinity."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.unit.dual.dual_records import numbers

from goldnode.documents.dual import DualArray, DualRecordArray, DualTolerance
from goldnode.dual.arrays import ArrayPair, compared
from goldnode.dual.recorder.values import Value, thinned

INF, NAN = math.inf, math.nan


def row(given: Value, role: str = "output") -> DualRecordArray:
    fields: dict[str, Any] = {
        "role": role,
        "name": "x",
        "module": None,
        "file": "arrays/00000.npy",
        "dtype": given.dtype,
        "shape": list(given.shape),
        "of": None if given.of is None else list(given.of),
        "stride": given.stride,
        "digest": given.digest,
        "file_digest": given.digest,
    }
    return DualRecordArray(**fields)


def result(a: Value, b: Value, precision: str = "float64", **bounds: Any) -> DualArray:
    own = {"relative": 0.0, "absolute": 0.0, "ulp": None, "outside": 0.0, **bounds}
    tolerance = DualTolerance(precision=precision, source="test", **own)
    return compared(ArrayPair(row(a), row(b)), a, b, tolerance)


@pytest.mark.parametrize(
    ("a", "b", "bounds", "state"),
    [
        (1.0, 1.0, {}, "equal"),
        (0.0, -0.0, {}, "within"),  # other bits, the same number
        (1.0, 1.1, {}, "outside"),
        (1.0, 1.1, {"absolute": 0.11}, "within"),
        (1.0, 1.1, {"absolute": 0.09}, "outside"),
        (-100.0, -101.0, {"relative": 0.011}, "within"),
        (-100.0, -101.0, {"relative": 0.009}, "outside"),
        (100.0, 101.5, {"relative": 0.01, "absolute": 0.6}, "within"),  # the bounds add up
        (1.0, math.nextafter(1.0, 2), {"ulp": 1}, "within"),
        (1.0, 1 + 2 * 2**-52, {"ulp": 1}, "outside"),
        (0.0, 5e-324, {"ulp": 1}, "within"),
        (0.0, 5e-324, {"relative": 0.5}, "outside"),  # nothing is relative to zero
        (1.0, 1.1, {"ulp": 1, "absolute": 0.2}, "within"),  # one of both is enough
        (NAN, NAN, {}, "equal"),
        (NAN, 1.0, {"absolute": 1e300, "relative": 1e300}, "outside"),
        (1.0, NAN, {"absolute": 1e300, "ulp": 2**63}, "outside"),
        (INF, INF, {}, "equal"),
        (INF, -INF, {"absolute": 1e300}, "outside"),
        (INF, 1.7e308, {"relative": 1.0, "ulp": 2**63}, "outside"),
        (NAN, INF, {"absolute": 1e300}, "outside"),
        (1.7e308, -1.7e308, {"absolute": 1e308}, "outside"),  # the difference overflows
    ],
)
def test_an_element_is_judged_by_its_bounds(
    a: float, b: float, bounds: dict[str, Any], state: str
) -> None:
    assert result(numbers(a), numbers(b), **bounds).state == state


def test_nan_in_both_with_other_bits_is_within() -> None:
    a, b = (numbers(bits, dtype="bfloat16") for bits in (0x7FC0, 0x7FC1))
    found = result(a, b, "bfloat16")
    assert (found.state, found.nan_both, found.non_finite) == ("within", 1, 0)


def test_figures_are_over_finite_elements() -> None:
    found = result(numbers(1.0, NAN, 4.0, INF), numbers(1.5, 0.0, 4.0, INF))
    assert found.max_absolute == 0.5
    assert found.max_relative == 0.5
    assert found.non_finite == 1
    assert found.outside == 2
    assert found.worst == 1
    assert found.worst_a is None
    assert found.worst_b == 0.0
    assert found.l2 == pytest.approx(0.5 / math.sqrt(17))


def test_a_share_of_elements_may_be_outside() -> None:
    a, b = numbers(*range(1, 101)), numbers(2.0, *range(2, 101))
    assert result(a, b, outside=0.01).state == "within"
    assert result(a, b, outside=0.009).state == "outside"


def test_integers_are_exact() -> None:
    a, b = (numbers(2**62, last, dtype="int64") for last in (1, 2))
    assert result(a, a, "exact").state == "equal"
    found = result(a, b, "exact")
    assert (found.state, found.outside, found.worst) == ("outside", 1, 1)
    # float64 does not tell these two apart
    assert (
        result(numbers(2**62, dtype="int64"), numbers(2**62 + 1, dtype="int64"), "exact").state
        == "outside"
    )


def test_a_finer_side_is_rounded_to_the_coarser_one() -> None:
    a, b = numbers(1.0, dtype="float32"), numbers(0x3F81, dtype="bfloat16")  # 1 and 1 + 2 ** -7
    assert result(a, b, "bfloat16", ulp=1).state == "within"
    assert result(a, b, "bfloat16", ulp=0).state == "outside"


def test_thinned_arrays_are_compared_where_both_have_elements() -> None:
    whole = numbers(*range(100))
    other = numbers(*range(99), 0)
    fine, coarse = thinned(whole, 50), thinned(other, 25)
    found = result(fine, coarse)
    assert (found.compared, found.state) == (
        25,
        "within",
    )  # the last element is not stored, and the digests differ
    assert (
        result(thinned(whole, 50), thinned(whole, 40)).state == "not_compared"
    )  # every 2nd and every 3rd


def test_precision_of_a_pair_is_the_coarsest() -> None:
    pair = ArrayPair(row(numbers(1.0, dtype="float32")), row(numbers(1.0)))
    assert pair.precision(("native", "native")) == "float32"
    assert pair.precision(("float32", "tf32")) == "tf32"
    assert (
        ArrayPair(row(numbers(1, dtype="int64")), row(numbers(1.0))).precision(("native", "native"))
        == "exact"
    )
    assert ArrayPair(row(numbers(1, dtype="int64")), row(numbers(1.0))).mismatch() is not None

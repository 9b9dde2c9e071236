"""ULP distances against a slow, exact reference, and the formats that NumPy lacks."""

from __future__ import annotations

import math
from array import array
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldnode.dual.numbers import coarser, floats, ulp_distance
from goldnode.dual.recorder.values import value

# Precision -> (exponent bits, significand bits). Written here again: the reference shares no code with the product.
FORMATS = {
    "float64": (11, 52),
    "float32": (8, 23),
    "tf32": (8, 10),
    "float16": (5, 10),
    "bfloat16": (8, 7),
}


def exact_number(x: float, precision: str) -> int:
    """Return how many numbers of a format are between 0 and |x|, rounded to nearest and ties to even, by fractions."""
    exponent_bits, bits = FORMATS[precision]
    bias = 2 ** (exponent_bits - 1) - 1
    size = abs(Fraction(x))
    smallest = Fraction(2) ** (1 - bias)
    if size == 0:
        return 0
    exponent = 1 - bias
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - bits)
    whole, rest = divmod(size, step)
    steps: int = int(whole)
    if rest > step / 2 or (rest == step / 2 and steps % 2):
        steps += 1
    if size < smallest:
        return steps
    found: int = (exponent - (1 - bias)) * 2**bits + steps
    infinity: int = (2**exponent_bits - 1) * 2**bits
    return min(found, infinity)


def exact_distance(a: float, b: float, precision: str) -> int:
    left, right = exact_number(a, precision), exact_number(b, precision)
    same = math.copysign(1, a) == math.copysign(1, b)
    return abs(left - right) if same else left + right


FINITE = st.floats(allow_nan=False, allow_infinity=False)
# Near each other, subnormal, at powers of two: where the interesting pairs are.
SMALL = st.floats(min_value=-1e-37, max_value=1e-37)
NEAR = st.tuples(FINITE, st.integers(-3, 3)).map(lambda pair: _stepped(*pair))
ANY = st.one_of(
    FINITE, SMALL, NEAR, st.integers(-1074, 1023).map(lambda power: math.ldexp(1.0, power))
)


def _stepped(x: float, steps: int) -> float:
    for _ in range(abs(steps)):
        x = math.nextafter(x, math.copysign(math.inf, steps))
    return x if math.isfinite(x) else 0.0


@pytest.mark.parametrize("precision", FORMATS)
@given(a=ANY, b=ANY)
def test_ulp_distance_is_that_of_exact_arithmetic(precision: str, a: float, b: float) -> None:
    found = ulp_distance(np.array([a]), np.array([b]), precision)
    assert int(found[0]) == exact_distance(a, b, precision), (a, b)


@given(a=FINITE, steps=st.integers(0, 50))
def test_ulp_distance_counts_neighbours(a: float, steps: int) -> None:
    b = a
    for _ in range(steps):
        b = math.nextafter(b, math.inf)
    if math.isfinite(b):
        assert int(ulp_distance(np.array([a]), np.array([b]), "float64")[0]) == steps


@pytest.mark.parametrize(
    ("precision", "a", "b", "expected"),
    [
        ("float64", 0.0, -0.0, 0),
        ("float64", 5e-324, -5e-324, 2),
        ("float64", 1.7976931348623157e308, -1.7976931348623157e308, 2 * 0x7FEFFFFFFFFFFFFF),
        ("float32", 1.0, 1.0 + 2**-23, 1),
        ("float32", 1.0, 1.0 - 2**-24, 1),
        ("tf32", 1.0, 1.0 + 2**-11, 0),  # a tie goes to even
        ("tf32", 1.0, 1.0 + 3 * 2**-11, 2),
        ("bfloat16", 1.0, 1.0 + 2**-7, 1),
        ("bfloat16", 3.3895313892515355e38, 3.4e38, 1),
        ("float16", 65504.0, 1e9, 1),  # too large: infinity
        ("float8_e5m2", 1.0, 1.25, 1),
        ("float8_e4m3fn", 448.0, -448.0, 252),
    ],
)
def test_ulp_distance_of_known_pairs(precision: str, a: float, b: float, expected: int) -> None:
    assert int(ulp_distance(np.array([a]), np.array([b]), precision)[0]) == expected


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    bits = array("H", range(65536)).tobytes()
    found = floats(value("bfloat16", (65536,), bits))
    reference = np.frombuffer(bits, "<u2").astype("<u4") << 16
    assert np.array_equal(found, reference.view("<f4"), equal_nan=True)


@pytest.mark.parametrize(
    ("byte", "e4m3", "e5m2"),
    [
        (0x00, 0.0, 0.0),
        (0x01, 2.0**-9, 2.0**-16),
        (0x38, 1.0, 0.5),
        (0x3C, 1.5, 1.0),
        (0x7E, 448.0, math.nan),
        (0x7B, 352.0, 57344.0),
        (0x7C, 384.0, math.inf),
        (0x7F, math.nan, math.nan),
        (0xB8, -1.0, -0.5),
    ],
)
def test_eight_bit_floats_have_their_values(byte: int, e4m3: float, e5m2: float) -> None:
    """OCP 8-bit floating point specification, table 1."""
    for dtype, expected in (("float8_e4m3fn", e4m3), ("float8_e5m2", e5m2)):
        found = floats(value(dtype, (1,), bytes([byte])))
        assert np.array_equal(found, [expected], equal_nan=True)


def test_the_coarser_precision_counts() -> None:
    assert coarser("float32", "bfloat16") == "bfloat16"
    assert coarser("float32", "tf32", "float64") == "tf32"

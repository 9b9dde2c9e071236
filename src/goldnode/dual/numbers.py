"""Floating-point formats, and the distance of two numbers in units in the last place (ULP).

The ULP distance is the number of steps between neighbours of a format. Numbers of a finer format
are rounded to it first, to nearest and ties to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldnode.dual.recorder.values import TYPES, Value

Floats = NDArray[np.float64]
Steps = NDArray[np.uint64]
# Precision -> (bits of the significand after the point, bytes of the type that it is stored in).
# From fine to coarse.
PRECISIONS: dict[str, tuple[int, int]] = {
    "float64": (52, 8),
    "float32": (23, 4),
    "tf32": (10, 4),
    "float16": (10, 2),
    "bfloat16": (7, 2),
    "float8_e4m3fn": (3, 1),
    "float8_e5m2": (2, 1),
}
_ORDER = list(PRECISIONS)


def coarser(*precisions: str) -> str:
    """Return the coarsest of several precisions."""
    return max(precisions, key=_ORDER.index)


def is_float(dtype: str) -> bool:
    """Return whether a type of a record is a floating-point format."""
    return dtype in PRECISIONS


def stored(given: Value) -> NDArray[Any]:
    """Return the stored elements of an array in one dimension; formats that NumPy lacks are their bits."""
    return np.frombuffer(given.data, dtype=TYPES[given.dtype][0])


def floats(given: Value) -> Floats:
    """Return the elements of a floating-point array as float64, which has all of their values."""
    bits = stored(given)
    with np.errstate(invalid="ignore"):  # of a signalling NaN, which stays NaN
        return _widened(given.dtype, bits)


def _widened(dtype: str, bits: NDArray[Any]) -> Floats:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "float8_e5m2":  # the upper byte of a float16
        return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    if dtype == "float8_e4m3fn":
        widened: Floats = _E4M3[bits]
        return widened
    return bits.astype(np.float64)


def _e4m3() -> Floats:
    """Return the value of each byte: exponent bias 7, no infinity, and NaN where all bits after the sign are set."""
    values = np.zeros(256)
    for byte in range(256):
        exponent, significand = byte >> 3 & 15, byte & 7
        size = (1 + significand / 8) * 2.0 ** (exponent - 7)
        if exponent == 0:
            size = significand * 2.0**-9
        if byte & 127 == 127:
            size = np.nan
        values[byte] = -size if byte & 128 else size
    return values


_E4M3 = _e4m3()


def _magnitudes(values: Floats, precision: str) -> Steps:
    """Return, for each size, its number in the order of the sizes of a format. Numbers too large become infinity."""
    sizes = np.abs(values)
    if precision == "float64":
        return sizes.view(np.uint64)
    if precision == "float16":
        with np.errstate(over="ignore"):
            return sizes.astype(np.float16).view(np.uint16).astype(np.uint64)
    if precision == "float32":
        with np.errstate(over="ignore"):
            return sizes.astype(np.float32).view(np.uint32).astype(np.uint64)
    if precision in ("tf32", "bfloat16"):
        return _rounded(sizes, PRECISIONS[precision][0])
    table = np.sort(np.unique(np.abs(_of_bytes(precision))))
    table = table[np.isfinite(table)]
    middles = (table[1:] + table[:-1]) / 2
    steps = np.searchsorted(middles, sizes, side="left")
    ties = np.append(middles, np.nan)[steps] == sizes
    numbers: Steps = (steps + (ties & (steps % 2 == 1))).astype(np.uint64)
    return numbers


def _of_bytes(precision: str) -> Floats:
    every = np.arange(256, dtype=np.uint8)
    return floats(Value(precision, (256,), every.tobytes(), ""))


def _rounded(sizes: Floats, bits: int) -> Steps:
    """Return the numbers of sizes in a format with the exponent of float32 and fewer bits, rounded once.

    Steps of the format are exact in float64: frexp gives the exponent, and rint rounds ties to
    even.
    """
    finite = np.where(np.isfinite(sizes), sizes, 0.0)
    _, exponents = np.frexp(finite)  # finite = m * 2 ** e, 0.5 <= m < 1
    # The smallest normal number is 2 ** -126; below it, and for zero, the exponent stays.
    exponents = np.where(finite == 0, -125, np.maximum(exponents, -125))
    steps = np.rint(
        np.ldexp(finite, bits + 1 - exponents)
    )  # 2 ** bits to 2 ** (bits + 1), fewer if subnormal
    numbers = (exponents.astype(np.int64) + 125) * 2**bits + steps.astype(np.int64)
    infinity = 255 * 2**bits
    whole: Steps = np.where(np.isfinite(sizes), np.minimum(numbers, infinity), infinity).astype(
        np.uint64
    )
    return whole


def ulp_distance(a: Floats, b: Floats, precision: str) -> Steps:
    """Return the ULP distance of each pair in a precision. Zeros of both signs are equal; NaN is not allowed."""
    left, right = _magnitudes(a, precision), _magnitudes(b, precision)
    apart = np.where(left > right, left - right, right - left)
    # Across zero the way leads through it. Two 63-bit numbers: the sum fits.
    return np.where(np.signbit(a) == np.signbit(b), apart, left + right)

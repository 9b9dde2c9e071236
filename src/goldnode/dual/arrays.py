"""Comparison of two arrays, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldnode.documents.dual import DualArray, DualRecordArray, DualState, DualTolerance
from goldnode.dual.numbers import PRECISIONS, coarser, floats, is_float, stored, ulp_distance
from goldnode.dual.recorder.values import Value

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ArrayPair:
    """The same array of both records."""

    a: DualRecordArray
    b: DualRecordArray

    def precision(self, settings: tuple[str, str]) -> str:
        """Return the precision to compare in: the coarsest of both types and both settings; exact for integers."""
        if not is_float(self.a.dtype) or not is_float(self.b.dtype):
            return "exact"
        return coarser(
            self.a.dtype, self.b.dtype, *(name for name in settings if name in PRECISIONS)
        )

    def mismatch(self) -> str | None:
        """Return why the elements cannot be compared one by one; None if they can."""
        if (self.a.of or self.a.shape) != (self.b.of or self.b.shape):
            return f"the shapes differ: {self.a.of or self.a.shape} and {self.b.of or self.b.shape}"
        if is_float(self.a.dtype) != is_float(self.b.dtype):
            return f"the types differ: {self.a.dtype} and {self.b.dtype}"
        return None


def absent(row: DualRecordArray, why: str, state: DualState = "not_compared") -> DualArray:
    """Return the result of an array that was not compared."""
    return DualArray(
        role=row.role,
        name=row.name,
        module=row.module,
        state=state,
        why=why,
        shape=row.of or row.shape,
        compared=0,
        outside=0,
        tolerance=None,
        max_absolute=None,
        max_relative=None,
        max_ulp=None,
        l2=None,
        non_finite=0,
        nan_both=0,
        worst=None,
        worst_a=None,
        worst_b=None,
    )


def compared(pair: ArrayPair, a: Value, b: Value, tolerance: DualTolerance) -> DualArray:
    """Compare the elements that both records have."""
    a, b, stride_why = _common(a, b)
    if stride_why:
        return absent(pair.a, stride_why)
    judged = _exact(a, b) if tolerance.precision == "exact" else _floating(a, b, tolerance)
    count = int(judged.outside.size)
    outside = int(judged.outside.sum())
    # Digests cover the whole arrays, also the elements that the records left out.
    equal = pair.a.digest == pair.b.digest
    state: DualState = "within" if outside <= tolerance.outside * count else "outside"
    if equal:
        state = "equal"
    why = None
    if state == "outside":
        why = f"{outside} of {count} elements are outside of the tolerance"
    worst = int(np.argmax(judged.excess)) if count and (outside or not equal) else None
    return DualArray(
        role=pair.a.role,
        name=pair.a.name,
        module=pair.a.module,
        state=state,
        why=why,
        shape=pair.a.of or pair.a.shape,
        compared=count,
        outside=outside,
        tolerance=tolerance,
        max_absolute=_finite(judged.max_absolute),
        max_relative=_finite(judged.max_relative),
        max_ulp=judged.max_ulp,
        l2=_finite(judged.l2),
        non_finite=judged.non_finite,
        nan_both=judged.nan_both,
        worst=worst,
        worst_a=None if worst is None else _finite(float(judged.left[worst])),
        worst_b=None if worst is None else _finite(float(judged.right[worst])),
    )


def _common(a: Value, b: Value) -> tuple[Value, Value, str | None]:
    """Return both arrays with the elements that both have: every n-th, if both left some out."""
    if a.stride == b.stride:
        return a, b, None
    # The record that has more elements is thinned to those of the other.
    fine, coarse = (a, b) if a.stride < b.stride else (b, a)
    step, rest = divmod(coarse.stride, fine.stride)
    if rest:
        why = f"the records have every {a.stride}th and every {b.stride}th element: use one --elements for both"
        return a, b, why
    part = stored(fine)[::step].tobytes()
    thin = Value(
        fine.dtype,
        shape=coarse.shape,
        data=part,
        digest=fine.digest,
        of=coarse.of,
        stride=coarse.stride,
    )
    return (thin, coarse, None) if fine is a else (coarse, thin, None)


@dataclass(frozen=True)
class _Judged:
    """Elements outside of the tolerance, how far each is, and figures over those that are finite in both."""

    left: NDArray[Any]
    right: NDArray[Any]
    outside: Mask
    excess: NDArray[np.float64]
    max_absolute: float | None
    max_relative: float | None
    max_ulp: int | None
    l2: float | None
    non_finite: int = 0
    nan_both: int = 0


def _exact(a: Value, b: Value) -> _Judged:
    left, right = stored(a), stored(b)
    differ: Mask = np.asarray(left != right)
    # float64: a difference of two unsigned integers would wrap around.
    apart = np.abs(left.astype(np.float64) - right.astype(np.float64))
    most = float(apart.max()) if apart.size else None
    return _Judged(
        left,
        right=right,
        outside=differ,
        # 1: an element that differs is worse than any that is equal.
        excess=np.where(differ, 1 + apart, 0.0),
        max_absolute=most,
        max_relative=None,
        max_ulp=None,
        l2=None,
    )


def _floating(a: Value, b: Value, tolerance: DualTolerance) -> _Judged:
    left, right = floats(a), floats(b)
    both = np.isfinite(left) & np.isfinite(right)
    nan = np.isnan(left) & np.isnan(right)
    # NaN in both, and the same infinity in both, are equal. NaN or infinity in one alone is never
    # within a bound.
    alike = nan | (np.isinf(left) & (left == right))
    odd = ~both & ~alike
    steps = np.zeros(left.shape, np.uint64)
    steps[both] = ulp_distance(left[both], right[both], tolerance.precision)
    # Overflow of a difference of float64 is infinite, and outside of any bound.
    with np.errstate(all="ignore"):
        apart = np.abs(left - right)
        bound = tolerance.absolute + tolerance.relative * np.abs(left)
        # Record a is the reference.
        relative = apart / np.abs(left)
        far = apart > bound
        if tolerance.ulp is not None:
            far &= steps > np.uint64(tolerance.ulp)
        outside: Mask = (both & far) | odd
        # Any element outside of its bound is worse than one within: the latter is below 1.
        excess = np.where(outside, 1 + apart - bound, apart / (1 + apart))
        excess = np.nan_to_num(np.where(odd, np.inf, np.where(both, excess, 0.0)))
        size = float(np.linalg.norm(left[both]))
        distance = float(np.linalg.norm(apart[both]))
    nonzero = both & (left != 0)
    return _Judged(
        left,
        right,
        outside,
        excess,
        max_absolute=_most(apart[both]),
        max_relative=_most(relative[nonzero]),
        max_ulp=int(steps.max()) if both.any() else None,
        l2=distance / size if size > 0 else None,
        non_finite=int(odd.sum()),
        nan_both=int(nan.sum()),
    )


def _most(values: NDArray[np.float64]) -> float | None:
    return float(values.max()) if values.size else None


def _finite(number: float | None) -> float | None:
    """Return a number for a JSON document, which has neither NaN nor infinity."""
    return number if number is not None and np.isfinite(number) else None

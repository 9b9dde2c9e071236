"""Matrices with a known product: small integers that repeat, so that sums are exact in any order.

All matrices are column-major, as in BLAS. a(i, k) repeats after 7 rows and 7 columns, b(k, j) after
5. So the product has only 7 x 5 different values, and every element of a result is compared, not a
sample. No sum exceeds 3 * 2 * k, which is exact in a float's 24 bits for k <= 2 ** 21.
"""

from __future__ import annotations

import math
import struct
from typing import List, Sequence, Tuple

ROWS, COLUMNS = 7, 5

# Name -> (struct's letter, bytes).
KINDS = {"fp16": ("e", 2), "fp32": ("f", 4), "fp64": ("d", 8)}


def a(i: int, k: int) -> int:
    """-3 … 3."""
    return (3 * i + 5 * k) % 7 - 3


def b(k: int, j: int) -> int:
    """-2 … 2."""
    return (2 * k + 3 * j) % 5 - 2


def cell(i: int, j: int, inner: int) -> int:
    """Return row i, column j of the product with `inner` terms: complete periods of 35, and the rest."""
    period = sum(a(i, k) * b(k, j) for k in range(35))
    return inner // 35 * period + sum(a(i, k) * b(k, j) for k in range(inner % 35))


def column(values: Sequence[int], length: int, kind: str) -> bytes:
    """Return a column of `length` rows that repeats `values`."""
    letter, size = KINDS[kind]
    piece = struct.pack(f"<{len(values)}{letter}", *values)
    return (piece * (length // len(values) + 1))[: length * size]


def matrix_a(rows: int, inner: int, kind: str) -> bytes:
    """Return a, `rows` x `inner`."""
    columns = [column([a(i, k) for i in range(ROWS)], rows, kind) for k in range(7)]
    return b"".join(columns[k % 7] for k in range(inner))


def matrix_b(inner: int, columns: int, kind: str) -> bytes:
    """Return b, `inner` x `columns`."""
    # Only five of the columns differ.
    different = [column([b(k, j) for k in range(5)], inner, kind) for j in range(5)]
    return b"".join(different[j % 5] for j in range(columns))


def wrong(
    result: bytes, rows: int, columns: int, inner: int, kind: str
) -> List[Tuple[int, int, float, int]]:
    """Return (row, column, got, expected) of the first wrong element; empty if the product is right."""
    letter, size = KINDS[kind]
    expected = [[cell(i, j, inner) for i in range(ROWS)] for j in range(COLUMNS)]
    wanted = [column(values, rows, kind) for values in expected]
    view = memoryview(result)
    for j in range(columns):
        piece = view[j * rows * size : (j + 1) * rows * size]
        # Comparing bytes is fast. Only a wrong column is decoded.
        if piece == wanted[j % COLUMNS]:
            continue
        got = struct.unpack(f"<{rows}{letter}", piece)
        for i in range(rows):
            if got[i] != expected[j % COLUMNS][i % ROWS]:
                return [(i, j, got[i], expected[j % COLUMNS][i % ROWS])]
    return []


# -- one batch through a network of two layers: relu(x W1) W2, softmax; BATCH rows of INPUT numbers to CLASSES

BATCH, INPUT, HIDDEN, CLASSES = 8, 64, 128, 10


def network() -> Tuple[List[List[int]], List[List[int]], List[List[int]]]:
    """Return x (BATCH x INPUT), W1 (INPUT x HIDDEN) and W2 (HIDDEN x CLASSES).

    They are integers, and no two rows of the batch are equal.
    """
    x = [[(5 * row + 3 * i + row * i) % 9 - 4 for i in range(INPUT)] for row in range(BATCH)]
    first = [[(7 * i + 4 * j + i * j) % 5 - 2 for j in range(HIDDEN)] for i in range(INPUT)]
    second = [[(3 * i + 5 * j + i * j) % 3 - 1 for j in range(CLASSES)] for i in range(HIDDEN)]
    return x, first, second


def multiply(
    left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]
) -> List[List[float]]:
    """Return the product of two matrices, given as lists of rows."""
    turned = list(zip(*right))
    return [[sum(p * q for p, q in zip(row, other)) for other in turned] for row in left]


def relu(rows: Sequence[Sequence[float]]) -> List[List[float]]:
    """Replace negative numbers by 0."""
    return [[max(value, 0) for value in row] for row in rows]


def logits() -> List[List[float]]:
    """Return the network's output for the batch: integers below 2 ** 24, so equal on every device."""
    x, first, second = network()
    return multiply(relu(multiply(x, first)), second)


def flat(rows: Sequence[Sequence[float]]) -> bytes:
    """Return rows as float32, column-major."""
    return b"".join(struct.pack(f"<{len(rows)}f", *one) for one in zip(*rows))


def rows_of(data: bytes, rows: int, columns: int) -> List[List[float]]:
    """Return the rows of column-major data: the reverse of `flat`."""
    values = struct.unpack(f"<{rows * columns}f", data[: 4 * rows * columns])
    return [[values[j * rows + i] for j in range(columns)] for i in range(rows)]


def classes(rows: Sequence[Sequence[float]]) -> List[int]:
    """Return the class of each row: the index with the largest softmax."""
    winners = []
    for row in rows:
        top = max(row)
        weights = [math.exp(value - top) for value in row]
        total = sum(weights)
        shares = [weight / total for weight in weights]
        winners.append(shares.index(max(shares)))
    return winners

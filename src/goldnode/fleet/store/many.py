"""Many rows in few statements: lists of names as parameters, and inserts and updates of several rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.sql.dml import UpdateBase


def padded(names: Iterable[str]) -> list[str]:
    """Return the names once each, the last one repeated until their number is a power of two.

    A statement then has few forms, so that the server's prepared ones are used again.
    """
    unique = list(dict.fromkeys(names))
    if unique:
        unique += unique[-1:] * ((1 << (len(unique) - 1).bit_length()) - len(unique))
    return unique


def execute(
    connection: Connection, statement: UpdateBase, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Execute a statement for each row, in one round trip. Without a row, do nothing."""
    if rows:
        # The driver's way of many rows costs more than a single row.
        connection.execute(statement, rows[0] if len(rows) == 1 else rows)

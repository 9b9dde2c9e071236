"""The log of a run (powerrun.py), and which of its writes a power cut leaves: a log of four writes, made by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.disks import powerrun
from tests.disks.powercut import MARKS, SECTOR

pytestmark = pytest.mark.disks

ESP = 2048  # first sector of the ESP


def row(sector: int, data: bytes = b"", flags: int = 0) -> bytes:
    head = struct.pack("<QQQQ", sector, len(data) // SECTOR, flags, 0)
    return head.ljust(SECTOR, b"\0") + data


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two writes, a flush, a mark, two writes of one page, a flush, and a write that is not flushed."""
    mark = b"begin write".ljust(SECTOR)
    rows = [
        *(row(ESP, b"a" * SECTOR), row(ESP + 8, b"b" * 8 * SECTOR), row(0, flags=1)),
        *(row(MARKS, mark), row(ESP + 8, b"c" * 8 * SECTOR), row(ESP + 8, b"d" * 8 * SECTOR)),
        *(row(0, flags=1), row(ESP, b"e" * SECTOR)),
    ]
    path = tmp_path / "writes.log"
    head = struct.pack("<QQQI", 0x6A736677736872, 1, len(rows), SECTOR).ljust(SECTOR, b"\0")
    path.write_bytes(head + b"".join(rows))
    return path


def test_a_log_has_an_epoch_for_each_flush(log: Path) -> None:
    epochs = powerrun.epochs(log)
    assert [(epoch.number, len(epoch.writes)) for epoch in epochs] == [(0, 2), (1, 2), (2, 1)]
    assert [epoch.steps for epoch in epochs] == [("identity",), ("identity", "write"), ("write",)]
    data = log.read_bytes()
    written = [data[write.at : write.at + 1] for epoch in epochs for write in epoch.writes]
    assert written == [b"a", b"b", b"c", b"d", b"e"]


def test_a_cut_leaves_pieces_of_sectors_in_their_order(log: Path) -> None:
    epoch = powerrun.epochs(log)[1]
    assert powerrun.survivors(epoch, None) == [], "nothing that was not flushed"
    rows = [powerrun.survivors(epoch, seed) for seed in range(200)]
    assert rows == [powerrun.survivors(epoch, seed) for seed in range(200)], "the same each time"
    assert {piece.count for row in rows for piece in row} == {1, 8}
    assert any(0 < len(row) < 16 and row[0].count == 1 for row in rows), "a write that is torn"
    first = epoch.writes[1].at
    assert any(row and row[0].at >= first for row in rows), "the second write without the first"
    for row in rows:
        assert [piece.at for piece in row] == sorted(piece.at for piece in row)


def test_every_flush_is_a_point_and_seeded_ones_are_of_every_step(log: Path) -> None:
    epochs = powerrun.epochs(log)
    points = powerrun.points(epochs, 10)
    assert [point.epoch for point in points if point.seed is None] == [0, 1, 2]
    seeded = [epochs[point.epoch].step for point in points if point.seed is not None]
    assert (seeded.count("identity"), seeded.count("write")) == (5, 5)
    assert points == sorted(points, key=lambda point: point.epoch)

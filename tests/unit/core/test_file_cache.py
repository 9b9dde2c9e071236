"""A file is read once until it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from goldnode.core.file_cache import FileCache


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    read: list[str] = []

    def load(path: Path) -> str:
        read.append(path.name)
        return path.read_text()

    cache, file = FileCache(load), tmp_path / "a"
    file.write_text("one")
    assert [cache.get(file), cache.get(file)] == ["one", "one"]
    assert read == ["a"]
    file.write_text("longer")
    assert cache.get(file) == "longer"
    stamp = file.stat().st_mtime_ns
    file.write_text("LONGER")
    os.utime(file, ns=(stamp + 1, stamp + 1))
    assert cache.get(file) == "LONGER"
    other = tmp_path / "b"
    other.write_text("latest")  # the same size
    os.utime(other, ns=(stamp + 1, stamp + 1))
    other.replace(file)
    assert cache.get(file) == "latest"
    assert len(read) == 4


def test_an_error_is_not_stored(tmp_path: Path) -> None:
    def load(path: Path) -> int:
        return int(path.read_text())

    cache, file = FileCache(load), tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        cache.get(file)
    file.write_text("x")
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            cache.get(file)
    file.write_text("7")
    assert cache.get(file) == 7

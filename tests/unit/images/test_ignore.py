"""Patterns of .dockerignore against the answers that Docker's builders gave (tests/cases/dockerignore.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from goldnode.core.errors import ImageError
from goldnode.images.ignore import load_ignore

TABLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "cases/dockerignore.json").read_text(encoding="utf-8")
)
CASES = TABLE["cases"]


@pytest.mark.parametrize("case", CASES, ids=[repr(case["text"]) for case in CASES])
def test_files_left_out_are_those_of_docker(tmp_path: Path, case: dict[str, Any]) -> None:
    file = tmp_path / ".dockerignore"
    file.write_bytes(case["text"].encode())
    if isinstance(case["classic"], str):
        with pytest.raises(ImageError, match="is no pattern") as raised:
            load_ignore(file)
        assert raised.value.line == 1
        return
    ignore = load_ignore(file)
    assert [path for path in TABLE["tree"] if ignore.leaves_out(path)] == case["classic"]


def test_builders_differ_only_where_the_older_one_is_known_to() -> None:
    """BuildKit of Docker 20.10 compares `+` and `(` as operators, and `**.txt` as `**/.txt`; later ones do not."""
    errors = {case["text"] for case in CASES if isinstance(case["classic"], str)}
    differ = {case["text"] for case in CASES if case["classic"] != case["buildkit"]} - errors
    assert differ == {"a+b.txt", "(p).txt", "**.txt"}
    assert all(isinstance(case["buildkit"], str) for case in CASES if case["text"] in errors)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="cannot be read: No such file") as raised:
        load_ignore(tmp_path / "absent")
    assert raised.value.file == str(tmp_path / "absent")

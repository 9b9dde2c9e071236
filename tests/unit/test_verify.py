"""scripts/verify on nothing: wrong use, and inventories and patterns without a host, end with 2 and say so."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "usage: "),
        (("-i", "absent.yml"), "there is no inventory absent.yml"),
        (("-i", "EMPTY"), "no host of"),
        (("-i", "ONE", "--limit", "nobody"), "nobody"),
        (("-i", "ONE", "--limit", "one,nobody"), "nobody"),
    ],
    ids=["usage", "inventory", "empty-inventory", "limit", "half-a-limit"],
)
def test_nothing_to_verify_is_an_error(
    tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    places = {"EMPTY": tmp_path / "empty.yml", "ONE": tmp_path / "one.yml"}
    places["EMPTY"].write_text("all: {hosts: {}}\n")
    places["ONE"].write_text("all: {hosts: {one: {}}}\n")
    done = subprocess.run(
        [str(ROOT / "scripts/verify"), *(str(places.get(word, word)) for word in arguments)],
        cwd=tmp_path,
        env={
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("ANSIBLE_", "GOLDNODE_"))
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr

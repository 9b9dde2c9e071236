"""What the unit tests of compatibility take from records or from samples, in whole: pip's answers, and what each row depends on."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests import pip_resolver
from tests.unit.compat import test_pip_answers, vendor_rows

pytestmark = [pytest.mark.images, pytest.mark.long]


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the newest pip: older ones download each wheel."""
    folder = tmp_path_factory.mktemp("pip")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
    return str(python)


def test_pip_answers_as_recorded(pip: str, tmp_path: Path) -> None:
    """Without vllm, whose sets take half a minute each."""
    rows = [row for row in test_pip_answers.ANSWERS if "vllm" not in row["requirements"][0]]
    for row in random.Random(18).sample(rows, 30):  # noqa: S311 - chance, not a secret
        answer = pip_resolver.ask(
            row["requirements"],
            row["python"],
            row["machine"],
            pip=pip,
            cache=str(tmp_path / "cache"),
        )
        assert answer is not None, row
        assert answer.accepts == row["accepts"], (row, answer.reason)


def test_every_row_depends_on_a_fact_or_rule(tmp_path: Path) -> None:
    without = [
        vendor_rows.name(row)
        for row in vendor_rows.ROWS
        if vendor_rows.depends_on(row, tmp_path) is None
    ]
    assert without == []

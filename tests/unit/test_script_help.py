"""What scripts say of themselves is the whole comment at their head."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize(
    "name", ["build-images", "demo", "docs", "prove-gpu", "release", "test", "verify"]
)
def test_help_is_the_whole_head(name: str) -> None:
    script = SCRIPTS / name
    head = re.findall(r"^# ?(.*)$", script.read_text().split("\nset ")[0], re.MULTILINE)
    done = subprocess.run([script, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == head[1:], "what follows the line that names the interpreter"

"""What the project's tools say of it. Each tool reads its own configuration: pyproject.toml, .config/ansible-lint.yml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for path in (*ROOT.glob("scripts/**/*"), ROOT / ".ci/run", ROOT / "benchmarks/run")
    if path.is_file() and path.suffix != ".py"
)


# Groups of their own, so that the tools run at the same time.
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="ruff", marks=pytest.mark.xdist_group("ruff")),
        pytest.param(
            ["ruff", "format", "--check", "."], id="ruff-format", marks=pytest.mark.xdist_group("ruff-format")
        ),
        pytest.param(["mypy"], id="mypy", marks=pytest.mark.xdist_group("mypy")),
        pytest.param(["ansible-lint"], id="ansible-lint", marks=pytest.mark.xdist_group("ansible-lint")),
    ],
)
def test_tool_finds_nothing(command: list[str]) -> None:
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [str(programs / command[0]), *command[1:]],
        cwd=ROOT,
        # ansible-lint runs ansible's programs by name.
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_parse(script: Path) -> None:
    first = script.read_text(encoding="utf-8").splitlines()[0]
    shell = "bash" if "bash" in first else "sh"
    assert "sh" in first, f"{script} does not say which shell it is for"
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert bool(script.stat().st_mode & 0o111) == first.startswith("#!")

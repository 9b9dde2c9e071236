"""What the project's tools say of it. Each tool reads its own configuration: pyproject.toml, .config/ansible-lint.yml."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for path in (*ROOT.glob("scripts/**/*"), ROOT / ".ci/run", ROOT / "benchmarks/run")
    if path.is_file() and path.suffix not in (".py", ".pyc")  # byte code: scripts/docs has run
)

# More parameters become a frozen dataclass (docs/style.md); `self` and `cls` do not count.
PARAMETERS = 7
# Its bytes are part of every container image: a new signature would change all digests.
# The last two build one finding each, from fields that every caller names.
WIDE = frozenset(
    {"gpuprogram/cpu.py:call", "compat/model.py:finding", "node/verdict/events.py:_wrong"}
)


# Groups of their own, so that the tools run at the same time.
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="ruff", marks=pytest.mark.xdist_group("ruff")),
        pytest.param(
            ["ruff", "format", "--check", "."],
            id="ruff-format",
            marks=pytest.mark.xdist_group("ruff-format"),
        ),
        pytest.param(["mypy"], id="mypy", marks=pytest.mark.xdist_group("mypy")),
        pytest.param(
            ["ansible-lint"], id="ansible-lint", marks=pytest.mark.xdist_group("ansible-lint")
        ),
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


def wide_functions(text: str) -> Iterator[str]:
    """Yield the functions of a module that have more than PARAMETERS parameters."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if len([one for one in given if one.arg not in ("self", "cls")]) > PARAMETERS:
                yield node.name


def package_functions() -> set[str]:
    """Return the functions of the package with too many parameters, as `FILE:NAME`."""
    package = ROOT / "src/goldnode"
    return {
        f"{path.relative_to(package)}:{name}"
        for path in package.rglob("*.py")
        for name in wide_functions(path.read_text(encoding="utf-8"))
    }


def test_functions_have_at_most_seven_parameters() -> None:
    wide = sorted(package_functions() - WIDE)
    assert not wide, f"give these functions a frozen dataclass: {', '.join(wide)}"


def test_function_with_eight_parameters_is_found() -> None:
    eight = "def f(self, a, b, c, /, d, e, *, g, h, i, **more): ..."
    assert list(wide_functions(eight)) == ["f"]
    assert not list(wide_functions(eight.replace(", i", "")))

"""The room fleet/rollout decides and does not act: no store, drain, process, network, clock or file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOM = Path(__file__).parents[4] / "src/goldnode/fleet/rollout"
ACTING = {
    "fcntl",
    "logging",
    "os",
    "shutil",
    "signal",
    "socket",
    "sqlalchemy",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib3",
    "goldnode.core.files",
    "goldnode.core.site",
}
CALLS = {"now", "open", "read_bytes", "read_text", "today", "unlink", "write_bytes", "write_text"}


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_module_of_decisions_does_not_act(path: Path) -> None:
    """What acts belongs to fleet/control, which hands in what it has read."""
    wrong = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            wrong += [f"{path.name}:{node.lineno}: {name}()"] if name in CALLS else []
        wrong += [f"{path.name}: imports {name}" for name in names if name in ACTING]
    assert not wrong, "\n".join(wrong)

"""The layers of docs/architecture.md: a lower layer never imports a higher one, and no modules
import each other in a circle.

Inside the two largest packages the same holds for their rooms.

Imports inside functions and those for type checkers count too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# From low to high. Packages in one row do not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("node",),
    ("core",),
    ("catalog",),
    ("documents",),
    ("facts",),
    ("compat",),
    ("lock",),
    ("nodepackage",),
    ("classdoc",),
    ("inventory",),
    ("oci",),
    ("inspect",),
    ("evidence",),
    ("channels",),
    ("gpuprogram",),
    ("images", "disks"),
    ("canary", "floors", "cache", "dual", "explain"),
    ("audit",),
    ("fleet",),
    ("cve",),
    ("diagnostics", "prove", "ansible", "commands"),
    ("cli",),
    ("manual",),
    ("testing",),
)
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}

# The packages directly below a large package, from low to high: none imports a later one. Modules
# that lie loose in the large package (`__main__`) may import all of them, and no room imports
# those.
ROOMS: dict[str, tuple[str, ...]] = {
    "node": (
        "ground",
        "device",
        "effective",
        "probe",
        "state",
        "verdict",
        "gate",
        "slots",
        "diagnose",
        "serve",
        "follow",
        "install",
        "cachekey",
        "preflight",
        "program",
    ),
    "fleet": (
        "shared",
        "keys",
        "ingest",
        "report",
        "rollout",
        "store",
        "events",
        "drain",
        "nodes",
        "service",
        "control",
    ),
}


def module_name(path: Path) -> str:
    """Return the dotted name of a module below src."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SOURCE / "goldnode").rglob("*.py"))}
FOLDERS = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def package(module: str) -> str:
    """Return the package of a module directly below goldnode."""
    return module.split(".")[1] if "." in module else ""


def base(module: str, level: int) -> str:
    """Return the package that a relative import of `level` dots starts from."""
    parts = module.split(".")
    if MODULES[module].name != "__init__.py":
        parts = parts[:-1]
    return ".".join(parts[: len(parts) - level + 1])


@cache
def imported(module: str) -> dict[str, int]:
    """Return the modules of goldnode that a module imports, each with the line of its first import."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        for name in _names(module, node):
            if name in MODULES and name != module:
                found.setdefault(name, node.lineno)  # type: ignore[attr-defined]
    return found


def _names(module: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = base(module, node.level) if node.level else ""
        parent = ".".join(part for part in (start, node.module or "") if part)
        for alias in node.names:
            # `from package import module` depends on the module, not on what else the package holds.
            full = f"{parent}.{alias.name}"
            yield full if full in MODULES else parent


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others (Tarjan's
    algorithm).
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for name in imported(module):
            if name not in index:
                visit(name)
                low[module] = min(low[module], low[name])
            elif name in stack:
                low[module] = min(low[module], index[name])
        if low[module] == index[module]:
            group = [stack.pop()]
            while group[-1] != module:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(MODULES) * 2 + limit)
    try:
        for module in MODULES:
            if module not in index:
                visit(module)
    finally:
        sys.setrecursionlimit(limit)
    return found


def test_every_package_has_a_layer() -> None:
    assert {package(module) for module in MODULES} - {""} == set(RANK), (
        "a package directly below src/goldnode needs a row in LAYERS of this test and in docs/architecture.md"
    )


def test_every_package_and_room_has_a_folder_of_tests() -> None:
    """`pytest tests/unit/PACKAGE` runs the tests of a package, and node/ROOM and fleet/ROOM those
    of a room.
    """
    packages = SOURCE / "goldnode"
    rooms = [
        folder.parent.relative_to(packages)
        for pattern in ("*", "node/*", "fleet/*")
        for folder in packages.glob(f"{pattern}/__init__.py")
    ]
    assert len(rooms) > 40
    tests = Path(__file__).parent
    without = [str(room) for room in rooms if not any((tests / room).rglob("test_*.py"))]
    assert not without, f"no tests in tests/unit for {without}"


@pytest.mark.parametrize("name", sorted(RANK))
def test_a_package_imports_lower_layers_only(name: str) -> None:
    """The row of LAYERS decides. Move the shared code down, or pass the value in as an argument."""
    wrong = [
        f"{MODULES[module].relative_to(SOURCE.parent)}:{line} imports {other}"
        for module in MODULES
        if package(module) == name
        for other, line in imported(module).items()
        if package(other) not in ("", name) and RANK[package(other)] >= RANK[name]
    ]
    assert not wrong, "\n".join(wrong)


def room(module: str) -> tuple[str, str]:
    """Return the package of a module directly below goldnode, and its room; empty for a module that
    lies loose.
    """
    _, package, *rest = [*module.split("."), "", ""]
    return package, rest[0] if f"goldnode.{package}.{rest[0]}" in FOLDERS else ""


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_every_room_of_a_package_has_a_row(name: str) -> None:
    assert {room(module)[1] for module in MODULES if package(module) == name} - {""} == set(
        ROOMS[name]
    ), f"a package directly below src/goldnode/{name} needs a place in ROOMS of this test"


@pytest.mark.parametrize(
    ("name", "own"), [(name, own) for name, rooms in ROOMS.items() for own in rooms]
)
def test_a_room_imports_earlier_rooms_only(name: str, own: str) -> None:
    """The order of ROOMS decides. Move what is shared down, or hand a function in."""
    allowed = ROOMS[name][: ROOMS[name].index(own) + 1]
    wrong = [
        f"{MODULES[module].relative_to(SOURCE.parent)}:{line} imports {other}"
        for module in MODULES
        if room(module) == (name, own)
        for other, line in imported(module).items()
        if package(other) == name and other != f"goldnode.{name}" and room(other)[1] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other() -> None:
    assert circles() == []

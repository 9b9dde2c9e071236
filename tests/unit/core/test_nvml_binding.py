"""The part of pynvml in goldnode-node: all that its callers name, in NVIDIA's words, and complete in itself."""

from __future__ import annotations

import ast
import builtins
import ctypes
import re
from pathlib import Path

import pytest

from goldnode.core import nvml_binding
from goldnode.core import program_file as nodefile

WHOLE = nodefile.binding()[nodefile.BINDING].decode()
PART = nodefile.node_binding().decode()
CALLERS = [*sorted(nodefile.NODE.glob("device/*.py")), *nodefile.guests()]


def defined(text: str) -> set[str]:
    """Names that the statements at the margin define."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & {
                t.id for t in node.targets if isinstance(t, ast.Name)
            }
    return names


@pytest.mark.parametrize("file", CALLERS, ids=lambda path: path.name)
def test_names_of_a_caller_are_there(file: Path) -> None:
    tree = ast.parse(file.read_text())
    named = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "nvml"
    }
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    getters = {
        "nvmlDeviceGet" + text for text in texts if re.fullmatch(r"[A-Z]\w+", text) is not None
    }
    wanted = (named | texts | getters) & defined(WHOLE)
    assert wanted <= defined(PART)
    if file.name in ("collect.py", "nvidia.py"):
        assert len(wanted) > 20, "the walk has stopped to find the names"


def test_names_that_the_part_reads_are_those_it_has() -> None:
    """pynvml takes the names of C types from ctypes, by a star."""
    known = defined(PART) | set(dir(builtins)) | set(dir(ctypes))
    read = {
        node.id
        for node in ast.walk(ast.parse(PART))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    assert read & defined(WHOLE) <= known
    assert len(read & defined(WHOLE)) > 100


def test_statements_are_those_of_the_whole_in_their_order() -> None:
    whole = [ast.dump(node) for node in ast.parse(WHOLE).body]
    places = iter(range(len(whole)))
    for node in ast.parse(PART).body:
        assert any(whole[place] == ast.dump(node) for place in places), ast.unparse(node)[:80]


def test_statements_that_define_nothing_stay() -> None:
    text = "# licence\n\nimport sys\n\n# of A\nA = (\n  1,\n)\n\n@f\ndef b(x):\n\n    return A\n\nB = 2\nrun()\nclass C:\n    x = B\nD = C\n"
    assert nvml_binding.used_part(text, ["b()"]) == (
        "# licence\n\nimport sys\n\nA = (\n  1,\n)\n\n@f\ndef b(x):\n\n    return A\n\nrun()\n"
    )
    assert nvml_binding.used_part(text, ["D"]).endswith(
        "B = 2\nrun()\nclass C:\n    x = B\nD = C\n"
    )


def test_part_is_small() -> None:
    assert len(PART) < len(WHOLE) / 5

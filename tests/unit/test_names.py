"""Names of classes and tests: a public class is defined once, a test's name states a result (docs/style.md)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "goldnode"
TESTS = Path(__file__).parents[1]

# Openings of a name that hide the subject of the test: a clause ("what is young stays") or a pronoun.
# Anywhere in a name: words that style.md replaces by report, state or print.
UNCLEAR_TEST = re.compile(
    r"^\s*(?:async )?def "
    r"(test_(?:(?:how|it|that|there|what|when|where|which|who)_\w+|(?:\w+_)?(?:said|says?|tells|told)(?:_\w+)?))\(",
    re.MULTILINE,
)

# A program of its own. Its bytes are part of every container image, so a new name would change all digests.
SMOKE = "gpuprogram/"
# For type checkers: the class document as the node reads it, with the names of its models.
MIRROR = "node/ground/document.py"

# Class name -> why several files may define it.
SHARED = {
    "ActionModule": "Ansible loads an action plugin by this name",
    "InventoryModule": "Ansible loads an inventory plugin by this name",
}


def classes(files: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the files that define each public class, from pairs of file name and source."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, text in files:
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return found


def repeated(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the classes that more than one file defines."""
    return {name: files for name, files in sorted(found.items()) if len(files) > 1}


@cache
def package() -> dict[str, list[str]]:
    """Return the files of the package that define each public class, without GPU programs and the mirror."""
    files = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
    return classes(
        (name, path.read_text(encoding="utf-8"))
        for name, path in files.items()
        if not name.startswith(SMOKE) and name != MIRROR
    )


def test_class_name_has_one_meaning() -> None:
    twice = {name: files for name, files in repeated(package()).items() if name not in SHARED}
    assert not twice, (
        f"class names in several files: {twice}. Put the domain in front (KernelFinding, ImageChannel), "
        "or add the name to SHARED with the reason"
    )


def test_every_exception_is_still_needed() -> None:
    assert set(SHARED) <= set(repeated(package())), "remove the names that one file defines now"


def test_second_class_of_a_name_is_found() -> None:
    found = classes(
        [("a.py", "class Row: ...\nclass _Own: ..."), ("b.py", "class Row: ...\nclass _Own: ...")]
    )
    assert repeated(found) == {"Row": ["a.py", "b.py"]}


def test_names_of_tests_open_with_their_subject() -> None:
    unclear = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in UNCLEAR_TEST.findall(path.read_text(encoding="utf-8"))
    }
    assert not unclear, (
        f"names of tests without a subject, or with say or tell: {unclear}. "
        "Name subject, condition and result: test_gate_closes_when_verdict_is_stale"
    )


def test_unclear_name_of_a_test_is_found() -> None:
    names = ["test_what_is_young_stays", "test_it_runs", "test_row_says_why", "test_doubt_is_told"]
    source = "\n".join(f"    async def {name}(self): ..." for name in names)
    assert UNCLEAR_TEST.findall(source) == names
    assert not UNCLEAR_TEST.findall(
        "def test_whole_disk_is_read(): ...\ndef test_essays_are_read(): ..."
    )

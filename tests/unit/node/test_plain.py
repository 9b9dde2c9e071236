"""What the node's own values take over from the standard dataclasses is what those do."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from goldnode.node import plain, program, words

SOURCE = Path(plain.__file__).parents[2]


class _Fixed:
    name: str
    found: Any
    more: tuple[str, ...] = ()


class _Open:
    name: str = "a"
    rows: list[Any] = plain.field(default_factory=list)


class _OpenToo:
    name: str = "a"
    rows: list[Any] = dataclasses.field(default_factory=list)


OURS: Any = plain.dataclass(frozen=True)(_Fixed)
THEIRS: Any = dataclasses.dataclass(frozen=True)(
    type("_Fixed", (), {"__annotations__": _Fixed.__annotations__, "more": ()})
)
OUR_OPEN: Any = plain.dataclass(_Open)
THEIR_OPEN: Any = dataclasses.dataclass(_OpenToo)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (("a", 1), {}),
        (("a",), {"found": None}),
        ((), {"more": ("x",), "found": {"k": [1, (2, {"z": []})]}, "name": "b"}),
        (("a", [1], ("y",)), {}),
    ],
)
def test_a_value_is_as_the_standard_one(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, theirs = OURS(*values, **named), THEIRS(*values, **named)

    assert list(vars(ours).items()) == list(vars(theirs).items())
    assert repr(ours) == repr(theirs)
    assert plain.asdict(ours) == dataclasses.asdict(theirs)
    assert vars(plain.replace(ours, name="c")) == vars(dataclasses.replace(theirs, name="c"))
    assert ours == OURS(*values, **named)
    assert ours != plain.replace(ours, name="c")
    assert ours != theirs
    with pytest.raises(AttributeError, match="its name cannot be changed"):
        ours.name = "c"


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), (("a",), {}), (("a", 1, (), 2), {}), (("a", 1), {"name": "b"}), (("a", 1), {"other": 2})],
)
def test_what_the_standard_one_does_not_take_is_not_taken(
    values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    for kind in (OURS, THEIRS):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_a_list_is_each_value_s_own_and_a_copy_in_a_dict() -> None:
    for kind in (OUR_OPEN, THEIR_OPEN):
        one, two = kind(), kind()
        one.rows.append({"a": []})
        assert two.rows == []
        assert kind("b", [1]).rows == [1]
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)
    ours = OUR_OPEN(rows=[{"a": []}])
    plain.asdict(ours)["rows"][0]["a"].append(1)
    assert ours.rows == [{"a": []}]
    assert len({OURS("a", 1), OURS("a", 1), OURS("a", 2)}) == 2


def test_a_check_begins_without_what_it_does_not_need(tmp_path: Path) -> None:
    """Each of these was measured to cost a check 3 to 20 ms."""
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from goldnode.node import program; from goldnode.node.state import engine\n"
        f"host = program.Host({str(tmp_path)!r}); host.write('/etc/x', b'x'); assert host.glob('/etc', '?') == ['/etc/x']\n"
        "assert host.text('/etc/x') == 'x' and host.exists('/etc') and program.plain(['check', '--passive'])\n"
        "print(*sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    slow = {
        "argparse",
        "calendar",
        "dataclasses",
        "difflib",
        "inspect",
        "pathlib",
        "platform",
        "shutil",
        "tempfile",
        "urllib.parse",
    }
    assert not slow & set(said)
    assert not {
        f"goldnode.node.state.{name}" for name in ("applied", "apply", "record", "removal", "rollback")
    } & set(said)


def test_a_check_with_flags_alone_is_understood_as_argparse_does() -> None:
    flags = ["--format=json", "--json", "--quiet", "--no-write", "--no-gate", "--passive", "--cached"]
    for size in range(len(flags) + 1):
        for chosen in itertools.combinations(flags, size):
            given = ["check", *chosen, *chosen[:1]]
            assert vars(program.plain(given)) == vars(words.parse(given))


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["plan"],
        ["--json"],
        ["check", "--class", "x"],
        ["check", "--root", "/x"],
        ["check", "--from=x"],
        ["check", "--pass"],
        ["check", "x"],
    ],
)
def test_anything_else_is_left_to_argparse(given: list[str]) -> None:
    assert program.plain(given) is None

"""Named tuples without `typing`: they are those of `typing`, but for the types of their annotations."""

from __future__ import annotations

import pickle
import subprocess
import sys
import typing

from goldnode.node.ground import typed


class UntypedRow(typed.NamedTuple):
    """A doc string."""

    name: str
    size: int | None = None
    tags: typing.Sequence[str] = ()

    @property
    def shown(self) -> str:
        return f"{self.name}!"

    def longer(self) -> UntypedRow:
        return self._replace(size=(self.size or 0) + 1)


class TypedRow(typing.NamedTuple):
    """A doc string."""

    name: str
    size: int | None = None
    tags: typing.Sequence[str] = ()


def test_named_tuple_is_that_of_typing() -> None:
    for name in ("_fields", "_field_defaults", "__doc__", "__module__"):
        assert getattr(UntypedRow, name) == getattr(TypedRow, name), name
    assert tuple(UntypedRow("a")) == tuple(TypedRow("a")) == ("a", None, ())
    assert repr(UntypedRow("a", tags=["x"])) == "UntypedRow(name='a', size=None, tags=['x'])"
    assert UntypedRow("a").longer().longer().size == 2
    assert UntypedRow("a").shown == "a!"
    assert pickle.loads(pickle.dumps(UntypedRow("a"))) == UntypedRow("a")  # noqa: S301 - our own
    assert typing.get_type_hints(UntypedRow) == typing.get_type_hints(TypedRow)


def test_cast_is_that_of_typing() -> None:
    assert str(typed.cast("int", "a")) == "a"


COLLECTED = """
import gc, sys

def collect(frame, event, argument):
    if frame.f_code.co_filename.endswith("typed.py"):
        frame.f_trace_opcodes = True
        gc.collect()
        return collect

sys.settrace(collect)
from goldnode.node.ground import typed
sys.settrace(None)

class Pair(typed.NamedTuple):
    first: int
    second: int

print(Pair(1, 2).first, Pair(1, 2).second)
"""


def test_fields_survive_the_garbage_collector_at_any_point_of_the_import() -> None:
    command = [sys.executable, "-c", COLLECTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1 2\n"

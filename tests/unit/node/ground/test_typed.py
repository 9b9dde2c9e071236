"""Named tuples without `typing`: they are those of `typing`, but for the types of their annotations."""

from __future__ import annotations

import pickle
import typing

from goldnode.node.ground import typed


class Ours(typed.NamedTuple):
    """A doc string."""

    name: str
    size: int | None = None
    tags: typing.Sequence[str] = ()

    @property
    def shown(self) -> str:
        return f"{self.name}!"

    def longer(self) -> Ours:
        return self._replace(size=(self.size or 0) + 1)


class Theirs(typing.NamedTuple):
    """A doc string."""

    name: str
    size: int | None = None
    tags: typing.Sequence[str] = ()


def test_named_tuple_is_that_of_typing() -> None:
    for name in ("_fields", "_field_defaults", "__doc__", "__module__"):
        assert getattr(Ours, name) == getattr(Theirs, name), name
    assert Ours("a") == Theirs("a") == ("a", None, ())
    assert repr(Ours("a", tags=["x"])) == "Ours(name='a', size=None, tags=['x'])"
    assert Ours("a").longer().longer().size == 2
    assert Ours("a").shown == "a!"
    assert pickle.loads(pickle.dumps(Ours("a"))) == Ours("a")  # noqa: S301 - our own
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs)


def test_cast_is_that_of_typing() -> None:
    assert typed.cast("int", "a") == "a"

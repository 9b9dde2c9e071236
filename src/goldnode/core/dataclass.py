"""`dataclass(frozen=True)` for modules that each start of a command imports.

The decorator of the standard library compiles the source of six methods for each class, 0.3 to 0.5 ms; a tenth of the CPU
time of `goldnode check` was that (docs/benchmarks/check.md). The methods here are the same for all classes and compile
nothing. `fields`, `replace`, `asdict`, `is_dataclass` and `match` work as usual. A type checker reads the decorator
of the standard library.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool) -> Callable[[type], Any]:
        """Return the decorator of a frozen class.

        Raises TypeError for a class that needs the decorator of the standard library: one that is not frozen, or
        whose fields are not all arguments of the constructor and part of its value.
        """
        if not frozen:
            raise TypeError("only for frozen classes: use dataclasses.dataclass")
        return _frozen


class _Fields(NamedTuple):
    """Fields of a class for its constructor, in the order of its arguments."""

    names: tuple[str, ...]
    defaults: dict[str, Any]
    factories: dict[str, Callable[[], Any]]


_UNSET = object()


def _frozen(declared: type) -> Any:
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(declared)
    fields = dataclasses.fields(made)
    if not fields or any(
        not (item.init and item.repr and item.compare) or item.kw_only or item.hash is not None
        for item in fields
    ):
        raise TypeError(f"{made.__qualname__}: use dataclasses.dataclass")
    names = tuple(item.name for item in fields)
    described = _Fields(
        names,
        {item.name: item.default for item in fields if item.default is not dataclasses.MISSING},
        {
            item.name: item.default_factory
            for item in fields
            if item.default_factory is not dataclasses.MISSING
        },
    )
    methods = {
        "__init__": _constructor(described, hasattr(made, "__post_init__")),
        "__repr__": _representation(names),
        **_comparisons(names),
        **_locks(made, names),
    }
    for name, method in methods.items():
        if name not in declared.__dict__:
            method.__name__, method.__qualname__ = name, f"{made.__qualname__}.{name}"
            setattr(made, name, method)
    return made


def _constructor(fields: _Fields, has_post_init: bool) -> Callable[..., None]:
    """Return `__init__`. Its errors are those of any function."""
    names, defaults, factories = fields
    # In the order of the fields, so that `vars` of all instances agree.
    blank = {name: defaults.get(name, _UNSET) for name in names}
    # By the number of arguments without a name: the fields that are still required.
    optional = defaults.keys() | factories.keys()
    required_after = [set(names[place:]) - optional for place in range(len(names) + 1)]
    count, store = len(names), object.__setattr__

    def construct(self: Any, /, *args: Any, **given: Any) -> None:
        values = blank.copy()
        if args:
            if len(args) > count or not given.keys().isdisjoint(names[: len(args)]):
                raise TypeError(_refusal(self, fields, args, given))
            values.update(zip(names, args, strict=False))
        if given:
            values.update(given)
        # A name that is no field is one value more.
        if len(values) != count or not given.keys() >= required_after[len(args)]:
            raise TypeError(_refusal(self, fields, args, given))
        for name, factory in factories.items():
            if values[name] is _UNSET:
                values[name] = factory()
        store(self, "__dict__", values)  # at once: as quick as one assignment
        if has_post_init:
            self.__post_init__()

    return construct


def _refusal(made: Any, fields: _Fields, args: tuple[Any, ...], given: dict[str, Any]) -> str:
    function = f"{type(made).__qualname__}.__init__()"
    if len(args) > len(fields.names):
        # With `self`, as Python counts.
        return f"{function} takes {len(fields.names) + 1} positional arguments but {len(args) + 1} were given"
    unknown = next((name for name in given if name not in fields.names), None)
    if unknown is not None:
        return f"{function} got an unexpected keyword argument '{unknown}'"
    missing = [
        name
        for name in fields.names
        if name not in given and name not in fields.defaults and name not in fields.factories
    ]
    missing = [name for name in missing if name not in fields.names[: len(args)]]
    if missing:
        return f"{function} is missing the arguments {', '.join(missing)}"
    twice = next(name for name in fields.names[: len(args)] if name in given)
    return f"{function} got multiple values for argument '{twice}'"


def _representation(names: tuple[str, ...]) -> Callable[[Any], str]:
    @reprlib.recursive_repr()
    def represent(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return represent


def _comparisons(names: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    # An instance has its fields in `__dict__`, in their order, and behind them what `cached_property` has stored.
    count, values = len(names), operator.attrgetter(*names)

    def equal(self: Any, other: object) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        own, others = self.__dict__, other.__dict__
        if len(own) == len(others) == count:
            return own == others
        return values(self) == values(other)

    def hashed(self: Any) -> int:
        return hash(tuple(self.__dict__.values())[:count])

    return {"__eq__": equal, "__hash__": hashed}


def _locks(made: type, names: tuple[str, ...]) -> dict[str, Callable[..., None]]:
    """Return the methods that refuse changes. A subclass may have attributes of its own."""

    def assign(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field '{name}'")
        object.__setattr__(self, name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field '{name}'")
        object.__delattr__(self, name)

    return {"__setattr__": assign, "__delattr__": delete}

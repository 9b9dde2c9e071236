"""Lightweight replacements of `contextlib.suppress` and the parts of :mod:`dataclasses` that this program
uses.

The standard module imports inspect, with Python's parser and tokenizer, and compiles four functions for each
class. That took longer than all reads of a check. Type checkers see the standard module, so classes are
written for it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import suppress as suppress
    from dataclasses import asdict as asdict
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    MISSING = object()

    class suppress:  # noqa: N801 - named as the standard one
        """Context manager that suppresses exceptions of these kinds."""

        def __init__(self, *kinds):
            self.kinds = kinds

        def __enter__(self):
            return None

        def __exit__(self, kind, problem, trace):
            return kind is not None and issubclass(kind, self.kinds)

    class field:  # noqa: N801 - named as the standard one
        """A field with a default that is created separately for each instance."""

        def __init__(self, default_factory):
            self.factory = default_factory

    def dataclass(cls=None, *, frozen=False):
        """Give a class a constructor, comparison and repr over its annotated fields. With `frozen`, also a
        hash, and no field can be set.

        Fields are not inherited. ``vars()`` has them in the order in which they are written.
        """
        if cls is None:
            return lambda marked: dataclass(marked, frozen=frozen)
        names = tuple(cls.__annotations__)
        initial = {name: cls.__dict__.get(name, MISSING) for name in names}
        own = {name: value.factory for name, value in initial.items() if isinstance(value, field)}
        needed = [name for name in names if initial[name] is MISSING]
        for name in own:
            delattr(cls, name)
        after = cls.__dict__.get("__post_init__")

        def construct(self, *values, **named):
            given = dict(zip(names, values), **named)
            found = {**initial, **given}
            if len(found) != len(names) or len(given) != len(values) + len(named):
                raise TypeError(
                    f"{cls.__name__} has the fields {', '.join(names)}, each given once; "
                    f"got {values!r} and {named!r}"
                )
            for name in needed:
                if name not in given:
                    raise TypeError(f"{cls.__name__} needs its {name}")
            for name, factory in own.items():
                if name not in given:
                    found[name] = factory()
            self.__dict__.update(found)
            if after is not None:
                after(self)

        def same(self, other):
            return vars(self) == vars(other) if type(other) is cls else NotImplemented

        def text(self):
            return f"{cls.__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

        cls.__init__, cls.__eq__, cls.__repr__, cls.__hash__ = construct, same, text, None
        if frozen:

            def hashed(self):
                return hash(tuple(vars(self).values()))

            def fixed(self, name, *_):
                raise AttributeError(f"{cls.__name__} is a value: its {name} cannot be changed")

            cls.__hash__, cls.__setattr__, cls.__delattr__ = hashed, fixed, fixed
        return cls

    def replace(value, **changes):
        """Return a copy with some fields changed."""
        return type(value)(**{**vars(value), **changes})

    def asdict(value):
        """Return the fields by name, and convert values in lists, tuples and dicts likewise."""
        return {name: _plain(item) for name, item in vars(value).items()}

    def _plain(item):
        if isinstance(item, (list, tuple)):
            return type(item)(map(_plain, item))
        if isinstance(item, dict):
            return {key: _plain(inner) for key, inner in item.items()}
        return item

    class NamedTuple(tuple):
        """Replacement of typing.NamedTuple that does not compile a constructor for each class."""

        __slots__ = ()

        def __init_subclass__(cls):
            cls._fields = tuple(cls.__annotations__)
            cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}
            for place, name in enumerate(cls._fields):
                setattr(cls, name, _tuplegetter(place, name))

        def __new__(cls, *values, **named):
            if named or len(values) != len(cls._fields):
                given = dict(zip(cls._fields, values), **named)
                found = {**cls._defaults, **given}
                if len(found) != len(cls._fields) or len(given) != len(values) + len(named):
                    raise TypeError(
                        f"{cls.__name__} has the fields {', '.join(cls._fields)}; "
                        f"got {values!r} and {named!r}"
                    )
                values = [found[name] for name in cls._fields]
            return tuple.__new__(cls, values)

        def __repr__(self):
            return (
                f"{type(self).__name__}"
                f"({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self))})"
            )

        def __getnewargs__(self):
            # copy and pickle pass these to __new__; those of tuple are one tuple, not one argument per field.
            return tuple(self)

        def _replace(self, **changes):
            return type(self)(**{**self._asdict(), **changes})

        def _asdict(self):
            return dict(zip(self._fields, self))

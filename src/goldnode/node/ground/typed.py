"""`NamedTuple` and `cast` for a program that starts every few minutes and does not import `typing`.

`collections.namedtuple` compiles a constructor for each class, and `typing.NamedTuple` the annotation of each field
too. A check makes 50 classes: that took 4 % of its time. Here all classes share one constructor, and annotations
stay texts (`from __future__ import annotations`); mypy checks them.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
    from typing import cast as cast
else:

    class _Row(tuple):
        """What named tuples share, as documented for `collections.namedtuple`."""

        __slots__ = ()

        def __new__(cls, *values, **named):
            rest = cls._fields[len(values) :]
            if rest:
                defaults = cls._field_defaults
                try:
                    values = (*values, *[named.pop(f) if f in named else defaults[f] for f in rest])
                except KeyError as missing:
                    raise TypeError(f"{cls.__name__} has no value for {missing}") from None
            if named or len(values) > len(cls._fields):
                raise TypeError(f"{cls.__name__} takes {cls._fields}, not {values} and {named}")
            return tuple.__new__(cls, values)

        def _asdict(self):
            return dict(zip(self._fields, self))

        def _replace(self, **named):
            row = tuple.__new__(type(self), map(named.pop, self._fields, self))
            if named:
                raise ValueError(f"{type(self).__name__} has no field {', '.join(named)}")
            return row

        def __repr__(self):
            values = ", ".join(f"{field}={value!r}" for field, value in self._asdict().items())
            return f"{type(self).__name__}({values})"

        def __getnewargs__(self):
            return tuple(self)

    _NAMES = [f"field{place}" for place in range(16)]
    # Bound to a name: `vars` of a class does not keep it alive, and the garbage collector empties it.
    _Fields = namedtuple("_Fields", _NAMES)
    # Python's own descriptors: each returns the item at its place in any tuple.
    _FIELDS = [vars(_Fields)[name] for name in _NAMES]

    class _Maker(type):
        """Makes a class of the fields, defaults and methods in the body of a class."""

        def __new__(cls, name, bases, body):
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            own = {"__slots__": (), "_fields": fields, "_field_defaults": defaults}
            return type(name, (_Row,), {**body, **dict(zip(fields, _FIELDS)), **own})

    NamedTuple = type.__new__(_Maker, "NamedTuple", (), {})

    def cast(kind, value):
        """Return the value: of a type that mypy cannot see."""
        return value

"""`NamedTuple` and `cast` for a program that starts every few minutes and does not import `typing`.

Python's `NamedTuple` compiles the annotation of each field to check it, and takes twice the time of the class
itself. Here annotations stay texts (`from __future__ import annotations`); mypy checks them.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
    from typing import cast as cast
else:

    class _Maker(type):
        """Makes Python's own named tuple of the fields, defaults and methods in the body of a class."""

        def __new__(cls, name, bases, body):
            fields = body.get("__annotations__", ())
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key not in fields and key not in ("__module__", "__qualname__", "__classcell__"):
                    setattr(made, key, value)
            return made

    NamedTuple = type.__new__(_Maker, "NamedTuple", (), {})

    def cast(kind, value):
        """Return the value: of a type that mypy cannot see."""
        return value

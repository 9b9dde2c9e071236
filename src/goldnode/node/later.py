"""Lazy imports of standard library modules that the check of a healthy node does not need.

`re` imports enum, functools and collections. Its import, with the compilation of its patterns, took one
eighth of a check.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import base64 as base64
    import binascii as binascii
    import importlib as importlib
    import json as json
    import re as re
    import shlex as shlex
else:

    class _Later:
        def __init__(self, name):
            self._name = name

        def __getattr__(self, wanted):
            value = getattr(__import__(self._name), wanted)
            setattr(self, wanted, value)
            return value

    base64, binascii, importlib, json, re, shlex = map(
        _Later, ("base64", "binascii", "importlib", "json", "re", "shlex")
    )

"""Texts from elsewhere, made safe to print, to log and to store: of another machine, of its users,
of its devices.

They are cleaned where they come in, so that no output has to do it again.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Spaces of other widths, which `isprintable` excludes.
_SPACES = (
    "\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)


def clean(text: str) -> str:
    """Return a text on one line, with control characters and marks of direction as escapes."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in _SPACES else _escape(ord(one)) for one in text
    )


def spaced(text: str) -> str:
    """Return a text with a space in place of each character that cannot be printed, line ends included."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cleaned(value: Any) -> Any:
    """Return a JSON document with all its texts cleaned, keys included."""
    if isinstance(value, str):
        return clean(value)
    # Most sections need nothing: `repr` is compiled, and writes all that cannot be printed with a backslash.
    if "\\" not in repr(value):
        return value
    if isinstance(value, dict):
        return {clean(key): cleaned(one) for key, one in value.items()}
    if isinstance(value, list):
        return [cleaned(one) for one in value]
    return value


def phrase(form: str, value: Any) -> str:
    """Return a text with a value in place of its braces, or no text if the value is empty."""
    return form.format(value) if value else ""


def and_more(count: int, form: str = " and {} more") -> str:
    """Return the end of a list that shows all but `count` of its items, or no text if it shows all."""
    return form.format(count) if count > 0 else ""


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters; an ellipsis is the last of one that was longer."""
    return text if len(text) <= most else text[: most - 1] + "…"

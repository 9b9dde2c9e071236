"""JSON through the compiled part of the standard module.

Importing that module (and its regular expressions) takes longer than all reads of a check. ``loads`` and
``dumps`` behave like those of :mod:`json`. Inputs that the compiled part rejects, such as malformed text or
options, go to the standard module, so errors are the same.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from json import dumps as dumps
    from json import loads as loads
else:
    SPACE = " \t\n\r"
    PLAIN = (", ", ": ")  # between items, and between a key and its value

    class _Context:
        """Options that the scanner reads once: the defaults of `json.loads`."""

        strict, object_hook, object_pairs_hook, parse_float, parse_int = True, None, None, float, int
        parse_constant = {
            "-Infinity": float("-inf"),
            "Infinity": float("inf"),
            "NaN": float("nan"),
        }.__getitem__

    try:
        from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner

        _scan = make_scanner(_Context)
    except (ImportError, AttributeError, TypeError):  # not CPython, or a changed internal interface
        from json import dumps, loads
    else:

        def loads(text, **options):
            if not options and isinstance(text, (str, bytes, bytearray)):
                try:
                    given = text if isinstance(text, str) else text.decode("utf-8")
                    found, end = _scan(
                        given, len(given) - len(given.lstrip(SPACE)) if given[:1] in SPACE else 0
                    )
                    if not given[end:].strip(SPACE):
                        return found
                except (StopIteration, ValueError):  # the standard module below raises its own error
                    pass
            from json import loads as standard

            return standard(text, **options)

        def dumps(value, *, sort_keys=False, separators=PLAIN, ensure_ascii=True, **options):
            if options:
                from json import dumps as standard

                given = {} if separators is PLAIN else {"separators": separators}
                return standard(value, sort_keys=sort_keys, ensure_ascii=ensure_ascii, **given, **options)
            text = encode_basestring_ascii if ensure_ascii else encode_basestring
            if isinstance(value, str):
                return text(value)
            item, key = separators
            return "".join(
                make_encoder({}, _foreign, text, None, key, item, sort_keys, False, True)(value, 0)
            )

        def _foreign(value):
            raise TypeError(f"Object of type {value.__class__.__name__} is not JSON serializable")

"""YAML reader that keeps line numbers. Every fault becomes one error with file, line and remedy.

`YamlSource` records the line of every key and value next to the plain data. An error found much later (a power
limit above the board's, a host in two classes) can still name the line of the value.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from goldnode.core import parsed_files
from goldnode.core.errors import CatalogError, GoldnodeError, cut, nearest
from goldnode.node.ground.optional import group

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclasses.dataclass
class YamlSource:
    """A parsed file: its text, its plain `data`, and the line of every key and value."""

    file: Path
    data: Any
    text: str = ""
    key_lines: dict[KeyPath, int] = field(default_factory=dict)
    value_lines: dict[KeyPath, int] = field(default_factory=dict)

    def line(self, path: Sequence[str | int]) -> int:
        """Return the 1-based line of the key at `path`, or of the nearest enclosing key in the file."""
        whole = tuple(path)
        for end in range(len(whole), -1, -1):
            part = whole[:end]
            if part in self.key_lines:
                return self.key_lines[part]
            if part in self.value_lines:
                return self.value_lines[part]
        return 1

    def number(self, line: int, key: str) -> str | None:
        """Return the number behind a key of a line as it is written there: 1.10, of which YAML makes 1.1."""
        text = "".join(self.text.splitlines()[line - 1 : line])
        return group(
            re.search(rf"(?:^|[\s{{,\"']){re.escape(key)}[\"']?\s*:\s*([0-9][\w.+-]*)", text)
        )


def read(path: Path, *, error: type[GoldnodeError] = CatalogError) -> YamlSource:
    """Read one YAML document. Raises `error` for an unreadable file, invalid YAML and a duplicate key."""
    return parse(read_text(path, error=error), path, error=error)


def read_text(path: Path, *, error: type[GoldnodeError] = CatalogError) -> str:
    """Return the text of a file. Raises `error` for an unreadable one."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as problem:
        raise error(
            "the file does not exist", file=path, remedy="create it or correct its name"
        ) from problem
    except UnicodeDecodeError as problem:
        raise error(
            f"the file is not text in UTF-8 ({problem.reason} at byte {problem.start})",
            file=path,
            remedy="save it as UTF-8",
        ) from problem
    except OSError as problem:
        raise error(
            f"the file cannot be read: {problem.strerror or problem}",
            file=path,
            remedy="correct its name or its mode",
        ) from problem


def parse(text: str, path: Path, *, error: type[GoldnodeError] = CatalogError) -> YamlSource:
    """Parse `text` as the content of `path`; see `read`."""
    from goldnode.core import yamlparser  # start-up time: files in the cache are not parsed

    parsed = yamlparser.parse(text, path, error)
    return YamlSource(path, parsed.data, text, parsed.key_lines, parsed.value_lines)


def load(
    model: type[Model],
    path: Path | None,
    *,
    error: type[GoldnodeError] = CatalogError,
    allow_empty: bool = False,
) -> tuple[Model, YamlSource]:
    """Read a file as `model`, from the cache if its text was read before; see `read` and `validate`.

    None is an empty file. For models whose code `parsed_files.CODE` has; `parsed_files.save` writes the cache.
    """
    text = "" if path is None else read_text(path, error=error)
    path = path or Path()
    kind = f"{model.__module__}.{model.__qualname__}"
    stored = parsed_files.recall(kind, text)
    if stored is not None:
        item, data, key_lines, value_lines = stored
        return item, YamlSource(path, data, text, key_lines, value_lines)
    source = parse(text, path, error=error)
    item = validate(model, source, error=error, allow_empty=allow_empty)
    parsed_files.remember(kind, text, (item, source.data, source.key_lines, source.value_lines))
    return item, source


def validate(
    model: type[Model],
    source: YamlSource,
    *,
    error: type[GoldnodeError] = CatalogError,
    allow_empty: bool = False,
) -> Model:
    """Return `source` as `model`.

    Raises `error` for the first fault, with its line and the nearest valid spelling.
    """
    data = source.data
    if data is None and allow_empty:
        data = {}
    if not isinstance(data, dict):
        raise error(
            f"the document is {_kind(data)}, expected a mapping of keys",
            file=source.file,
            line=source.line(()),
            remedy="write it as `key: value` lines",
        )
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        # Report one fault at a time, top to bottom. A misspelt key comes before the missing key it was
        # probably meant to be.
        details = sorted(
            _nearest_alternatives(problem.errors(include_url=False), data),
            key=lambda item: (
                item["type"] != "extra_forbidden",
                source.line(_written(item["loc"], data)),
            ),
        )
        first = _written(details[0]["loc"], data)
        raise _explain(
            [item for item in details if _written(item["loc"], data) == first], model, source, error
        ) from None


def _nearest_alternatives(items: Sequence[ErrorDetails], data: Any) -> list[ErrorDetails]:
    """Drop the alternatives of a union that want another type of value, if one accepts the type and rejects a part."""
    places = [_written(item["loc"], data) for item in items]
    return [
        item
        for item, place in zip(items, places, strict=True)
        if not item["type"].endswith("_type")
        or not any(len(other) > len(place) and other[: len(place)] == place for other in places)
    ]


def _written(loc: Sequence[str | int], data: Any) -> KeyPath:
    """Return the part of a pydantic location that is in the file: tags of unions and validators are not."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(data, dict):
            inside = part in data
        else:
            inside = isinstance(data, list) and part in range(len(data))
        if inside:
            path.append(part)
            data = data[part]
        elif (
            part == loc[-1] and isinstance(data, dict) and isinstance(part, str) and "[" not in part
        ):
            path.append(part)
    return tuple(path)


# Expected form by pydantic error type. The placeholders are filled from the constraints of the model.
_EXPECTED = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than_equal": "a number of at most {le}",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_pattern_mismatch": "text of the form {pattern}",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "too_short": "at least one entry",
    "date_from_datetime_parsing": "a date as YYYY-MM-DD",
    "date_type": "a date as YYYY-MM-DD",
    "date_parsing": "a date as YYYY-MM-DD",
}


def _explain(
    items: Sequence[ErrorDetails],
    model: type[BaseModel],
    source: YamlSource,
    error: type[GoldnodeError],
) -> GoldnodeError:
    """Return the error for one location in the file.

    Several `items` are the alternatives of a union, none of which matched the value.
    """
    item = items[0]
    loc = _written(item["loc"], source.data)
    line = source.line(loc)
    where = ".".join(str(part) for part in loc)
    name = str(loc[-1]) if loc else ""
    if item["type"] == "extra_forbidden":
        known = _fields(model, loc[:-1])
        inside = f' in "{where.rpartition(".")[0]}"' if len(loc) > 1 else ""
        return error(
            f'unknown key "{name}"{inside}',
            file=source.file,
            line=line,
            remedy=nearest(name, known),
        )
    if item["type"] == "missing":
        return error(f'key "{where}" is missing', file=source.file, line=line, remedy="add it")
    if item["type"] == "value_error":
        # Validators of our models raise ValueError("message | remedy").
        text, _, remedy = str(item["ctx"]["error"]).partition(" | ")
        return error(
            f'"{where}": {text}' if where else text,
            file=source.file,
            line=line,
            remedy=remedy or "correct the value",
        )
    value = item["input"]
    choices = [choice for row in items for choice in _choices(row)]
    others = [
        _EXPECTED.get(row["type"], str(row["msg"])).format(**row.get("ctx", {}))
        for row in items
        if not _choices(row)
    ]
    expected = " or ".join(dict.fromkeys([*(f'"{choice}"' for choice in choices), *others]))
    shown = _show(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        # As it was written: YAML makes 1.1 of 1.10.
        shown = source.number(line, name) or shown
    remedy = _remedy(value, shown, choices, others)
    return error(
        f'"{where}" is {shown}, expected {expected}', file=source.file, line=line, remedy=remedy
    )


def _choices(item: ErrorDetails) -> list[str]:
    """Return the allowed words of a literal or enum error; empty for any other fault."""
    if item["type"] in ("literal_error", "enum"):
        return re.findall(r"'([^']*)'", str(item.get("ctx", {}).get("expected", "")))
    return []


def _remedy(value: Any, shown: str, choices: Sequence[str], others: Sequence[str]) -> str:
    if isinstance(value, bool):
        # YAML 1.1 reads unquoted on, off, yes and no as true and false.
        intended = next(
            (word for word in (("on", "yes") if value else ("off", "no")) if word in choices), None
        )
        if intended is not None:
            return f'write it in quotes: "{intended}"'
    elif "text" in others and isinstance(value, int | float):
        return f'write it in quotes: "{shown}"'
    elif "a list" in others and isinstance(value, str):
        return f"write it as a list: [{', '.join(_items(value))}]"
    known = nearest("" if isinstance(value, bool) else str(value), choices)
    return known if known.startswith('use "') or (choices and not others) else "correct the value"


def _items(text: str) -> list[str]:
    """Return the words of a text as a shell separates them, each as YAML writes it in a list."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation mark alone
        words = [text]
    return [
        word if re.fullmatch(r"[A-Za-z/.][\w./=-]*", word) else json.dumps(word) for word in words
    ]


def _fields(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the field names of the model at `path` inside `model`."""
    current: Any = model
    for part in path:
        inner = next(
            (m for m in _models(current) if isinstance(part, str) and part in m.model_fields), None
        )
        if inner is not None:
            current = inner.model_fields[str(part)].annotation
        # Otherwise `part` is an index or a free key: the type arguments of the annotation hold the model.
    return [
        info.alias or name
        for m in _models(current)
        for name, info in m.model_fields.items()
        if not info.exclude
    ]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is None:
        return []
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _show(value: Any) -> str:
    if isinstance(value, dict | list) or value is None:
        return _kind(value)
    if isinstance(value, str):
        return f'"{cut(value)}"'
    return str(value).lower() if isinstance(value, bool) else cut(str(value))


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if value == []:
        return "an empty list"
    return "a list" if isinstance(value, list) else f"the value {cut(repr(value))}"

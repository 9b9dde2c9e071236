"""Editors of the container engines' configuration texts.

They parse files that belong to the administrator, and merge in the few keys that
goldnode needs. Pure functions.
"""

from __future__ import annotations

import importlib
import json
import re

from ..ground.optional import group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple


class BrokenError(ValueError):
    """A syntax error in a configuration file. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


class ConflictError(ValueError):
    """A setting of the administrator that contradicts the class."""


# -- JSON: docker's daemon.json


def read_json(text: str) -> Dict[str, Any]:
    """Return a JSON object with its keys in order.

    Raises BrokenError, also for a duplicate key: rewriting the file would lose one of the two
    values.
    """

    def pairs(rows: List[Tuple[str, Any]]) -> Dict[str, Any]:
        values: Dict[str, Any] = {}
        for key, value in rows:
            if key in values:
                at = text.rfind(json.dumps(key, ensure_ascii=False))
                raise BrokenError(f'the key "{key}" is there twice', *position(text, max(at, 0)))
            values[key] = value
        return values

    if not text.strip():
        return {}
    try:
        document = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise BrokenError(error.msg, error.lineno, error.colno) from None
    except BrokenError:  # of `pairs`
        raise
    except RecursionError:
        raise BrokenError("it is nested too deeply", 1, 1) from None
    except ValueError as error:  # a number of more digits than Python converts
        raise BrokenError(str(error), 1, 1) from None
    if not isinstance(document, dict):
        raise BrokenError("the file has to hold one JSON object", 1, 1)
    return document


def position(text: str, at: int) -> Tuple[int, int]:
    """Return line and column of an offset, both counted from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def write_json(value: Mapping[str, Any], like: str) -> str:
    """Return `value` as JSON, with the indentation of the text `like` (default: four columns)."""
    indent = re.search(r"^([ \t]+)\S", like, re.MULTILINE)
    return json.dumps(value, indent=indent.group(1) if indent else 4, ensure_ascii=False) + "\n"


def merge_daemon(text: str, runtimes: Mapping[str, str], default: Optional[str], cdi: bool) -> str:
    """Return daemon.json with the wanted runtimes (name -> program), the default runtime, and CDI enabled.

    The text is unchanged if it has all of that already. Keys, values and their order stay
    the administrator's, and so do existing runtimes that run the same program. Raises
    BrokenError and ConflictError.
    """
    have = read_json(text)
    result = dict(have)
    if runtimes:
        known = _table(have, "runtimes")
        merged = dict(known)
        for name, program in runtimes.items():
            entry = known.get(name)
            if entry is None:
                merged[name] = {"path": program}
            elif not isinstance(entry, dict) or entry.get("path") not in (
                program,
                f"/usr/bin/{program}",
            ):
                path = entry.get("path") if isinstance(entry, dict) else entry
                raise ConflictError(f'runtime "{name}" is {json.dumps(path)}, want "{program}"')
        result["runtimes"] = merged
    if default is not None:
        if have.get("default-runtime", default) != default:
            raise ConflictError(f'default-runtime is "{have["default-runtime"]}", want "{default}"')
        result["default-runtime"] = default
    if cdi:
        features = _table(have, "features")
        if features.get("cdi") is False:
            raise ConflictError("features.cdi is false, want true")
        result["features"] = {**features, "cdi": True}
    return text if result == have else write_json(result, text)


def _table(have: Mapping[str, Any], key: str) -> Dict[str, Any]:
    table = have.get(key, {})
    if not isinstance(table, dict):
        raise ConflictError(f"{key} is {json.dumps(table)}, want an object")
    return table


# -- TOML: containerd


def toml_reader() -> Optional[ModuleType]:
    """Return Python's own TOML parser, which exists since Python 3.11, or None."""
    try:
        return importlib.import_module("tomllib")
    except ImportError:
        return None


def read_toml(text: str) -> Dict[str, Any]:
    """Parse a TOML document. Raises BrokenError. Requires :func:`toml_reader`."""
    reader = toml_reader()
    if reader is None:
        raise AssertionError("asked only where there is a reader")
    try:
        document: Dict[str, Any] = reader.loads(text)
    except reader.TOMLDecodeError as error:
        # tomllib reports an error at the end of the document without a position.
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        ends = position(text, len(text))
        raise BrokenError(
            re.sub(r" \(at .*\)$", "", str(error)), *(map(int, at.groups()) if at else ends)
        ) from None
    return document


def write_toml(table: Mapping[str, Any], path: Sequence[str] = ()) -> str:
    """Return a table as TOML text: its values first, then its subtables, each under its full name."""
    values = "".join(
        f"{_key(key)} = {_value(value)}\n"
        for key, value in table.items()
        if not isinstance(value, dict)
    )
    head = f"[{'.'.join(map(_key, path))}]\n" if path and values else ""
    return (
        head
        + values
        + "".join(
            write_toml(value, (*path, key)) or _empty((*path, key))
            for key, value in table.items()
            if isinstance(value, dict)
        )
    )


def _empty(path: Sequence[str]) -> str:
    return f"[{'.'.join(map(_key, path))}]\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    """Return a TOML basic string. JSON's escapes are valid in TOML, except that JSON does not escape DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    return str(value.isoformat())  # TOML writes dates and times in ISO 8601


def deep(base: Mapping[str, Any], over: Mapping[str, Any]) -> Dict[str, Any]:
    """Return `base` with `over` merged in, tables key by key."""
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = (
            deep(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
        )
    return result


MARK = "# inserted by goldnode"
_IMPORTS = r"(?m)^imports[ \t]*=[ \t]*\["


def with_import(text: str, config: Mapping[str, Any], drop_in: str) -> str:
    """Return config.toml with an import of `drop_in` added; everything else stays byte for byte.

    The text is unchanged if `imports` names the file already, or has a pattern that matches it.
    """
    if imports(config, drop_in):
        return text
    # Only the top of the file, before the first table: `imports` is a top-level key.
    top = re.split(r"^[ \t]*\[", text, maxsplit=1, flags=re.MULTILINE)[0]
    match = re.search(_IMPORTS, top)
    if match:
        # containerd applies imports in order, so ours comes after the last one. Comments stay where they are.
        last = _last_string(text[match.end() :])
        at = match.end() + last
        result = text[:at] + (", " if last else "") + json.dumps(drop_in) + text[at:]
    else:
        line = f"imports = [{json.dumps(drop_in)}]  {MARK}\n"
        version = re.search(r"^version[ \t]*=.*$", top, re.MULTILINE)
        at = version.end() + 1 if version else 0
        head = text[:at]
        result = (head if not head or head.endswith("\n") else head + "\n") + line + text[at:]
    expected = {**config, "imports": [*config.get("imports", ()), drop_in]}
    # The edit is textual, so parse the result and compare it with the intended document.
    try:
        right = read_toml(result) == expected
    except BrokenError:
        right = False
    if not right:
        raise ConflictError(
            f"{json.dumps(drop_in)} cannot be added to `imports`, which is written in an unusual way: add it yourself, last"
        )
    return result


def without_import(text: str, drop_in: str) -> str:
    """Return config.toml without the import of `drop_in` by name."""
    name = re.escape(json.dumps(drop_in))
    return re.sub(rf"[ \t]*{name}[ \t]*,|,?[ \t]*{name}", "", text)


def _last_string(text: str) -> int:
    """Return the offset behind the last string of a list, 0 if it is empty.

    Brackets and strings in comments are ignored.
    """
    last = 0
    for token in re.finditer(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|#[^\n]*|\]", text):
        if token.group() == "]":
            return last
        last = last if token.group()[0] == "#" else token.end()
    raise AssertionError("a list that a reader of TOML has read ends")


def imports(config: Mapping[str, Any], drop_in: str) -> bool:
    """Return whether a config.toml imports a file, by name or by a pattern in its directory."""
    directory, _, name = drop_in.rpartition("/")
    for entry in config.get("imports", ()):
        where, _, pattern = str(entry).rpartition("/")
        if entry == drop_in or (
            where == directory and re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name)
        ):
            return True
    return False


# -- the toolkit's own config.toml

_SECTION = "[nvidia-container-runtime]"


def toolkit_mode(text: str) -> Optional[str]:
    """Return `mode` of the section nvidia-container-runtime, or None if it is not set."""
    return group(re.search(r"^\s*mode\s*=\s*[\"']([^\"']*)[\"']", _section(text)[1], re.MULTILINE))


def with_toolkit_mode(text: str, mode: str) -> str:
    """Return the text with that one key set and every other line unchanged."""
    before, section, after = _section(text)
    line = f'mode = "{mode}"'
    if not section:
        missing = 0 if not text else 2 - min(2, len(text) - len(text.rstrip("\n")))
        gap = "\n" * missing  # one empty line before the section
        return f"{text}{gap}{_SECTION}\n{line}\n"
    changed, count = re.subn(
        r"^(\s*)#?\s*mode\s*=.*$",
        lambda found: f"{found.group(1)}{line}",
        section,
        count=1,
        flags=re.MULTILINE,
    )
    if not count:
        changed = section.replace(f"{_SECTION}\n", f"{_SECTION}\n{line}\n", 1)
    return before + changed + after


def _section(text: str) -> Tuple[str, str, str]:
    """Split the text into the part before the section, the section, and the rest.

    The section includes its header; its sub-tables belong to the rest.
    """
    start = re.search(rf"^{re.escape(_SECTION)}[ \t]*\n", text, re.MULTILINE)
    if not start:
        return text, "", ""
    end = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, start.end())
    stop = end.start() if end else len(text)
    return text[: start.start()], text[start.start() : stop], text[stop:]


# -- CDI specs


def amd_cdi(nodes: Sequence[Mapping[str, str]], groups: Sequence[int]) -> str:
    """Return a CDI spec for AMD GPUs.

    Each device has its render node and its card, and all have /dev/kfd. Groups are given by number,
    since group names differ between host and container image.
    """
    devices = [
        {
            "name": str(index),
            "containerEdits": {
                "deviceNodes": [
                    {"path": path} for path in (node["render"], node.get("card")) if path
                ]
            },
        }
        for index, node in enumerate(nodes)
    ]
    every = [
        {"path": path} for node in nodes for path in (node["render"], node.get("card")) if path
    ]
    edits: Dict[str, Any] = {"deviceNodes": [{"path": "/dev/kfd"}]}
    if groups:
        edits["additionalGids"] = list(groups)
    spec = {
        "cdiVersion": "0.7.0",
        "kind": "amd.com/gpu",
        "containerEdits": edits,
        "devices": [*devices, {"name": "all", "containerEdits": {"deviceNodes": every}}],
    }
    return json.dumps(spec, indent=1) + "\n"

"""Generator of docs/reference/configuration.md: the keys of every file that a person writes, and environment variables.

The keys come from the JSON Schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from goldnode.commands.schema.kinds import schema
from goldnode.core import environment
from goldnode.node.ground.text import phrase

# Title and location of each kind of file, in the order of the page.
FILES: Mapping[str, tuple[str, str]] = {
    "class": (
        "Class",
        "`classes/NAME.yml` of a catalog (goldnode's own, or one that `GOLDNODE_CATALOG` or the site file's `catalog` names).",
    ),
    "site": (
        "Site file",
        "The file that `GOLDNODE_SITE` names, else `goldnode-site.yml` in the working directory, else "
        "`/etc/goldnode/site.yml`.",
    ),
    "stack": (
        "Stack",
        "`stacks/NAME.yml` of a catalog. `goldnode lock NAME` makes it exact: [locks](../how-to/locks.md).",
    ),
    "platform": ("Platform", "`platforms/NAME.yml` of a catalog."),
    "archives": ("Archives", "`archives.yml` of a catalog."),
    "images": (
        "Matrix of container images",
        "`images/containers/matrix.yml`, or `--matrix`, `GOLDNODE_MATRIX`: [what it says](../how-to/images.md).",
    ),
    "canary-jobs": (
        "Canary jobs",
        "A file for `goldnode canary run --suite`: [jobs of a site](../how-to/canary.md).",
    ),
    "mitigation": (
        "Mitigation of a vulnerability",
        "`vulnerabilities/CVE/mitigation.yml` beside the site file: [mitigations](../how-to/vulnerabilities.md#mitigations).",
    ),
    "derive": (
        "Derived image",
        "`derive.yml` of a team: [build on an image](../how-to/derive.md).",
    ),
    "disks": (
        "Definition of disk images",
        "`images/disks/disks.yml`, or `--definition`, `GOLDNODE_DISK_DEFINITION`: [disk images](../how-to/disks.md).",
    ),
    "install": (
        "Plan of installations",
        "`install.yml`, for `goldnode disks netboot`: [install from the network](../how-to/install-from-network.md).",
    ),
}
OWN_SECTION = 6  # keys below one that has more of them get a table of their own
LONG = 40  # longer regular expressions are left out: they do not help the reader

_HEAD = """# Files and environment

<!-- Written by `goldnode schema --format markdown --out docs/reference/configuration.md`. Do not edit: change \
the descriptions in the models and run it again. -->

This page lists the keys of every file that you write, and the environment variables.

Keys have their full path: `gpu.model` is `model` below `gpu`, `images[].ref` is `ref` of each entry of the \
list `images`, and `NAME` is a name of
your choice. The type `keys` means that further keys follow below it, in the next rows or in a separate \
table. An expression after *text* must match
the whole text. A *required* key must exist if the key above it exists. All other keys have a default.

Files are YAML. An unknown key is an error with file, line and the nearest valid name. Editors can complete \
and validate keys with the JSON Schemas in
[`schemas`](../../schemas), which `goldnode schema` writes: put `# yaml-language-server: \
$schema=…` into the first line of a file.
`goldnode check-catalog` also checks whether values fit each other and the facts. The variables of \
`site.yml` are in [Variables of a run](variables.md).
"""

_VARIABLES = (
    (
        "",
        "Lists of directories are separated by `:`. An option on the command line takes precedence over the variable.",
        environment.VARIABLES,
    ),
    (
        "On nodes",
        "Read by `goldnode-node`, and by the programs that `serve.slurm` and `serve.npd` of a class put on "
        "nodes: [integrations](../how-to/integrations.md).",
        environment.ON_NODES,
    ),
    ("Of other programs", "Read by goldnode too, or handed to what it calls.", environment.FOREIGN),
    ("For tests", "Of use to those who work on goldnode itself.", environment.FOR_TESTS),
)


class Key(NamedTuple):
    """One key: its path, type and allowed values, default, meaning, and the keys below it."""

    path: str
    type: str
    default: str
    meaning: str
    below: list[Key]

    def all(self) -> Iterator[Key]:
        """Yield the key and all keys below it, in order."""
        yield self
        for key in self.below:
            yield from key.all()


def keys(kind: str) -> list[Key]:
    """Return the keys of a file of `kind`, a key of FILES."""
    document = schema(kind)
    return list(_KeyReader(document.get("$defs", {})).keys(document, ""))


class _KeyReader:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self.definitions = definitions

    def keys(self, node: Mapping[str, Any], place: str) -> Iterator[Key]:
        """Yield the keys of an object."""
        required = node.get("required", ())
        for name, value in node.get("properties", {}).items():
            path = f"{place}{name}"
            ways = list(self.ways(value))
            shown = [self.type(way) for way in ways if way.get("type") != "null"]
            if len(shown) < len(ways) and name in required:
                shown.append("`null`")
            default = "*required*" if name in required else _default(value, ways)
            below = [key for way in ways for key in self.below(way, path)]
            yield Key(
                path, " or ".join(dict.fromkeys(shown)), default, self.meaning(value, ways), below
            )

    def ways(self, node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the alternatives of a schema node, with references resolved."""
        if "$ref" in node:
            yield from self.ways(self.definitions[node["$ref"].rpartition("/")[2]])
        elif "anyOf" in node:
            for way in node["anyOf"]:
                yield from self.ways(way)
        else:
            yield node

    def below(self, way: Mapping[str, Any], path: str) -> Iterator[Key]:
        """Yield the keys below one that holds `way`: of an object, of a list's entries, of a map's values."""
        if "properties" in way:
            yield from self.keys(way, f"{path}.")
        elif "items" in way:
            for item in self.ways(way["items"]):
                yield from self.below(item, f"{path}[]")
        elif (value := _map_value(way)) is not None:
            for item in self.ways(value):
                yield from self.below(item, f"{path}.NAME")

    def meaning(self, node: Mapping[str, Any], ways: Sequence[Mapping[str, Any]]) -> str:
        """Return the description of the key, or that of its model."""
        texts = [node.get("description"), *(way.get("description") for way in ways)]
        return " ".join(next((text for text in texts if text), "").split())

    def type(self, way: Mapping[str, Any]) -> str:
        """Return the type of a value in words, with its allowed values."""
        if "const" in way:
            return _code(way["const"])
        if "enum" in way:
            return ", ".join(_code(value) for value in way["enum"])
        kind = way.get("type")
        if isinstance(kind, list):
            return " or ".join(self.type({"type": item}) for item in kind)
        if kind == "array":
            items = way.get("items", {})
            # Values with a name of their own are in the meaning: a cell of the type has no room for many.
            words = items["title"] if "enum" in items and "title" in items else self.types(items)
            return f"list of {words}" + (", one at least" if way.get("minItems") else "")
        if kind == "object" and "properties" in way:
            return "keys"
        if kind == "object":
            names = ", ".join(
                _code(value) for value in way.get("propertyNames", {}).get("enum", ())
            )
            return f"map of {names or 'NAME'} to {self.types(_map_value(way) or {})}"
        if kind == "boolean":
            return "`true`, `false`"
        if kind in ("integer", "number"):
            return _number(way)
        if way.get("format") == "date":
            return "date, `YYYY-MM-DD`"
        pattern = way.get("pattern", "")
        # A backquote would end the code in the table.
        if pattern and len(pattern) < LONG and "`" not in pattern:
            return f"text, {_code(pattern)}"
        if way.get("minLength", 1) > 1:
            return f"text, {way['minLength']} characters or more"
        return "text"

    def types(self, node: Mapping[str, Any]) -> str:
        return " or ".join(dict.fromkeys(self.type(way) for way in self.ways(node)))


def _map_value(way: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of the values of a map; None if the schema is not a map."""
    # pydantic writes maps with constrained keys as patternProperties.
    value = way.get("additionalProperties") or next(
        iter(way.get("patternProperties", {}).values()), None
    )
    return value if isinstance(value, dict) else None


def _number(way: Mapping[str, Any]) -> str:
    word = "whole number" if way["type"] == "integer" else "number"
    least, most = way.get("minimum"), way.get("maximum")
    if least is None and way["type"] == "integer" and "exclusiveMinimum" in way:
        least = way["exclusiveMinimum"] + 1
    if least is not None and most is not None:
        return f"{word}, {least} to {most}"
    under = f", below {way['exclusiveMaximum']}" if "exclusiveMaximum" in way else ""
    return word + (f", {least} or more" if least is not None else "") + under


def _default(node: Mapping[str, Any], ways: Sequence[Mapping[str, Any]]) -> str:
    if "default" in node:
        return _code(node["default"])
    # pydantic writes no default for a field with a default_factory. All of ours are empty.
    return "`[]`" if any(way.get("type") == "array" for way in ways) else "`{}`"


def _code(value: Any) -> str:
    # As YAML writes them.
    if value is None or isinstance(value, bool):
        value = {None: "null", True: "true", False: "false"}[value]
    return f"`{value}`"


# -- the page


def _row(cells: Iterable[str]) -> str:
    # A bar in a cell, unless it is escaped already, would end the cell.
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


def _table(rows: Iterable[Key], kind: str) -> Iterator[str]:
    yield "| Key | Type, allowed values | Default | Meaning |"
    yield "|---|---|---|---|"
    for key in rows:
        name = f"[`{key.path}`](#{_slug(kind, key)})" if _apart(key) else f"`{key.path}`"
        yield _row((name, key.type, key.default, key.meaning))


def _apart(key: Key) -> bool:
    """Return whether the keys below one have a table of their own."""
    return sum(1 for _ in key.all()) > OWN_SECTION


def _rows(fields: Iterable[Key]) -> Iterator[Key]:
    for key in fields:
        yield key
        if not _apart(key):
            yield from _rows(key.below)


def _sections(fields: Iterable[Key]) -> Iterator[Key]:
    """Yield the keys that have a table of their own."""
    for key in fields:
        if _apart(key):
            yield key
        yield from _sections(key.below)


def _heading(kind: str, key: Key) -> str:
    return f"{FILES[kind][0]}: `{key.path}`"


def anchor(heading: str) -> str:
    """Return the anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _slug(kind: str, key: Key) -> str:
    return anchor(_heading(kind, key))


def section(kind: str) -> str:
    """Return the section of the page about files of `kind`."""
    title, place = FILES[kind]
    fields = keys(kind)
    lines = [f"## {title}", "", place, "", *_table(_rows(fields), kind)]
    for key in _sections(fields):
        lines += [
            "",
            f"### {_heading(kind, key)}",
            "",
            key.meaning,
            "",
            *_table(_rows(key.below), kind),
        ]
    return "\n".join(lines) + "\n"


def _variables() -> str:
    lines = ["## Environment variables"]
    for title, text, rows in _VARIABLES:
        if title:
            lines += ["", f"### {title}"]
        if text:
            lines += ["", text]
        lines += ["", "| Variable | Default | Meaning |", "|---|---|---|"]
        lines += [
            _row(
                (", ".join(f"`{name}`" for name in row.name.split(", ")), row.default, row.meaning)
            )
            for row in rows
        ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole page."""
    contents = []
    for kind, (title, _) in FILES.items():
        parts = [f"[`{key.path}`](#{_slug(kind, key)})" for key in _sections(keys(kind))]
        contents.append(f"- [{title}](#{anchor(title)})" + phrase(": {}", ", ".join(parts)))
    contents.append("- [Environment variables](#environment-variables)")
    return "\n".join(
        [_HEAD, "\n".join(contents) + "\n", *(section(kind) for kind in FILES), _variables()]
    )

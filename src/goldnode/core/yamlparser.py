"""Parser of YAML that keeps the line of every key and value. Apart from `yamlsource`, for a quick start: it imports PyYAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from goldnode.core import logins
from goldnode.core.errors import GoldnodeError, cut
from goldnode.node.ground.text import phrase

KeyPath = tuple[str | int, ...]

# libyaml is optional: PyYAML without it parses the same documents, more slowly.
_Loader: type[yaml.CSafeLoader] | type[yaml.SafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)


@dataclass
class ParsedYaml:
    """The plain data of a file, and the lines of its keys and values."""

    file: Path
    data: Any
    key_lines: dict[KeyPath, int] = field(default_factory=dict)
    value_lines: dict[KeyPath, int] = field(default_factory=dict)


def parse(text: str, path: Path, error: type[GoldnodeError]) -> ParsedYaml:
    """Parse `text` as the content of `path`. Raises `error` for invalid YAML and a duplicate key."""
    loader = _Loader(text)
    node = None
    try:
        node = loader.get_single_node()
        source = ParsedYaml(path, None)
        if node is not None:
            _walk(node, (), source, error, set())
            source.data = loader.construct_document(node)
        return source
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        raise error(
            f"this is not valid YAML: {problem.problem or problem.context}",
            file=path,
            line=None if mark is None else mark.line + 1,
            remedy=_YAML_REMEDY.get(
                str(problem.problem), "correct the indentation or quoting at this line"
            ),
        ) from problem
    except yaml.YAMLError as problem:
        raise error(f"this is not valid YAML: {problem}", file=path) from problem
    except RecursionError as problem:
        raise error(
            "this is nested too deep",
            file=path,
            remedy="write it with fewer levels of brackets or indentation",
        ) from problem
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        ValueError,
        # Constructors of scalar values raise these, for instance for a date like 2025-02-30.
    ) as problem:
        raise _unmade(node, path, error) from problem
    finally:
        loader.dispose()


def _unmade(root: yaml.Node | None, path: Path, error: type[GoldnodeError]) -> GoldnodeError:
    """Return the error for the first value below `root` that looks like a date or number but is invalid."""
    nodes: list[yaml.Node | None] = [root]
    seen: set[int] = set()
    while nodes:
        node = nodes.pop()
        # Aliases make the node tree a graph.
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            nodes += [half for pair in reversed(node.value) for half in reversed(pair)]
        elif isinstance(node, yaml.SequenceNode):
            nodes += reversed(node.value)
        elif isinstance(node, yaml.ScalarNode):
            try:
                yaml.SafeLoader("").construct_object(node)
            except (ArithmeticError, AttributeError, LookupError, ValueError):
                kind = node.tag.rpartition(":")[2]
                what, remedy = _HINTS.get(
                    kind, (f"of the kind {kind}", "correct the value, or write it in quotes")
                )
                return error(
                    f'"{cut(node.value)}" is not {what}',
                    file=path,
                    line=node.start_mark.line + 1,
                    remedy=remedy,
                )
    return error("this is not valid YAML", file=path, remedy="correct it")


# Expected form and remedy for a scalar with a standard YAML tag.
_HINTS = {
    "timestamp": ("a date", "write it as YYYY-MM-DD"),
    "int": ("a number that can be read", "correct it, or write it in quotes"),
    "float": ("a number that can be read", "correct it, or write it in quotes"),
    "bool": ("true or false", "correct the value"),
}


_YAML_REMEDY = {
    # Two keys of which the first has no colon are one text over two lines.
    "mapping values are not allowed in this context": "correct the indentation or quoting at this line, or add the colon "
    "that the line before it lacks",
}


def _walk(
    node: yaml.Node, path: KeyPath, source: ParsedYaml, error: type[GoldnodeError], seen: set[int]
) -> None:
    source.value_lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in seen:  # an alias: already visited at its anchor
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            # PyYAML silently keeps the last of two equal keys. A mapping may have several merge keys (`<<`).
            if name in keys and key.tag != "tag:yaml.org,2002:merge":
                raise error(
                    f'key "{name}" is written twice, first on line {keys[name]}',
                    file=source.file,
                    line=line,
                    remedy="keep one of the two",
                )
            if address := logins.login_in(name):
                _refuse_login(key, address, path, source, error)
            keys[name] = line
            source.key_lines[(*path, name)] = line
            _walk(value, (*path, name), source, error, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), source, error, seen)
    elif address := logins.login_in(str(node.value)):
        _refuse_login(node, address, path, source, error)


def _refuse_login(
    node: yaml.Node,
    address: str,
    path: KeyPath,
    source: ParsedYaml,
    error: type[GoldnodeError],
) -> None:
    where = phrase('"{}" has an address', ".".join(str(part) for part in path)) or "an address"
    raise error(
        f"{where} with a login, {address}: what is made of this file would show it to others",
        file=source.file,
        line=node.start_mark.line + 1,
        remedy=logins.remedy(address),
    )

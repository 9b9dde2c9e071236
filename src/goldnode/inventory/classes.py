"""Map the hosts of an inventory to classes, and refuse a host in two classes.

Ansible merges a host's groups silently, so the conflict has to be found in the files, where each
statement has a line. A class group has the name of its class. Hosts of its child groups count as
members.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core.dataclass import dataclass
from goldnode.core.errors import InventoryError
from goldnode.node.ground.json_lines import as_dict

if TYPE_CHECKING:
    from goldnode.catalog.load import Catalog
    from goldnode.core.yamlsource import YamlSource

_RANGE = re.compile(
    r"\[(?P<first>[0-9]+|[A-Za-z]):(?P<last>[0-9]+|[A-Za-z])(?::(?P<step>[1-9][0-9]*))?\]"
)
# Files that ansible-core ignores in an inventory directory, and directories that hold variables.
_IGNORED = (
    ".pyc",
    ".pyo",
    ".swp",
    ".bak",
    "~",
    ".rpm",
    ".md",
    ".txt",
    ".rst",
    ".orig",
    ".cfg",
    ".retry",
    ".csv",
)
_FOLDERS = ("group_vars", "host_vars")


@dataclass(frozen=True)
class InventoryLine:
    """A line of an inventory file."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass
class _Group:
    hosts: dict[str, InventoryLine] = field(default_factory=dict)
    children: dict[str, InventoryLine] = field(default_factory=dict)


def classes_of_hosts(inventory: Path, catalog: Catalog) -> dict[str, str]:
    """Return the class of every host that is in a class, from the inventory file or directory `inventory`.

    Raises InventoryError, with both lines, for a host in two classes. Dynamic inventories (plugins,
    scripts) are not evaluated.
    """
    groups = _groups(inventory)
    class_of: dict[str, tuple[str, InventoryLine]] = {}
    for name in sorted(set(groups) & set(catalog.class_names())):
        for host, place in _members(name, groups):
            if host in class_of and class_of[host][0] != name:
                other, earlier = class_of[host]
                raise InventoryError(
                    f'host "{host}" is in two classes: "{name}" here and "{other}" at {earlier}',
                    file=place.file,
                    line=place.line,
                    remedy="keep it in one of the two groups",
                )
            class_of.setdefault(host, (name, place))
    return {host: name for host, (name, _) in sorted(class_of.items())}


def check_shape(inventory: Path) -> None:
    """Raise InventoryError for what Ansible misreads in an inventory file: hosts in a list, and hosts without a colon."""
    _groups(inventory)


def _groups(inventory: Path) -> dict[str, _Group]:
    groups: dict[str, _Group] = {}
    for path in inventory_files(inventory):
        _read(path, groups)
    return groups


def _members(name: str, groups: dict[str, _Group]) -> Iterator[tuple[str, InventoryLine]]:
    """Yield the hosts of class group `name`, each with the line that adds it.

    That is the host's own line, or the line of the child group it comes through.
    """
    pending: list[tuple[str, InventoryLine | None]] = [(name, None)]
    # A group can be reachable through several parents.
    seen = {name}
    while pending:
        current, through = pending.pop(0)
        group = groups.get(current, _Group())
        for host, place in group.hosts.items():
            yield host, through or place
        for child, place in group.children.items():
            if child not in seen:
                seen.add(child)
                pending.append((child, through or place))


def inventory_files(inventory: Path) -> list[Path]:
    """Return the files that Ansible reads of an inventory, a file or a directory."""
    if not inventory.is_dir():
        return [inventory]
    files: list[Path] = []
    for path in sorted(inventory.iterdir()):
        if path.name.startswith(".") or path.name.endswith(_IGNORED) or path.name in _FOLDERS:
            continue
        files += inventory_files(path)
    return files


def _read(path: Path, groups: dict[str, _Group]) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "correct its name, or who may read it"
        if isinstance(error, UnicodeDecodeError):
            remedy = "save it as UTF-8"
        raise InventoryError(
            f"the inventory cannot be read: {error}", file=path, remedy=remedy
        ) from error
    if text.startswith("#!"):
        return  # a script: Ansible runs it
    if path.suffix in (".yml", ".yaml", ".json"):
        from goldnode.core import yamlsource  # start-up time: it imports pydantic

        source = yamlsource.parse(text, path, error=InventoryError)
        if isinstance(source.data, list | str):
            raise InventoryError(
                "an inventory is a mapping of groups",
                file=path,
                line=1,
                remedy="write `GROUP: {hosts: {HOST: }}`",
            )
        if isinstance(source.data, dict) and "plugin" not in source.data:
            for name, body in source.data.items():
                _read_group(str(name), body, (name,), source, groups)
    else:
        _read_ini(text, path, groups)


def _read_group(
    name: str,
    body: object,
    path: tuple[str | int, ...],
    source: YamlSource,
    groups: dict[str, _Group],
) -> None:
    group = groups.setdefault(name, _Group())
    if not isinstance(body, dict):
        return
    hosts = body.get("hosts")
    _check_keys(hosts, (*path, "hosts"), name, source)
    for pattern in _keys(hosts):
        place = InventoryLine(source.file, source.line((*path, "hosts", pattern)))
        for host in expand(pattern):
            group.hosts.setdefault(host, place)
    children = body.get("children")
    _check_keys(children, (*path, "children"), name, source)
    for child in _keys(children):
        group.children.setdefault(
            child, InventoryLine(source.file, source.line((*path, "children", child)))
        )
        inner = as_dict(children).get(child)
        _read_group(child, inner, (*path, "children", child), source, groups)


def _check_keys(value: object, path: tuple[str | int, ...], name: str, source: YamlSource) -> None:
    """Refuse hosts or children in another form than a mapping, and names that have run together."""
    what = str(path[-1])
    names: Iterable[object] = [value] if isinstance(value, str) else ()
    if isinstance(value, dict):
        names = value
    joined = next((text for text in map(str, names) if re.search(r"\s", text.strip())), None)
    if not isinstance(value, list) and joined is None:
        return
    problem = "is a list" if joined is None else f'has the name "{joined}": a colon is missing'
    first = value[0] if isinstance(value, list) and value and isinstance(value[0], str) else "NAME"
    first = first if joined is None else joined.split()[0]
    raise InventoryError(
        f'`{what}` of group "{name}" {problem}',
        file=source.file,
        line=source.line(path),
        remedy=f"write each name on a line of its own, with a colon: `{first}:`",
    )


def _keys(value: object) -> Iterable[str]:
    if isinstance(value, dict):
        return [str(key) for key in value]
    return [value] if isinstance(value, str) else []


def _read_ini(text: str, path: Path, groups: dict[str, _Group]) -> None:
    group, kind = groups.setdefault("ungrouped", _Group()), "hosts"
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        section = re.match(r"^\[([^:\]]+)(?::(\w+))?\]", line)
        if section:
            group, kind = (
                groups.setdefault(section.group(1).strip(), _Group()),
                section.group(2) or "hosts",
            )
        elif kind == "children":
            group.children.setdefault(line.split()[0], InventoryLine(path, number))
        elif kind == "hosts":
            for host in expand(line.split()[0]):
                group.hosts.setdefault(host, InventoryLine(path, number))


def expand(pattern: str) -> list[str]:
    """Expand a host range as Ansible does: `node[01:03]` is node01, node02 and node03."""
    match = _RANGE.search(pattern)
    # A single colon separates a port. With more colons it is an IPv6 address.
    if match is None:
        return [re.sub(r":[0-9]+$", "", pattern) if pattern.count(":") == 1 else pattern]
    first, last, step = match.group("first"), match.group("last"), int(match.group("step") or 1)
    head, tail = pattern[: match.start()], pattern[match.end() :]
    # A leading zero sets the width of all numbers.
    if first.isdigit() and last.isdigit():
        width = len(first) if first.startswith("0") and len(first) > 1 else 0
        middle = [str(number).zfill(width) for number in range(int(first), int(last) + 1, step)]
    else:
        middle = [chr(code) for code in range(ord(first[0]), ord(last[0]) + 1, step)]
    return [host for part in middle for host in expand(f"{head}{part}{tail}")]

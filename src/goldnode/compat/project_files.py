"""Readers of the files in which projects state their Python packages: lock files, pyproject.toml, Dockerfile.

Each adds pins to a `RequirementReading` and returns what it read and what it left out. A lock file is a resolver's
answer: uv (`uv.lock`), any tool of PEP 751 (`pylock.toml`), Poetry (`poetry.lock`). Those of conda are in
`compat.conda_files`.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from goldnode.compat import conda_files
from goldnode.compat.model import DeclaredAt
from goldnode.compat.project_file import (
    ProjectFile,
    ReadNote,
    left_out,
    pin,
    require_known_extras,
    rows_of,
)
from goldnode.compat.requirement_lines import (
    RequirementLine,
    RequirementReading,
    add_option,
    add_requirement,
    add_source,
    build_of_url,
    marker_environment,
    read_text,
)
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.optional import group
from goldnode.node.ground.text import phrase

Reader = Callable[[ProjectFile, RequirementReading], ReadNote]


def read_project_file(
    path: Path, reading: RequirementReading, *, place: DeclaredAt | None = None
) -> ReadNote | None:
    """Read a file of another form than pip's into `reading`; None for a requirements file.

    ``uv.lock[gpu,dev]`` names extras and groups of the project. Raises WorkloadError with file and line.
    """
    path, extras = split_extras(path)
    reader = _reader(path)
    if reader is None:
        return None
    file = ProjectFile(path, read_text(path, place), extras, place)
    if path.suffix in (".toml", ".lock") and path.name != "pixi.lock":
        try:
            file.content = tomllib.loads(file.text)
        except tomllib.TOMLDecodeError as problem:
            line = group(re.search(r"at line (\d+)", str(problem)))
            raise file.error(
                f"not TOML: {problem}", "correct the file", int(line) if line else None
            ) from None
    reading.read.append(path.resolve())
    return reader(file, reading)


def split_extras(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the path and the extras of ``uv.lock[gpu,dev]``."""
    named = re.fullmatch(r"(.+)\[([A-Za-z0-9._, -]+)\]", str(path))
    if named is None or path.exists():
        return path, ()
    return Path(named[1]), tuple(canonicalize_name(item.strip()) for item in named[2].split(","))


def is_project_file(path: Path) -> bool:
    """Return whether a file is read by its name: everything but pip's requirements files."""
    return _reader(split_extras(path)[0]) is not None


def is_dockerfile(path: Path) -> bool:
    """Return whether a file is a Dockerfile or a Containerfile, by its name."""
    name = path.name
    return name.startswith(("Dockerfile", "Containerfile")) or name.endswith(".dockerfile")


def _reader(path: Path) -> Reader | None:
    name = path.name
    if re.fullmatch(r"pylock(\.[^.]+)?\.toml", name):
        return _pylock
    if is_dockerfile(path):
        return _dockerfile
    if re.fullmatch(r"(.+\.)?conda-lock\.ya?ml", name):
        return conda_files.conda_lock
    if path.suffix in (".yml", ".yaml"):
        return conda_files.environment
    return {
        "pixi.lock": conda_files.pixi_lock,
        "uv.lock": _uv_lock,
        "poetry.lock": _poetry_lock,
        "pyproject.toml": _pyproject,
    }.get(name)


def _python(file: ProjectFile, reading: RequirementReading, requires: str | None) -> str:
    """Return the Python of a lock file: the one that is named, that of .python-version, or the first it is for."""
    if reading.python is None:
        pinned = file.path.with_name(".python-version")
        named = None
        if pinned.is_file():
            named = group(re.match(r"(?:cpython-?)?(3\.\d+)", pinned.read_text(encoding="utf-8")))
        first = re.search(r"(?:>=|==|~=|>)\s*(3\.\d+)", requires or "")
        reading.python = named or (first[1] if first else "3.12")
    return reading.python


# -- uv.lock


def _uv_lock(file: ProjectFile, reading: RequirementReading) -> ReadNote:
    packages: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(file.content.get("package")):
        packages.setdefault(row["name"], []).append(row)
    roots = _members(file, packages)
    python = _python(file, reading, file.content.get("requires-python"))
    reading.resolved, reading.locked = "uv", True
    manifest = as_dict(file.content.get("manifest"))
    reading.overridden |= {
        canonicalize_name(row["name"]) for row in rows_of(manifest.get("overrides"))
    }
    groups = {name for root in roots for name in as_dict(root.get("dev-dependencies"))}
    offered = groups | {
        name for root in roots for name in as_dict(root.get("optional-dependencies"))
    }
    require_known_extras(file, offered)
    default = _default_groups(file, groups)
    wanted = {*file.extras, *default}
    walk = _UvWalk(file, reading, packages, _uv_active(roots, file.extras, default))
    for root in roots:
        # An extra of the name of a default group is another list.
        own = [name for name in file.extras if name in _extras_of(root)]
        walk.add(root, [*own, *(f"{_GROUP}{name}" for name in default)])
    walk.run()
    what = f"{len(walk.seen)} packages of {file.path.name} for Python {python} on {reading.machine}"
    return ReadNote(
        what + phrase(", with {}", ", ".join(sorted(wanted))), left_out(file, offered - wanted)
    )


def _default_groups(file: ProjectFile, groups: set[str]) -> set[str]:
    """Return the groups that uv installs by itself: "dev", or those that pyproject.toml beside the lock names."""
    project = file.path.with_name("pyproject.toml")
    named: Any = ["dev"]
    if project.is_file():
        try:
            content = tomllib.loads(read_text(project, file.place))
        except tomllib.TOMLDecodeError:
            content = {}  # the lock alone is read
        named = as_dict(as_dict(content.get("tool")).get("uv")).get("default-groups", named)
    return groups if named == "all" else groups & {canonicalize_name(name) for name in named}


def _members(
    file: ProjectFile, packages: Mapping[str, Sequence[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the project of a lock: the package of its folder, or all packages of a workspace."""
    local = [
        (as_dict(row.get("source")), row)
        for rows in packages.values()
        for row in rows
        if {"editable", "virtual"} & set(as_dict(row.get("source")))
    ]
    own = [row for source, row in local if "." in source.values()]
    members = as_dict(file.content.get("manifest")).get("members") or ()
    roots = own or [row for _, row in local if row["name"] in members] or [row for _, row in local]
    if not roots:
        raise file.error("it locks no project", "name the lock file of a project")
    return roots


def _extras_of(row: Mapping[str, Any]) -> set[str]:
    return {*as_dict(row.get("optional-dependencies")), *as_dict(row.get("dev-dependencies"))}


_GROUP = "group "  # before the name of a default group, in the place of an extra


def _uv_active(
    roots: Sequence[Mapping[str, Any]], extras: Iterable[str], groups: Iterable[str]
) -> set[str]:
    """Return the names that uv's markers have for extras and groups that exclude each other."""
    named = [("extra", name) for name in extras]
    named += [("group", name) for name in (*extras, *groups)]
    return {
        f"{kind}-{len(root['name'])}-{root['name']}-{name}"
        for root in roots
        for kind, name in named
    }


@dataclass
class _UvWalk:
    """Walk from a project to all packages that uv would install."""

    file: ProjectFile
    reading: RequirementReading
    packages: Mapping[str, Sequence[dict[str, Any]]]
    active: set[str]
    queue: list[tuple[dict[str, Any], tuple[str, ...]]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    done: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, row: dict[str, Any], extras: Iterable[str]) -> None:
        """Add a package with its extras to the queue."""
        self.queue.append((row, tuple(extras)))

    def run(self) -> None:
        """Pin every package that the queue leads to."""
        while self.queue:
            row, extras = self.queue.pop(0)
            for extra in ("", *extras):
                key = (row["name"], str(row.get("version")), extra)
                if key not in self.done:
                    self.done.add(key)
                    self._follow(row, extra)

    def _follow(self, row: dict[str, Any], extra: str) -> None:
        optional, groups = (
            as_dict(row.get(key)) for key in ("optional-dependencies", "dev-dependencies")
        )
        group = extra.removeprefix(_GROUP)
        of_extra = [*(optional.get(extra) or ()), *(groups.get(group) or ())]
        for need in of_extra if extra else row.get("dependencies") or ():
            if not self._holds(need.get("marker")):
                continue
            for package in self.packages.get(need["name"], ()):
                differs = need.get("version") not in (None, package.get("version"))
                source = need.get("source")
                if differs or (source is not None and source != package.get("source")):
                    continue
                self._take(package, row["name"])
                self.add(package, need.get("extra") or ())
                break

    def _take(self, row: dict[str, Any], owner: str) -> None:
        name, version = row["name"], row.get("version")
        source = as_dict(row.get("source"))
        line = self.file.line_of.get(name, 1)
        self.reading.requirers.setdefault(name, set()).add(owner)
        if name in self.seen:
            return
        self.seen.add(name)
        place = RequirementLine(self.file.path, line, "")
        if "registry" in source and version is not None:
            pin(self.reading, place, name, version)
        elif "url" in source:
            add_requirement(
                RequirementLine(self.file.path, line, f"{name} @ {source['url']}"), self.reading
            )
        elif "git" in source:
            where = str(source["git"]).partition("#")[0]
            add_source(f"git+{where}#egg={name}", place, self.reading)

    def _of_extra(self, condition: re.Match[str]) -> str:
        """Return a condition that holds here, or one that does not, for one about an extra."""
        holds = (condition[2] in self.active) == (condition[1] == "==")
        return "os_name == 'posix'" if holds else "os_name == 'none'"

    def _holds(self, marker: str | None) -> bool:
        if marker is None:
            return True
        # uv writes extras that exclude each other as `extra == "extra-4-name-gpu"`, several in one marker.
        decided = re.sub(r"extra (==|!=) '([^']*)'", self._of_extra, marker)
        return Marker(decided).evaluate(
            marker_environment(self.reading.python or "3.12", self.reading.machine)
        )


# -- pylock.toml (PEP 751)


def _pylock(file: ProjectFile, reading: RequirementReading) -> ReadNote:
    from packaging.pylock import Package, Pylock, PylockValidationError  # only for these files

    try:
        lock = Pylock.from_dict(file.content)
    except PylockValidationError as problem:
        raise file.error(f"not a lock file of PEP 751: {problem}", "write it again") from None
    python = _python(file, reading, str(lock.requires_python or ""))
    offered = {*(lock.extras or ()), *(lock.dependency_groups or ())}
    require_known_extras(file, offered)
    groups = {*(lock.default_groups or ()), *file.extras} & {*(lock.dependency_groups or ())}
    environment: dict[str, Any] = {
        **marker_environment(python, reading.machine),
        "extras": frozenset(file.extras),
        "dependency_groups": frozenset(groups),
    }
    environment.pop("extra", None)
    reading.resolved, reading.locked = lock.created_by, True

    def applies(package: Package) -> bool:
        return package.marker is None or package.marker.evaluate(environment, context="lock_file")

    count = 0
    for package in lock.packages:
        if not applies(package):
            continue
        count += 1
        name = canonicalize_name(package.name)
        line = RequirementLine(file.path, file.line_of.get(package.name, 1), "")
        for need in package.dependencies or ():
            reading.requirers.setdefault(canonicalize_name(need["name"]), set()).add(name)
        source = package.vcs or package.directory or package.archive
        if package.version is not None and (package.wheels or package.sdist):
            pin(reading, line, name, str(package.version))
        elif source is not None:
            where = getattr(source, "url", None) or getattr(source, "path", None) or "a folder"
            add_source(f"{where}#egg={name}", line, reading)
    what = f"{count} packages of {file.path.name} for Python {python} on {reading.machine}"
    return ReadNote(what, left_out(file, offered - {*file.extras, *groups}))


# -- poetry.lock


def _poetry_lock(file: ProjectFile, reading: RequirementReading) -> ReadNote:
    python = _python(file, reading, as_dict(file.content.get("metadata")).get("python-versions"))
    reading.resolved, reading.locked = "Poetry", True
    environment = marker_environment(python, reading.machine)
    count, groups = 0, set[str]()
    for row in rows_of(file.content.get("package")):
        own = set(row.get("groups") or ["main"])
        groups |= own
        marker = row.get("markers")
        if isinstance(marker, dict):
            marker = marker.get("main")
        if (row.get("optional") and not file.extras) or not own & {"main", *file.extras}:
            continue
        if isinstance(marker, str) and not _evaluated(marker, environment, file.extras):
            continue
        count += 1
        name = canonicalize_name(row["name"])
        for need in as_dict(row.get("dependencies")):
            reading.requirers.setdefault(canonicalize_name(need), set()).add(name)
        line = RequirementLine(file.path, file.line_of.get(row["name"], 1), "")
        source = as_dict(row.get("source"))
        if source.get("type") in ("git", "directory", "file"):
            add_source(f"{source.get('url')}#egg={name}", line, reading)
        else:
            pin(reading, line, name, row["version"])
    what = f"{count} packages of {file.path.name} for Python {python} on {reading.machine}"
    return ReadNote(what, left_out(file, groups - {"main", *file.extras}))


def _evaluated(marker: str, environment: dict[str, str], extras: Sequence[str]) -> bool:
    try:
        parsed = Marker(marker)
    except InvalidMarker:
        return True
    return any(parsed.evaluate({**environment, "extra": extra}) for extra in ("", *extras))


# -- pyproject.toml


def _pyproject(file: ProjectFile, reading: RequirementReading) -> ReadNote:
    project = as_dict(file.content.get("project"))
    optional = as_dict(project.get("optional-dependencies"))
    groups = as_dict(file.content.get("dependency-groups"))
    uv = as_dict(as_dict(file.content.get("tool")).get("uv"))
    offered = {canonicalize_name(name) for name in (*optional, *groups)}
    require_known_extras(file, offered)
    indexes = {
        row["name"]: row["url"]
        for row in rows_of(uv.get("index"))
        if row.get("name") and row.get("url")
    }
    for row in rows_of(uv.get("index")):
        # An explicit index serves only the packages whose source names it.
        if row.get("default") and not row.get("explicit"):
            _index_option(file, reading, "--index-url", row["url"])
        elif not row.get("explicit") and row.get("url"):
            _index_option(file, reading, "--extra-index-url", row["url"])
    texts = list(_texts(file, project.get("dependencies"), ()))
    for name, rows in (*optional.items(), *groups.items()):
        if canonicalize_name(name) in file.extras:
            texts += _texts(file, rows, groups)
    sources = as_dict(uv.get("sources"))
    for text in texts:
        line = RequirementLine(file.path, file.line(re.escape(text[:40])), text)
        _with_source(line, sources, indexes, reading)
    left = [left_out(file, offered - set(file.extras))]
    if as_dict(as_dict(file.content.get("tool")).get("poetry")).get("dependencies"):
        left.append("dependencies of [tool.poetry], which poetry.lock has resolved")
    what = f"{len(texts)} requirements of {file.path.name}"
    return ReadNote(what, "; ".join(item for item in left if item) or None)


def _index_option(file: ProjectFile, reading: RequirementReading, option: str, url: str) -> None:
    line = file.line(re.escape(url))
    add_option(RequirementLine(file.path, line, f"{option} {url}"), reading)


def _texts(file: ProjectFile, rows: Any, groups: Any) -> Iterator[str]:
    """Yield requirements of a list; a group may include another."""
    for item in rows or ():
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict) and item.get("include-group") in groups:
            yield from _texts(file, groups[item["include-group"]], groups)


def _with_source(
    line: RequirementLine,
    sources: Mapping[str, Any],
    indexes: Mapping[str, str],
    reading: RequirementReading,
) -> None:
    """Add a requirement from the source that [tool.uv.sources] names for it."""
    name = canonicalize_name(re.split(r"[\s\[<>=!~;@(]", line.text, maxsplit=1)[0])
    for source in rows_of(
        next((row for key, row in sources.items() if canonicalize_name(key) == name), None)
    ):
        marker = source.get("marker")
        environment = marker_environment(reading.python or "3.12", reading.machine)
        if marker is not None and not Marker(marker).evaluate(environment):
            continue
        if source.get("index") in indexes:
            build = build_of_url(indexes[source["index"]])
            if build is not None:
                reading.builds[name] = (build, line)
        elif "git" in source or "url" in source or "path" in source:
            add_source(
                f"{source.get('git') or source.get('url') or source['path']}#egg={name}",
                line,
                reading,
            )
            return
    add_requirement(line, reading)


# -- Dockerfile


def _dockerfile(file: ProjectFile, reading: RequirementReading) -> ReadNote:
    """Read the packages that `pip install` and `uv pip install` of the last stage and its parents name."""
    variables: dict[str, str] = {}
    count, left = 0, list[str]()
    for number, word, rest in instructions(file.text):
        if word in ("ENV", "ARG"):
            variables.update(_assignments(rest, variables))
        elif word == "RUN":
            for argv in _installs(_substituted(rest, variables)):
                count += 1
                left += _install(file, reading, number, argv)
    what = f"{count} calls of pip install in {file.path.name}"
    return ReadNote(what, "; ".join(dict.fromkeys(left)) or None)


def base_image(text: str) -> tuple[str, int] | None:
    """Return the image that the last stage of a Dockerfile is built on, and the line of its FROM."""
    variables: dict[str, str] = {}
    stages: dict[str, tuple[str, int]] = {}
    last = None
    for number, word, rest in instructions(text):
        if word == "ARG":
            variables.update(_assignments(rest, variables))
        elif word == "FROM":
            words = [item for item in _substituted(rest, variables).split() if item[:2] != "--"]
            if not words:
                continue
            base = stages.get(words[0], (words[0], number))
            if len(words) == 3 and words[1].upper() == "AS":
                stages[words[2]] = base
            last = base
    return None if last is None or last[0] == "scratch" or "$" in last[0] else last


def instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the instructions of a Dockerfile: line, word in upper case, and the rest with continued lines joined."""
    held, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        if raw.lstrip().startswith("#") or (not raw.strip() and held):
            continue
        start = start if held else number
        if raw.rstrip().endswith("\\"):
            held += raw.rstrip()[:-1] + " "
            continue
        word, _, rest = (held + raw).strip().partition(" ")
        if word:
            yield start, word.upper(), rest.strip()
        held = ""


def _assignments(rest: str, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for item in _words(_substituted(rest, variables)):
        name, sign, value = item.partition("=")
        if sign:
            yield name, value


def _substituted(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(
        r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)",
        lambda part: variables.get(part[1] or part[3]) or part[2] or part[0],
        text,
    )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError:
        return text.split()


def _installs(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `pip install` of a shell command."""
    text = re.sub(r"--mount=\S+", "", text)
    for command in re.split(r"&&|\|\||;|\n", text):
        words = _words(command)
        for index, word in enumerate(words):
            if word == "install" and index and re.search(r"(?:^|/)pip[\d.]*$", words[index - 1]):
                yield words[index + 1 :]
                break


# Options of `pip install` and `uv pip install` with a value that is no package.
_WITH_VALUE = (
    *("--target", "-t", "--prefix", "--root", "--python", "-p", "--cache-dir", "--timeout"),
    "--retries",
    "--torch-backend",
    "--index-strategy",
    "--build-constraint",
    "--root-user-action",
)


def _value(value: str, sign: str, words: list[str]) -> str:
    """Return the value of an option: behind its sign, or the next word."""
    if sign:
        return value
    return words.pop(0) if words else ""


def _install(
    file: ProjectFile, reading: RequirementReading, number: int, argv: Sequence[str]
) -> list[str]:
    """Read one call of pip: its packages with the indexes of this call. Return what was left out."""
    left, words = [], list(argv)
    before = reading.index, list(reading.extra_index)
    named: list[str] = []
    while words:
        word = words.pop(0)
        option, sign, value = word.partition("=")
        if not word.startswith("-"):
            named.append(word)
        elif option in ("-r", "--requirement", "-c", "--constraint"):
            target = file.path.parent / (_value(value, sign, words))
            if target.is_file():
                add_option(RequirementLine(file.path, number, f"{option} {target.name}"), reading)
            else:
                left.append(f"{target.name} of line {number}, which is not beside the Dockerfile")
        elif option in ("-i", "--index-url", "--extra-index-url", "--index", "--default-index"):
            url = _value(value, sign, words)
            extra = option in ("--extra-index-url", "--index")
            text = f"--{'extra-index-url' if extra else 'index-url'} {url}"
            add_option(RequirementLine(file.path, number, text), reading)
        elif option in ("-e", "--editable") or (option in _WITH_VALUE and not sign):
            words[:1] = []
    for text in named:
        if "$" in text:
            left.append(f"{text} of line {number}, whose variable has no value here")
        elif not re.match(r"[./]", text):
            _add_install(file, reading, number, text)
    reading.index, reading.extra_index = before
    return left


def _add_install(file: ProjectFile, reading: RequirementReading, number: int, text: str) -> None:
    line = RequirementLine(file.path, number, text)
    name = canonicalize_name(re.split(r"[\s\[<>=!~;@(]", text, maxsplit=1)[0])
    # A later call replaces what an earlier one installed.
    if name in reading.pins and re.search(r"==", text):
        del reading.pins[name]
    add_requirement(line, reading)
    builds = [*([reading.index] if reading.index else ()), *reading.extra_index]
    if name in reading.pins and builds:
        reading.builds[name] = builds[-1]

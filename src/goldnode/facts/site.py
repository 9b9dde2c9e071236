"""Facts that a catalog adds: files in its folder `facts`, in the form of the built-in ones.

A file has `meta`, `sources` and rows. A row whose key the built-in facts have already is an error,
unless the file's `overrides` names it with the reason. A file can also cite a source of the
built-in file of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pydantic import create_model

from goldnode.core import yamlsource
from goldnode.core.errors import FactsError, nearest
from goldnode.core.yamlsource import YamlSource
from goldnode.facts.models import FILES, FactsFile, module_build_key

Data = dict[str, Any]


def _sku(row: Mapping[str, Any]) -> str:
    return str(row["sku"])


# Sections that a catalog can extend, each with the key of its rows.
SECTIONS: Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "gpus.yml": {"nvidia": _sku, "amd": _sku, "intel": _sku},
    "health.yml": {"memory_sets": _sku},
    "known_bad.yml": {"known_bad": lambda row: str(row["id"])},
    "module_builds.yml": {"builds": lambda row: " ".join(module_build_key(row))},
    "parts.yml": {"builds_on": lambda row: " ".join((row["part"], row["os"], *row["kernels"]))},
    "performance.yml": {"dense_peaks": lambda row: ", ".join(sorted(row["skus"]))},
}


@cache
def model(name: str) -> type[FactsFile]:
    """Return the model of a facts file in a catalog: the built-in one, with its extensible sections only."""
    fields = {
        section: (FILES[name].model_fields[section].annotation, ()) for section in SECTIONS[name]
    }
    made: type[FactsFile] = create_model(
        f"Site{FILES[name].__name__}", __base__=FactsFile, overrides=(dict[str, str], {}), **fields
    )  # type: ignore[call-overload]
    return made


@lru_cache(maxsize=64)
def _parsed(path: str, _state: tuple[int, int]) -> YamlSource:
    """Read and validate a catalog's facts file. Raises FactsError with file and line."""
    file = Path(path)
    if file.name not in SECTIONS:
        raise FactsError(
            f'a catalog cannot add facts to "{file.name}"',
            file=file,
            remedy=nearest(file.name, SECTIONS),
        )
    source = yamlsource.read(file, error=FactsError)
    yamlsource.validate(model(file.name), source, error=FactsError)
    return source


def read(path: Path) -> YamlSource:
    """Return a catalog's facts file, which is parsed once. Raises FactsError with file and line."""
    # In the key of the cache, so that a file is parsed again when it changes.
    status = path.stat()
    return _parsed(str(path), (status.st_mtime_ns, status.st_size))


def files(places: tuple[str, ...]) -> list[Path]:
    """Return the facts files of catalogs, in order."""
    return [path for place in places for path in sorted(Path(place).glob("*.y*ml"))]


def extended(name: str, own: Data, places: tuple[str, ...]) -> Data:
    """Return the built-in facts file `name` with the rows of the catalogs. Files with an error are left out."""
    content = own
    for path in files(places):
        if path.name == name:
            try:
                content = merged(content, read(path))
            except FactsError:
                continue  # `faults` reports it
    return content


def merged(own: Data, source: YamlSource) -> Data:
    """Return the facts `own` with the rows of one more file. Raises FactsError for a row that is in both."""
    name, data = source.file.name, source.data
    overrides: Mapping[str, str] = data.get("overrides") or {}
    content = {**own, "sources": {**own["sources"], **_sources(own, source)}}
    _check_sources(source, content["sources"])
    unused = set(overrides)
    for section, key in SECTIONS[name].items():
        rows = list(content[section])
        known = {key(row): index for index, row in enumerate(rows)}
        for index, row in enumerate(data.get(section) or ()):
            same = known.get(key(row))
            if same is None:
                rows.append(row)
            elif section == "builds" and row["outcome"] == rows[same]["outcome"]:
                continue  # a later goldnode has measured what the site had, and found the same
            elif key(row) in overrides:
                unused.discard(key(row))
                rows[same] = row
            else:
                raise _twice(source, section, index, key(row), rows[same])
        content[section] = rows
    for stale in sorted(unused):
        raise FactsError(
            f'`overrides` names "{stale}", which this file does not state or goldnode\'s facts do not have',
            file=source.file,
            line=source.line(("overrides", stale)),
            remedy="take it out",
        )
    return content


def _sources(own: Data, source: YamlSource) -> Data:
    """Return the sources of a catalog's file; each records the file that states it."""
    stated: Data = {}
    for key, entry in source.data["sources"].items():
        other = own["sources"].get(key)
        if other is not None and other["title"] != entry["title"]:
            raise FactsError(
                f'the source "{key}" is another document in facts/{source.file.name}: {other["title"]}',
                file=source.file,
                line=source.line(("sources", key)),
                remedy="give it another key",
            )
        stated[key] = other or {**entry, "stated_in": str(source.file)}
    return stated


def _check_sources(source: YamlSource, table: Mapping[str, Any]) -> None:
    """Raise FactsError for the first row of a catalog's file whose source is in no table."""
    for section in SECTIONS[source.file.name]:
        for index, row in enumerate(source.data.get(section) or ()):
            unknown = sorted(stated_sources(row) - set(table))
            if unknown:
                raise FactsError(
                    f'source "{unknown[0]}" is not in the table of sources',
                    file=source.file,
                    line=source.line((section, index, "source")),
                    remedy=source_remedy(unknown[0], table),
                )


def source_remedy(key: str, table: Mapping[str, Any]) -> str:
    """Return the remedy for a row with a source that is not in the table of its file."""
    return f"{nearest(key, table) or 'use one of its keys'}, or add {key} to `sources` of this file"


def stated_sources(row: Mapping[str, Any]) -> set[str]:
    """Return the keys of the sources that a mapping states itself."""
    keys = {
        leaf
        for key, inner in row.items()
        if key == "source" or str(key).endswith("_source")
        for leaf in leaves(inner)
    }
    return keys | set(row.get("eol_sources") or {})


def leaves(value: Any) -> Iterator[str]:
    """Yield all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)


def _twice(
    source: YamlSource, section: str, index: int, key: str, other: Mapping[str, Any]
) -> FactsError:
    row = source.data[section][index]
    differs = [
        f"{name} {row.get(name)} here, {other.get(name)} there"
        for name in sorted({*row, *other} - {"source", "note"})
        if row.get(name) != other.get(name)
    ]
    shown = "; ".join(differs[:3] + ["…"] * (len(differs) > 3))
    return FactsError(
        f'"{key}" is in goldnode\'s facts/{source.file.name} as well'
        + (f" ({shown})" if differs else ""),
        file=source.file,
        line=source.line((section, index)),
        remedy=f'take it out, or write `overrides: {{"{key}": REASON}}` at the top of the file',
    )


def faults(places: tuple[str, ...], own_file: Callable[[str], Data]) -> list[FactsError]:
    """Return the first error of each facts file of the catalogs: form, and rows that the built-in facts have too.

    :param own_file: returns the built-in facts file with a name.
    """
    errors = []
    seen: dict[str, Data] = {}
    for path in files(places):
        try:
            source = read(path)
            # Two catalogs may add to one file: the second is merged into what the first made of it.
            seen[path.name] = merged(seen.get(path.name) or own_file(path.name), source)
        except FactsError as error:
            errors.append(error)
    return errors

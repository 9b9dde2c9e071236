"""`goldnode-node cache`: keys of caches, and their directories."""

from __future__ import annotations

import json
import os

from ..ground.errors import NodeError
from ..probe.machine import printable
from . import components, directory, key
from .arguments import arguments, request
from .node import capture_of, class_of

__all__ = ["arguments", "run"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence

    from ..ground.host import Host, Json

DIFFERENT, REFUSED = 1, 1  # exit statuses of `explain` and `verify`


def run(host: Host, options: Any) -> int:
    """Run the command. Return the exit code. Raises NodeError, which exits with 3."""
    form = getattr(options, "format", "text")
    if options.verb == "explain":
        first, second = (read(name) for name in (options.first, options.second))
        report = comparison(first, second)
        show(form, report, comparison_text(report))
        return DIFFERENT if report["differences"] else 0
    if options.verb == "verify":
        report = verified(
            options.directories, None if options.alone else node_components(host, options)
        )
        show(form, report, verified_text(report))
        return 0 if report["usable"] else REFUSED
    documents = made(host, options)
    if options.verb == "key":
        show(form, keys_of(documents), keys_text(documents))
        return 0
    places = {item["cache"]: directory.prepare(options.place, item) for item in documents}
    report = {
        "schema": "goldnode.cache-paths/1",
        "paths": places,
        "export": directory.exports(places),
    }
    show(form, report, "\n".join(report["export"] if options.export else places.values()))
    return 0


def made(host: Host, options: Any) -> List[Json]:
    """Return the key documents that a command line asks for."""
    document = class_of(host, options.document, recorded=bool(options.record))
    parts = components.components(
        capture_of(host, options.record, document), request(options, os.environ, document)
    )
    return [key.document(cache, options.strength, parts) for cache in dict.fromkeys(options.caches)]


def node_components(host: Host, options: Any) -> Json:
    """Return the components of the node alone. Raises NodeError if they are unknown."""
    document = class_of(host, options.document, recorded=bool(options.record))
    capture = capture_of(host, options.record, document)
    return components.components(capture, components.KeyRequest(document, options.gpu, options.mig))


def keys_of(documents: Sequence[Json]) -> Json:
    """Return the report of `key`: one key document, or several."""
    if len(documents) == 1:
        return documents[0]
    return {"schema": "goldnode.cache-keys/1", "keys": list(documents)}


def keys_text(documents: Sequence[Json]) -> str:
    """Return keys as text, one a line."""
    simulated = any(item["components"]["device"].get("simulated") for item in documents)
    label = "SIMULATED HARDWARE: " if simulated else ""
    return "\n".join(f"{label}{item['key']}" for item in documents)


def read(name: str) -> Json:
    """Return the key document in a file, or in the manifest of a directory. Raises NodeError."""
    if os.path.isdir(name):
        try:
            return directory.manifest(name)
        except NodeError as problem:
            raise NodeError(f"{printable(name, 200)}: {problem}") from None
    try:
        with open(name, "rb") as opened:
            return key.parsed(opened.read(key.MOST + 1), printable(name, 200))
    except OSError as problem:
        raise NodeError(
            f"{printable(name, 200)} cannot be read: {problem.strerror}. Correct the name."
        ) from None


def comparison(first: Json, second: Json) -> Json:
    """Return the report of `explain`. Pure. Raises NodeError for keys of two caches."""
    if first["cache"] != second["cache"]:
        raise NodeError(
            f"one key is of {first['cache']} and one of {second['cache']}: they never share a directory. "
            "Compare two keys of one cache."
        )
    rows = key.differences(first, second)
    return {
        "schema": "goldnode.cache-comparison/1",
        "cache": first["cache"],
        "keys": [first["key"], second["key"]],
        "differences": [
            {
                "component": row.path,
                "first": row.first,
                "second": row.second,
                "changes": list(row.strengths),
            }
            for row in rows
        ],
    }


def comparison_text(report: Json) -> str:
    """Return the report of `explain` as text."""
    if not report["differences"]:
        return f"the keys of {report['cache']} are equal: {report['keys'][0]}"
    rows = [["component", "A", "B", "changes"]]
    for row in report["differences"]:
        changed = " and ".join(row["changes"]) or f"no key of {report['cache']}"
        rows.append([row["component"], _cell(row["first"]), _cell(row["second"]), changed])
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return printable(text, 72)


def verified(names: Sequence[str], node: Optional[Json] = None) -> Json:
    """Return the report of `verify`. `node` are the components of a node; None: directories alone."""
    rows = [{"directory": name, "faults": directory.verify(name, node=node)} for name in names]
    return {
        "schema": "goldnode.cache-verification/1",
        "directories": rows,
        "usable": not any(row["faults"] for row in rows),
    }


def verified_text(report: Json) -> str:
    """Return the report of `verify` as text, one directory a line."""
    return "\n".join(
        f"{printable(row['directory'], 200)}: {'; '.join(row['faults']) or 'ok'}"
        for row in report["directories"]
    )


def show(form: str, report: Json, text: str) -> None:
    """Print a report as JSON, or its text."""
    print(json.dumps(report, indent=1, sort_keys=True) if form == "json" else text)

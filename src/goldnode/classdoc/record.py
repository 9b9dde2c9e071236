"""Judge a recorded capture on any machine, by the facts about its GPUs and by a class if one is named."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

from goldnode.classdoc import known
from goldnode.classdoc.compile import class_document, declaration
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import load_site
from goldnode.node.ground.document import ClassDocument
from goldnode.node.ground.host import Host
from goldnode.node.probe import command
from goldnode.node.program import main as program
from goldnode.node.verdict import check, undeclared


def judge(record: str, name: str | None, now: float | None = None) -> dict[str, Any]:
    """Return the verdict (schema goldnode.verdict/1) about the record in a file; "-" is standard input.

    `name` is a class of the catalog, or a file with a class document. A class whose stack has no
    lock, or cannot be used, is judged without its stack: GPUs, policy and baseline; `advice` gives
    the reason. `now` is in seconds since 1970. Raises NodeError for a record that cannot be used,
    and GoldnodeError for the class.
    """
    capture = command.load(record)
    now = time.time() if now is None else now
    host = Host("/")  # of which nothing is read
    if name is None:
        return dict(undeclared.examine(host, known.collect(), captured=capture, now=now))
    if Path(name).suffix == ".json" or "/" in name:
        return check.check(host, document_in(name), now=now, captured=capture)
    catalog = load_catalog()
    site = load_site()
    part = cast(ClassDocument, declaration(name, catalog, site))
    try:
        document = cast(ClassDocument, class_document(name, catalog, site))
    except GoldnodeError as problem:
        verdict = undeclared.examine(
            host, known.collect(), captured=capture, now=now, declared=part
        )
        verdict["advice"].append(f"The stack of class {name} was not judged: {problem}")
        return dict(verdict)
    return check.check(host, document, now=now, captured=capture)


def document_in(name: str) -> ClassDocument:
    """Return the class document in a file. Raises GoldnodeError if it is none."""
    try:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        text = problem.strerror if isinstance(problem, OSError) else f"not JSON ({problem})"
        raise GoldnodeError(
            f"{name}: {text}",
            remedy="write it with `goldnode class export CLASS`, or name a class of the catalog",
        ) from None
    wrong = program.not_a_document(document)
    if wrong is not None:
        raise GoldnodeError(
            f"{name}: {wrong}", remedy="write it with `goldnode class export CLASS`"
        )
    return cast(ClassDocument, document)

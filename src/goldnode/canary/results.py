"""Results of the suite: where they are stored, and the quantiles of their samples with bounds."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from goldnode.canary.errors import CanaryError
from goldnode.core import binomial
from goldnode.core.files import by_umask
from goldnode.documents.canary import CanaryDocument, CanaryMetric

DIRECTORY = Path(".goldnode/canary")
CONFIDENCE = 0.95  # of the bound of a quantile
QUANTILES = (0.5, 0.95, 0.99)


def store(document: CanaryDocument, directory: Path = DIRECTORY) -> Path:
    """Write a document as DIRECTORY/NODE/STARTED.json, whole or not at all. Return the file."""
    folder = folder_of(document.node, directory)
    folder.mkdir(parents=True, exist_ok=True)
    stem = document.started.replace(":", "").replace("-", "")
    text = document.model_dump_json(by_alias=True, indent=1) + "\n"
    number, name = tempfile.mkstemp(prefix=".canary-", dir=folder)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as opened:
            opened.write(text)
        Path(name).chmod(by_umask())
        for count in range(1000):
            target = folder / (f"{stem}.json" if not count else f"{stem}-{count}.json")
            try:
                os.link(name, target)  # unlike a rename, it replaces no result of the same second
            except FileExistsError:
                continue
            return target
        raise CanaryError(f"{folder} has 1000 results of {document.started}", remedy="remove some")
    finally:
        Path(name).unlink()


def folder_of(node: str, directory: Path = DIRECTORY) -> Path:
    """Return the directory of the results of a node. Two names that differ in odd letters may share it."""
    return directory / (re.sub(r"[^A-Za-z0-9._-]", "_", node).lstrip(".") or "_")


def files(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the documents among the places: files, and *.json below directories, by name."""
    for place in places:
        if place.is_dir():
            yield from sorted(
                path for path in place.rglob("*.json") if not path.name.startswith(".")
            )
        else:
            yield place


def load(path: Path) -> CanaryDocument:
    """Read one document. Raises CanaryError."""
    try:
        return CanaryDocument.model_validate_json(path.read_bytes())
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise CanaryError(
            f"this is no document of schema goldnode.canary/1: {where}: {first['msg']}",
            file=path,
            remedy="name a file that `goldnode canary run` or goldnode-canary wrote",
        ) from None


@dataclass(frozen=True)
class Quantile:
    """A quantile towards the bad end. `bound` is its bound at CONFIDENCE; None: too few samples for a claim."""

    share: float
    value: float
    bound: float | None


def quantiles(metric: CanaryMetric) -> list[Quantile]:
    """Return the quantiles of a metric: the value that this share of the samples reaches or betters."""
    worst_last = sorted(metric.samples, reverse=metric.better == "higher")
    rows = []
    for share in QUANTILES:
        if not worst_last:
            break
        rank = bound_rank(len(worst_last), share)
        value = worst_last[min(len(worst_last) - 1, math.ceil(share * len(worst_last)) - 1)]
        rows.append(Quantile(share, value, None if rank is None else worst_last[rank - 1]))
    return rows


def bound_rank(count: int, share: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the least rank r, from 1, whose order statistic is at or beyond the quantile with this confidence.

    The number of samples below the quantile is binomial (Hahn and Meeker, *Statistical Intervals*,
    5.2.1). None if even the greatest sample is not: for 99 % that takes 299 samples.
    """
    below = 0.0
    for rank in range(1, count + 1):
        # P(at most rank - 1 of the samples are below the quantile)
        below += binomial.term(rank - 1, count, share)
        if below >= confidence:
            return rank
    return None

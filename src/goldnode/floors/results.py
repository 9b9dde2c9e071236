"""Results of the canary suite as rows, and which of them do not count.

A row has the samples of one metric on one device in one run of the suite. It does not count if the
job did not pass, if the device was slowed from outside of the node, or if it is of another kind
than what it would be compared with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from goldnode.core.errors import GoldnodeError, nearest
from goldnode.core.file_cache import FileCache
from goldnode.documents.canary import CanaryDocument, CanaryJob, CanaryMetric
from goldnode.documents.floors import FloorsDocument
from goldnode.floors.bounds import Values, oriented
from goldnode.floors.counting import CLOCK_TOLERANCE, job_problem, metric_name, metric_problem
from goldnode.node.ground.json_lines import as_dict

ModelT = TypeVar("ModelT", bound=BaseModel)

_SHOWN = 12  # names in a message
_LARGEST = 64 << 20  # bytes of a document that is read


class FloorsError(GoldnodeError):
    """Results or a baseline that cannot be read, or from which nothing can be learnt."""


@dataclass(frozen=True)
class MetricKey:
    """Name of a metric as a person writes it: `gemm_fp16`, or `gemm_fp16/cold` for the first call of a process."""

    name: str
    phase: str

    def __str__(self) -> str:
        return metric_name(self.name, self.phase)


@dataclass(frozen=True)
class MetricRow:
    """Samples of a metric on one device in one run of the suite, with their circumstances."""

    document: CanaryDocument
    job: CanaryJob
    metric: CanaryMetric

    @property
    def key(self) -> MetricKey:
        """Return the name of the metric with its phase."""
        return MetricKey(self.metric.name, self.metric.phase)

    @property
    def node(self) -> str:
        """Return the name of the node."""
        return self.document.node

    @property
    def device(self) -> str | None:
        """Return the address of the device; None for the node as a whole."""
        return self.metric.device

    @property
    def values(self) -> Values:
        """Return the samples, turned so that more is better."""
        return oriented(np.array(self.metric.samples, dtype=np.float64), self.metric.better)

    @property
    def clock(self) -> float | None:
        """Return the highest SM clock of the run; None if it was not read."""
        return None if self.metric.conditions.sm_mhz is None else self.metric.conditions.sm_mhz[1]

    @property
    def device_clock(self) -> float | None:
        """Return the highest SM clock of the device over all metrics of the result; None if none was read."""
        clocks = [
            metric.conditions.sm_mhz[1]
            for job in self.document.jobs
            for metric in job.metrics
            if metric.device == self.device and metric.conditions.sm_mhz is not None
        ]
        return max(clocks, default=None)


@dataclass(frozen=True)
class UncountedRow:
    """A result, or a part of one, that does not count, and why. `metric` None: the whole result."""

    node: str
    device: str | None
    metric: str | None
    why: str


@dataclass(frozen=True)
class ResultIdentity:
    """Circumstances that results must share to be compared."""

    class_: str | None
    class_digest: str | None
    platform: str
    runner: str
    simulated: bool

    def difference(self, other: ResultIdentity) -> str | None:
        """Return why a result of `other` does not count here; None if it counts."""
        # The most telling difference first.
        if other.simulated != self.simulated:
            return f"it is {_kind(other.simulated)}, and the others are {_kind(self.simulated)}"
        if other.class_ != self.class_:
            return (
                f"it is of class {other.class_ or 'none'}, and not {self.class_ or 'of no class'}"
            )
        if other.platform != self.platform:
            return f"it is of platform {other.platform}, and not {self.platform}"
        if other.runner != self.runner:
            return f"it is of runner {short(other.runner)}, and not {short(self.runner)}"
        if other.class_digest != self.class_digest:
            return f"it is of class digest {short(other.class_digest)}, and not {short(self.class_digest)}"
        return None


def _kind(simulated: bool) -> str:
    return "simulated" if simulated else "measured"


def short(digest: str | None) -> str:
    """Return the beginning of a digest."""
    if digest is None:
        return "none"
    return digest if len(digest) <= 20 else f"{digest[:19]}…"


def identity(document: CanaryDocument | FloorsDocument) -> ResultIdentity:
    """Return the circumstances of a result, or those that a result must share with a baseline."""
    return ResultIdentity(
        document.class_,
        document.class_digest,
        document.platform,
        document.runner,
        document.simulated,
    )


@dataclass(frozen=True)
class ReadResult:
    """A result that was read, with its place in the order. None: a document of another schema."""

    document: CanaryDocument | None
    order: tuple[str, ...] = ()


def result_cache() -> FileCache[ReadResult]:
    """Return a cache for a directory that is read again and again: a file that has not changed is read once."""
    return FileCache(lambda path: _result(read_result(path, named=False)))


def _result(document: CanaryDocument | None) -> ReadResult:
    return ReadResult(None) if document is None else ReadResult(document, _order(document))


def _order(one: CanaryDocument) -> tuple[str, ...]:
    # The whole document at the end: two results of one second stay two, equal ones become one.
    return (one.node, one.started, one.boot_id, one.model_dump_json())


def read(paths: Sequence[Path], cache: FileCache[ReadResult] | None = None) -> list[CanaryDocument]:
    """Read the results in files and directories, in the order of node and time. Raises FloorsError.

    In a directory, every `*.json` counts that states the schema of canary results. Equal results
    are read once.
    """
    documents: dict[tuple[str, ...], CanaryDocument] = {}
    for path, named in _files(paths):
        if cache is not None and not named:
            one = _cached(path, cache)
        else:
            one = _result(read_result(path, named))
        if one.document is not None:
            documents[one.order] = one.document
    if not documents:
        raise FloorsError(
            "there are no canary results here",
            file=next(iter(paths), None),
            remedy="name the files or directories that `goldnode canary run` wrote",
        )
    return [documents[order] for order in sorted(documents)]


def _cached(path: Path, cache: FileCache[ReadResult]) -> ReadResult:
    try:
        return cache.get(path)
    except OSError:  # `read_result` states why
        return _result(read_result(path, named=False))


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Return the files, each with whether a person has named it."""
    for path in paths:
        if path.is_dir():
            yield from ((file, False) for file in sorted(path.rglob("*.json")) if file.is_file())
        else:
            yield path, True


def read_result(path: Path, named: bool) -> CanaryDocument | None:
    """Return a result; None for a document of another schema in a directory."""
    try:
        # Before it is read: a directory may hold anything.
        if path.stat().st_size > _LARGEST:
            raise FloorsError(f"the file is larger than {_LARGEST >> 20} MiB", file=path)
        data = path.read_bytes()
        content = json.loads(data)
    except OSError as problem:
        raise FloorsError(
            f"the file cannot be read: {problem.strerror}",
            file=path,
            remedy="correct its name or its mode",
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise FloorsError(
            f"the file is no JSON: {problem}",
            file=path,
            line=getattr(problem, "lineno", None),
            remedy="measure the node again, or remove the file",
        ) from problem
    schema = as_dict(content).get("schema")
    if schema != "goldnode.canary/1":
        if not named:
            return None
        raise FloorsError(
            f"the file has the schema {schema}, and goldnode.canary/1 is expected",
            file=path,
            remedy="name the results that `goldnode canary run` wrote",
        )
    return validated(
        CanaryDocument, data, path, remedy="measure the node again, or remove the file"
    )


def validated(model: type[ModelT], data: bytes, path: Path, remedy: str) -> ModelT:
    """Return the content of a file as its model. Raises FloorsError with the first wrong field."""
    try:
        return model.model_validate_json(data)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FloorsError(f"{where}: {first['msg']}", file=path, remedy=remedy) from problem


def rows(documents: Iterable[CanaryDocument]) -> tuple[list[MetricRow], list[UncountedRow]]:
    """Return the rows that count by themselves, and those that do not."""
    counted: list[MetricRow] = []
    left_out: list[UncountedRow] = []
    for document in documents:
        for job in document.jobs:
            # A job that failed may have measured before: its metrics do not count either.
            why = job_problem(job)
            if why is not None:
                left_out.append(UncountedRow(document.node, None, None, why))
                continue
            for metric in job.metrics:
                row = MetricRow(document, job, metric)
                problem = metric_problem(row.metric)
                if problem is None:
                    counted.append(row)
                else:
                    left_out.append(UncountedRow(row.node, row.device, str(row.key), problem))
    return counted, left_out


def check_metrics(given: Iterable[str], documents: Iterable[CanaryDocument]) -> None:
    """Raise FloorsError for a name that no result has as a metric."""
    known = {
        str(MetricKey(metric.name, metric.phase))
        for document in documents
        for job in document.jobs
        for metric in job.metrics
    }
    check_names("metric", given, known)


def check_names(what: str, given: Iterable[str], known: set[str]) -> None:
    """Raise FloorsError for a name that is not known, with the nearest one."""
    for name in given:
        if name not in known:
            some = ", ".join(sorted(known)[:_SHOWN]) or "those that were measured"
            raise FloorsError(
                f'there is no {what} "{name}"', remedy=nearest(name, known) or f"use one of {some}"
            )


def other_clock(row: MetricRow, usual: tuple[float, float], device: float) -> str | None:
    """Return why the clock of a row is of another setting; None if it is not.

    `usual` is the range of the highest clocks of this metric in other results, `device` their
    highest one over all metrics. A device at its power limit has a lower clock in products, and
    shows its setting in other jobs.
    """
    if row.clock is None or _near(row.clock, *usual):
        return None
    if row.device_clock is not None and _near(row.device_clock, device, device):
        return None
    low, high = usual
    shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return f"the SM clock rose to {row.clock:g} MHz, and to {shown} in the others"


def _near(clock: float, low: float, high: float) -> bool:
    return low * (1 - CLOCK_TOLERANCE) <= clock <= high * (1 + CLOCK_TOLERANCE)

"""Judge the rows of tests/cases/compat/vendor.yml, with all facts or without one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from goldnode.classdoc import checks
from goldnode.compat import known_bad, rules, rules_host, rules_wheels, rules_workload, workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, CompatHost, Workload
from goldnode.facts import host as facts
from goldnode.facts import wheels
from goldnode.facts import workload as workload_facts

ROWS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "cases/compat/vendor.yml").read_text(encoding="utf-8")
)
JUDGEMENTS = {"block": "blocked", "unknown": "unknown", "warn": "limits"}
# Other tables have these: they depend on the day more than on the combination.
ASIDE = ("security-floor", "end-of-life", "os-support", "known-bad")
_WORKLOAD = ("cuda", "cudnn", "nccl", "rocm", "python", "forward_compat", "frameworks")
_OF_ROW = ("judge", "by", "source")


def name(row: Mapping[str, Any]) -> str:
    """Return the id of a row: its values."""
    values = (value for key, value in row.items() if key not in _OF_ROW)
    return " ".join(re.sub(r"[{}'\[\],]", "", str(value)) for value in values)


def findings(row: Mapping[str, Any], folder: Path) -> list[CompatFinding]:
    """Return the findings about a row that count for its judgement."""
    found = check(_host(row), _workloads(row, folder))
    return [item for item in found if item.rule not in ASIDE]


def judgement(found: list[CompatFinding]) -> str:
    """Return the judgement: that of the heaviest finding."""
    severities = {item.severity for item in found}
    return next((name for severity, name in JUDGEMENTS.items() if severity in severities), "fits")


def _host(row: Mapping[str, Any]) -> CompatHost:
    fields = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in row.items()
        if key not in (*_OF_ROW, *_WORKLOAD, "gpu", "image", "pins")
    }
    gpus = (facts.gpu(row["gpu"]),) if "gpu" in row else ()
    driver = row.get("driver")
    vendor = "nvidia" if driver or "branch" in row else gpus[0].vendor if gpus else None
    fields.setdefault("branch", driver.split(".")[0] if driver else None)
    return CompatHost("node", gpus=gpus, vendor=vendor, **fields)


def _workloads(row: Mapping[str, Any], folder: Path) -> list[Workload]:
    if "image" in row:
        return [workloads.image(row["image"])]
    if "pins" in row:
        file = folder / "requirements.txt"
        file.write_text("\n".join(row["pins"]) + "\n", encoding="utf-8")
        return [
            workloads.requirements(file, python=row["python"], architecture=row.get("architecture", "amd64"))
        ]
    stated = {key: row[key] for key in _WORKLOAD if key in row}
    return [Workload("workload", **stated)] if stated else []


# -- without one fact


@cache
def _caches() -> tuple[Callable[[], None], ...]:
    modules = (facts, wheels, workload_facts, rules, rules_host, rules_wheels, rules_workload, known_bad, checks)
    found = [
        value.cache_clear
        for module in modules
        for value in vars(module).values()
        if hasattr(value, "cache_clear") and value is not facts.load
    ]
    return tuple(found)


@contextmanager
def without(place: list[Any], index: int) -> Iterator[None]:
    """Take one item out of a list of the facts."""
    taken = place.pop(index)
    for clear in _caches():
        clear()
    try:
        yield
    finally:
        place.insert(index, taken)
        for clear in _caches():
            clear()


def facts_about(row: Mapping[str, Any]) -> Iterator[tuple[str, list[Any], int]]:
    """Yield the items of the facts that name a value of a row: what they are, their list and their place in it."""
    values = set(_texts({key: value for key, value in row.items() if key not in _OF_ROW}))
    for value in list(values):
        values |= {".".join(value.split(".")[:count]) for count in (1, 2, 3)}
    for file in ("frameworks.yml", "cuda.yml", "nvidia_drivers.yml", "rocm.yml", "wheels.yml", "cudnn_nccl.yml"):
        yield from _items(file, facts.load(file), values)


_NAMES = ("version", "release", "first", "cuda", "branch", "major", "cudnn", "kmd", "kernel", "build", "cc", "name")


def _items(where: str, value: Any, values: set[str]) -> Iterator[tuple[str, list[Any], int]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("sources", "meta"):
                yield from _items(f"{where} {key}", item, values)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict) and values & set(_texts([item.get(key) for key in _NAMES])):
                yield where, value, index
            yield from _items(where, item, values)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
        # A requirement, an image reference or a build: their parts.
        yield from re.findall(r"\d+(?:\.\d+)+(?:\.post\d+)?|[a-z][a-z0-9-]+|cu\d+", str(value))


def depends_on(row: Mapping[str, Any], folder: Path) -> str | None:
    """Return a fact or rule without which the row is judged otherwise, or None."""
    found = findings(row, folder)
    if "by" in row:
        rest = judgement([item for item in found if item.rule != row["by"]])
        return f"rule {row['by']}" if rest != row["judge"] else None
    for where, place, index in facts_about(row):
        with without(place, index):
            try:
                changed = judgement(findings(row, folder)) != row["judge"]
            except (KeyError, StopIteration, ValueError):
                changed = True  # the facts no longer hold together
        if changed:
            return f"{where} {index}"
    return None

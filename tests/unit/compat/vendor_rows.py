"""Judge the rows of tests/cases/compat/vendor.yml, with all facts or without one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.case_tables import table

from goldnode.classdoc import checks
from goldnode.compat import known_bad, rules, rules_host, rules_wheels, rules_workload, workloads
from goldnode.compat.check import check
from goldnode.compat.model import CompatFinding, CompatHost, Workload
from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.facts import wheels
from goldnode.facts import workload as workload_facts

ROWS: list[dict[str, Any]] = table("compat/vendor.yml")
JUDGEMENTS = {"block": "blocked", "unknown": "unknown", "warn": "limits"}
# Other tables have these: they depend on the day more than on the combination.
IGNORED = ("security-floor", "end-of-life", "os-support", "known-bad")
_WORKLOAD = ("cuda", "cudnn", "nccl", "rocm", "python", "forward_compat", "frameworks")
_OF_ROW = ("judge", "by", "source")


def name(row: Mapping[str, Any]) -> str:
    """Return the id of a row: its values."""
    values = (value for key, value in row.items() if key not in _OF_ROW)
    return " ".join(re.sub(r"[{}'\[\],]", "", str(value)) for value in values)


def rules_of(row: Mapping[str, Any]) -> list[str]:
    """Return the rules that decide about a row; none for one that fits."""
    by = row.get("by", [])
    return [by] if isinstance(by, str) else by


def findings(row: Mapping[str, Any], folder: Path) -> list[CompatFinding]:
    """Return the findings about a row that count for its judgement."""
    found = check(host(row), loads(row, folder))
    ignored = IGNORED if "gpu" in row or "branch" in row else (*IGNORED, "image-backend")
    return [item for item in found if item.rule not in ignored]


def judgement(found: list[CompatFinding]) -> str:
    """Return the judgement: that of the heaviest finding."""
    severities = {item.severity for item in found}
    return next((name for severity, name in JUDGEMENTS.items() if severity in severities), "fits")


def host(row: Mapping[str, Any]) -> CompatHost:
    """Return the host of a row."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in row.items()
        if key not in (*_OF_ROW, *_WORKLOAD, "gpu", "image", "pins")
    }
    gpus = (facts.gpu(row["gpu"]),) if "gpu" in row else ()
    driver = row.get("driver")
    vendor = "nvidia" if driver or "branch" in row else gpus[0].vendor if gpus else None
    fields |= {"gpus": gpus, "vendor": vendor}
    fields.setdefault("branch", driver.split(".")[0] if driver else None)
    return CompatHost("node", **fields)


def loads(row: Mapping[str, Any], folder: Path) -> list[Workload]:
    """Return the workloads of a row; files are written into `folder`."""
    if "image" in row:
        return [workloads.image(row["image"])]
    if "pins" in row:
        file = folder / "requirements.txt"
        file.write_text("\n".join(row["pins"]) + "\n", encoding="utf-8")
        return [
            workloads.requirements(
                file, python=row["python"], architecture=row.get("architecture", "amd64")
            )
        ]
    stated = {key: row[key] for key in _WORKLOAD if key in row}
    return [Workload("workload", **stated)] if stated else []


# -- without one fact

FILES = (
    *("nvidia_drivers.yml", "frameworks.yml", "cuda.yml", "container_toolkit.yml", "rocm.yml"),
    *("cudnn_nccl.yml", "wheels.yml", "gpus.yml"),
)
# The keys by which an item of the facts is named.
_NAMES = (
    *(
        "version",
        "release",
        "releases",
        "first",
        "cuda",
        "branch",
        "major",
        "cudnn",
        "kmd",
        "kernel",
        "build",
        "name",
    ),
    *("sku", "image", "engine", "cc", "package"),
)


@cache
def _caches() -> tuple[Callable[[], None], ...]:
    """Return what forgets everything derived from the facts, but not the facts themselves."""
    modules = (
        facts,
        wheels,
        workload_facts,
        rules,
        rules_host,
        rules_wheels,
        rules_workload,
        known_bad,
        checks,
    )
    read = ("_loaded", "_own")
    return tuple(
        value.cache_clear
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "cache_clear") and name not in read
    )


@contextmanager
def without(items: list[Any], taken: list[int]) -> Iterator[None]:
    """Take items out of a list of the facts."""
    before = list(items)
    items[:] = [item for index, item in enumerate(before) if index not in taken]
    for clear in _caches():
        clear()
    try:
        yield
    finally:
        items[:] = before
        for clear in _caches():
            clear()


def facts_about(row: Mapping[str, Any]) -> Iterator[tuple[str, list[Any], list[int]]]:
    """Yield the items of the facts that name a value of a row: where they are, their list and their places in it."""
    values = set(_texts({key: value for key, value in row.items() if key not in _OF_ROW}))
    for value in list(values):
        values |= {".".join(value.split(".")[:count]) for count in (1, 2, 3)}
    if "gpu" in row:
        gpu = facts.gpu(row["gpu"])
        values |= {gpu.architecture, *filter(None, (gpu.compute_capability, gpu.gfx))}
    for file in FILES:
        yield from _items(file, facts.load(file), values)


def _items(where: str, value: Any, values: set[str]) -> Iterator[tuple[str, list[Any], list[int]]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("sources", "meta"):
                yield from _items(f"{where} {key}", item, values)
    elif isinstance(value, list):
        named = [
            index
            for index, item in enumerate(value)
            if values
            & set(_texts([item.get(key) for key in _NAMES] if isinstance(item, dict) else item))
        ]
        if named:
            yield where, value, named
        for item in value:
            yield from _items(where, item, values)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
        # A requirement, an image reference, a build or a span: their parts.
        yield from re.findall(
            r"\d+(?:\.\d+)+(?:\.post\d+)?|[a-z][a-z0-9-]+(?:/[a-z0-9-]+)?|cu\d+", str(value)
        )


def depends_on(row: Mapping[str, Any], folder: Path) -> str | None:
    """Return a fact or rule without which the row is judged otherwise, or None.

    A fact is an item of a list, such as one branch or one release; a CUDA minor is all its releases.
    """
    found = findings(row, folder)
    if "by" in row:
        rest = judgement([item for item in found if item.rule not in rules_of(row)])
        return f"rule {', '.join(rules_of(row))}" if rest != row["judge"] else None
    for where, items, named in facts_about(row):
        tries = [[index] for index in named] if len(named) < 12 else []
        for taken in (named, *tries):
            with without(items, taken):
                try:
                    changed = judgement(findings(row, folder)) != row["judge"]
                except (FactsError, KeyError, StopIteration, ValueError, AttributeError):
                    changed = False  # the facts no longer hold together: that proves nothing
            if changed:
                return f"{where} {taken}"
    return None


def main() -> None:
    """Print what each row depends on, and how many depend on nothing."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = {name(row): depends_on(row, Path(folder)) for row in ROWS}
    for row, fact in found.items():
        print(f"{row}: {fact or 'NOTHING'}")
    print(
        f"{sum(fact is not None for fact in found.values())} of {len(found)} rows depend on a fact or rule"
    )


if __name__ == "__main__":
    main()

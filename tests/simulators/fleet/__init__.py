"""Synthetic fleets: captures of healthy nodes with changes, written by the ingest as any others. Simulated."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.unit.node.captures import healthy

from goldnode.fleet.ingest import results
from goldnode.fleet.ingest.report import ReportOrigin, report_of
from goldnode.fleet.ingest.tables import DIGESTS, FACTS, FINDINGS, NODES, NUMBERS, SCHEMAS, PartName
from goldnode.fleet.ingest.write import writer

Json = dict[str, Any]
Change = Callable[[Json], None]
NOW = datetime(2026, 11, 26, 8, 0, tzinfo=UTC)
ALWAYS = datetime(2020, 1, 1, tzinfo=UTC)
FIRST_ID = 1000


@cache
def _healthy(gpus: int) -> bytes:
    return pickle.dumps(healthy(gpus))


def capture(number: int, time: datetime, gpus: int = 8) -> Json:
    """Return the capture of a healthy node, with identities of its own."""
    found: Json = pickle.loads(_healthy(gpus))  # noqa: S301 made above
    found["time"] = f"{time:%Y-%m-%dT%H:%M:%SZ}"
    found["simulated"] = True
    found["gpu_count"] = gpus
    found["identity"] |= {
        "hostname": f"node{number:04}",
        "machine_id": f"{number:032x}",
        "boot_id": f"boot-{number}-1",
    }
    found["identity"]["product"] |= {"serial": f"S{number}"}
    for index, gpu in enumerate(found["gpus"]):
        gpu["uuid"] = f"GPU-{number:08x}-0000-0000-0000-{index:012x}"
        gpu["serial"] = f"165{number:06}{index:02}"
    found["network"]["eth0"]["mac"] = (
        f"b8:ce:f6:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"
    )
    for device in found["infiniband"].values():
        device["guid"] = f"b8cef603{number:08x}"
    return found


def finding(name: str, expected: str, got: str, **more: Any) -> Json:
    """Return a finding of a verdict."""
    return {
        "id": name,
        "outcome": "mismatch",
        "severity": "degraded",
        "domain": "software",
        "subject": None,
        "expected": expected,
        "got": got,
        **more,
    }


def verdict(class_: str, time: datetime, findings: Iterable[Json] = ()) -> Json:
    """Return a verdict with these findings; drain wins over degraded."""
    found = list(findings)
    bad = [row for row in found if row["outcome"] == "mismatch"]
    status = (
        "drain"
        if any(row["severity"] == "drain" for row in bad)
        else "degraded"
        if bad
        else "healthy"
    )
    if not bad and any(row["outcome"] == "could_not_read" for row in found):
        status = "could_not_check"
    return {
        "schema": "goldnode.verdict/1",
        "time": f"{time:%Y-%m-%dT%H:%M:%SZ}",
        "status": status,
        "findings": found,
        "class": class_,
        "simulated": True,
    }


@dataclass
class SyntheticNode:
    """One node: its class and cohort, and what a capture of a time has beyond a healthy one."""

    number: int
    class_: str = "h100"
    cohort: str | None = None
    changes: list[tuple[datetime, Change]] = field(default_factory=list)
    findings: list[tuple[datetime, Json]] = field(default_factory=list)
    judged: bool = True

    @property
    def name(self) -> str:
        """Return the name of the node."""
        return f"node{self.number:04}"

    def change(self, change: Change, since: datetime = ALWAYS) -> None:
        """Apply a change to all captures from a time on."""
        self.changes.append((since, change))

    def find(self, row: Json, since: datetime = ALWAYS) -> None:
        """Add a finding to all verdicts from a time on."""
        self.findings.append((since, row))

    def report(self, time: datetime, gpus: int = 8) -> Json:
        """Return the report of the node at a time."""
        found = capture(self.number, time, gpus)
        found["identity"]["class"] = self.class_
        for since, change in self.changes:
            if time >= since:
                change(found)
        judged = verdict(self.class_, time, (row for since, row in self.findings if time >= since))
        return {
            "schema": "goldnode.node-report/1",
            "node": self.name,
            "class": self.class_,
            "cohort": self.cohort,
            "capture": found,
            "verdict": judged if self.judged else None,
        }


def fleet(count: int, class_: str = "h100", cohort_size: int = 0) -> list[SyntheticNode]:
    """Return healthy nodes; `cohort_size` nodes each form a cohort, if it is not 0."""
    return [
        SyntheticNode(
            FIRST_ID + place, class_, f"ring{place // cohort_size:02}" if cohort_size else None
        )
        for place in range(count)
    ]


def store(
    directory: Path,
    nodes: Iterable[SyntheticNode],
    times: Iterable[datetime] = (NOW - timedelta(hours=1),),
    gpus: int = 8,
    received: Mapping[datetime, datetime] | None = None,
) -> Path:
    """Ingest one report of each node for each time, received a minute later; return the directory."""
    fixed = list(nodes)
    for time in times:
        arrived = (received or {}).get(time, time + timedelta(minutes=1))
        with writer(directory, arrived) as parts:
            for node in fixed:
                origin = ReportOrigin("directory")
                found = node.report(time, gpus)
                parts.add(report_of(found, json.dumps(found).encode(), origin, arrived))
    return directory


def put(path: str, value: Any) -> Change:
    """Return a change that sets a place of a capture: names and numbers with slashes between, `*` for all."""

    def change(place: Any, parts: list[str]) -> None:
        head, *rest = parts
        keys = (
            (range(len(place)) if isinstance(place, list) else list(place))
            if head == "*"
            else [int(head) if isinstance(place, list) else head]
        )
        for key in keys:
            if rest:
                change(place[key], rest)
            else:
                place[key] = copy.deepcopy(value)

    return lambda capture: change(capture, path.split("/"))


def numbers(
    directory: Path,
    series: Sequence[tuple[str, datetime, str, str, float]],
    class_: str = "h100",
    boots: Mapping[tuple[str, datetime], str] | None = None,
) -> Path:
    """Write rows of numbers as the ingest does, without captures: node, time, item, key, value.

    Each node and time also gets a row of `nodes`, so that views know the capture; `boots` has other boots than b1.
    """
    rows: dict[str, list[tuple[str, datetime, str, str, float]]] = {}
    days = {time: f"{time:%Y-%m-%d}" for time in {row[1] for row in series}}
    for row in series:
        rows.setdefault(days[row[1]], []).append(row)
    for day, found in rows.items():
        captures = list(dict.fromkeys((row[0], row[1]) for row in found))
        times = [time for _, time in captures]
        columns: dict[str, dict[str, Sequence[Any]]] = {
            NODES: {
                "node": [node for node, _ in captures],
                "time": times,
                "received": times,
                "boot_id": [(boots or {}).get(one, "b1") for one in captures],
                "simulated": [True] * len(captures),
                "status": ["healthy"] * len(captures),
                "source": ["directory"] * len(captures),
            },
            NUMBERS: {
                name: [row[place] for row in found]
                for place, name in enumerate(("node", "time", "item", "key", "value"))
            },
            FACTS: {},
            FINDINGS: {},
            DIGESTS: {},
        }
        for table, content in columns.items():
            file = PartName(class_, day, "0" * 24).file(directory, table)
            file.parent.mkdir(parents=True, exist_ok=True)
            absent = [None] * len(content.get("node", ()))
            pq.write_table(
                pa.Table.from_pydict(
                    {name: content.get(name, absent) for name in SCHEMAS[table].names},
                    SCHEMAS[table],
                ),
                file,
            )
    return directory


def canary(
    node: str, time: datetime, samples: Mapping[str, Mapping[str, Iterable[float]]], **more: Any
) -> Json:
    """Return a canary result: samples by metric and device; `more` replaces values of the document.

    A metric is named NAME or NAME/cold; where its name ends in _ms, less is better.
    """
    metrics = [
        {
            "name": name.partition("/")[0],
            "unit": "ms" if name.partition("/")[0].endswith("_ms") else "TFLOPS",
            "better": "lower" if name.partition("/")[0].endswith("_ms") else "higher",
            "device": device or None,
            "phase": name.partition("/")[2] or "warm",
            "samples": [float(f"{value:.7g}") for value in values],
            "conditions": {
                "sm_mhz": [1200.0, 1980.0],
                "temperature_c": None,
                "power_w": None,
                "throttled": [],
            },
        }
        for name, devices in samples.items()
        for device, values in devices.items()
    ]
    job = {
        "name": "gemm",
        "state": "passed",
        "why": "",
        "seconds": 3.0,
        "verified": True,
        "facts": {},
    }
    return {
        "schema": "goldnode.canary/1",
        "simulated": True,
        "node": node,
        "class": "h100",
        "class_digest": "sha256:" + "1" * 64,
        "platform": "NVIDIA H100 80GB HBM3 x 8",
        "runner": "sha256:" + "2" * 64,
        "image": None,
        "started": f"{time:%Y-%m-%dT%H:%M:%SZ}",
        "boot_id": f"{node}/1",
        "how": "local",
        "jobs": [job | {"metrics": metrics}],
        **more,
    }


def store_results(directory: Path, found: Iterable[Json], received: datetime | None = None) -> Path:
    """Ingest canary results, as if they had arrived when they began or at one time; return the directory."""
    with writer(directory, received) as parts:
        for one in found:
            data = json.dumps(one).encode()
            parts.add_result(results.parse(one, data, None, NOW))
    return directory

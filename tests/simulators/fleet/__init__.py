"""Synthetic fleets: captures of healthy nodes with changes, written by the ingest as any others. Simulated."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.unit.node.captures import healthy

from goldnode.fleet.ingest.report import Origin, parse
from goldnode.fleet.ingest.write import writer

Json = dict[str, Any]
Change = Callable[[Json], None]
NOW = datetime(2026, 11, 26, 8, 0, tzinfo=UTC)
FIRST_ID = 1000


def capture(number: int, time: datetime, gpus: int = 8) -> Json:
    """Return the capture of a healthy node, with identities of its own."""
    found = healthy(gpus)
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
    status = "drain" if any(row["severity"] == "drain" for row in bad) else "degraded" if bad else "healthy"
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
    status: str | None = None  # instead of that of the findings

    @property
    def name(self) -> str:
        """Return the name of the node."""
        return f"node{self.number:04}"

    def change(self, change: Change, since: datetime = datetime.min.replace(tzinfo=UTC)) -> None:
        """Apply a change to all captures from a time on."""
        self.changes.append((since, change))

    def find(self, row: Json, since: datetime = datetime.min.replace(tzinfo=UTC)) -> None:
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
        if self.status:
            judged["status"] = self.status
        return {
            "schema": "goldnode.node-report/1",
            "node": self.name,
            "class": self.class_,
            "cohort": self.cohort,
            "capture": found,
            "verdict": judged,
        }


def fleet(count: int, class_: str = "h100", cohort_size: int = 0) -> list[SyntheticNode]:
    """Return healthy nodes; `cohort_size` nodes each form a cohort, if it is not 0."""
    return [
        SyntheticNode(FIRST_ID + place, class_, f"ring{place // cohort_size:02}" if cohort_size else None)
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
        with writer(directory) as parts:
            for node in fixed:
                origin = Origin("directory", (received or {}).get(time, time + timedelta(minutes=1)))
                parts.add(parse(json.dumps(node.report(time, gpus)).encode(), origin))
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

    return lambda capture: change(capture, path.replace("//", "\0").split("/"))

"""The document of a report, from the views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.documents import fleet_report as doc
from goldnode.fleet.report.causes import causes, changes_of, nodes_of
from goldnode.fleet.report.engine import opened, rows
from goldnode.fleet.report.frame import ReportSettings, ReportSource
from goldnode.fleet.report.topics import AGREED

if TYPE_CHECKING:
    import duckdb

_Row = Mapping[str, Any]
_LEMONS = 50  # repeat offenders that a report names, the highest scores
_PARTS = ("faults", "drains", "repeats", "kinds", "xids", "boots")


def moment(seconds: float | None) -> str | None:
    """Return a time in UTC, to the second."""
    # strftime takes ten times as long as isoformat, and a report has 20,000 times.
    return (
        None if seconds is None else f"{datetime.fromtimestamp(seconds, tz=UTC).isoformat()[:19]}Z"
    )


def report(
    source: ReportSource, settings: ReportSettings, more: Path | None = None
) -> doc.FleetReportDocument:
    """Return the report on a fleet. The same files and settings give the same document."""
    with opened(source, settings, more, narrow=more is None) as connection:
        return _Builder(connection, settings).document()


def diff(source: ReportSource, settings: ReportSettings) -> doc.FleetDiffDocument:
    """Return what differs between the two times of the settings."""
    with opened(source, settings, narrow=True) as connection:
        latest, moments = rows(connection, "latest"), rows(connection, "moments")
        both = {row["node"] for row in moments}
        # Of nodes that the earlier time does not know, and of those that the later one does not.
        others = {row["node"] for row in latest} - both
        return doc.FleetDiffDocument.model_validate(
            {
                "schema": "goldnode.fleet-diff/1",
                "from": moment(settings.compared.timestamp()),
                "to": moment(settings.at.timestamp()),
                "simulated": any(row["simulated"] for row in latest),
                "changed": _differences(rows(connection, "last_week")),
                "statuses": [
                    {
                        "class": row["class"],
                        "before": row["old_status"],
                        "after": row["new_status"],
                        "nodes": nodes_of(row["nodes"]),
                    }
                    for row in rows(connection, "last_week_states")
                ],
                "compared": len(both),
                "not_compared": nodes_of(others),
            }
        )


def _differences(found: Iterable[_Row]) -> list[doc.ReportDifference]:
    made = [
        doc.ReportDifference.model_validate(
            {
                "class": row["class"],
                "topic": row["topic"],
                "changes": list(changes_of(row["changes"])),
                "nodes": nodes_of(row["nodes"]),
            }
        )
        for row in found
    ]
    return sorted(made, key=lambda one: (-one.nodes.count, one.class_, one.topic, one.nodes.folded))


class _Builder:
    """Reads the views of one report."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, settings: ReportSettings) -> None:
        self.connection = connection
        self.settings = settings
        self.latest = rows(connection, "latest")
        self.measured = rows(connection, "measured")
        self.failed = rows(connection, "failed_jobs")

    def rows(self, view: str) -> list[dict[str, Any]]:
        return rows(self.connection, view)

    def document(self) -> doc.FleetReportDocument:
        declared, changed = self.rows("declared"), self.rows("last_week")
        nodes = self._nodes()
        return doc.FleetReportDocument.model_validate(
            {
                "schema": "goldnode.fleet-report/1",
                "at": moment(self.settings.at.timestamp()),
                "compared": moment(self.settings.compared.timestamp()),
                "stale_after_hours": self.settings.stale_after.total_seconds() / 3600,
                "simulated": any(
                    row["simulated"] for row in (*self.latest, *self.measured, *self.failed)
                ),
                "anonymous": False,
                "classes": self._classes(),
                "causes": causes(declared, self.rows("majority"), changed),
                "unchecked": self._unchecked(declared),
                "not_known": [node for node in nodes if node.state in ("stale", "silent")],
                "mixed": self._mixed(),
                "no_majority": self._no_majority(),
                "changed": _differences(changed),
                "slow": self._slow(),
                "measured": self._measured(),
                "failed_jobs": self._failed_jobs(),
                "slowing": self._slowing(),
                "trends": self._trends(),
                "lemons": self._lemons(),
                "versions": self._versions(),
                "days": self._days(),
                "nodes": nodes,
            }
        )

    def _classes(self) -> list[dict[str, Any]]:
        rows = []
        for name, group in groupby(self.rows("states"), key=lambda row: row["class"]):
            states = {row["state"]: row["nodes"] for row in group}
            away = states.get("stale", 0) + states.get("silent", 0)
            rows.append(
                {
                    "class": name,
                    "nodes": sum(states.values()),
                    "known": sum(states.values()) - away,
                    "states": states,
                }
            )
        return rows

    def _unchecked(self, declared: Iterable[_Row]) -> list[dict[str, Any]]:
        return [
            {
                "class": row["class"],
                "topic": row["topic"],
                "changes": list(changes_of(row["changes"])),
                "nodes": nodes_of(row["nodes"]),
            }
            for row in declared
            if row["outcome"] == "could_not_read"
        ]

    def _nodes(self) -> list[doc.ReportNode]:
        histories: dict[str, list[doc.ReportEvent]] = {}
        for row in self.rows("history"):
            histories.setdefault(row["node"], []).append(
                doc.ReportEvent.model_construct(
                    at=moment(row["seconds"]),
                    status=row["status"],
                    booted=bool(row["booted"]),
                    class_changed=bool(row["class_changed"]),
                )
            )
        return [
            doc.ReportNode.model_validate(
                {
                    "node": row["node"],
                    "class": row["class"],
                    "cohort": row["cohort"],
                    "state": row["state"],
                    "at": moment(row["seconds"]),
                    "history": histories.get(row["node"], []),
                }
            )
            for row in sorted(self.latest, key=lambda row: str(row["node"]))
        ]

    def _mixed(self) -> list[dict[str, Any]]:
        order = {key: place for place, key in enumerate(AGREED)}

        def group(row: _Row) -> tuple[Any, ...]:
            return row["name"], order[row["key"]], row["key"], row["slot"], row["topic"]

        rows = []
        for (name, _, key, slot, topic), values in groupby(
            sorted(self.rows("mixed"), key=group), key=group
        ):
            shown = sorted(values, key=lambda row: (row["n"], row["value"]))
            rows.append(
                {
                    "group": name,
                    "topic": topic,
                    "key": key,
                    "part": slot or None,
                    "values": [
                        {"value": row["value"], "nodes": nodes_of(row["nodes"])} for row in shown
                    ],
                }
            )
        return rows

    def _no_majority(self) -> list[dict[str, Any]]:
        def group(row: _Row) -> tuple[Any, ...]:
            return tuple(row[name] for name in ("class", "platform", "topic", "key", "slot"))

        rows = []
        for place, values in groupby(sorted(self.rows("no_majority"), key=group), key=group):
            shown = sorted(values, key=lambda row: (-row["n"], row["value"]))
            rows.append(
                {
                    "class": place[0],
                    "platform": place[1],
                    "topic": place[2],
                    "key": place[3],
                    "part": place[4] or None,
                    "values": [{"value": row["value"], "count": int(row["n"])} for row in shown],
                }
            )
        return rows

    def _slow(self) -> list[dict[str, Any]]:
        """Return the slow metrics, each node with its greatest loss first."""
        rows = self.rows("slow")
        worst: dict[str, float] = {}
        for row in rows:
            worst[row["node"]] = max(row["loss"], worst.get(row["node"], 0.0))
        rows.sort(
            key=lambda row: (
                -worst[row["node"]],
                row["node"],
                -row["loss"],
                row["metric"],
                row["item"],
            )
        )
        return [
            {
                "node": row["node"],
                "class": row["class"],
                "source": row["origin"],
                "basis": row["basis"],
                "metric": f"{row['metric']} {row['quantile']}".removesuffix(" p50"),
                "part": row["item"] or None,
                "unit": row["unit"],
                "samples": row["n"],
                "median": row["value"],
                "bound": row["bound"],
                "floor": row["floor_value"],
                "usual": row["centre"],
                "loss": round(row["loss"], 4),
                "nodes": row["nodes"],
                "baseline": row["date"] or None,
                "at": moment(row["seconds"]),
                "verified": bool(row["verified"]),
            }
            for row in rows
        ]

    def _measured(self) -> list[dict[str, Any]]:
        counts = ("nodes", "floors", "by_class", "not_judged", "slow")
        return [
            {
                "class": row["class"],
                "platform": row["platform"],
                "simulated": bool(row["simulated"]),
                **{name: int(row[name]) for name in counts},
            }
            for row in self.measured
        ]

    def _failed_jobs(self) -> list[dict[str, Any]]:
        return [
            {
                "class": row["class"],
                "job": row["job"],
                "state": row["state"],
                "why": row["why"],
                "nodes": nodes_of(row["nodes"]),
            }
            for row in self.failed
        ]

    def _slowing(self) -> list[dict[str, Any]]:
        rows = sorted(
            self.rows("slowing"),
            key=lambda row: (-row["loss"], row["node"], row["metric"], row["item"]),
        )
        return [
            {
                "node": row["node"],
                "class": row["class"],
                "metric": row["metric"],
                "part": row["item"] or None,
                "results": row["n"],
                "days": round(row["days"], 2),
                "a_day": round(row["a_day"], 5),
                "loss": round(row["loss"], 4),
            }
            for row in rows
        ]

    def _trends(self) -> list[dict[str, Any]]:
        rows = sorted(
            self.rows("trends"),
            key=lambda row: (-row["slope"], row["node"], row["key"], row["item"]),
        )
        return [
            {
                "node": row["node"],
                "class": row["class"],
                "counter": row["key"],
                "part": row["item"] or None,
                "an_hour": round(row["slope"], 4),
                "growth": row["growth"],
                "hours": round(row["hours"], 2),
            }
            for row in rows
        ]

    def _lemons(self) -> list[dict[str, Any]]:
        repeated = (row for row in self.rows("lemons") if row["faults"] > 1)
        rows = sorted(repeated, key=lambda row: (-row["score"], row["node"]))[:_LEMONS]
        return [
            {
                "node": row["node"],
                "class": row["class"],
                "state": row["state"],
                "score": round(row["score"], 4),
                "parts": {part: int(row[part]) for part in _PARTS},
            }
            for row in rows
        ]

    def _versions(self) -> list[dict[str, Any]]:
        order = {key: place for place, key in enumerate(AGREED)}
        rows = sorted(
            self.rows("versions"),
            key=lambda row: (row["class"], order[row["key"]], -row["nodes"], row["value"]),
        )
        return [
            {"class": row["class"], "key": row["key"], "value": row["value"], "count": row["nodes"]}
            for row in rows
        ]

    def _days(self) -> list[dict[str, Any]]:
        rows = []
        for (name, day), group in groupby(
            self.rows("timeline"), key=lambda row: (row["class"], row["day"])
        ):
            states = {row["status"]: row["nodes"] for row in group}
            rows.append({"class": name, "day": (moment(day * 86400) or "")[:10], "states": states})
        return rows

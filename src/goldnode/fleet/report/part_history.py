"""Read where parts were over time from the captures: runs of captures whose slot had the same part."""
# ruff: noqa: S608  # keys and columns of the tables below, and quoted values; nothing that a request gives

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from pathlib import Path

from goldnode.fleet.ingest.read import ReadLimits, connect
from goldnode.fleet.report.engine import quoted
from goldnode.fleet.report.hardware import PARTS, part_value
from goldnode.fleet.shared.part_places import PartSighting


def sightings(
    directory: Path, at: datetime, nodes: Iterable[str] = (), names: Iterable[str] = ()
) -> list[PartSighting]:
    """Return where the parts of some nodes, and parts with some names, were until a time.

    :param names: serial numbers and UUIDs; every node that had one of them is read whole.

    Raise GoldnodeError for a directory without data.
    """
    with connect(directory, ReadLimits(at=at)) as connection:
        chosen = set(nodes)
        texts = [name for name in names if name]
        if texts:
            listed = ", ".join(quoted(text) for text in texts)
            keys = ", ".join(
                quoted(part.columns[column])
                for part in PARTS
                for column in ("serial", "identity")
                if column in part.columns
            )
            query = f"SELECT DISTINCT node FROM facts WHERE key IN ({keys}) AND value IN ({listed})"
            chosen |= {row[0] for row in connection.execute(query).fetchall()}
        if not chosen:
            return []
        within = f"f.node IN ({', '.join(quoted(name) for name in sorted(chosen))})"
        rows = connection.execute(_query(within)).fetchall()
    columns = [item.name for item in fields(PartSighting)]
    return [PartSighting(**dict(zip(columns, row, strict=True))) for row in rows]


_SHOWN = ("serial", "identity", "model", "part_number", "firmware")


def _query(within: str) -> str:
    """Return the SELECT of sightings: captures in a row whose slot had the same part are one."""
    selects = []
    for part in PARTS:
        if "serial" not in part.columns and "identity" not in part.columns:
            continue
        keys = ", ".join(quoted(key) for key in part.columns.values())
        values = ", ".join(f"{part_value(part, name)} AS {name}" for name in ("address", *_SHOWN))
        selects.append(
            f"SELECT f.node AS node, f.time AS time, {quoted(part.kind)} AS kind, {values} FROM facts AS f "
            f"WHERE {within} AND f.key IN ({keys}) AND f.fault IS NULL AND f.value <> '' "
            "GROUP BY f.node, f.time, f.item"
        )
    return f"""
WITH parts AS ({" UNION ALL ".join(selects)}),
named AS (SELECT *, coalesce(address, '') AS slot, concat_ws('|', serial, identity) AS part
    FROM parts WHERE serial IS NOT NULL OR identity IS NOT NULL),
marked AS (SELECT *, CASE WHEN part IS DISTINCT FROM lag(part) OVER w THEN 1 ELSE 0 END AS new
    FROM named WINDOW w AS (PARTITION BY node, kind, slot ORDER BY time)),
runs AS (SELECT *, sum(new) OVER (PARTITION BY node, kind, slot ORDER BY time) AS run FROM marked)
SELECT r.node, r.kind, r.slot, any_value(r.serial), any_value(r.identity), min(r.time), max(r.time), count(*)::INTEGER,
    arg_max(r.model, r.time), arg_max(r.part_number, r.time), arg_max(r.firmware, r.time), coalesce(bool_or(n.simulated), false)
FROM runs AS r LEFT JOIN nodes AS n ON n.node = r.node AND n.time = r.time
GROUP BY r.node, r.kind, r.slot, r.run ORDER BY min(r.time), r.node, r.kind, r.slot"""

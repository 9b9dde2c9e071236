"""Run `python -m benchmarks.ingest.wire [--nodes N] [--hours H]`: reports as changes, as nodes send them over HTTP.

The same lifelike reports with a verdict of 20 findings, in the inbox as the service puts them there: in the first hour the whole ones that
are bases, then changes from them. Prints for each hour the captures per second of CPU time, and bytes of a compressed body. The second hour
also makes the rows of the bases, once a week for each node.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.ingest import lifelike
from goldnode.fleet.ingest import bases
from goldnode.fleet.ingest.files import IngestRequest, ingest
from goldnode.fleet.ingest.inbox import put_document
from goldnode.node.ground.changes import ChangedValues, report_body

BEGIN = datetime(2026, 11, 25, tzinfo=UTC)
VERDICT = pages.ROOT / "tests/cases/recorded/h200_x1_580.159.04/verdict.json"


def reports(fleet: list[lifelike.LifelikeNode], at: datetime) -> list[dict[str, Any]]:
    """Return the report of each node at a time, of JSON."""
    text = VERDICT.read_text(encoding="utf-8")
    made = []
    for one in lifelike.captures(fleet, at):
        one["identity"]["class"] = "h100"
        own = json.loads(text) | {"class": "h100", "time": one["time"]}
        own["boot_identity"] = one["identity"].get("boot_identity")
        names = {"schema": "goldnode.node-report/1", "node": one["identity"]["hostname"]}
        made.append(
            json.loads(json.dumps({**names, "class": "h100", "capture": one, "verdict": own}))
        )
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--hours", type=int, default=6)
    chosen = parser.parse_args()
    fleet = lifelike.nodes(chosen.nodes)
    held: dict[str, tuple[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        for hour in range(chosen.hours):
            at, sizes = BEGIN + timedelta(hours=hour), []
            for report in reports(fleet, at):
                node, body = report["node"], report_body(report)
                if hour == 0:
                    held[node] = (bases.hold(data, node, body), json.loads(body))
                    document = json.loads(body) | {"base": held[node][0]}
                else:
                    document = ChangedValues(held[node][1], report).document(node, held[node][0])
                sent = body if hour == 0 else json.dumps(document, separators=(",", ":")).encode()
                sizes.append(len(zlib.compress(sent, 9)))
                stored = json.dumps(
                    {**document, "source": "http"}, separators=(",", ":"), sort_keys=True
                )
                put_document(data, stored.encode())
            begin = time.process_time()
            result = ingest(IngestRequest(data, received=at), at)
            cpu = time.process_time() - begin
            if (result.stored, result.refused) != (chosen.nodes, []):
                raise SystemExit(f"stored {result.stored}, refused {result.refused[:3]}")
            row = {
                "hour": hour,
                "per_second_and_core": round(chosen.nodes / cpu),
                "bytes": statistics.median(sizes),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

"""Results of a site's own jobs: an exit status, and optionally metrics as JSON on standard output."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List

from goldnode.gpuprogram.command import UNKNOWN

from .records import COULD_NOT_CHECK, FAILED, PASSED, Fact, Json, Metric, metric


def result(status: int, out: bytes, err: bytes) -> Json:
    """Return the result of a command: {state, why, facts, metrics}."""
    # As of the programs of goldnode 3 is could not check. 126 and 127: a shell did not start it.
    if status in (UNKNOWN, 126, 127) or status < 0:
        return _ended(
            COULD_NOT_CHECK, f"the command ended with status {status}: {_last(err or out)}"
        )
    try:
        metrics, facts = _printed(out)
    # A list in place of an object, a number beyond floats, and brackets without an end are wrong in
    # the same way.
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as problem:
        return _ended(
            COULD_NOT_CHECK, f"the command printed something else than metrics: {problem}"
        )
    if status:
        return {
            "state": FAILED,
            "why": f"the command ended with status {status}: {_last(err or out)}",
            "facts": facts,
            "metrics": metrics,
        }
    return {"state": PASSED, "why": "", "facts": facts, "metrics": metrics}


def _printed(out: bytes) -> Any:
    """Return metrics and facts of standard output. Text that does not begin with { has none."""
    text = out.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        return [], {}
    document = json.loads(text)
    metrics: List[Metric] = []
    for row in document.get("metrics", []):
        samples = [float(value) for value in row["samples"]]
        if not all(math.isfinite(value) for value in samples):
            raise ValueError(f"metric {row['name']} has a sample that is no finite number")
        one = metric(
            str(row["name"]),
            str(row["unit"]),
            samples,
            row.get("device"),
            row.get("phase") == "cold",
        )
        if row["better"] not in ("higher", "lower"):
            raise ValueError(
                f"metric {row['name']}: better is higher or lower, not {row['better']}"
            )
        one["better"] = row["better"]
        metrics.append(one)
    facts: Dict[str, Fact] = {
        str(name): value
        for name, value in document.get("facts", {}).items()
        if value is None or isinstance(value, (str, int, float, bool))
    }
    return metrics, facts


def _last(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"]
    return lines[-1][:300]


def _ended(state: str, why: str) -> Json:
    return {"state": state, "why": why, "facts": {}, "metrics": []}

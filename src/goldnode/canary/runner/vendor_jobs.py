"""Tests of NVIDIA as jobs, where they are installed: `dcgmi diag` and nvbandwidth. Not verified: goldnode has run neither.

The forms of their output are those of the projects' own sources:

* DCGM (github.com/NVIDIA/DCGM): dcgmi/Diag.cpp (keys, `runtime_error`, the exit status of a failed test), nvvs/include/NvvsCommon.h
  (test_categories, tests, results, status, warnings), nvvs/tests (a real output of 3.1.0, in which entries of `tests` are null).
* nvbandwidth (github.com/NVIDIA/nvbandwidth): json_output.cpp (testcases, status, sum, bandwidth_description).

Anything else, an unknown word for a status included, is *could not check*.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from .records import (
    COULD_NOT_CHECK,
    Fact,
    JobEnded,
    JobResult,
    Metric,
    failed,
    metric,
    not_run,
    passed,
)

COPIES = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")
PASS, FAIL, WARN, SKIP = "pass", "fail", "warn", "skip"
_SKIPPED = (SKIP, "skipped", "not run")
_UNITS = "(GB/s)"  # in the description of a bandwidth; latencies have another unit


def dcgm(level: int = 2) -> JobResult:
    """Run `dcgmi diag` at a level: 1 takes seconds, 2 about two minutes, 3 about fifteen."""
    return judged_dcgm(*_ran(["dcgmi", "diag", "--run", str(int(level)), "--json"]))


def nvbandwidth(testcases: Sequence[str] = COPIES) -> JobResult:
    """Run test cases of nvbandwidth. Their sums are metrics."""
    return judged_nvbandwidth(*_ran(["nvbandwidth", "--json", "--testcase", *testcases]))


def _ran(command: List[str]) -> Tuple[int, str, str]:
    """Return exit status and outputs. The time limit is that of the job."""
    if shutil.which(command[0]) is None:
        raise not_run(f"{command[0]} is not installed")
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    return (
        done.returncode,
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
    )


def judged_dcgm(status: int, out: str, err: str) -> JobResult:
    """Return the result of `dcgmi diag --json`."""
    root = _root(status, out, err, "test_categories", "runtime_error")
    if root.get("runtime_error"):
        raise _unknown(f"dcgmi: {root['runtime_error']}")
    rows = list(_dcgm_rows(root))
    words = [word for _, word, _ in rows]
    strange = sorted({word for word in words if word not in (PASS, FAIL, WARN, *_SKIPPED)})
    wrong = [f"{name}{': ' if why else ''}{why}" for name, word, why in rows if word == FAIL]
    if wrong:
        raise failed("; ".join(wrong)[:500])
    if strange:
        raise _unknown(f"dcgmi has results with the unknown status {', '.join(strange)[:100]}")
    if status:
        raise _unknown(f"dcgmi ended with status {status}, and no test failed: {_last(err or out)}")
    if not any(word in (PASS, WARN) for word in words):
        raise not_run(
            f"dcgmi skipped every test: {next((why for _, _, why in rows if why), 'without a reason')}"
        )
    warned = [f"{name}: {why}" for name, word, why in rows if word == WARN]
    facts: Dict[str, Fact] = {
        "passed": words.count(PASS),
        "skipped": len([one for one in words if one in _SKIPPED]),
    }
    version = root.get("version") or (root.get("metadata") or {}).get("version")
    if isinstance(version, str):
        facts["dcgm"] = version
    return passed([], facts, "; ".join(warned)[:500])


def _dcgm_rows(root: Any) -> Iterator[Tuple[str, str, str]]:
    """Yield name, status in small letters, and reason of every result."""
    for category in root.get("test_categories") or []:
        for test in category.get("tests") or []:
            for row in (test or {}).get("results") or []:
                place = row.get("gpu_ids", row.get("entity_id"))
                name = str(test.get("name")) + ("" if place is None else f" (GPU {place})")
                yield (
                    name,
                    str(row.get("status")).lower(),
                    _texts(row.get("warnings") or row.get("info")),
                )


def _texts(value: Any) -> str:
    """Return warnings: a text, a list of texts, or a list of objects with a text `warning`, by the version of DCGM."""
    rows = value if isinstance(value, list) else [value]
    texts = [row.get("warning", row) if isinstance(row, dict) else row for row in rows if row]
    return "; ".join(map(str, texts))


def judged_nvbandwidth(status: int, out: str, err: str) -> JobResult:
    """Return the result of `nvbandwidth --json`."""
    root = _root(status, out, err, "testcases", "error")
    if root.get("error"):
        raise _unknown(f"nvbandwidth: {str(root['error'])[:300]}")
    rows = [row for row in root.get("testcases") or [] if isinstance(row, dict)]
    states = {str(row.get("name")): str(row.get("status")) for row in rows}
    wrong = [
        f"{name}: {state}" for name, state in states.items() if state not in ("Passed", "Waived")
    ]
    if wrong:
        # An error may be one of the node, or of the call: the output does not show which.
        raise _unknown(f"nvbandwidth: {'; '.join(wrong)[:300]}")
    if status:
        raise _unknown(f"nvbandwidth ended with status {status}: {_last(err or out)}")
    metrics: List[Metric] = []
    for row in rows:
        rate = row.get("sum")
        bandwidth = str(row.get("bandwidth_description", "")).endswith(_UNITS)
        if row.get("status") == "Passed" and bandwidth and isinstance(rate, (int, float)):
            metrics.append(metric(f"nvbandwidth_{row['name']}", "GB/s", [float(rate)]))
    if not metrics:
        raise not_run("nvbandwidth waived every test case: this node has no such path")
    facts: Dict[str, Fact] = {"nvbandwidth": str(root.get("version", "unknown"))}
    return passed(metrics, {**facts, "waived": list(states.values()).count("Waived")})


def _root(status: int, out: str, err: str, *keys: str) -> Any:
    """Return the object with one of these keys below the only key of the document; a program prints text before it."""
    try:
        document = json.loads(out[out.index("{") :])
        (root,) = document.values()
        if isinstance(root, dict) and any(key in root for key in keys):
            return root
    except (ValueError, AttributeError):
        pass
    raise _unknown(f"it ended with status {status} and printed no results: {_last(err or out)}")


def _unknown(why: str) -> JobEnded:
    return JobEnded(COULD_NOT_CHECK, why)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing"])[-1][:200]

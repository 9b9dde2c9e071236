"""The two tiers, and the summary of a record.

The host computes the summary again by these rules: no image vouches for itself.
"""

from __future__ import annotations

from typing import Any, List, Tuple

from goldnode.gpuprogram.command import BAD, OK, UNKNOWN
from goldnode.gpuprogram.results import FAILED, NOT_RUN, PASSED, Json

SCHEMA = "goldnode.smoke/1"
TIERS = ("cpu", "gpu")


def tier(tests: List[Json], why: str = "") -> Json:
    """Return the summary of a tier: {state, why, simulated, tests}.

    failed: a test failed. not_run: no test passed, or a required test could not be run. passed: all
    required tests passed, and at least one test did; `why` then lists the tests that were not run.
    """
    failed = [test["name"] for test in tests if test["state"] == FAILED]
    # A test that does not apply here is no gap; one that is required is.
    missing = [test["name"] for test in tests if test["state"] == NOT_RUN and test["required"]]
    done = [test["name"] for test in tests if test["state"] == PASSED]
    if failed:
        state, why = FAILED, "failed: " + ", ".join(failed)
    elif missing:
        state, why = NOT_RUN, "could not be run: " + ", ".join(missing)
    elif not done:
        state, why = NOT_RUN, why or "there was nothing to run"
    else:
        state = PASSED
        rest = ", ".join(test["name"] for test in tests if test["state"] == NOT_RUN)
        why = rest and "not run: " + rest
    return {
        "state": state,
        "why": why,
        "simulated": any(test.get("simulated") for test in tests),
        "tests": tests,
    }


def exit_code(record: Json, required: Tuple[str, ...]) -> int:
    """Return 2 if a tier failed, 3 if a required tier or test was not run, otherwise 0."""
    tiers = record["tiers"]
    if any(tier["state"] == FAILED for tier in tiers.values()):
        return BAD
    if any(
        test["state"] == NOT_RUN and test["required"]
        for tier in tiers.values()
        for test in tier["tests"]
    ):
        return UNKNOWN
    if any(tiers[name]["state"] != PASSED for name in required):
        return UNKNOWN
    # A run in which no tier passed proves nothing.
    return OK if any(tier["state"] == PASSED for tier in tiers.values()) else UNKNOWN


def text(record: Json) -> str:
    """Return a record as text: one line per test with its figures or reason, then a summary line."""
    where = record.get("image") or "no goldnode image"
    lines = [f"goldnode-smoke: backend {record['backend']}, {where}"]
    if record["simulated"]:
        lines.append("SIMULATED HARDWARE: no result about a real device")
    width = max(
        [len(test["name"]) for tier in record["tiers"].values() for test in tier["tests"]] or [0]
    )
    for name in TIERS:
        for test in record["tiers"][name]["tests"]:
            lines.append(
                f"{name}  {test['state']:8}  {test['name']:{width}}  {_outcome(test)}".rstrip()
            )
    lines.append("; ".join(_sum(name, record["tiers"][name]) for name in TIERS))
    return "\n".join(_printable(line) for line in lines)


def _sum(name: str, tier: Json) -> str:
    text = f"{name} tier: {tier['state'].replace('_', ' ')}"
    if tier["state"] == PASSED:
        text += f" ({sum(test['state'] == PASSED for test in tier['tests'])} tests)"
    if tier["simulated"]:
        text += " on simulated hardware"
    return f"{text}, {tier['why']}" if tier["why"] else text


def _outcome(test: Json) -> str:
    if test["state"] == PASSED:
        figures = ", ".join(
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in test["figures"].items()
        )
        return "; ".join(part for part in (figures or _short(test["got"]), test["why"]) if part)
    if test["state"] == FAILED and test["expected"] is not None:
        return f"{test['why']}: expected {_short(test['expected'])}, got {_short(test['got'])}"
    return str(test["why"])


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        value = ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    elif isinstance(value, list):
        value = ", ".join(_short(item) for item in value)
    shown = str(value)
    return shown if len(shown) <= 160 else shown[:157] + "..."


def _printable(line: str) -> str:
    """Return the line without control characters: names come from libraries and drivers."""
    # An escape sequence in a device's name must not reach the terminal.
    return "".join(letter if letter.isprintable() else " " for letter in line)

"""Judgements of a pre-flight: one line per check, and the exit status. Pure.

A check that was asked for and has no answer is *could not check*. It never passes.
"""

from __future__ import annotations

from ..diagnose.compatible import judge, version
from ..gate import gate
from ..ground.json_lines import as_text
from ..ground.text import and_more
from ..ground.typed import NamedTuple
from ..probe.machine import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional, Sequence, TypeAlias

Json: TypeAlias = "Dict[str, Any]"

SCHEMA = "goldnode.preflight/1"
OK, FAILED, UNKNOWN = "ok", "failed", "could_not_check"
FITS, MISFIT, BAD_NODE, COULD_NOT_CHECK, OTHER_CLASS = 0, 1, 2, 3, 4  # exit statuses
MOST_NAMED = 3  # nodes in a sentence
# Values that all nodes of a job must share, in the order of reports.
SHARED = ("class_digest", "driver", "gsp_firmware", "vbios", "nic_firmware", "nccl")
VENDORS = {"cuda": "nvidia", "rocm": "amd", "oneapi": "intel"}


class PreflightLine(NamedTuple):
    """One check: its name, state, text, the remedy, and the exit status if it did not pass."""

    check: str
    state: str
    text: str
    remedy: str = ""
    status: int = FITS


def verdict_line(verdict: Any, fault: Optional[str], uptime: Optional[float]) -> PreflightLine:
    """Judge the verdict of the node. `fault` is the reason why it does not count."""
    if fault is not None:
        remedy = "An administrator runs `goldnode-node check` on the node"
        return PreflightLine("verdict", UNKNOWN, fault, remedy, COULD_NOT_CHECK)
    reasons = gate.reasons(verdict)
    if reasons:
        status = OTHER_CLASS if verdict["exit_code"] == OTHER_CLASS else BAD_NODE
        remedy = "Submit the job to another node; `goldnode-node check --cached` shows all findings"
        return PreflightLine("verdict", FAILED, gate.sentence(reasons), remedy, status)
    # Uptimes, because the clock may have been set since the check.
    age = max(0.0, (uptime or 0.0) - float(verdict["uptime"]))
    label = " SIMULATED" if verdict.get("simulated") else ""
    return PreflightLine("verdict", OK, f"{verdict.get('status')}, {age:.0f} s old{label}")


def shared(capture: Mapping[str, Any], class_digest: Any, nccl: Optional[str]) -> Json:
    """Return the values of this node that all nodes of a job must share. A value that is not known is null."""
    gpus = [row for row in capture.get("gpus") or () if isinstance(row, dict)]
    driver = capture.get("driver")
    adapters = capture.get("infiniband")
    rows = adapters.values() if isinstance(adapters, dict) and "fault" not in adapters else ()
    return {
        "class_digest": as_text(class_digest),
        "driver": driver_of(driver),
        "gsp_firmware": _common(gpus, "gsp_firmware"),
        "vbios": _common(gpus, "vbios"),
        "nic_firmware": _common([row for row in rows if isinstance(row, dict)], "firmware"),
        "nccl": nccl,
    }


def driver_of(driver: Any) -> Optional[str]:
    """Return the version of the loaded driver; None if it is unknown."""
    for name in ("loaded", "proc", "reported"):
        if isinstance(driver, dict) and isinstance(driver.get(name), str):
            return str(driver[name])
    return None


def _common(rows: Sequence[Mapping[str, Any]], name: str) -> Optional[str]:
    """Return the values of several devices as text, in order; None if one is unknown, or without devices."""
    values = [row.get(name) for row in rows]
    if not values or not all(isinstance(value, str) for value in values):
        return None
    return ", ".join(sorted({str(value) for value in values}))


def cohort_line(
    own: Mapping[str, Any], others: Mapping[str, Any], broken: Sequence[str], size: Optional[int]
) -> PreflightLine:
    """Compare this node with the other nodes of its job. `broken` are nodes whose values cannot be read."""
    # In the order of SHARED: a difference of the class explains those that follow.
    for name in SHARED:
        if own.get(name) is None:
            continue
        # A value that another node does not know is no difference: its own pre-flight reports it.
        values = {node: row.get(name) for node, row in others.items() if isinstance(row, dict)}
        different = sorted(
            node for node, value in values.items() if value is not None and value != own[name]
        )
        if different:
            there = printable(str(values[different[0]]), 80)
            text = (
                f"{name} is {printable(str(own[name]), 80)} here and {there} on {few(different)} "
                f"({len(different)} of {len(others)} other nodes)"
            )
            remedy = "Submit the job to nodes of one state, or wait until the rollout has passed"
            return PreflightLine("cohort", FAILED, text, remedy, MISFIT)
    if broken:
        text = f"the values of {few(broken)} cannot be read"
        return PreflightLine(
            "cohort", UNKNOWN, text, "Remove the files, and start the job again", COULD_NOT_CHECK
        )
    unknown = [
        name
        for name in SHARED
        if own.get(name) is None and any(row.get(name) is not None for row in others.values())
    ]
    if unknown:
        text = f"{', '.join(unknown)} is unknown here, and known on other nodes"
        remedy = "An administrator runs `goldnode-node check` on the node"
        return PreflightLine("cohort", UNKNOWN, text, remedy, COULD_NOT_CHECK)
    of = "" if size is None else f" of {max(size - 1, len(others))}"
    return PreflightLine("cohort", OK, f"same as {len(others)}{of} other nodes")


def few(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = ", ".join(printable(name, 60) for name in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def image_line(image: Mapping[str, Any], capture: Mapping[str, Any], table: Any) -> PreflightLine:
    """Judge whether the GPUs and the driver of this node run an image: its backend and its CUDA.

    `image` has backend, cuda, forward_compat and name, each null if unknown. `table` has the drivers of CUDA releases.
    The whole comparison needs the catalog: `goldnode check -c CLASS --image IMAGE`.
    """
    name = printable(str(image.get("name") or "the image"), 80)
    backend, cuda = image.get("backend"), image.get("cuda")
    driver = capture.get("driver")
    vendor, newest = None, None
    if isinstance(driver, dict):
        vendor, newest = driver.get("vendor"), driver.get("cuda")
    if backend == "cpu":
        return PreflightLine("image", OK, f"{name} needs no GPU")
    wanted = VENDORS.get(str(backend)) or ("nvidia" if cuda else None)
    remedy = "Describe it with --image FILE: the image.json in an image of goldnode, or `docker inspect IMAGE`"
    if wanted is None:
        return PreflightLine(
            "image", UNKNOWN, f"the backend of {name} is unknown", remedy, COULD_NOT_CHECK
        )
    if vendor != wanted:
        text = f"{name} is for {wanted}, and this node has {vendor or 'no GPU driver'}"
        return PreflightLine(
            "image", FAILED, text, "Use an image for this node, or another partition", MISFIT
        )
    if wanted != "nvidia":
        return PreflightLine("image", OK, f"{name} is for {wanted}")
    loaded = driver_of(driver)
    verdict = judge(cuda, loaded, newest, table)
    if verdict == "":
        return PreflightLine("image", OK, f"{name}: CUDA {cuda} with driver {loaded}")
    if verdict is None or image.get("forward_compat"):
        why = "its forward compatibility package" if verdict else "no row of the facts"
        text = f"{name}: CUDA {cuda or '?'} with driver {loaded or '?'}: {why} decides"
        remedy = "Compare it with `goldnode check -c CLASS --image IMAGE`"
        return PreflightLine("image", UNKNOWN, text, remedy, COULD_NOT_CHECK)
    remedy = "Use an older image"
    if version(newest):
        remedy = f"Use an image of CUDA {newest} or older, or nodes with a newer driver"
    return PreflightLine("image", FAILED, f"{name}: CUDA {cuda} {verdict}", remedy, MISFIT)


def caches_line(
    faults: Mapping[str, Sequence[str]], used: Sequence[str], unknown: Optional[str]
) -> PreflightLine:
    """Judge the caches that the environment names. `faults` has the reasons against each variable."""
    if unknown is not None:
        return PreflightLine(
            "caches", UNKNOWN, unknown, "Set --gpu and --mig, or check the node", COULD_NOT_CHECK
        )
    bad = {name: rows for name, rows in faults.items() if rows}
    if bad:
        name, rows = sorted(bad.items())[0]
        more = and_more(len(bad) - 1, " (and {} more variables)")
        remedy = "Set it with `goldnode-node cache path CACHE --caches DIR --export`, or unset it"
        return PreflightLine("caches", FAILED, f"{name}: {'; '.join(rows)}{more}", remedy, MISFIT)
    if not used:
        return PreflightLine("caches", OK, "no variable is set")
    return PreflightLine("caches", OK, f"{len(used)} keyed for this node")


def report(lines: Sequence[PreflightLine], node: str) -> Json:
    """Return the report. Its reason is that of the first line with the gravest status."""
    order = (BAD_NODE, OTHER_CLASS, COULD_NOT_CHECK, MISFIT)
    failed = [line for line in lines if line.state != OK]
    status, reason, remedy = FITS, None, None
    if failed:
        # A node that must not run jobs is the reason of all else that does not fit.
        first = min(failed, key=lambda line: order.index(line.status))
        status, reason, remedy = first.status, f"{first.check}: {first.text}", first.remedy
    return {
        "schema": SCHEMA,
        "node": node,
        "exit_code": status,
        "reason": reason,
        "remedy": remedy,
        "checks": [{"check": line.check, "state": line.state, "text": line.text} for line in lines],
    }


def text(report: Json) -> str:
    """Return the report as one line."""
    if report["reason"] is None:
        passed = "; ".join(f"{row['check']} {row['text']}" for row in report["checks"])
        return f"goldnode: {report['node']} fits: {passed}"
    return f"goldnode: {report['node']}: {report['reason']}. {report['remedy']}."

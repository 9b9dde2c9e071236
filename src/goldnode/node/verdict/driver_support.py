"""Judge an NVIDIA driver by the facts: end of life, security fixes, known bad combinations. Pure.

A class document needs none of this: whoever compiled it has met these facts already, or has
accepted them.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from ..probe.values import is_fault
from ..state.finding import MATCH, MISMATCH, Finding
from ..state.kinds import DEGRADED, NODE
from ..state.remedy import PERSON, Remedy
from . import rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

    Facts = Mapping[str, Any]


def findings(capture: Mapping[str, Any], facts: Facts, today: str) -> List[Finding]:
    """Return the findings about the driver of a capture; none without an NVIDIA driver of a known branch.

    :param facts: of :func:`goldnode.node.ground.known.facts`.
    :param today: YYYY-MM-DD.
    """
    version = version_of(capture)
    row = facts["branches"].get(version.split(".")[0]) if version is not None else None
    if version is None or row is None:
        return []
    bad = _known_bad(capture, facts, version)
    return [_support(version, row, facts, today), _security(version, row, facts, today), *bad]


def version_of(capture: Mapping[str, Any]) -> Optional[str]:
    """Return the version of the NVIDIA driver; None if there is none, or if it was not read."""
    driver = rules.as_map(capture.get("driver"))
    if driver.get("vendor") not in (None, "nvidia"):
        return None
    version = next(
        (driver[key] for key in ("reported", "loaded", "proc") if isinstance(driver.get(key), str)),
        "",
    )
    return version if re.fullmatch(r"\d+(\.\d+)+", version) else None


def fixed(facts: Facts, today: str) -> str:
    """Return the supported branches that the newest security bulletin has fixes for, as text."""
    return ", ".join(
        name
        for name, row in facts["branches"].items()
        if rules.as_map(row.get("security")).get("fixed") and not _ended(row, today)
    )


def _ended(row: Mapping[str, Any], today: str) -> bool:
    # The facts may know only the month of an end of life: then the whole month is supported.
    ends = row.get("end_of_life") or "9"
    return today[: len(ends)] > ends


def _finding(name: str, expected: str, got: str, remedy: Optional[str], *evidence: str) -> Finding:
    outcome = MATCH if remedy is None else MISMATCH
    advice = None if remedy is None else Remedy(remedy, PERSON)
    return Finding(
        name,
        outcome=outcome,
        expected=expected,
        got=got,
        remedy=advice,
        subject=None,
        evidence=evidence,
        severity=DEGRADED,
        blast=NODE,
    )


def _support(version: str, row: Mapping[str, Any], facts: Facts, today: str) -> Finding:
    ends, branch = row.get("end_of_life"), version.split(".")[0]
    expected = "a driver branch that NVIDIA still supports"
    if not ends:
        return _finding(
            "driver.support", expected, f"branch {branch}, without a stated end of life", None
        )
    if not _ended(row, today):
        return _finding("driver.support", expected, f"branch {branch}, until {ends}", None)
    newer = fixed(facts, today)
    return _finding(
        "driver.support",
        expected,
        f"driver branch {branch} reached its end of life on {ends}",
        f"Plan the move to a branch that gets fixes ({newer}) and supports these GPUs.",
    )


def _security(version: str, row: Mapping[str, Any], facts: Facts, today: str) -> Finding:
    security, branch = rules.as_map(row.get("security")), version.split(".")[0]
    newer = fixed(facts, today)
    expected = "the fixes of the newest security bulletin"
    floor = security.get("floor")
    if not security.get("fixed"):
        last = f"; {floor} has those of bulletin {security['bulletin']}" if floor else ""
        return _finding(
            "driver.security",
            expected,
            f"no version of driver branch {branch} has the fixes of the newest security bulletin{last}",
            f"Move to a branch that has them ({newer}) and supports these GPUs.",
        )
    about = f"bulletin {security['bulletin']} of {security['date']}"
    if not within(version, f">={floor}"):
        return _finding(
            "driver.security",
            expected,
            f"driver {version} lacks security fixes of {about}",
            f"Update the driver to {floor} or later.",
        )
    return _finding("driver.security", expected, f"{version} has those of {about}", None)


# -- known bad combinations


def _known_bad(capture: Mapping[str, Any], facts: Facts, version: str) -> List[Finding]:
    host = _host(capture, facts, version)
    rows = [row for row in facts["known_bad"] if any(_holds(part, host) for part in row["match"])]
    expected = "no known bad combination"
    if not rows:
        text = f"none of {len(facts['known_bad'])} applies"
        return [_finding("driver.known_bad", expected, text, None)]
    texts = "; ".join(f"{row['symptom']} ({row['id']})" for row in rows)
    remedy = " ".join(f"{row['id']}: {row['fix']}." for row in rows)
    return [
        _finding(
            "driver.known_bad",
            expected,
            rules.sanitized(texts, 240),
            f"The facts name as fix: {remedy}",
        )
    ]


def _host(capture: Mapping[str, Any], facts: Facts, version: str) -> Dict[str, Any]:
    """Return what conditions compare with; a key without a value is unknown, and its condition does not hold."""
    gpus = [
        gpu
        for gpu in rules.as_list(capture.get("gpus"))
        if isinstance(gpu, dict) and not is_fault(gpu)
    ]
    ids = [str(gpu.get("pci_id")) for gpu in gpus]
    known = [facts["models"][name] for name in ids if name in facts["models"]]
    system = rules.as_map(capture.get("os"))
    line = rules.fetch(system, "kernel.cmdline")
    return {
        "driver": version,
        "branch": version.split(".")[0],
        "gpu": [name for row in known for name in row["models"]],
        "architecture": [row["architecture"] for row in known],
        "flavour": rules.as_map(capture.get("driver")).get("flavour"),
        "os": f"{system.get('id')} {system.get('version')}",
        "features": ["MIG"] if any(rules.fetch(gpu, "mig.current") is True for gpu in gpus) else [],
        # The name that the package had up to DCGM 3.
        "packages": ["datacenter-gpu-manager"] * ("dcgm" in rules.as_map(capture.get("driver"))),
        "cmdline": line.split() if isinstance(line, str) else None,
    }


def _holds(part: Mapping[str, Any], host: Mapping[str, Any]) -> bool:
    """Return whether all conditions of a row hold for certain."""
    for key, wanted in part.items():
        choices = wanted if isinstance(wanted, list) else [wanted]
        have = host.get(key)
        if key in ("driver", "branch"):
            holds = any(within(str(have), item) for item in choices)
        elif key == "gpu":
            holds = any(fnmatchcase(name, item) for name in host["gpu"] for item in choices)
        elif key == "mixed":
            holds = all(any(name in side for name in host["architecture"]) for side in choices)
        elif key == "cmdline_lacks":
            holds = host["cmdline"] is not None and not set(choices) <= set(host["cmdline"])
        elif isinstance(have, list):
            holds = any(item in choices for item in have)
        else:
            holds = have in choices
        if not holds:
            return False
    return True


CONDITIONS = (
    "driver",
    "branch",
    "gpu",
    "architecture",
    "flavour",
    "os",
    "features",
    "packages",
    "mixed",
    "cmdline_lacks",
)


def within(version: str, wanted: str) -> bool:
    """Return whether a version is in a range of the facts: ``>=550 <550.54.14``; all comparators must hold.

    Numbers are compared; a limit with fewer numbers equals all versions that begin with it.
    """
    for part in wanted.split():
        limit = part.lstrip("<>=")
        sign = part[: len(part) - len(limit)] or "="
        own, other = _numbers(version), _numbers(limit)
        # A version with fewer numbers than the limit counts as if zeros followed.
        own = (own + (0,) * len(other))[: max(len(own), len(other))]
        if own[: len(other)] == other:
            own = other
        holds = {
            "<": own < other,
            "<=": own <= other,
            ">": own > other,
            ">=": own >= other,
            "=": own == other,
        }
        if not holds[sign]:
            return False
    return True


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))

"""The fix for the versions that a text names: which driver a CUDA needs, which CUDA a GPU needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from goldnode.explain.model import TextAnswer
from goldnode.facts import workload
from goldnode.facts.workload import key

_DRIVER = (
    r"Driver Version: (\d{3}\.[\d.]+\d)",
    r"kernel module (?:version |has the version )?(\d{3}\.\d+(?:\.\d+)?)",
    r"NVRM version: .*? (\d{3}\.\d+(?:\.\d+)?) ",
    r"\bdriver (?:version )?(\d{3}\.\d+(?:\.\d+)?)",
)
# The least CUDA that the text asks for.
_WANTED = (
    r"cuda>=(\d+\.\d+)",
    r"\+cu(\d{2,3})\b",
    r"CUDA (?:runtime|Runtime|toolkit)(?: version)?[ :]+(\d+\.\d+)",
    r"torch\.version\.cuda\W+(\d+\.\d+)",
    r"nvidia/cuda:(\d+\.\d+)",
)
_CAPABILITY = re.compile(r"sm_(\d{2,3})\b")
_OLD = re.compile(r"found version (\d{4,5})\)")
_BY_CUDA = ("driver-too-old-for-cuda", "cuda-versions-differ", "forward-compat-refused")


def _first(patterns: Iterable[str], text: str) -> str | None:
    for pattern in patterns:
        match = re.search(pattern, text)
        if match:
            return match.group(1)
    return None


def _dotted(text: str) -> str:
    """Return "12.8" for "128", as wheels write it."""
    return text if "." in text else f"{text[:-1]}.{text[-1]}"


def needs(text: str, driver: str | None = None) -> list[str]:
    """Return what the facts say about the CUDA that `text` names. `driver` is that of this node, if known."""
    wanted = _first(_WANTED, text)
    driver = driver or _first(_DRIVER, text)
    notes = []
    old = _OLD.search(text)
    if old:
        number = int(old.group(1))
        notes.append(
            f"the driver of that text runs CUDA up to {number // 1000}.{number % 1000 // 10}"
        )
    if wanted is None:
        return notes
    cuda = _dotted(wanted)
    family = workload.families().get(int(cuda.split(".")[0]))
    minor = workload.cudas().get(cuda)
    if family is None:
        return [*notes, f"CUDA {cuda}: the facts do not know it"]
    native = f"; it was released with driver {minor.bundled}" if minor and minor.bundled else ""
    notes.append(
        f"CUDA {cuda} runs on driver {family.minimum} or newer (minor-version compatibility; no PTX){native}"
    )
    if driver:
        enough = key(driver) >= key(family.minimum)
        word = "reaches that" if enough else "is older: this program cannot start on it"
        notes.append(f"driver {driver} {word}")
    return notes


def capability(text: str) -> list[str]:
    """Return which CUDA first supports the compute capability that `text` names."""
    notes = []
    for number in dict.fromkeys(_CAPABILITY.findall(text)):
        name = f"{number[:-1]}.{number[-1]}"
        row = workload.architectures().get(name)
        if row and row.first:
            last = f", up to {row.last}" if row.last else ""
            notes.append(f"sm_{number} ({row.name}): CUDA {row.first} or newer{last}")
    return notes


def completed(
    answers: Iterable[TextAnswer], text: str, driver: str | None = None
) -> list[TextAnswer]:
    """Return the answers with what the facts say about the versions in `text`."""
    rows = []
    for answer in answers:
        notes: list[str] = []
        if answer.id in _BY_CUDA:
            notes = needs(text, driver)
        elif answer.id == "architecture-not-in-build":
            # Only the line with the GPU's own capability; the next one lists what the build has.
            notes = capability(answer.text)
        rows.append(replace(answer, versions=tuple(notes)) if notes else answer)
    return rows

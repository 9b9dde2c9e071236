"""Engine for the list of known bad combinations (facts/known_bad.yml).

A row's `match` is a mapping of conditions that must all hold, or a list of such mappings, any of
which suffices. A condition holds, fails, or cannot be checked. A row is found when all conditions
hold. It is `unknown` when none fails and some cannot be checked. A condition on an absent component
(no GPU, no container toolkit, no torch) fails. A component that is present with an unknown value
leaves the condition open. Keys of `match`:

    host      kernel driver package toolkit amdgpu (versions), branch, engine {NAME: versions}, flavour,
              toolkit_mode, vendor, os, os_not, driver_from, fabric_manager (absent, differs), nvswitch,
              realtime, gpu (globs), architecture, mixed, packages, package_not, features, cmdline_lacks,
              page_kib_not
    workload  cuda cudnn rocm torch torch_cuda (versions), forward_compat, image (glob)
    both      cuda_newer: whether the workload's CUDA is newer than the driver's native one
    neither   also: a condition that no class states, so it is always open
              never: the reason why the row cannot be checked

Versions are ranges: comparators separated by spaces, all of which must hold (">=550 <550.54.14"),
or a list of ranges, any of which suffices.
"""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, lru_cache, partial
from typing import Any

from goldnode.compat import remedies
from goldnode.compat.model import (
    CompatFinding,
    CompatHost,
    CompatSeverity,
    FindingSubject,
    Workload,
    about,
    reading_gpus,
)
from goldnode.compat.remedies import CompatRemedy
from goldnode.core.dataclass import dataclass
from goldnode.facts import host as facts
from goldnode.facts.host import numbers
from goldnode.facts.workload import torch
from goldnode.node.ground.json_lines import as_rows
from goldnode.node.state.debversion import compare

FILE = "known_bad.yml"
RULE = "known-bad"

Answer = bool | None  # None: cannot be checked


@dataclass(frozen=True)
class KnownBad:
    """One row of the list.

    `rule` names the rule that reports the same problem; `never` is why it cannot be checked.
    """

    id: str
    severity: CompatSeverity
    symptom: str
    fix: str
    rule: str | None
    never: str | None
    match: tuple[Mapping[str, Any], ...]
    doubt: str | None
    origins: tuple[facts.Origin, ...]
    of_workload: bool  # whether some condition is about the workload


@cache
def rows() -> tuple[KnownBad, ...]:
    """Return the list."""
    return tuple(_row(row) for row in facts.load(FILE)["known_bad"])


def _row(row: Mapping[str, Any]) -> KnownBad:
    match = as_rows(row["match"])
    doubt = "; ".join(part for part in (facts.doubt(row), row.get("note")) if part)
    return KnownBad(
        id=row["id"],
        severity=row["severity"],
        symptom=row["symptom"],
        fix=row["fix"],
        rule=row.get("rule"),
        never=next((part["never"] for part in match if "never" in part), None),
        match=tuple(match),
        doubt=doubt or None,
        origins=facts.origins(FILE, row["source"]),
        of_workload=any(key in WORKLOAD for part in match for key in part),
    )


def findings(host: CompatHost | None, workload: Workload | None = None) -> Iterator[CompatFinding]:
    """Yield the findings of rows about `host` alone or, with a workload, of rows about workloads."""
    if workload is None:
        for row in rows():
            if row.never is None and not row.of_workload:
                finding = judge(row, host, None)
                if finding is not None:
                    yield finding
        return
    for row, parts in _possible(host):
        finding = _judged(row, parts, host, workload)
        if finding is not None:
            yield finding


_Possible = tuple[tuple[KnownBad, Sequence[Mapping[str, Any]]], ...]


def not_ruled_out(host: CompatHost) -> _Possible:
    """Return the rows about hosts alone that no condition rules out which is not about GPUs, with such parts.

    They are those that may hold for a host that differs from this one in its GPUs only.
    """
    left = []
    for row in rows():
        if row.never is None and not row.of_workload:
            parts = [part for part in row.match if not _ruled_out(host, part)]
            if parts:
                left.append((row, parts))
    return tuple(left)


def _ruled_out(host: CompatHost, part: Mapping[str, Any]) -> bool:
    """Return whether a condition that reads no GPUs fails."""
    for key in part.keys() & HOST.keys():
        answer, reads = reading_gpus(host, partial(_condition, key, part[key]))
        if answer is False and not reads:
            return True
    return False


def _condition(key: str, wanted: Any, host: CompatHost) -> Answer:
    return HOST[key](host, wanted)


def among(possible: _Possible, host: CompatHost) -> Iterator[CompatFinding]:
    """Yield the findings about a host of the rows that are possible."""
    for row, parts in possible:
        finding = _judged(row, parts, host, None)
        if finding is not None:
            yield finding


# The last hosts by identity, with the list that they were compared with.
_POSSIBLE: OrderedDict[int, tuple[CompatHost | None, object, _Possible]] = OrderedDict()
_HOSTS = 64


def _possible(host: CompatHost | None) -> _Possible:
    """Return the rows about workloads whose conditions on the host may hold, each with the parts that are left open.

    Hundreds of workloads are judged on a few hosts: most rows are ruled out by the host.
    """
    known = _POSSIBLE.get(id(host))
    if known is not None and known[0] is host and known[1] is rows():
        return known[2]
    possible = []
    for row in rows():
        if row.never is None and row.of_workload:
            left = [_without_host(host, part) for part in row.match]
            parts = [part for part in left if part is not None]
            if parts:
                possible.append((row, parts))
    _POSSIBLE[id(host)] = (host, rows(), tuple(possible))
    if len(_POSSIBLE) > _HOSTS:
        _POSSIBLE.popitem(last=False)
    return _POSSIBLE[id(host)][2]


def _without_host(host: CompatHost | None, part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the conditions of a part that the host does not settle; None if the host rules it out."""
    left = {}
    for key, wanted in part.items():
        if key == "also" or key in BOTH or key in WORKLOAD:
            left[key] = wanted
            continue
        answer = host is not None and HOST[key](host, wanted)
        if answer is False:
            return None
        if answer is None:
            left[key] = wanted
    return left


def judge(
    row: KnownBad, host: CompatHost | None, workload: Workload | None
) -> CompatFinding | None:
    """Return the finding of `row` for the combination, or None if the row does not apply."""
    return _judged(row, row.match, host, workload)


def _judged(
    row: KnownBad,
    parts: Sequence[Mapping[str, Any]],
    host: CompatHost | None,
    workload: Workload | None,
) -> CompatFinding | None:
    answers = [_holds(part, host, workload) for part in parts]
    # Parts are alternatives: one that may hold is enough.
    if not any(answer.holds is not False for answer in answers):
        return None
    if workload is None:
        subject = about(host, *_lines(row)) if host is not None else FindingSubject("")
    else:
        subject = about(workload)
        if host is not None:
            subject = subject._replace(name=f"{workload.subject} on {host.subject}")
    if any(answer.holds for answer in answers):
        message = f"known to be bad ({row.id}): {row.symptom}"
        severity: CompatSeverity = row.severity
    else:
        open_ = next(answer.open for answer in answers if answer.holds is None)
        if host is not None and host.unlocked and set(open_) & _OF_THE_LOCK:
            return None  # rule no-lock reports this once
        message = (
            f"may be what is known to be bad ({row.id}): {row.symptom}; not known is "
            f"{_listed(_WORDS.get(key, key) for key in open_)}"
        )
        severity = "unknown"
    return subject.finding(
        RULE,
        severity,
        message,
        row.origins,
        remedy=_provable(row, workload),
        doubt=row.doubt,
        row=row.id,
    )


# A fix that begins with one of these is a sentence; any other names a version to use.
_VERBS = (
    "use",
    "stay",
    "plan",
    "do",
    "set",
    "turn",
    "install",
    "enable",
    "reload",
    "remove",
    "keep",
    "blacklist",
    "take",
    "reboot",
)


def _remedy(fix: str) -> str | None:
    """Return the fix of a row as an instruction; None if there is no fix."""
    if fix.startswith("none"):
        return None
    return fix if fix.split(" ")[0] in _VERBS else f"use {fix}"


# The part of a combination that a row's fix is about, by the condition that it changes.
_FIXES = ("toolkit", "amdgpu", "rocm", "cudnn", "cuda", "driver", "branch")
_NO_FIX = (
    "change another part of the combination: the fix that is known does not fit the rest of it"
)


def _provable(row: KnownBad, workload: Workload | None) -> str | None:
    """Return the fix of a row, as a remedy that is judged if it names versions of what the row is about.

    A fix that begins with other words is in software that a combination does not state.
    """
    text = _remedy(row.fix)
    conditions = {key for part in row.match for key in part}
    build = re.match(r"cu\d+(?= build)", row.fix)
    if build is not None and workload is not None and "torch" in workload.frameworks:
        version = f"{workload.frameworks['torch'].partition('+')[0]}+{build[0]}"
        return CompatRemedy.of(
            [remedies.framework("torch", version, row.fix, workload)], otherwise=_NO_FIX
        )
    part = next((name for name in _FIXES if name in conditions), None)
    later_branch = re.fullmatch(r"(?:use )?(?:driver )?(\d{3}) or later", row.fix)
    if later_branch is not None and part == "driver":
        named_branch = remedies.driver(later_branch[1], "driver branch {} or later")
        return CompatRemedy.of([named_branch], otherwise=_NO_FIX)
    named = re.match(r"(?:use )?((?:driver |CUDA |ROCm )?)(?=\d+\.\d)", row.fix)
    if text is None or part is None or named is None:
        return text
    versions = re.findall(r"\d+(?:\.\d+)+", row.fix)
    if part in ("driver", "branch"):  # each version is of another branch
        drivers = [remedies.driver(version, text.removeprefix("use ")) for version in versions]
        return CompatRemedy.of(drivers, otherwise=_NO_FIX)
    later = " or later" if "or later" in row.fix else ""
    groups = [[_fixing(part, version, f"{named[1]}{version}{later}")] for version in versions]
    return CompatRemedy.of(*groups, between=" or ", otherwise=_NO_FIX)


def _fixing(part: str, version: str, text: str) -> remedies.RemedyOption:
    if part == "cuda":
        return remedies.cuda(version, text)
    if part in ("toolkit", "amdgpu"):
        return remedies.of_host(text, **{part: version})
    return remedies.of_workload(text, **{part: version})


def without_repetitions(found: list[CompatFinding]) -> list[CompatFinding]:
    """Return `found` without rows of the list whose own rule reports at least the same severity."""
    # A warning or an unknown of the rule must not hide a row that blocks.
    weight = {"warn": 0, "unknown": 0, "block": 1}
    rule_of = {row.id: row.rule for row in rows()} if any(finding.row for finding in found) else {}
    heaviest: dict[str, int] = {}
    for finding in found:
        if finding.row is None:
            heaviest[finding.rule] = max(heaviest.get(finding.rule, 0), weight[finding.severity])
    return [
        finding
        for finding in found
        if finding.row is None
        or weight[finding.severity] > heaviest.get(rule_of.get(finding.row) or "", -1)
    ]


# Conditions that depend on a lock, and descriptions of conditions for findings about unknown
# values.
_OF_THE_LOCK = {
    "driver",
    "package",
    "package_not",
    "kernel",
    "toolkit",
    "toolkit_mode",
    "engine",
    "amdgpu",
}
_WORDS = {
    **dict.fromkeys(
        ("package", "package_not"), "the version of the package that contains the module"
    ),
    "cmdline_lacks": "the kernel's command line",
    "page_kib_not": "the page size of the kernel",
    "driver": "the driver's version",
    "kernel": "the kernel's exact version",
    "toolkit_mode": "how the engine gives GPUs to containers",
    "flavour": "the flavour of the kernel modules",
    "driver_from": "which archive the driver is from",
    "forward_compat": "whether it has the forward-compatibility package",
    "torch_cuda": "which CUDA its torch was built for",
    "cuda_newer": "which CUDA the driver runs natively",
}


def _listed(words: Any) -> str:
    return ", ".join(dict.fromkeys(words))


def _lines(row: KnownBad) -> tuple[str, ...]:
    keys = [key for part in row.match for key in part]
    lines = {
        "gpu": "gpu",
        "toolkit": "toolkit",
        "engine": "engine",
        "kernel": "kernel",
        "driver": "driver",
        "page_kib_not": "kernel",
        "cmdline_lacks": "policy",
    }
    return tuple(
        lines[key]
        for key in ("toolkit", "engine", "driver", "kernel", "page_kib_not", "cmdline_lacks", "gpu")
        if key in keys
    )


@dataclasses.dataclass(frozen=True)  # made by thousands
class _Held:
    holds: Answer
    open: tuple[str, ...] = ()


def _holds(part: Mapping[str, Any], host: CompatHost | None, workload: Workload | None) -> _Held:
    """Return whether all conditions hold: False at the first that fails, None if some cannot be checked."""
    unsettled: list[str] = []
    for key, wanted in part.items():
        if key == "also":
            unsettled.append(str(wanted))
            continue
        if key in BOTH:
            answer: Answer = (
                host is not None and workload is not None and BOTH[key](host, workload, wanted)
            )
        elif key in WORKLOAD:
            answer = workload is not None and WORKLOAD[key](workload, wanted)
        else:
            answer = host is not None and HOST[key](host, wanted)
        if answer is False:
            return _Held(False)
        if answer is None:
            unsettled.append(f"whether it uses {_listed(wanted)}" if key == "features" else key)
    return _Held(None if unsettled else True, tuple(unsettled))


# Versions


def in_range(version: str, wanted: str | Sequence[str]) -> bool:
    """Return whether `version` is in a range, or in one of several, by its leading numbers."""
    return _within(version, (wanted,) if isinstance(wanted, str) else tuple(wanted))


@lru_cache(maxsize=16384)
def _within(version: str, ranges: tuple[str, ...]) -> bool:
    """Cached body of `in_range`: many checks repeat the same few comparisons."""
    return any(
        all(_compares(_by_numbers(version, limit), sign) for sign, limit in _parts(item))
        for item in ranges
    )


@cache
def _parts(text: str) -> list[tuple[str, str]]:
    """Return the comparators of a range: ">=550 <550.54.14" gives (">=", "550") and ("<", "550.54.14").

    No comparator means "=".
    """
    parts = []
    for part in str(text).split():
        version = part.lstrip("<>=")
        parts.append((part.removesuffix(version) or "=", version))
    return parts


def _by_numbers(version: str, limit: str) -> int:
    """Compare as -1, 0, 1. A shorter limit equals all versions that begin with it: 595 equals 595.71.05."""
    own, other = numbers(version), numbers(limit)
    if len(own) < len(other):
        own = own + (0,) * (len(other) - len(own))
    own = own[: len(other)] if own[: len(other)] == other else own
    return (own > other) - (own < other)


def _compares(sign: int, wanted: str) -> bool:
    return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0, "=": sign == 0}[wanted]


def _version(value: str | None, wanted: Any) -> Answer:
    return value is not None and in_range(value, wanted)


# Conditions on the host


def _kernel(host: CompatHost, wanted: Any) -> Answer:
    if host.kernel is None and host.kernel_version is None:
        return False
    # A range of possible versions gives a definite answer only if both ends agree.
    first, last = kernel_range(host)
    answers = {in_range(first, wanted), in_range(last, wanted)}
    return answers.pop() if len(answers) == 1 else None


def kernel_range(host: CompatHost) -> tuple[str, str]:
    """Return the oldest and newest upstream version that the host's kernel can have.

    A release like 6.1.0-56-amd64 names only a series.
    """
    text = host.kernel_version or host.kernel or ""
    version = numbers(text)
    if host.kernel_version is not None or (len(version) > 2 and version[2] > 0):
        return text, text
    series = ".".join(str(part) for part in version[:2])
    return series, f"{series}.9999"


def _driver(host: CompatHost, wanted: Any) -> Answer:
    if host.driver is not None:
        return in_range(host.driver, wanted)
    if host.branch is None or host.vendor != "nvidia" or host.branch not in facts.branches():
        return False
    # Without a lock: any known point release of the branch may be installed.
    matches = {in_range(version, wanted) for version in facts.branch(host.branch).point_releases}
    if len(matches) == 1:
        return matches.pop()
    return None if matches else False


def _package(host: CompatHost, wanted: Any) -> Answer:
    if host.driver_package is None:
        return None if host.branch is not None else False
    version = host.driver_package
    # With the revision and in dpkg's order: patches of Debian come with revisions.
    ranges = [wanted] if isinstance(wanted, str) else wanted
    return any(
        all(_compares(compare(version, limit), sign) for sign, limit in _parts(item))
        for item in ranges
    )


def _fabric_manager(host: CompatHost, wanted: Any) -> Answer:
    if wanted == "absent":
        return host.fabric_manager is None and host.fabric_manager_package is None
    return (
        host.fabric_manager is not None
        and host.driver is not None
        and host.fabric_manager != host.driver
    )


def _package_not(host: CompatHost, wanted: Any) -> Answer:
    if host.driver_package is None and host.branch:
        return None
    return not in_range(host.driver_package or "0", [f"={item}" for item in wanted])


def _engine(host: CompatHost, wanted: Mapping[str, Any]) -> Answer:
    if host.engine is None or host.engine not in wanted:
        return False
    if host.engine_version is None:
        return None
    return in_range(facts.release_numbers(host.engine_version), wanted[host.engine])


def _mixed(host: CompatHost, wanted: Any) -> Answer:
    return all(any(gpu.architecture in side for gpu in host.gpus) for side in wanted)


def _features(host: CompatHost, wanted: Any) -> Answer:
    answers = [host.features.get(name) for name in wanted]
    # Three values: one match is enough, and an unknown one leaves it open.
    return True in answers or (None if None in answers else False)


def _cmdline_lacks(host: CompatHost, wanted: Any) -> Answer:
    return None if host.cmdline is None else not set(wanted) <= set(host.cmdline)


def _known(value: Any, present: bool, wanted: Any) -> Answer:
    if value is not None:
        return value in _list(wanted)
    return None if present else False


def _list(wanted: object) -> list[object]:
    return as_rows(wanted)


def _realtime(host: CompatHost, wanted: Any) -> Answer:
    # Debian's release has the word: 6.1.0-56-rt-amd64.
    realtime = re.search(r"(^|-)rt(\d|-|$)", (host.kernel or "").partition("-")[2]) is not None
    return realtime if wanted else not realtime


def _from_debian(host: CompatHost, wanted: Any) -> Answer:
    return (
        None if not host.archives else all(name.startswith(str(wanted)) for name in host.archives)
    )


HOST: Mapping[str, Callable[[CompatHost, Any], Answer]] = {
    "kernel": _kernel,
    "driver": _driver,
    "package": _package,
    "package_not": _package_not,
    "branch": lambda host, wanted: _version(
        host.branch if host.vendor == "nvidia" else None, wanted
    ),
    "toolkit": lambda host, wanted: _version(host.toolkit, wanted),
    "amdgpu": lambda host, wanted: _version(host.amdgpu, wanted),
    "engine": _engine,
    "flavour": lambda host, wanted: _known(host.flavour, host.branch is not None, wanted),
    "toolkit_mode": lambda host, wanted: _known(
        host.toolkit_mode, host.toolkit is not None, wanted
    ),
    "vendor": lambda host, wanted: host.vendor == wanted,
    "os": lambda host, wanted: host.os in _list(wanted),
    "os_not": lambda host, wanted: host.os is not None and host.os not in _list(wanted),
    "driver_from": _from_debian,
    "fabric_manager": _fabric_manager,
    "nvswitch": lambda host, wanted: host.nvswitch == wanted and not host.simulated,
    "realtime": _realtime,
    "gpu": lambda host, wanted: any(
        fnmatchcase(gpu.sku, name) for gpu in host.gpus for name in wanted
    ),
    "architecture": lambda host, wanted: any(gpu.architecture in wanted for gpu in host.gpus),
    "mixed": _mixed,
    "packages": lambda host, wanted: any(name in host.packages for name in wanted),
    "features": _features,
    "cmdline_lacks": _cmdline_lacks,
    "page_kib_not": lambda host, wanted: host.page_kib not in (None, wanted),
}


# Conditions on both


def _cuda_newer(host: CompatHost, workload: Workload, wanted: Any) -> Answer:
    if workload.cuda is None or host.branch is None or host.branch not in facts.branches():
        return False
    native = facts.branch(host.branch).max_cuda
    return None if native is None else (numbers(workload.cuda)[:2] > numbers(native)[:2]) == wanted


BOTH: Mapping[str, Callable[[CompatHost, Workload, Any], Answer]] = {"cuda_newer": _cuda_newer}


# Conditions on the workload


def _torch_cuda(workload: Workload, wanted: Any) -> Answer:
    if "torch" not in workload.frameworks:
        return False
    build = torch(workload.frameworks["torch"])
    if build is not None and build.default and workload.kind == "image":
        return (
            None  # only a requirement without a local version gives the build of the package index
        )
    if build is None or build.build is None:
        return False if re.search(r"\+(rocm|cpu|xpu)", workload.frameworks["torch"]) else None
    return build.cuda is not None and in_range(build.cuda, wanted)


def _image(workload: Workload, wanted: Any) -> Answer:
    return fnmatchcase(workload.subject.removeprefix("image "), str(wanted))


WORKLOAD: Mapping[str, Callable[[Workload, Any], Answer]] = {
    "cuda": lambda workload, wanted: _version(workload.cuda, wanted),
    "cudnn": lambda workload, wanted: _version(workload.cudnn, wanted),
    "rocm": lambda workload, wanted: _version(workload.rocm, wanted),
    "torch": lambda workload, wanted: _version(workload.frameworks.get("torch"), wanted),
    "torch_cuda": _torch_cuda,
    "forward_compat": lambda workload, wanted: _known(
        workload.forward_compat, workload.cuda is not None, wanted
    ),
    "image": _image,
}

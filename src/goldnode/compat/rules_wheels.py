"""Rules about Python wheels: their tags, and what they require of each other.

The facts are metadata that pip's resolver reads too (`Requires-Dist`, wheel tags), as recorded on
one day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from goldnode.compat import remedies
from goldnode.compat.model import (
    CompatFinding,
    CompatHost,
    CompatRule,
    CompatSeverity,
    FindingSubject,
    Workload,
)
from goldnode.compat.remedies import PYTHONS, CompatRemedy, RemedyOption, nearest
from goldnode.compat.rules_workload import (
    framework_python,
    framework_version,
    several_frameworks,
)
from goldnode.facts import wheels
from goldnode.facts.host import read_until
from goldnode.facts.workload import covers, key, public
from goldnode.facts.workload import torch as torch_build
from goldnode.node.ground.text import and_more, phrase

# Pins that framework-libraries judges.
_JUDGED = re.compile(r"nvidia-(?:cudnn|nccl)-cu\d\d")
_FRAMEWORKS = ("torch", "tensorflow", "jax")
# Packages that require exact versions of others.
_PINNING = (*_FRAMEWORKS, "jaxlib", "vllm", "cuda-toolkit")


@dataclass(frozen=True)
class _Demand:
    """A requirement, and the chain of packages that leads to it."""

    requirement: Requirement
    owner: str
    chain: str

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def exact(self) -> str | None:
        """Return the only version that satisfies the specifier (``==2.5.1``, or ``<=0.5,>=0.5``), or None."""
        versions = {
            item.version
            for item in self.requirement.specifier
            if item.operator in ("==", "<=", ">=")
        }
        signs = {item.operator for item in self.requirement.specifier}
        only = signs in ({"=="}, {"<=", ">="}) and len(versions) == 1
        version = versions.pop() if only else None
        return version if version is not None and not version.endswith(".*") else None


@dataclass
class _Closure:
    """The pins of a workload with those that they imply, and all demands between them."""

    machine: str
    python: str | None
    pinned: dict[str, str]
    implied: dict[str, tuple[str, str]] = field(default_factory=dict)
    demands: list[_Demand] = field(default_factory=list)
    optional: list[_Demand] = field(default_factory=list)  # of extras that no line names
    unread: list[str] = field(default_factory=list)

    @property
    def demanded(self) -> set[str]:
        """Return the packages that a recorded release requires."""
        return {demand.name for demand in (*self.demands, *self.optional)}

    def whole(self) -> bool:
        """Return whether every package is pinned that the pinned releases require: the file is a resolver's answer."""
        needed = self.demands or self.optional
        return bool(needed) and all(demand.name in self.pinned for demand in needed)


@cache
def _parsed(text: str) -> Requirement:
    return Requirement(text)


def _machine(host: CompatHost | None) -> str:
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(
        host.architecture if host else "amd64", "x86_64"
    )


@cache
def _marker(text: str) -> str | None:
    """Return the marker of a requirement; `packaging` writes its text again at each call."""
    marker = _parsed(text).marker
    return None if marker is None else str(marker)


def _applies(text: str, closure: _Closure, extras: Iterable[str]) -> bool:
    """Return whether the marker holds; for an unknown Python, whether it holds for every one of them."""
    marker = _marker(text)
    return marker is None or _holds(marker, closure.machine, closure.python, ("", *extras))


@cache
def _holds(marker: str, machine: str, python: str | None, extras: tuple[str, ...]) -> bool:
    """Cached body of `_applies`: many wheels have the same few markers."""
    pythons = (python,) if python else PYTHONS
    parsed = Marker(marker)

    def holds(version: str, extra: str) -> bool:
        return parsed.evaluate(
            {
                "os_name": "posix",
                "sys_platform": "linux",
                "platform_system": "Linux",
                "platform_machine": machine,
                "python_version": version,
                "python_full_version": f"{version}.0",
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
                "extra": extra,
            }
        )

    return any(all(holds(version, extra) for version in pythons) for extra in extras)


@cache
def _extras_of(text: str) -> tuple[str, ...]:
    """Return the extras that the marker of a requirement names."""
    return tuple(re.findall(r"extra\s*==\s*[\"']([^\"']+)[\"']", text))


def _closure(host: CompatHost | None, workload: Workload) -> _Closure:
    python = None if workload.python is None else ".".join(map(str, key(workload.python)[:2]))
    closure = _Closure(_machine(host), python, dict(workload.pins))
    queue = [
        (name, version, tuple(workload.extras.get(name, ())), f"{name} {version}")
        for name, version in closure.pinned.items()
    ]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while queue:
        # Breadth first: of several chains, the shortest is named.
        name, version, extras, chain = queue.pop(0)
        release = wheels.packages().get(name, {}).get(_public(name, version))
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        implied = name in _PINNING and name not in closure.pinned
        if (release is not None and release.requires is None) or (release is None and implied):
            closure.unread.append(chain)
        if release is None or release.requires is None:
            continue
        for text in release.requires:
            demand = _Demand(_parsed(text), name, chain)
            if _of_another_build(name, version, demand.name):
                continue
            if not _applies(text, closure, extras):
                if _applies(text, closure, _extras_of(text)):
                    closure.optional.append(demand)
                continue
            closure.demands.append(demand)
            wanted = closure.pinned.get(demand.name) or demand.exact
            if wanted is None:
                continue
            if demand.name not in closure.pinned:
                closure.implied.setdefault(demand.name, (wanted, chain))
            more = tuple(sorted(demand.requirement.extras))
            queue.append(
                (demand.name, wanted, more, f"{demand.name} {wanted} (required by {chain})")
            )
    return closure


def _public(name: str, version: str) -> str:
    """Return the version as the facts have it: 13.0.3 is 13.0.3.0, and 2.8 is 2.8.0."""
    rows = wheels.packages().get(name, {})
    release = version.partition("+")[0]
    if release in rows:
        return release
    numbers = re.sub(r"(\.0)+$", "", release)
    return next((item for item in rows if re.sub(r"(\.0)+$", "", item) == numbers), public(release))


def _of_another_build(name: str, version: str, target: str) -> bool:
    """Return whether a requirement is that of the index's own build of torch, and another build is pinned."""
    build = torch_build(version) if name == "torch" and "+" in version else None
    usual = torch_build(version.partition("+")[0]) if build is not None else None
    other = build is not None and usual is not None and build.build != usual.build
    return other and target.startswith(("nvidia-", "cuda-"))


def _finding(
    rule: str,
    severity: CompatSeverity,
    workload: Workload,
    name: str,
    message: str,
    *,
    remedy: str | None,
) -> CompatFinding:
    rows = wheels.packages().get(name, {})
    sources = next(iter(rows.values())).origins if rows else ()
    place = workload.pin_places.get(name, workload.place)
    recorded = f"wheel metadata as recorded on {wheels.recorded()}"
    return FindingSubject(workload.subject, place).finding(
        rule, severity, message, sources, remedy=remedy, doubt=recorded
    )


def wheel_requires(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the pins of a workload against what the pinned wheels require, through exact pins of their own."""
    if workload is None or not workload.pins:
        return
    closure = _closure(host, workload)
    yield from _missing(workload)
    yield from _disagreements(workload, closure)
    # A resolver has compared what is not recorded here.
    if workload.resolved is None and not closure.whole():
        yield from _not_compared(host, workload, closure)


def _disagreements(workload: Workload, closure: _Closure) -> Iterator[CompatFinding]:
    """Report each pair of packages that cannot be installed together, once."""
    rule = "wheel-requires"
    shown: set[tuple[str, str]] = set()
    for demand in closure.demands:
        name = demand.name
        # A lock file is installed as it is. Its resolver had the metadata of the very wheel, which may be of
        # another index than that of the facts; only an override is against it.
        if workload.locked and name not in workload.overridden:
            continue
        pinned = closure.pinned.get(name)
        have, by = (pinned, None) if pinned is not None else closure.implied.get(name, (None, None))
        if have is None or demand.requirement.specifier.contains(have, prereleases=True):
            continue
        rival = _rival(demand, closure)
        pair = (demand.owner, rival.owner if rival is not None else name)
        if _judged_elsewhere(demand, closure, workload) or {pair, pair[::-1]} & shown:
            continue  # two packages that disagree about one library do so about several: one cause
        shown.add(pair)
        who = "the requirements pin" if by is None else f"{by} requires"
        needs = f"{demand.chain} requires {name}{demand.requirement.specifier}"
        message = f"{needs}, and {who} {have}"
        remedy: str = _agreeing(workload, demand, have, by)
        if workload.locked:
            message = f"{message}: its project overrides what the package requires"
            remedy = "test this combination, which the package is not released with"
        elif rival is not None:
            message = f"{needs}, and {rival.chain} requires {name}{rival.requirement.specifier}: no version satisfies both"
            remedy = CompatRemedy.of(otherwise=_SEPARATE)
        yield _finding(
            rule,
            severity="warn" if workload.locked else "block",
            workload=workload,
            name=demand.owner,
            message=message,
            remedy=remedy,
        )


def _rival(demand: _Demand, closure: _Closure) -> _Demand | None:
    """Return a requirement on the same package that no version satisfies together with `demand`."""
    for other in (*closure.demands, *closure.optional):
        if other.name != demand.name or other.owner == demand.owner:
            continue
        exact = demand.exact or other.exact
        both = (demand, other)
        if exact is not None and not all(
            item.requirement.specifier.contains(exact, prereleases=True) for item in both
        ):
            return other
    return None


def _not_compared(
    host: CompatHost | None, workload: Workload, closure: _Closure
) -> Iterator[CompatFinding]:
    """Report the pins that are compared with nothing: no release that is recorded requires them, or theirs is not."""
    # Pins that framework-version reports are not repeated.
    reported = {finding.message.split(" ")[0] for finding in framework_version(host, workload)}
    demanded = closure.demanded
    alone = []
    for name, version in workload.pins.items():
        if name in reported or name in demanded:
            continue
        if name in wheels.packages():
            yield from _not_recorded(workload, name, version)
        # cuDNN and NCCL have tables of their own; the rule gpu-package lists the others.
        elif wheels.covers(name) and not (_JUDGED.fullmatch(name) or _has_wheel(name, closure)):
            alone.append(f"{name} {version}")
    if alone:
        yield _finding(
            "wheel-requires",
            severity="unknown",
            workload=workload,
            name=alone[0].split(" ")[0],
            message=f"no release that is pinned requires {', '.join(alone[:6])}{and_more(len(alone) - 6)}, and nothing "
            f"recorded says whether there is a wheel for {closure.machine}",
            remedy=_RESOLVE,
        )
    for chain in closure.unread:
        yield _finding(
            "wheel-requires",
            severity="unknown",
            workload=workload,
            name=chain.split(" ")[0],
            message=f"the requirements of {chain} were not recorded, so that pins are not validated against them",
            remedy=_RESOLVE,
        )


def _has_wheel(name: str, closure: _Closure) -> bool:
    """Return whether the pinned release has a wheel for the machine and the Python."""
    wheel = wheels.gpu_wheel(name, closure.pinned[name].partition("+")[0])
    return wheel is not None and wheel.is_known_for(closure.machine, closure.python)


def _agreeing(workload: Workload, demand: _Demand, have: str, by: str | None) -> CompatRemedy:
    """Return the pins with which two requirements agree, as a remedy: of the required package, or of its owner."""
    name, owner = demand.name, demand.owner
    known = [
        version
        for version in wheels.packages().get(name, ())
        if demand.requirement.specifier.contains(version, prereleases=True)
    ]
    wanted = [demand.exact] if demand.exact is not None else nearest(have, known)
    of_name = [
        remedies.pin(name, version, f"pin {name}=={version}")
        for version in wanted
        if version and by is None
    ]
    others = [
        version
        for version, release in wheels.packages().get(owner, {}).items()
        if any(
            canonicalize_name(_parsed(text).name) == name
            and _parsed(text).specifier.contains(have, prereleases=True)
            for text in release.requires or ()
        )
    ]
    of_owner = [
        remedies.pin(owner, version, f"pin {owner}=={version}, which takes {name} {have}")
        for version in (nearest(workload.pins[owner], others) if owner in workload.pins else ())
    ]
    return CompatRemedy.of(of_name, of_owner, verb="", otherwise=_SEPARATE)


_SEPARATE = "install the two in separate environments, or use releases of one time: no single pin satisfies both"


def _missing(workload: Workload) -> Iterator[CompatFinding]:
    """Report pins that require a release which the package index does not have."""
    for name, version in workload.pins.items():
        release = wheels.packages().get(name, {}).get(_public(name, version))
        for text in release.missing if release is not None else ():
            yield _finding(
                "wheel-requires",
                severity="block",
                workload=workload,
                name=name,
                message=f"{name} {version} requires {text}, of which the package index had no wheel",
                remedy=_other_release(
                    name,
                    version,
                    fits=lambda release: not release.missing,
                    otherwise=f"use an index that has {text}, or another release of {name} and what is pinned for it",
                ),
            )


_RESOLVE = "run `pip install --dry-run -r FILE` on one node of the class"


def _not_recorded(workload: Workload, name: str, version: str) -> Iterator[CompatFinding]:
    known = wheels.packages().get(name)
    if known is None or _public(name, version) in known:
        return
    others = [
        remedies.pin(name, item, f"{name} {item}, the nearest that is known to fit")
        for item in nearest(version, known)
    ]
    yield _finding(
        "wheel-requires",
        severity="unknown",
        workload=workload,
        name=name,
        message=f"{name} {version} is not among the releases whose wheel metadata was recorded; "
        f"{read_until('wheels.yml', 'releases of wheels')}",
        remedy=CompatRemedy.of(others, otherwise=_RESOLVE),
    )


def _judged_elsewhere(demand: _Demand, closure: _Closure, workload: Workload) -> bool:
    """Return whether framework-libraries reports this demand."""
    if workload.locked:
        return False
    if several_frameworks(workload):
        return demand.owner == "vllm" and demand.name == "torch"
    if demand.owner == "torch" and "vllm" in closure.pinned and _JUDGED.fullmatch(demand.name):
        return True
    if demand.owner not in closure.pinned:
        return False
    if demand.owner == "vllm" and demand.name == "torch":
        return True
    return demand.owner in _FRAMEWORKS and _JUDGED.fullmatch(demand.name) is not None


def _with_frameworks(host: CompatHost | None, workload: Workload) -> set[str]:
    """Return the packages that judged ones require, directly or not: they are built and tested together."""
    closure = _closure(host, workload)
    required: dict[str, set[str]] = {}
    for demand in (*closure.demands, *closure.optional):
        required.setdefault(demand.owner, set()).add(demand.name)
    for name, requirers in workload.requirers.items():
        for requirer in requirers:
            required.setdefault(requirer, set()).add(name)
    judged = [
        name
        for name, version in workload.pins.items()
        if name in _JUDGING
        or (name == "onnxruntime-gpu" and "onnxruntime" in workload.frameworks)
        or wheels.need(name, version) is not None
        or _code_of(name, workload) is not None
    ]
    for name in workload.pins:
        wheel = wheels.gpu_wheels().get(name)
        required.setdefault(name, set()).update(wheel.requires if wheel is not None else ())
    with_them: set[str] = set()
    while judged:
        name = judged.pop()
        if name not in with_them:
            with_them.add(name)
            judged += required.get(name, ())
    return with_them


# Packages whose GPUs other rules judge, with what they require.
_JUDGING = (*_FRAMEWORKS, "jaxlib", "vllm")
# Their builds follow that of torch, which requires one of them and is required by the others.
_OF_TORCH = ("torchvision", "torchaudio", "triton")


def gpu_package(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Compare packages that use the GPU with it, and list those that cannot be judged."""
    if host is None or workload is None or host.vendor is None or not workload.uses_gpu:
        return
    if host.vendor == "nvidia":
        yield from _needs(host, workload)
        yield from _has_code(host, workload)
    judged = _with_frameworks(host, workload)
    if {"torch", "vllm"} & {*workload.frameworks, *workload.asked}:
        judged |= set(_OF_TORCH)
    left = {name: place for name, place in workload.uses_gpu.items() if name not in judged}
    if not left:
        return
    names = [f"{name} (line {place.line})" for name, place in left.items()]
    yield _finding(
        "gpu-package",
        severity="unknown",
        workload=workload,
        name=next(iter(left)),
        message=f"not judged is on which drivers and GPUs {', '.join(names[:12])}{and_more(len(names) - 12)} "
        f"{'run' if len(names) > 1 else 'runs'}: no document about that was read, and the code in the wheels was not",
        remedy="run it on one node of the class before it goes to all",
    )


def _code_of(name: str, workload: Workload) -> wheels.GpuWheel | None:
    """Return the wheel of a pinned package if its code for GPUs is known: read now, or recorded for this version."""
    release = workload.pins.get(name, "").partition("+")[0]
    wheel = workload.code.get(name) or wheels.gpu_wheel(name, release)
    return wheel if wheel is not None and wheel.code is not None else None


def _has_code(host: CompatHost, workload: Workload) -> Iterator[CompatFinding]:
    """Compare the code in wheels with the GPUs. A wheel without any leaves it to what it requires."""
    for name in workload.uses_gpu:
        wheel = _code_of(name, workload)
        if wheel is None or not (wheel.code or wheel.ptx) or wheels.need(name, wheel.version):
            continue
        for gpu in {gpu.sku: gpu for gpu in host.gpus}.values():
            have = gpu.compute_capability
            if have is None or any(covers(item, have) for item in wheel.code or ()):
                continue
            later = [item for item in wheel.ptx if key(item) <= key(have)]
            listed = ", ".join(wheel.code or ()) or "PTX alone"
            subject = FindingSubject(workload.subject, workload.pin_places.get(name))
            where = f"{gpu.sku} (compute capability {have}) of {host.subject}"
            if later:
                yield subject.warn(
                    "gpu-package",
                    f"{name} {wheel.version} has no machine code for {where}, only PTX of {later[-1]} that the driver "
                    "compiles at the first start",
                    wheel.origins,
                    remedy="use a later release, if the first start takes too long",
                )
                continue
            # An extension of torch has kernels of its own for some functions, and torch's or Triton's for others.
            extension = any(item.startswith("libtorch") for item in wheel.needs)
            message = f"{name} {wheel.version} was built for compute capabilities {listed}, and not for {where}"
            message += ": its functions with kernels of their own fail" if extension else ""
            yield subject.finding(
                "gpu-package",
                "warn" if extension else "block",
                message,
                wheel.origins,
                remedy=f"use another release of {name}, or build it for this GPU",
            )


def _needs(host: CompatHost, workload: Workload) -> Iterator[CompatFinding]:
    """Compare the compute capability that documents of packages name with that of the GPUs."""
    shown: set[tuple[str, str]] = set()
    for name in workload.uses_gpu:
        version = workload.pins.get(name)
        need = wheels.need(name, version)
        least = need.compute_capability if need is not None else None
        if need is None or least is None:
            continue
        for gpu in {gpu.sku: gpu for gpu in host.gpus}.values():
            have = gpu.compute_capability
            # A suite of packages has one need: it is reported for the first of them.
            if have is None or key(have) >= key(least) or (least, gpu.sku) in shown:
                continue
            shown.add((least, gpu.sku))
            place = workload.pin_places.get(name, workload.uses_gpu[name])
            yield FindingSubject(workload.subject, place).block(
                "gpu-package",
                f"{name}{phrase(' {}', version)} needs compute capability {least} or higher; {gpu.sku} of {host.subject} "
                f"has {have}",
                need.origins,
                remedy=CompatRemedy.of(
                    [RemedyOption("use GPUs of a later architecture")],
                    [remedies.without(name, workload, f"leave {name} out")],
                    verb="",
                ),
            )


def wheel_tags(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check that a wheel of each pinned package exists for the machine and the Python."""
    if workload is None:
        return
    rule, machine = "wheel-tags", _machine(host)
    pins = workload.pins if workload.kind == "requirements" else workload.frameworks
    python = None if workload.python is None else ".".join(map(str, key(workload.python)[:2]))
    judged = {finding.message.split(" ")[0] for finding in framework_python(host, workload)}
    fitting = set(PYTHONS)
    limits: list[str] = []
    refused = bool(judged)
    for name, version in pins.items():
        release = wheels.packages().get(name, {}).get(_public(name, version))
        if release is None or "+" in version:
            continue  # wheel-requires or framework-version reports this; other builds are on other indexes
        called = f"{name} {version}"
        if not release.wheels:
            yield _finding(
                rule,
                severity="unknown",
                workload=workload,
                name=name,
                message=f"{called} has no wheel: pip builds it from source, against the torch and CUDA that it finds",
                remedy="build a wheel of it once, and pin that file",
            )
            continue
        tags = release.tags(machine)
        if not tags:
            refused = True
            yield _finding(
                rule,
                severity="block",
                workload=workload,
                name=name,
                message=f"{called} has no wheel for {machine}, only for {' and '.join(release.wheels)}",
                remedy=_other_release(
                    name,
                    version,
                    fits=lambda release: bool(release.tags(machine)),
                    otherwise=f"build a wheel for {machine}: no release is known that has one and fits the rest",
                ),
            )
            continue
        served = {
            item for item in PYTHONS if release.has_wheel(machine, item) and _allows(release, item)
        }
        if python is None:
            if name in workload.pins and served != set(PYTHONS):
                fitting &= served
                limits.append(called)
        elif python not in served and name not in judged:
            refused = True
            yield _finding(
                rule,
                severity="block",
                workload=workload,
                name=name,
                message=f"{called} has {_spans(served)} on {machine}, and the workload has Python {workload.python}",
                remedy=_other_python(served, python),
            )
    if limits:
        yield _common_python(workload, limits, fitting)
    if python is not None and workload.kind == "requirements" and not refused:
        yield from _implied_tags(host, workload, python)


def _implied_tags(
    host: CompatHost | None, workload: Workload, python: str
) -> Iterator[CompatFinding]:
    """Check that the releases that pinned ones require exactly have a wheel for the machine and the Python."""
    closure = _closure(host, workload)
    for name, (version, chain) in closure.implied.items():
        release = wheels.packages().get(name, {}).get(_public(name, version))
        if release is None or not release.wheels:
            continue
        served = {
            item
            for item in PYTHONS
            if release.has_wheel(closure.machine, item) and _allows(release, item)
        }
        if python not in served:
            yield _finding(
                "wheel-tags",
                severity="block",
                workload=workload,
                name=name,
                message=f"{name} {version}, which {chain} requires, has {_spans(served)} on {closure.machine}",
                remedy=_other_python(served, python),
            )


def _common_python(workload: Workload, limits: list[str], fitting: set[str]) -> CompatFinding:
    name = limits[0].split(" ")[0]
    if not fitting:
        return _finding(
            "wheel-tags",
            severity="block",
            workload=workload,
            name=name,
            message=f"no Python has wheels of all of {', '.join(limits)}",
            remedy="use releases of one time",
        )
    return _finding(
        "wheel-tags",
        severity="warn",
        workload=workload,
        name=name,
        message=f"the Python that installs it is not known; {', '.join(limits)} {'have' if len(limits) > 1 else 'has'} "
        f"{_spans(fitting)}",
        remedy=_other_python(fitting),
    )


def _allows(release: wheels.WheelRelease, python: str) -> bool:
    if release.requires_python is None:
        return True
    # Some patch level must be admitted: >=3.9.2 is no reason to refuse Python 3.9.
    return _parsed(f"x{release.requires_python}").specifier.contains(
        f"{python}.99", prereleases=True
    )


def _ordered(pythons: Iterable[str]) -> list[str]:
    return sorted(pythons, key=key)


def _spans(pythons: Iterable[str]) -> str:
    ordered = _ordered(pythons)
    if not ordered:
        return "no wheel for a Python 3.8 to 3.15"
    return f"wheels for Python {ordered[0]}" + (f" to {ordered[-1]}" if len(ordered) > 1 else "")


def _other_python(fitting: Iterable[str], have: str | None = None) -> CompatRemedy:
    return CompatRemedy.of(remedies.pythons(fitting, have), otherwise="use another release")


def _other_release(
    name: str, version: str, fits: Callable[[wheels.WheelRelease], bool], otherwise: str
) -> CompatRemedy:
    """Return the remedy of the nearest releases of a package that fit."""
    known = [item for item, release in wheels.packages()[name].items() if fits(release)]
    options = [remedies.pin(name, item, f"pin {name}=={item}") for item in nearest(version, known)]
    return CompatRemedy.of(options, verb="", otherwise=otherwise)


RULES: tuple[CompatRule, ...] = (
    CompatRule(
        "wheel-requires",
        "Pinned wheels require each other's versions",
        "The Requires-Dist of each pinned wheel is compared with the other pins, and with the pins that exact "
        "requirements imply: vllm pins torch, torch pins nvidia-cudnn. Two that disagree cannot be installed "
        "together. Markers are evaluated for Linux and the machine of the class. Facts: wheels.yml.",
        wheel_requires,
    ),
    CompatRule(
        "gpu-package",
        "A package that uses the GPU is judged, or listed as not judged",
        "A package may carry code for GPUs of its own. The compute capability that its documents name is compared with "
        "the GPUs, and its CUDA family in a name (-cu13, -cuda13x) or local version (+cu126) by cuda-driver and cuda-gpu. "
        "A package that a judged framework requires is judged with it. All others are listed once, as not judged. "
        "Facts: wheels.yml (needs).",
        gpu_package,
    ),
    CompatRule(
        "wheel-tags",
        "Pinned packages have a wheel for the Python and the machine",
        "The tags of the wheels of each pinned release name Pythons and machines. A release without wheels is "
        "built from source. Where the Python is not known, the Pythons that fit all pins are reported. Facts: "
        "wheels.yml.",
        wheel_tags,
    ),
)

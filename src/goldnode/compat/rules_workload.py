"""Rules about workloads: CUDA, cuDNN, NCCL, the frameworks and ROCm, against the node and against each other.

Each rule is a pure function of host and workload over the facts. It ignores properties that are not
given, and returns `unknown` if the facts do not cover a property. A finding's doubt holds the
reservations of the deciding rows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.specifiers import SpecifierSet

from goldnode.compat import remedies, require
from goldnode.compat.model import (
    CompatFinding,
    CompatHost,
    CompatRule,
    CompatSeverity,
    Workload,
    about,
)
from goldnode.compat.remedies import PYTHONS, CompatRemedy, RemedyOption, nearest
from goldnode.facts import wheels
from goldnode.facts import workload as facts
from goldnode.facts.host import GpuModel, Origin, fixed_branches, load, origins, read_until
from goldnode.facts.workload import (
    CudaMinor,
    closest,
    key,
    lists_system,
    minor,
    same,
    satisfies,
)
from goldnode.node.ground.text import and_more, phrase


@dataclass(frozen=True)
class CudaRuntime:
    """A CUDA runtime in a workload: its version, what ships it, and the sources.

    An image may contain several.
    """

    version: str
    bringer: str | None  # "torch 2.8.0 (cu128)"; None: the workload states it itself
    sources: tuple[Origin, ...] = ()
    doubt: str | None = None
    family: bool = False  # only the CUDA family is known, and `version` is its first minor

    def __str__(self) -> str:
        return f"CUDA {self.version}" + phrase(" of {}", self.bringer)


def runtimes(workload: Workload) -> list[CudaRuntime]:
    """Return the CUDA runtimes of a workload, one per minor: its own, and those of its frameworks."""
    # The workload's own statement goes first; frameworks only add other minors.
    by_minor: dict[str, CudaRuntime] = {}
    if workload.cuda is not None:
        by_minor[minor(workload.cuda)] = CudaRuntime(workload.cuda, None)
    torch = _torch(workload)
    if torch is not None and torch[0].cuda is not None:
        build, called = torch
        remark = None
        if build.default and workload.kind == "requirements":
            remark = "assumed: the wheel that the package index gives by itself"
        by_minor.setdefault(
            build.cuda or "", CudaRuntime(build.cuda or "", called, build.sources, remark)
        )
    major = workload.library_cuda.get("tensorflow")
    row = None
    if major is not None:
        row = facts.tensorflow().get(facts.public(workload.frameworks.get("tensorflow", "")))
    if row is not None and row["cudart"]:
        least = ".".join(str(part) for part in key(row["cudart"].partition("=")[2].lstrip("="))[:2])
        name = f"tensorflow {row['version']}"
        if not any(item.split(".")[0] == str(row["cuda_major"]) for item in by_minor):
            by_minor.setdefault(least, CudaRuntime(least, name, facts.framework_sources(row)))
    runtime = facts.onnxruntime(workload.frameworks.get("onnxruntime", "0"))
    if runtime is not None and workload.kind == "requirements" and not by_minor:
        called = f"onnxruntime-gpu {workload.frameworks['onnxruntime']}"
        by_minor[runtime["cuda"]] = CudaRuntime(
            runtime["cuda"], called, facts.framework_sources(runtime)
        )
    return list(by_minor.values())


def _with_families(workload: Workload) -> list[CudaRuntime]:
    """Return the CUDA runtimes of a workload, with the families that only names of packages state."""
    stated = runtimes(workload)
    known = {item.version.partition(".")[0] for item in stated}
    for major in sorted(set(workload.families.values()) - known):
        names = [name for name, family in workload.families.items() if family == major]
        first = next((item for item in facts.cudas() if item.startswith(f"{major}.")), f"{major}.0")
        shown = ", ".join(names[:4]) + and_more(len(names) - 4)
        doubt = f"only the CUDA family is stated, by name or local version; {first} is its first release"
        stated.append(CudaRuntime(first, shown, doubt=doubt, family=True))
    return stated


def _torch(workload: Workload) -> tuple[facts.TorchBuild, str] | None:
    """Return the PyTorch build of a workload and its label: its own, or the one that its vLLM pins."""
    torch = _torch_of_any(workload)
    if torch is None or not on_cpu(workload, torch[0]):
        return torch
    build = dataclasses.replace(torch[0], build="cpu", cudnn=None, nccl=None)
    return (
        build,
        f"torch {build.version} (the CPU build that the package index has for {workload.machine})",
    )


def on_cpu(workload: Workload, build: facts.TorchBuild) -> bool:
    """Return whether the package index has no wheel of this PyTorch with CUDA for the machine: pip takes a CPU build.

    The wheel's own requirements show it: those on CUDA's libraries are for another machine only.
    """
    if workload.kind != "requirements" or not build.default or build.cuda is None:
        return False
    release = wheels.packages()["torch"].get(facts.public(build.version))
    if release is None or release.requires is None or not release.tags(workload.machine):
        return False
    return not release.needs_any(("nvidia-", "cuda-"), workload.machine)


def _torch_of_any(workload: Workload) -> tuple[facts.TorchBuild, str] | None:
    """Return the PyTorch build of a workload as for x86_64."""
    stated = workload.frameworks.get("torch")
    if stated is not None:
        build = facts.torch(stated)
        if build is None:
            return None
        return (build, f"torch {stated.partition('+')[0]} ({build.build or 'build not known'})")
    engine = workload.frameworks.get("vllm")
    row = facts.vllm().get(facts.public(engine)) if engine is not None else None
    # A range of PyTorch versions does not determine the build, and neither do the pins of another build of vLLM.
    if engine is None or row is None or "+" in engine or not str(row["torch"]).startswith("=="):
        return None
    build = facts.torch(row["torch"].removeprefix("=="))
    if build is None:
        return None
    return (build, f"torch {build.version} ({build.build}, pinned by vllm {engine})")


# -- helpers


def _and(names: Iterable[str]) -> str:
    """Join names: "a", "a and b", "a, b and c"."""
    *rest, last = list(names)
    return f"{', '.join(rest)} and {last}" if rest else last


def _or(names: Iterable[str]) -> str:
    return _and(names).replace(" and ", " or ")


def _models(host: CompatHost) -> list[GpuModel]:
    """Return the distinct GPU models of a host."""
    return list({gpu.sku: gpu for gpu in host.gpus}.values())


# -- CUDA and the driver


def cuda_driver(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the CUDA runtime against the driver.

    It runs natively, by minor-version compatibility, by forward compatibility, or not at all.
    """
    if host is None or workload is None or host.vendor != "nvidia":
        return
    for runtime in _with_families(workload):
        yield from _cuda_driver(host, workload, runtime)


def _cuda_driver(
    host: CompatHost, workload: Workload, runtime: CudaRuntime
) -> Iterator[CompatFinding]:
    rule = "cuda-driver"
    row = facts.cudas().get(minor(runtime.version))
    if row is None:
        known = nearest(runtime.version, facts.cudas()) if runtime.bringer is None else []
        remedy = CompatRemedy.of(
            [remedies.cuda(item, f"CUDA {item}, the nearest that is known") for item in known],
            otherwise="check the version",
        )
        yield about(workload).unknown(
            rule,
            f"{runtime} is not among the releases that the facts know, so that nothing says which driver "
            f"it needs; {read_until('cuda.yml', 'CUDA releases')}",
            remedy=remedy,
        )
        return
    branch = _branch(host)
    if branch is None:
        yield about(workload).unknown(
            rule,
            f"{runtime} needs driver {row.minimum} or later; which driver {host.subject} has is not known",
            row.sources,
            remedy="name the driver's branch in the stack, or lock the stack",
        )
        return
    family = facts.families()[key(row.version)[0]]
    driver = host.driver or f"branch {branch}"
    enough = _at_least(host, branch, row.minimum)
    if enough is None:
        yield about(workload).unknown(
            rule,
            f"{runtime} needs driver {row.minimum} or later; {host.subject} has branch {branch}, and "
            "nothing says which version of it",
            family.sources,
            remedy="lock the stack, which makes the driver's version exact",
        )
        return
    native = facts.native_cuda().get(branch)
    if enough:
        if native is not None and key(native) >= key(row.version):
            return
        # GPUs of unknown kind count as well; the finding is then unknown instead of a block.
        models = _models(host)
        spoilt = [gpu for gpu in models if not gpu.data_centre]
        package = _compat_package(workload, row.version)
        if (
            spoilt
            and workload.forward_compat
            and package is not None
            and branch < package.native_from
        ):
            yield _spoilt(
                host,
                workload=workload,
                runtime=runtime,
                row=row,
                package=package,
                driver=driver,
                gpus=spoilt,
            )
        elif (
            workload.forward_compat
            and models
            and not spoilt
            and (package is None or branch < package.native_from)
        ):
            yield _taken_over(host, workload, runtime, row, driver)
        else:
            yield _minor_version(
                host,
                workload=workload,
                runtime=runtime,
                row=row,
                driver=driver,
                branch=branch,
                native=native,
            )
        return
    ends = [
        item.last
        for gpu in _models(host)
        if (item := facts.architectures().get(gpu.compute_capability or "")) is not None
    ]
    if ends and all(
        last is not None and key(row.version) > key(last) for last in ends
    ):  # no driver would help; cuda-gpu reports this
        yield about(workload).block(
            rule,
            f"{runtime} needs driver {row.minimum} or later; {host.subject} has {driver}",
            family.sources,
            remedy=CompatRemedy.of(
                *_older_or_newer(host, workload, runtime, row), otherwise=_ANOTHER_CLASS
            ),
            doubt=runtime.doubt,
        )
        return
    yield _forward(host, workload=workload, runtime=runtime, row=row, driver=driver, branch=branch)


def _compat_package(workload: Workload, cuda: str) -> facts.ForwardCompat | None:
    """Return the forward-compatibility package of a CUDA minor.

    Where the library of the image was read, its own version and note decide, also for a CUDA that the facts lack.
    """
    package = facts.forward_compat().get(cuda)
    if not workload.compat_drivers or workload.forward_compat_version is None:
        return package
    native = key(workload.forward_compat_version)[0]
    older = tuple(branch for branch in workload.compat_drivers if branch < native)
    if package is not None:
        return dataclasses.replace(package, native_from=native, branches=older, accepted=older)
    return facts.ForwardCompat(
        cuda=cuda,
        image=workload.subject.removeprefix("image "),
        package=f"cuda-compat-{cuda.replace('.', '-')}",
        native_from=native,
        branches=older,
        accepted=older,
        brands=None,
        sources=facts.cuda_rule("fwd_hook")[0],
        doubt=None,
    )


def _branch(host: CompatHost) -> int | None:
    text = host.branch or (host.driver or "").partition(".")[0]
    return int(text) if text.isdigit() else None


def _at_least(host: CompatHost, branch: int, least: str) -> bool | None:
    """Return whether the driver is `least` or later.

    None if only its branch is known, and the branch has versions on both sides.
    """
    if host.driver is not None:
        return key(host.driver) >= key(least)
    if branch != key(least)[0]:
        return branch > key(least)[0]
    return True if facts.oldest_of_branch().get(branch, ()) >= key(least) else None


def _minor_version(
    host: CompatHost,
    workload: Workload,
    runtime: CudaRuntime,
    row: CudaMinor,
    driver: str,
    *,
    branch: int,
    native: str | None,
) -> CompatFinding:
    family = facts.families()[key(row.version)[0]]
    limits, doubt = facts.cuda_rule("mvc_limits")
    is_native = f"no source says which CUDA is native to branch {branch}"
    if native:
        is_native = f"CUDA {native} is its native one"
    message = (
        f"{runtime} runs on driver {driver} of {host.subject} by minor-version compatibility only "
        f"({is_native}): the driver cannot compile PTX of CUDA {row.version}, so the binaries must carry "
        "machine code for the GPU, and features that need a newer driver are missing"
    )
    groups: list[remedies.Group] = []
    newer = _native_driver(row)
    if newer and not _dropped(host, newer[0]):
        groups.append(remedies.drivers(newer[1].removeprefix("branch ")))
    if native and key(native)[0] == key(row.version)[0]:
        groups.append(_other_cuda(host, workload, runtime, native, f"CUDA {native} or older"))
    without = "build its binaries with machine code for the GPU, and do without the features of newer drivers"
    return about(workload).warn(
        "cuda-driver",
        message,
        (*family.sources, *limits),
        remedy=CompatRemedy.of(*groups, ending=", to go without these limits", otherwise=without),
        doubt=(
            doubt,
            row.doubt,
            runtime.doubt,
        ),
    )


def _taken_over(
    host: CompatHost, workload: Workload, runtime: CudaRuntime, row: CudaMinor, driver: str
) -> CompatFinding:
    """Return the finding about a compat package whose library takes the place of the driver's own.

    The driver would run the workload by minor-version compatibility, and the GPUs are data-centre ones.
    """
    package, branch = _compat_package(workload, row.version), _branch(host)
    hook, doubt = facts.cuda_rule("fwd_hook")
    name = package.package if package else f"cuda-compat-{row.version.replace('.', '-')}"
    newer = _native_driver(row)
    groups: list[remedies.Group] = []
    if newer and not _dropped(host, newer[0]):
        groups.append(remedies.drivers(newer[1].removeprefix("branch ")))
    message = (
        f"{runtime} runs on driver {driver} of {host.subject} by forward compatibility: the image carries {name}, "
        f"and the container toolkit puts its library before that of the driver; the kernel's driver stays {driver}, "
        "with what it lacks"
    )
    severity: CompatSeverity = "warn"
    if package is None:
        doubt = f"the driver branches that {name} is for were not read"
    elif branch not in package.accepted:
        severity = "unknown"
        listed = _and(str(item) for item in package.accepted)
        message = (
            f"{runtime} would run on driver {driver} of {host.subject} by minor-version compatibility, but the image "
            f"carries {name}, whose library takes the place of the driver's own and is for driver branches {listed}; "
            f"whether it works on {branch} is not known"
        )
        groups.append([remedies.of_workload(f"an image without {name}", forward_compat=False)])
    return about(workload).finding(
        "cuda-driver",
        severity,
        message,
        (*hook, *(package.sources if package else ())),
        remedy=CompatRemedy.of(*groups, otherwise=f"an image without {name}"),
        doubt=(doubt, row.doubt, runtime.doubt),
    )


def _spoilt(
    host: CompatHost,
    workload: Workload,
    runtime: CudaRuntime,
    row: CudaMinor,
    package: facts.ForwardCompat,
    *,
    driver: str,
    gpus: list[GpuModel],
) -> CompatFinding:
    """Return the finding about a compat package that breaks a workload on GPUs other than data-centre ones.

    The driver would run it by minor-version compatibility. But the package in the image replaces
    the driver's libraries, and fails on GeForce.
    """
    hardware, doubt = facts.cuda_rule("fwd_hw")
    fails = any(gpu.sku.startswith("GeForce") for gpu in gpus)
    names = _and(gpu.sku for gpu in gpus)
    message = (
        f"{runtime} would run on driver {driver} of {host.subject} by minor-version compatibility, but the "
        f"image carries {package.package}, which takes the place of drivers before {package.native_from} "
        f"and {'fails' if fails else 'is not known to work'} on {names}, "
        f"{'which is no data-centre GPU' if fails else 'which no source calls a data-centre GPU'}"
    )
    bare = remedies.of_workload(f"an image without {package.package}", forward_compat=False)
    newer = _native_driver(row)
    dropped = newer is None or _dropped(host, newer[0])
    later = [] if newer is None or dropped else remedies.drivers(newer[1].removeprefix("branch "))
    return about(workload).finding(
        "cuda-driver",
        "block" if fails else "unknown",
        message,
        ((*hardware, *package.sources)),
        remedy=CompatRemedy.of([bare], later),
        doubt=(
            doubt,
            package.doubt,
        ),
    )


def _native_driver(row: CudaMinor) -> tuple[int, str] | None:
    """Return the first branch that runs `row` natively, and its name for a remedy.

    The name is the driver bundled with `row`, or else the branch.
    """
    if row.bundled is not None:
        return key(row.bundled)[0], row.bundled
    branch = next(
        (
            name
            for name, native in sorted(facts.native_cuda().items())
            if native and key(native) >= key(row.version)
        ),
        None,
    )
    return None if branch is None else (branch, f"branch {branch}")


def _dropped(host: CompatHost, branch: int) -> list[GpuModel]:
    """Return the GPUs of a host that driver `branch` no longer supports."""
    models = []
    for gpu in _models(host):
        known = facts.architectures().get(gpu.compute_capability or "")
        if known is not None and known.last_branch is not None and branch > known.last_branch:
            models.append(gpu)
    return models


def _forward(
    host: CompatHost,
    workload: Workload,
    runtime: CudaRuntime,
    row: CudaMinor,
    driver: str,
    *,
    branch: int,
) -> CompatFinding:
    rule = "cuda-driver"
    family = facts.families()[key(row.version)[0]]
    needs = f"{runtime} needs driver {row.minimum} or later; {host.subject} has {driver}"
    hardware, doubt = facts.cuda_rule("fwd_hw")
    sources = (*family.sources, *hardware)
    package = _compat_package(workload, row.version)
    # NVIDIA supports forward compatibility on data-centre GPUs only, so the GPUs decide first.
    others = [gpu for gpu in _models(host) if gpu.data_centre is False]
    unsure = [gpu for gpu in _models(host) if gpu.data_centre is None]
    ways = _older_or_newer(host, workload, runtime, row)
    remedy = CompatRemedy.of(*ways, otherwise=_ANOTHER_CLASS)
    reported = [package.doubt if package else None, doubt, runtime.doubt]
    if others:
        names = _and(gpu.sku for gpu in others)
        carried = "a forward-compatibility package would"
        if workload.forward_compat:
            carried = "the image's forward-compatibility package does"
        return about(workload).block(
            rule,
            f"{needs}, and {carried} not work on {names}, which is no data-centre GPU",
            [*sources, *_origins(others)],
            remedy=remedy,
            doubt=(*reported,),
        )
    if workload.forward_compat is False:
        what = (
            "the wheels contain no" if workload.kind == "requirements" else "the image carries no"
        )
        named = f" ({package.package})" if package else ""
        message = f"{needs}, and {what} forward-compatibility package{named}"
        if package and branch in package.branches and not unsure and host.gpus:
            carries = remedies.of_workload(
                f"an image that carries {package.package}, which works on branch {branch} with data-centre GPUs",
                forward_compat=True,
            )
            remedy = CompatRemedy.of(*ways, [carries], otherwise=_ANOTHER_CLASS)
        return about(workload).block(rule, message, sources, remedy=remedy, doubt=(*reported,))
    if package is None:
        near = closest(row.version, facts.forward_compat())
        return about(workload).unknown(
            rule,
            f"{needs}, and no source says on which older branches forward compatibility to CUDA "
            f"{row.version} works",
            sources,
            remedy=remedy,
            doubt=(
                f"the newest list that was read is of CUDA {near}",
                *reported,
            ),
        )
    listed = _and(str(item) for item in package.branches) if package.branches else "none"
    if branch not in package.branches:
        return about(workload).block(
            rule,
            (
                f"{needs}, and {package.package} is for "
                + (f"driver branches {listed}" if package.branches else "no older branch")
            ),
            [*sources, *package.sources],
            remedy=remedy,
            doubt=(*reported,),
        )
    sources = (*sources, *package.sources)
    if workload.forward_compat is None:
        message = (
            f"{needs}, and whether the image carries {package.package} is not known; without it, it does "
            "not run"
        )
        state = RemedyOption("state forward_compat in the class, or give the image's metadata")
        ways = [*ways, [state]]
        remedy = CompatRemedy.of(*ways, otherwise=state.text)
        return about(workload).unknown(rule, message, sources, remedy=remedy, doubt=(*reported,))
    if unsure or not host.gpus:
        whose = f"which GPUs {host.subject} has"
        if unsure:
            whose = f"whether {_and(gpu.sku for gpu in unsure)} is a data-centre GPU"
        return about(workload).unknown(
            rule,
            f"{needs}; the image carries {package.package}, which works on data-centre GPUs only, and "
            f"{whose} is not known",
            sources,
            remedy=remedy,
            doubt=(*reported,),
        )
    names = _and(gpu.sku for gpu in _models(host))
    version = phrase(" {}", workload.forward_compat_version)
    message = (
        f"{needs}, and runs there only by forward compatibility: the image carries "
        f"{package.package}{version}, {names} is a data-centre GPU, and branch {branch} is among those it "
        f"is for ({listed}); the kernel's driver stays {driver}, with what it lacks"
    )
    return about(workload).warn(
        rule,
        message,
        [*sources, *_origins(_models(host))],
        remedy=remedy,
        doubt=(
            f"the list is that of image {package.image}; it shrinks as branches reach their end of life",
            *reported,
        ),
    )


def _origins(gpus: Iterable[GpuModel]) -> list[Origin]:
    return [origin for gpu in gpus for origin in gpu.origins("data_centre")]


_ANOTHER_CLASS = "move the workload to another class"


def _older_or_newer(
    host: CompatHost, workload: Workload, runtime: CudaRuntime, row: CudaMinor
) -> list[remedies.Group]:
    """Return the nearest combinations as a remedy.

    These are the driver that runs `row`, if the GPUs are supported by both, and the newest CUDA
    that fits the node as is.
    """
    groups: list[remedies.Group] = []
    branch = _branch(host)
    architectures = [
        facts.architectures().get(gpu.compute_capability or "") for gpu in _models(host)
    ]
    beyond = any(
        item is not None and item.last is not None and key(row.version) > key(item.last)
        for item in architectures
    )
    if not beyond and not _dropped(host, key(row.minimum)[0]):
        groups.append(remedies.drivers(row.minimum))
    fits = None if branch is None else newest_fitting(host, branch)
    if fits is not None:
        native = facts.native_cuda().get(branch or 0)
        limited = native is not None and key(native) < key(fits)
        text = f"CUDA {fits} or older"
        if limited:
            text += f" ({native} or older without the limits of minor-version compatibility)"
        groups.append(_other_cuda(host, workload, runtime, fits, text))
    return groups


_TRIES = 16  # releases of a framework that a remedy tries
_WHEELS = "wheels of torch, TensorFlow, JAX and vLLM"  # a list of frameworks.yml
_READ = {"ollama": "images of ollama"}  # a table of its own


def _other_cuda(
    host: CompatHost, workload: Workload, runtime: CudaRuntime, newest: str, text: str
) -> list[RemedyOption]:
    """Return the options of CUDA `newest` or older: another image or pin, or another build of what contains it."""
    if runtime.bringer is None:
        return [remedies.cuda(newest, text)]
    if runtime.bringer.startswith("torch") and "torch" in workload.frameworks:
        return _torch_options(workload, lambda cuda: key(cuda) <= key(newest))
    name = "vllm" if runtime.bringer.startswith("torch") else runtime.bringer.split(" ")[0]
    return _releases(workload, name)


def _releases(workload: Workload, name: str) -> list[RemedyOption]:
    """Return the options of other releases of a framework, the nearest first."""
    have = workload.frameworks.get(name)
    known = {"vllm": facts.vllm, "tensorflow": facts.tensorflow}.get(name)
    if have is None or known is None:
        return []
    # Of a release whose CUDA is not known, nothing would be judged.
    rows = [item for item, row in known().items() if name != "tensorflow" or row["cudart"]]
    others = [item for item in nearest(have, rows, _TRIES) if item != facts.public(have)]
    return [remedies.framework(name, item, f"{name} {item}", workload) for item in others]


def _torch_options(workload: Workload, fits: Callable[[str], bool]) -> list[RemedyOption]:
    """Return the options of other CUDA builds of PyTorch: those of the release, of later and of earlier ones."""
    stated = workload.frameworks["torch"]
    own = minor(stated)
    order = sorted(facts.torch_releases(), key=key)
    later = [item for item in order if key(item) > key(own)]
    earlier = [item for item in reversed(order) if key(item) < key(own)]
    options = []
    # The nearest change first: another build of the release, then later releases.
    for release in ([own] if own in order else []) + later + earlier:
        for name in reversed(facts.torch_releases()[release]["cuda_builds"]):
            # cu128 is CUDA 12.8: the last digit is the minor.
            cuda = re.fullmatch(r"cu(\d+)(\d)", name)
            if (
                cuda is None
                or not fits(f"{cuda[1]}.{cuda[2]}")
                or (stated.endswith(f"+{name}") and release == own)
            ):
                continue
            version = (
                f"{_newest_of(release) if release != own else stated.partition('+')[0]}+{name}"
            )
            options.append(
                remedies.framework(
                    "torch", version, f"the {name} build of PyTorch {release}", workload
                )
            )
    return options[:_TRIES]


def _newest_of(release: str) -> str:
    """Return the newest version of a release of PyTorch ("2.8")."""
    known = [item for item in facts.torch_wheels() if minor(item) == release]
    return max(known, key=key, default=f"{release}.0")


def newest_fitting(host: CompatHost, branch: int) -> str | None:
    """Return the newest CUDA minor that driver and GPUs support without a forward-compatibility package."""
    known = [facts.architectures().get(gpu.compute_capability or "") for gpu in _models(host)]
    for version, row in reversed(facts.cudas().items()):
        if not _at_least(host, branch, row.minimum):
            continue
        if all(
            item is None
            or (
                (item.first is None or key(version) >= key(item.first))
                and (item.last is None or key(version) <= key(item.last))
            )
            for item in known
        ):
            return version
    return None


# -- CUDA and the GPU


def cuda_gpu(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the CUDA runtime against the first and last CUDA of each GPU's architecture."""
    if host is None or workload is None or host.vendor != "nvidia":
        return
    rule = "cuda-gpu"
    torch = _torch(workload)
    for runtime in _with_families(workload):
        built = None
        if torch is not None and torch[0].cuda == minor(runtime.version):
            built = _built_for(host, torch[0]).names
        if built is not None and runtime.bringer is not None:
            continue  # torch-gpu decides: it knows the compute capabilities of this wheel
        for gpu in _models(host):
            if any(facts.covers(item, gpu.compute_capability or "") for item in built or ()):
                continue  # this wheel is known to have code for it
            known = facts.architectures().get(gpu.compute_capability or "")
            where = f"{gpu.sku} (compute capability {gpu.compute_capability}) of {host.subject}"
            if known is None:
                yield about(workload).unknown(
                    rule,
                    f"no source says which CUDA versions have code for {where}",
                    remedy="check the GPU's model in the class",
                )
                continue
            if known.last is not None and key(minor(runtime.version)) > key(known.last):
                yield about(workload).block(
                    rule,
                    f"{runtime} has no code for {where}: {known.last} is the last with {known.name}",
                    known.sources,
                    remedy=CompatRemedy.of(
                        _other_cuda(
                            host, workload, runtime, known.last, f"CUDA {known.last} or older"
                        ),
                        otherwise=_ANOTHER_CLASS,
                    ),
                    doubt=(
                        known.doubt,
                        runtime.doubt,
                    ),
                )
            elif (
                runtime.family
                and known.first is not None
                and key(runtime.version)[0] == key(known.first)[0]
            ):
                continue  # which minor of the family it is built for is not known
            elif known.first is not None and key(minor(runtime.version)) < key(known.first):
                yield _too_old(workload, runtime, gpu, known, where)


def _too_old(
    workload: Workload,
    runtime: CudaRuntime,
    gpu: GpuModel,
    known: facts.CudaArchitectureSupport,
    where: str,
) -> CompatFinding:
    """Return the finding about a CUDA older than the GPU.

    Code for a lower capability of the same major runs. Otherwise only PTX could.
    """
    options = [remedies.cuda(item, f"CUDA {item} or later") for item in _from(known.first)]
    if runtime.bringer is not None:
        options = _releases(workload, runtime.bringer.split(" ")[0])
    remedy = CompatRemedy.of(options, otherwise=_ANOTHER_CLASS)
    older = [
        item
        for item in facts.architectures().values()
        if item.capability != known.capability
        and facts.covers(item.capability, known.capability)
        and item.first is not None
        and key(minor(runtime.version)) >= key(item.first)
    ]
    if older:
        binary, doubt = facts.cuda_rule("binary_compat")
        names = _and(sorted((item.capability for item in older), key=key))
        return about(workload).warn(
            "cuda-gpu",
            f"{runtime} is older than {known.name}: on {where} runs what was built for {names}, nothing is "
            f"built for {known.capability} itself before CUDA {known.first}",
            (*known.sources, *binary),
            remedy=remedy,
            doubt=(
                known.doubt,
                doubt,
                runtime.doubt,
            ),
        )
    if runtime.bringer is None:
        binary, doubt = facts.cuda_rule("binary_compat")
        return about(workload).warn(
            "cuda-gpu",
            f"{runtime} has no machine code for {where}, {known.first} is the first with {known.name}: only "
            "binaries that carry PTX run, which the driver compiles at the first start",
            (*known.sources, *binary),
            remedy=remedy,
            doubt=(
                known.doubt,
                doubt,
            ),
        )
    return about(workload).block(
        "cuda-gpu",
        f"{runtime} has no code for {where}: {known.first} is the first with {known.name}",
        known.sources,
        remedy=remedy,
        doubt=(
            known.doubt,
            runtime.doubt,
        ),
    )


def _from(first: str | None) -> list[str]:
    """Return CUDA `first`, and the minors after it."""
    return [item for item in facts.cudas() if first is not None and key(item) >= key(first)]


# -- cuDNN and NCCL


def cudnn_cuda(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check cuDNN against the CUDA runtime of the workload."""
    # A library that PyTorch itself pins was built and tested with it, and needs no matrix.
    if workload is None or workload.cudnn is None or _is_torchs(workload, "cudnn"):
        return
    rule, version = "cudnn-cuda", workload.cudnn
    published = workload.library_cuda.get("cudnn")
    for cuda in _paired_cuda(workload, "cudnn"):
        major = cuda.partition(".")[0]
        # NVIDIA's own images combine these two, which outweighs a matrix without the pair.
        if facts.tested_together("cudnn", version, cuda):
            continue
        rows = [row for row in facts.cudnn_matrix() if row.is_for(version)]
        mine = [row for row in rows if row.major in (None, int(major))]
        whole = "." in cuda
        # Only the CUDA major may be known, from the name of a wheel; a row of that major is then
        # enough.
        if any(row.has_cuda(cuda) for row in mine) or (mine and not whole):
            continue
        sources = [origin for row in rows for origin in row.sources]
        # A row without a package's family lists the CUDA versions of several.
        mine = [row for row in mine if row.major is not None or int(major) in row.majors]
        if rows and not mine:
            have = _and(str(item) for item in sorted({item for row in rows for item in row.majors}))
            yield about(workload).block(
                rule,
                f"cuDNN {version} is for CUDA {have}, and the workload has CUDA {cuda}",
                sources,
                remedy=_cudnn_for(workload, major),
            )
        elif mine:
            text = "; ".join(dict.fromkeys(row.cuda_text for row in mine))
            yield about(workload).unknown(
                rule,
                f"the support matrix of cuDNN {version} lists CUDA {text}, and not {cuda}",
                sources,
                remedy=_cudnn_for(workload, major),
            )
        elif published == major or any(
            same(version, item) for item in facts.wheels("cudnn", major)
        ):
            continue  # published for this major; cudnn-gpu reports the missing matrix
        else:
            others = [
                name
                for name in ("11", "12", "13")
                if any(same(version, item) for item in facts.wheels("cudnn", name))
            ]
            if others:
                message = f"cuDNN {version} is published for CUDA {_and(others)}, and not for CUDA {major}"
                severity: CompatSeverity = (
                    "block" if workload.library_cuda.get("cudnn") in (None, major) else "unknown"
                )
            else:
                message, severity = f"no source says which CUDA cuDNN {version} is for", "unknown"
            yield about(workload).finding(
                rule, severity, message, facts.wheel_sources(), remedy=_cudnn_for(workload, major)
            )


def _paired_cuda(workload: Workload, library: str) -> list[str]:
    """Return the CUDA versions that a library is used with.

    The wheel's name decides, then the workload's own CUDA, then the one its frameworks ship.
    """
    stated = workload.library_cuda.get(library)
    if stated is not None:
        exact = [
            item.version for item in runtimes(workload) if item.version.partition(".")[0] == stated
        ]
        return exact or [stated]
    return [item.version for item in runtimes(workload)][:1]


def _is_torchs(workload: Workload, library: str) -> bool:
    """Return whether a pinned library is exactly the version that the workload's PyTorch pins."""
    torch = _torch(workload)
    package = next((item for item in workload.pins if item.startswith(f"nvidia-{library}-cu")), "")
    if "torch" in workload.requirers.get(package, ()) and package not in workload.overridden:
        return True  # a resolver states that torch requires it, and torch pins it exactly
    if torch is None:
        return False
    wanted, pinned = (
        (torch[0].cudnn, workload.cudnn) if library == "cudnn" else (torch[0].nccl, workload.nccl)
    )
    major = (torch[0].cuda or "").partition(".")[0]
    return (
        wanted is not None
        and wanted == pinned
        and workload.library_cuda.get(library, major) == major
    )


def _cudnn_for(workload: Workload, major: str) -> CompatRemedy:
    tested = [row.name for row in facts.cudnn_matrix() if row.major == int(major)]
    text = f"the newest whose matrix was read for CUDA {major}"
    options = [
        _library(workload, "cudnn", name, f"cuDNN {name}, {text}") for name in reversed(tested)
    ]
    options += [
        _library(workload, "cudnn", name, f"cuDNN {name}")
        for name in reversed(facts.wheels("cudnn", major))
    ]
    return CompatRemedy.of(options[:_TRIES], otherwise="use a cuDNN of the image's own CUDA")


def _library(workload: Workload, name: str, version: str, text: str) -> RemedyOption:
    """Return the option of another cuDNN or NCCL: another pin of a file, or another image."""
    version = version.rpartition(" - ")[2]
    pin = next(
        (item for item in workload.pins if re.fullmatch(rf"nvidia-{name}-cu\d\d", item)), None
    )
    if pin is not None:
        return remedies.pin(pin, version, text)
    return remedies.of_workload(text, **{name: version})


def cudnn_gpu(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check cuDNN against the GPU's compute capability and the driver."""
    if (
        host is None
        or workload is None
        or host.vendor != "nvidia"
        or workload.cudnn is None
        or _is_torchs(workload, "cudnn")
    ):
        return
    version = workload.cudnn
    paired = _paired_cuda(workload, "cudnn")
    major = int(paired[0].partition(".")[0]) if paired else None
    cuda = next((item for item in paired if "." in item), None)
    exact = [
        row for row in facts.cudnn_matrix() if row.is_for(version) and row.major in (None, major)
    ]
    for gpu in _models(host):
        if gpu.compute_capability is None:
            continue
        name = f"{gpu.sku} (compute capability {gpu.compute_capability}) of {host.subject}"
        if exact:
            # A forward-compatibility package brings the libraries of a newer driver.
            driver = None if workload.forward_compat else host.driver
            verdict = _cudnn_in_matrix(
                exact,
                capability=gpu.compute_capability,
                name=name,
                version=version,
                major=major,
                cuda=cuda,
                driver=driver,
            )
        else:
            verdict = _cudnn_between_matrices(gpu.compute_capability, name, version, major)
        # The notes of an image name the cuDNN that it is tested with.
        tested = workload.repository is not None or _is_required(workload, "cudnn")
        if verdict is not None and not (verdict.above_oldest and tested):
            yield about(workload).finding(
                "cudnn-gpu",
                verdict.severity,
                verdict.message,
                verdict.sources,
                remedy=(verdict.remedy or _cudnn_with(workload, gpu.compute_capability, major)),
                doubt=verdict.doubt,
            )


@dataclass(frozen=True)
class _CudnnFault:
    """Fault of a cuDNN version on a GPU. Without a remedy, it is the version that supports the GPU."""

    severity: CompatSeverity
    message: str
    sources: Sequence[Origin]
    remedy: str | None = None
    doubt: str | None = None
    # The last matrix before the version lists the GPU and an older one: a later cuDNN drops the oldest first.
    above_oldest: bool = False


def _is_required(workload: Workload, library: str) -> bool:
    """Return whether a framework of the workload requires a range that has the pinned version of a library."""
    pinned = workload.cudnn if library == "cudnn" else workload.nccl
    rows = [row[library] for _, row in _ranges(workload) if row[library]]
    major = workload.library_cuda.get(library)
    names = [f"nvidia-{library}-cu{major}"]
    ranges = [
        text
        for name in workload.pins
        for text in wheels.required_of(name, workload.pins[name], names[0])
    ]
    return any(_matches(pinned or "", item) for item in (*rows, *ranges))


def _cudnn_in_matrix(
    exact: Sequence[facts.CudnnSupport],
    capability: str,
    name: str,
    version: str,
    major: int | None,
    *,
    cuda: str | None,
    driver: str | None,
) -> _CudnnFault | None:
    """Judge a GPU by the matrix of its cuDNN version. `driver` is None if it does not matter or is unknown."""
    fitting = [row for row in exact if row.has_capability(capability)]
    if not fitting:
        return _CudnnFault(
            "block",
            f"the support matrix of cuDNN {version} for CUDA {major} does not list {name}",
            exact[0].sources,
        )
    listed = cuda is not None and any(row.has_cuda(cuda) for row in exact)
    if cuda is not None and listed and not any(row.has_cuda(cuda) for row in fitting):
        text = fitting[0].cuda_text
        message = (
            f"cuDNN {version} serves {name} with CUDA {text}, and the workload has CUDA {cuda}"
        )
        span = text.rpartition(", ")[2]
        return _CudnnFault(
            "block",
            message,
            fitting[0].sources,
            CompatRemedy.of(
                [
                    remedies.cuda(item, f"CUDA {span}")
                    for item in reversed(facts.cudas())
                    if fitting[0].has_cuda(item)
                ]
            ),
        )
    needs = [
        row
        for row in fitting
        if row.minimum_driver is not None and (cuda is None or row.has_cuda(cuda))
    ]
    least = min((row.minimum_driver or "" for row in needs), key=key, default=None)
    if least is None or driver is None or key(driver) >= key(least):
        return None
    return _CudnnFault(
        "block",
        f"cuDNN {version} needs driver {least} or later on {name}, which has {driver}",
        needs[0].sources,
        CompatRemedy.of(remedies.drivers(least)),
    )


def _cudnn_between_matrices(
    capability: str, name: str, version: str, major: int | None
) -> _CudnnFault | None:
    """Judge a GPU by the matrices before and after a cuDNN version without one. They decide if they agree."""
    below, above = _around(version, major)
    near = [rows for rows in (below, above) if rows]
    supported = [any(item.has_capability(capability) for item in rows) for rows in near]
    if len(near) == 2 and all(supported):
        return None
    sources = [origin for row in (*below, *above) for origin in row.sources]
    if len(near) == 2 and not any(supported):
        return _CudnnFault(
            "block",
            f"neither the support matrix of cuDNN {below[0].name} nor that of {above[0].name} lists "
            f"{name}, and {version} is between",
            sources,
            doubt="derived from the two matrices around it",
        )
    oldest = min((key(item) for row in below for item in row.capabilities or ()), default=None)
    if below and not above and oldest is not None and key(capability) < oldest:
        return _CudnnFault(
            "block",
            f"the support matrix of cuDNN {below[0].name} no longer lists {name}, and {version} is later",
            sources,
            doubt=f"derived: the matrix of {version} was not read",
        )
    read = [
        f"{rows[0].name} ({'with' if supports else 'without'} it)"
        for rows, supports in zip(near, supported, strict=True)
    ]
    return _CudnnFault(
        "unknown",
        f"no support matrix of cuDNN {version} was read, so that nothing says whether it serves "
        f"{name}; the nearest read: {_and(read) if read else 'none'}",
        sources,
        above_oldest=(
            not above
            and bool(below)
            and any(supported)
            and oldest is not None
            and key(capability) > oldest
        ),
    )


@cache
def _around(
    version: str, major: int | None
) -> tuple[tuple[facts.CudnnSupport, ...], tuple[facts.CudnnSupport, ...]]:
    """Return the rows of the nearest version below and above that have a matrix for CUDA `major`."""
    rows = [row for row in facts.cudnn_matrix() if row.major in (None, major)]
    lower = [row for row in rows if row.high < key(version)[:3]]
    upper = [row for row in rows if row.low > key(version)[:3]]
    below = tuple(row for row in lower if row.high == max(item.high for item in lower))
    return below, tuple(row for row in upper if row.low == min(item.low for item in upper))


def _cudnn_with(workload: Workload, capability: str, major: int | None) -> CompatRemedy:
    rows = [row for row in facts.cudnn_matrix() if row.has_capability(capability)]
    fitting = [row for row in rows if row.major == major] or (
        rows if workload.kind == "image" else []
    )
    known = facts.architectures().get(capability)
    options = []
    for row in reversed(fitting):
        since = f"CUDA {row.cuda_text}"
        if (
            known is not None
            and known.first is not None
            and any(low < key(known.first) for low, _ in row.cuda)
        ):
            since = f"CUDA {known.first} or later"
        text = f"cuDNN {row.name} with {since}, the newest whose matrix lists this GPU"
        options.append(_library(workload, "cudnn", row.name, text))
    return CompatRemedy.of(
        options[:_TRIES], otherwise="use a framework that contains its own cuDNN"
    )


def nccl_cuda(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check NCCL against the CUDA runtime of the workload."""
    if workload is None or workload.nccl is None or _is_torchs(workload, "nccl"):
        return
    rule, version = "nccl-cuda", workload.nccl
    for cuda in _paired_cuda(workload, "nccl"):
        major = cuda.partition(".")[0]
        known = facts.wheels("nccl", major)
        if facts.tested_together("nccl", version, cuda) or any(
            same(version, item) for item in known
        ):
            continue
        others = [
            name
            for name in ("11", "12", "13")
            if any(same(version, item) for item in facts.wheels("nccl", name))
        ]
        remedy = CompatRemedy.of(
            [_library(workload, "nccl", item, f"NCCL {item}") for item in nearest(version, known)],
            otherwise="use the NCCL that the framework contains",
        )
        # An image may carry an NCCL that was built for its CUDA; pip takes the published one.
        if others and workload.kind == "requirements":
            yield about(workload).block(
                rule,
                f"NCCL {version} is published for CUDA {_and(others)}, and not for CUDA {major}",
                facts.wheel_sources(),
                remedy=remedy,
            )
        else:
            near = f"; it is published for CUDA {_and(others)}" if others else ""
            yield about(workload).unknown(
                rule,
                f"no source says whether NCCL {version} works with CUDA {cuda}{near}",
                facts.wheel_sources(),
                remedy=remedy,
            )


# -- frameworks


def framework_version(
    host: CompatHost | None, workload: Workload | None
) -> Iterator[CompatFinding]:
    """Report frameworks whose version is not in the facts, or whose build does not exist."""
    if workload is None:
        return
    rule = "framework-version"
    for name, version in workload.frameworks.items():
        public = facts.public(version)
        known = _known(name, workload)
        if known is None:
            yield about(workload).unknown(
                rule,
                f"the facts hold nothing about {name}, so that {name} {version} is not judged",
                remedy="run it on one node of the class before it goes to all",
            )
            continue
        if name == "torch":
            build = facts.torch(version)
            if build is not None:
                yield from _torch_known(workload, build)
                continue
        elif public in known:
            yield from _unknown_cuda(workload, name, known[public])
            continue
        elif name in ("jax", "jaxlib") and public in wheels.packages()[name]:
            continue  # its wheel names what it needs
        yield about(workload).unknown(
            rule,
            f"{name} {version} is not in the facts; {read_until('frameworks.yml', _READ.get(name, _WHEELS))}",
            remedy=CompatRemedy.of(
                [
                    remedies.framework(
                        name, item, f"{name} {item}, the nearest that is known to fit", workload
                    )
                    for item in nearest(public, known, _TRIES)
                ],
                otherwise="run it on one node of the class before it goes to all",
            ),
        )


def _unknown_cuda(workload: Workload, name: str, row: Mapping[str, Any]) -> Iterator[CompatFinding]:
    """Report a release whose CUDA version is not in the facts."""
    asked = (
        "tensorflow" in workload.library_cuda and workload.rocm is None and workload.cuda is None
    )
    if name == "tensorflow" and asked and row["cudart"] is None:
        message = f"no source says which CUDA tensorflow {row['version']} is built for"
    elif (
        name == "vllm" and "torch" not in workload.frameworks and not row["torch"].startswith("==")
    ):
        message = (
            f"vllm {row['version']} takes any torch {row['torch']}, so that its CUDA is not known"
        )
    else:
        return
    remedy = "pin the libraries it is to use"
    if workload.kind == "image":
        remedy = "state `cuda` in the class, or check the image's metadata"
    yield about(workload).unknown(
        "framework-version", message, facts.framework_sources(row), remedy=remedy
    )


def _known(name: str, workload: Workload) -> Mapping[str, Any] | None:
    if name == "torch":
        return facts.torch_wheels()
    if name == "tensorflow":
        return facts.tensorflow()
    if name == "vllm":
        return facts.vllm()
    if name in ("jax", "jaxlib"):
        return facts.jax_plugin(workload.library_cuda.get("jax") or "12")
    if name == "onnxruntime":
        row = facts.onnxruntime(workload.frameworks[name])
        return {} if row is None else {facts.public(workload.frameworks[name]): row}
    if name == "tensorrt":
        rows = facts.tensorrt()
        row = rows.get(".".join(map(str, key(workload.frameworks[name])[:3])))
        return rows if row is None else {**rows, facts.public(workload.frameworks[name]): row}
    if name in ("ollama", "tensorrt-llm"):
        version = workload.frameworks[name]
        row = facts.engine_minimum(name, version)
        if row is None:
            return {item: {} for item in facts.engines(name)}
        return {facts.public(version): row}
    return None


def _torch_known(workload: Workload, build: facts.TorchBuild) -> Iterator[CompatFinding]:
    listed = facts.torch_releases().get(build.release)
    offers = [
        *(listed["cuda_builds"] if listed else ()),
        *(f"rocm{item}" for item in (listed or {}).get("rocm_builds") or ()),
    ]
    if build.rocm is not None and _from_amd(workload, build):
        return
    if build.known is False and workload.locked:
        return  # a resolver has found it on an index
    if build.known is False:
        kin = [item for item in offers if item[:2] == (build.build or "")[:2]] or offers
        message = f"PyTorch {build.release} has no build {build.build}: it has {_and(offers)}"
        groups = [[_other_build(workload, build, item)] for item in kin[-2:]]
        groups[-1] += _with_build(workload, build)
        remedy = CompatRemedy.of(
            *groups,
            between=" or ",
            otherwise=f"use another release of PyTorch: no other build of {build.release} fits",
        )
        if workload.kind == "image" and build.rocm is not None:
            message = (
                f"neither PyTorch nor ROCm {build.rocm} lists a build of PyTorch {build.release} for ROCm "
                f"{build.rocm}"
            )
            yield about(workload).unknown(
                "framework-version", message, build.sources, remedy=remedy, doubt=build.doubt
            )
            return
        yield about(workload).block(
            "framework-version", message, build.sources, remedy=remedy, doubt=build.doubt
        )
    elif build.build is not None and not build.build.startswith(("cu", "rocm", "cpu", "xpu")):
        message = f"torch {build.version} is a third party's build: the facts cover only those of the project"
        first = "run it on one node of the class before it goes to all"
        yield about(workload).unknown("framework-version", message, build.sources, remedy=first)
    elif build.known is None or build.build is None:
        yield about(workload).unknown(
            "framework-version",
            f"no source says which builds PyTorch {build.release} has, so that torch {build.version} is "
            "not judged",
            build.sources,
            doubt=build.doubt,
        )


def _with_build(workload: Workload, build: facts.TorchBuild) -> list[RemedyOption]:
    """Return the releases of PyTorch that have the wanted build, the nearest first."""
    releases = {
        item for item, row in facts.torch_releases().items() if build.build in row["cuda_builds"]
    }
    having = [item for item in facts.torch_wheels() if minor(item) in releases]
    return [
        remedies.framework(
            "torch", f"{item}+{build.build}", f"the {build.build} build of PyTorch {item}", workload
        )
        for item in nearest(build.release, having)
    ]


def _other_build(workload: Workload, build: facts.TorchBuild, name: str) -> RemedyOption:
    return remedies.framework("torch", f"{build.version.partition('+')[0]}+{name}", name, workload)


def framework_python(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check that the frameworks support the workload's Python."""
    if workload is None or workload.python is None:
        return
    for name, version in workload.frameworks.items():
        row: Mapping[str, Any] | None
        public = facts.public(version)
        rows = facts.torch_wheels() if name == "torch" else _known(name, workload) or {}
        row = rows.get(public)
        if row is None or "requires_python" not in row:
            continue
        tags = row.get("python_tags")
        tag = "cp" + "".join(str(part) for part in key(workload.python)[:2])
        wanted = _without_patch(row["requires_python"])
        if not _matches(minor(workload.python), wanted) or (tags and tag not in tags):
            have = f"needs Python {row['requires_python']}"
            if tags:
                spans = [f"3.{item.removeprefix('cp3')}" for item in tags]
                have = f"has wheels for Python {spans[0]} to {spans[-1]}"
            message = f"{name} {version} {have}, and the workload has Python {workload.python}"
            fitting = [
                item
                for item in ([f"3.{tag.removeprefix('cp3')}" for tag in tags or ()] or PYTHONS)
                if _matches(item, wanted)
            ]
            text = f"use Python {row['requires_python']}"
            yield about(workload).block(
                "framework-python",
                message,
                facts.framework_sources(row),
                remedy=CompatRemedy.of(
                    remedies.pythons(fitting, minor(workload.python)),
                    otherwise=text if not tags else _PYTHONS,
                ),
            )


_PYTHONS = "use releases of one time, which have wheels for one Python"


def _without_patch(specifier: str) -> str:
    """Return a version specifier without a patch level of zero: ">=3.8.0" becomes ">=3.8"."""
    return (
        specifier.replace(".0,", ",").removesuffix(".0") if specifier.count(".") > 1 else specifier
    )


@cache
def _matches(version: str, specifier: str) -> bool:
    return SpecifierSet(specifier).contains(version, prereleases=True)


def torch_gpu(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the compute capabilities or gfx names of PyTorch's wheel against the GPUs."""
    if host is None or workload is None or host.vendor is None:
        return
    torch = _torch(workload)
    if torch is None or torch[0].build in (None, "cpu"):
        return
    build, called = torch
    if host.vendor == "amd" and build.rocm is not None:
        yield from _torch_gfx(host, workload, build, called)
    if host.vendor != "nvidia" or build.cuda is None:
        return
    rule = "torch-gpu"
    built = _built_for(host, build)
    for gpu in _models(host):
        if gpu.compute_capability is None:
            continue
        where = f"{gpu.sku} (compute capability {gpu.compute_capability}) of {host.subject}"
        if built.names is None:
            yield about(workload).unknown(
                rule,
                f"no source says which compute capabilities {called} was built for, so that nothing says "
                f"whether it runs on {where}",
                remedy=_torch_for(host, workload, build, gpu),
            )
            continue
        if any(facts.covers(item, gpu.compute_capability) for item in built.names):
            continue
        binary, _ = facts.cuda_rule("binary_compat")
        sources = (*built.sources, *binary)
        listed = _and(built.names)
        # The driver compiles PTX for later GPUs when the program starts.
        older = [item for item in built.ptx if key(item) <= key(gpu.compute_capability)]
        if older:
            yield about(workload).warn(
                rule,
                f"{called} has no machine code for {where}, only PTX of {older[-1]} that the driver "
                "compiles at the first start",
                sources,
                remedy=_torch_for(host, workload, build, gpu),
                doubt=built.doubt,
            )
            continue
        yield about(workload).block(
            rule,
            f"{called} was built for compute capabilities {listed}, and not for {where}",
            sources,
            remedy=_torch_for(host, workload, build, gpu),
            doubt=built.doubt,
        )


def _built_for(host: CompatHost, build: facts.TorchBuild) -> facts.BuiltFor:
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(host.architecture, host.architecture)
    return facts.torch_built_for(build.release, build.build or "", machine)


def _torch_for(
    host: CompatHost, workload: Workload, build: facts.TorchBuild, gpu: GpuModel
) -> CompatRemedy:
    """Return the nearest builds with code for `gpu`, as a remedy.

    A build of the same release is preferred, then later releases, then earlier ones.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(host.architecture, host.architecture)

    def fits(option: str) -> bool:
        release, name = option.split(" ")
        names = facts.torch_built_for(release, name, machine).names
        return names is not None and any(
            facts.covers(item, gpu.compute_capability or "") for item in names
        )

    order = sorted(facts.torch_releases(), key=key)
    later = [item for item in order if key(item) > key(build.release)]
    earlier = [item for item in reversed(order) if key(item) < key(build.release)]
    pairs = [
        (release, name)
        for release in (build.release, *later, *earlier)
        for name in reversed(facts.torch_machines(machine, release))
        if fits(f"{release} {name}")
    ]
    none = f"use another framework build; no known build of PyTorch that fits the rest has code for {gpu.sku}"
    if "torch" not in workload.frameworks:  # the serving engine pins it
        return CompatRemedy.of(_releases(workload, "vllm"), otherwise=none)
    stated = workload.frameworks["torch"].partition("+")[0]
    options = [
        remedies.framework(
            "torch",
            f"{stated if release == build.release else _newest_of(release)}+{name}",
            f"the {name} build of PyTorch {release}",
            workload,
        )
        for release, name in pairs
    ]
    return CompatRemedy.of(options[:_TRIES], otherwise=none)


def _torch_gfx(
    host: CompatHost, workload: Workload, build: facts.TorchBuild, called: str
) -> Iterator[CompatFinding]:
    if _from_amd(workload, build):
        return  # AMD builds it for the GPUs that its ROCm supports; rocm-gpu checks those
    built = facts.torch_gfx(build.release, build.rocm or "")
    for gpu in _models(host):
        if gpu.gfx is None:
            continue
        where = f"{gpu.sku} ({gpu.gfx}) of {host.subject}"
        if built.names is None:
            message = (
                f"no source says which gfx names {called} was built for, so that nothing says whether it "
                f"runs on {where}"
            )
            yield about(workload).unknown(
                "torch-gpu", message, remedy="run it on one node of the class before it goes to all"
            )
        elif gpu.gfx not in built.names:
            yield about(workload).block(
                "torch-gpu",
                f"{called} was built for {_and(built.names)}, and not for {where}",
                built.sources,
                remedy="use a later release of PyTorch",
                doubt=built.doubt,
            )


def torch_cpu(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check that the PyTorch that pip takes on the machine is built for its GPU: some releases have a CPU build only."""
    if host is None or workload is None or host.vendor != "nvidia":
        return
    torch = _torch_of_any(workload)
    if torch is None or not on_cpu(workload, torch[0]):
        return
    build, _ = torch
    message = (
        f"torch {build.version} has no wheel with CUDA for {workload.machine} on the package index: pip installs the "
        f"CPU build, which does not use the GPUs of {host.subject}"
    )
    releases = wheels.packages()["torch"]
    with_cuda = [
        name
        for name, row in releases.items()
        if row.needs_any(("nvidia-", "cuda-"), workload.machine)
    ]
    options = [
        remedies.framework(
            "torch", item, f"torch {item}, whose wheel for {workload.machine} has CUDA", workload
        )
        for item in nearest(build.version, with_cuda)
    ]
    if "torch" not in workload.frameworks:
        options = []
    from_index = _torch_options(workload, lambda _: True) if "torch" in workload.frameworks else []
    other = "use an image with PyTorch for CUDA: no wheel that is known fits the rest"
    yield about(workload).block(
        "torch-cpu",
        message,
        releases[facts.public(build.version)].origins,
        remedy=CompatRemedy.of(from_index, options, otherwise=other),
        doubt=build.doubt,
    )


def framework_gpu(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check TensorFlow, JAX and vLLM against compute capability and driver."""
    if host is None or workload is None or host.vendor != "nvidia":
        return
    rule = "framework-gpu"
    least: list[tuple[str, Mapping[str, Any]]] = []
    if "tensorflow" in workload.frameworks and "tensorflow" in workload.library_cuda:
        row = facts.framework_row("tensorflow_compute_capability")
        least.append(
            (
                f"tensorflow {workload.frameworks['tensorflow']}",
                {**row, "compute_capability": row["minimum"]},
            )
        )
    # A document about this very release, if one was read, decides instead (`_engines`).
    if "vllm" in workload.frameworks and not facts.engine_minimum(
        "vllm", workload.frameworks["vllm"]
    ):
        row = facts.framework_row("vllm_compute_capability")
        least.append(
            (f"vllm {workload.frameworks['vllm']}", {**row, "compute_capability": row["minimum"]})
        )
    major = workload.library_cuda.get("jax")
    if major is not None and ("jax" in workload.frameworks or "jaxlib" in workload.frameworks):
        version = workload.frameworks.get("jax") or workload.frameworks["jaxlib"]
        named = facts.jax_minimum().get(major)
        if named is None:
            message = f"no source states what jax {version} for CUDA {major} needs"
            options = ([_jax_for(workload, other)] for other in facts.jax_minimum())
            remedy: str = CompatRemedy.of(*options, between=" or ")
            yield about(workload).unknown(rule, message, remedy=remedy)
        else:
            least.append((f"jax {version} for CUDA {major}", named))
            branch = _branch(host)
            if branch is not None and branch < named["driver_branch"]:
                message = (
                    f"jax {version} for CUDA {major} needs driver branch {named['driver_branch']} or "
                    f"later; {host.subject} has {branch}"
                )
                yield about(workload).block(
                    rule,
                    message,
                    facts.framework_sources(named),
                    remedy=CompatRemedy.of(
                        remedies.drivers(str(named["driver_branch"])),
                        [_jax_for(workload, "12")] if major == "13" else [],
                    ),
                )
    least += _engines(workload)
    yield from _engine_driver(host, workload)
    for called, needs in least:
        for gpu in _models(host):
            if gpu.compute_capability is not None and key(gpu.compute_capability) < key(
                needs["compute_capability"]
            ):
                message = (
                    f"{called} needs compute capability {needs['compute_capability']} or higher; {gpu.sku} "
                    f"of {host.subject} has {gpu.compute_capability}"
                )
                yield about(workload).block(
                    rule,
                    message,
                    facts.framework_sources(needs),
                    remedy=CompatRemedy.of(
                        [RemedyOption("GPUs of a later architecture")],
                        _releases(workload, called.split(" ")[0]),
                    ),
                    doubt=facts.doubt(needs),
                )


def _jax_for(workload: Workload, major: str) -> RemedyOption:
    """Return the option of JAX's wheels for another CUDA family."""
    return remedies.of_workload(
        f"jax[cuda{major}]",
        library_cuda={**workload.library_cuda, "jax": major},
        extras={**workload.extras, "jax": (f"cuda{major}",)},
        pins={name: pin for name, pin in workload.pins.items() if not name.startswith("jax-cuda")},
    )


_ENGINES = ("vllm", "ollama", "tensorrt-llm")


def _engines(workload: Workload) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the serving engines of a workload with what each needs, as far as its documents were read."""
    for engine in _ENGINES:
        version = workload.frameworks.get(engine)
        row = facts.engine_minimum(engine, version) if version is not None else None
        if row is not None:
            yield f"{engine} {version}", row


def _engine_driver(host: CompatHost, workload: Workload) -> Iterator[CompatFinding]:
    """Check the driver branch that a serving engine names; it may name a later one for old GPUs."""
    branch = _branch(host)
    for called, row in _engines(workload):
        for gpu in _models(host):
            old = row.get("old_capability")
            # A GPU of unknown capability is not taken for an old one, which needs a later branch.
            is_old = old is not None and key(gpu.compute_capability or "99") <= key(old)
            least = row["old_driver_branch"] if is_old else row.get("driver_branch")
            if branch is None or least is None or branch >= least:
                continue
            message = (
                f"{called} needs driver branch {least} or later on {gpu.sku} (compute capability "
                f"{gpu.compute_capability}), and uses the CPU with an older one; {host.subject} has {branch}"
            )
            remedy = CompatRemedy.of(
                remedies.drivers(str(least)), [RemedyOption("an older release")]
            )
            sources = facts.framework_sources(row)
            yield about(workload).block(
                "framework-gpu", message, sources, remedy=remedy, doubt=facts.doubt(row)
            )


def tensorrt_cuda(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check that TensorRT's release is published for the CUDA of the workload."""
    if workload is None or workload.cuda is None or "tensorrt" not in workload.frameworks:
        return
    version, major = workload.frameworks["tensorrt"], key(workload.cuda)[0]
    row = facts.tensorrt().get(".".join(map(str, key(version)[:3])))
    if row is None or major in {key(item)[0] for item in row["cuda"]}:
        return
    message = f"TensorRT {version} is published for CUDA {_and(row['cuda'])}, and the workload has CUDA {workload.cuda}"
    fitting = [
        name
        for name, item in facts.tensorrt().items()
        if major in {key(cuda)[0] for cuda in item["cuda"]}
    ]
    yield about(workload).block(
        "tensorrt-cuda",
        message,
        facts.framework_sources(row),
        remedy=CompatRemedy.of(
            [
                remedies.framework("tensorrt", item, f"TensorRT {item}", workload)
                for item in nearest(version, fitting)
            ],
            [remedies.cuda(item, f"CUDA {item}") for item in row["cuda"]],
        ),
    )


def framework_libraries(
    host: CompatHost | None, workload: Workload | None
) -> Iterator[CompatFinding]:
    """Check the pins of frameworks against those of the requirements, and frameworks against each other."""
    if workload is None:
        return
    rule = "framework-libraries"
    # A lock file follows the metadata of its very wheels; wheel-requires reports its overrides.
    if workload.locked:
        return
    torch, engine = workload.frameworks.get("torch"), workload.frameworks.get("vllm")
    row = facts.vllm().get(facts.public(engine or ""))
    if (
        row is not None
        and torch is not None
        and not _matches(torch.partition("+")[0], row["torch"])
    ):
        message = f"vllm {engine} needs torch {row['torch']}, and the workload has torch {torch}"
        wanted = row["torch"].removeprefix("==")
        exact = remedies.framework("torch", wanted, f"torch {wanted}", workload)
        yield about(workload).block(
            rule,
            message,
            facts.framework_sources(row),
            remedy=CompatRemedy.of(
                [exact] if row["torch"].startswith("==") else [], _releases(workload, "vllm")
            ),
        )
    if row is not None and row["cuda13_pinned"] and torch is not None:
        build = facts.torch(torch)
        if build is not None and build.cuda is not None and key(build.cuda)[0] < 13:
            message = f"vllm {engine} pins libraries of CUDA 13, and torch {torch} is built for CUDA {build.cuda}"
            before = [
                item["version"] for item in facts.vllm().values() if not item["cuda13_pinned"]
            ]
            yield about(workload).block(
                rule,
                message,
                facts.framework_sources(row),
                remedy=CompatRemedy.of(
                    _torch_options(workload, lambda cuda: key(cuda)[0] >= 13),
                    [
                        remedies.framework("vllm", item, f"vllm {item}", workload)
                        for item in reversed(before)
                    ],
                ),
            )
    if workload.kind == "image":
        yield from _framework_pins(workload)
        return
    if several_frameworks(workload):
        return
    for library, pinned in (("cudnn", workload.cudnn), ("nccl", workload.nccl)):
        if pinned is not None and _torch_wants(host, workload, library) is not False:
            yield from _pins(workload, library, pinned)


_TITLES = {"cudnn": "cuDNN", "nccl": "NCCL"}


def several_frameworks(workload: Workload) -> bool:
    """Return whether a file pins several frameworks whose requirements are recorded: wheel-requires compares them."""
    return (
        workload.kind == "requirements"
        and sum(
            name in workload.pins and wheels.requirements(name, workload.pins[name]) is not None
            for name in ("torch", "tensorflow", "jax")
        )
        > 1
    )


def _torch_wants(host: CompatHost | None, workload: Workload, library: str) -> bool | None:
    """Return whether torch's wheel requires a library on the machine of the class: some do on x86_64 only."""
    torch = workload.frameworks.get("torch")
    release = (
        wheels.packages()["torch"].get(facts.public(torch)) if torch and "+" not in torch else None
    )
    build = facts.torch(torch or "")
    if host is None or release is None or build is None or build.cuda is None:
        return None
    name = f"nvidia-{library}-cu{build.cuda.partition('.')[0]}"
    return release.needs(name, "aarch64" if host.architecture == "arm64" else "x86_64")


def _pins(workload: Workload, library: str, pinned: str) -> Iterator[CompatFinding]:
    rule, title = "framework-libraries", _TITLES[library]
    major = workload.library_cuda.get(library)
    torch = _torch(workload)
    if torch is not None and torch[0].cuda is not None:
        build, called = torch
        cuda_major = (build.cuda or "").partition(".")[0]
        if major is not None and major != cuda_major:
            yield about(workload).block(
                rule,
                f"{title} {pinned} is pinned for CUDA {major}, and {called} uses libraries of CUDA {cuda_major}",
                build.sources,
                remedy=CompatRemedy.of(
                    [RemedyOption(f"pin nvidia-{library}-cu{cuda_major}")],
                    [remedies.unpin(library, workload, "leave it to torch")],
                    verb="",
                ),
                doubt=build.doubt,
            )
        else:
            wanted = build.cudnn if library == "cudnn" else build.nccl
            if wanted is None:
                yield about(workload).unknown(
                    rule,
                    f"no source says which {title} {called} pins, so that nothing says whether {pinned} "
                    "goes with it",
                    build.sources,
                    remedy=f"leave {title} to torch",
                    doubt=build.doubt,
                )
            elif wanted != pinned:
                yield about(workload).block(
                    rule,
                    f"{called} pins {title} {wanted}, and the requirements pin {pinned}",
                    build.sources,
                    remedy=CompatRemedy.of(
                        [_library(workload, library, wanted, f"pin {title} {wanted}")],
                        [remedies.unpin(library, workload, "leave it to torch")],
                        verb="",
                    ),
                    doubt=build.doubt,
                )
    for name, row in _ranges(workload):
        wanted = row[library]
        if wanted and not _matches(pinned, wanted):
            yield about(workload).block(
                rule,
                f"{name} needs {title} {wanted}, and the requirements pin {pinned}",
                facts.framework_sources(row),
                remedy=CompatRemedy.of(
                    [remedies.unpin(library, workload, f"leave {title} to {name.split()[0]}")],
                    verb="",
                ),
            )


def _framework_pins(workload: Workload) -> Iterator[CompatFinding]:
    """Report libraries of an image that differ from those its framework needs.

    This is no block: an image may contain a library twice, its own and one from the framework's
    wheel.
    """
    rule = "framework-libraries"
    both = "it runs only where the framework came with libraries of its own"
    remedy = "take an image whose libraries fit, or accept this where the framework's wheels contain their own"
    for name, row in _ranges(workload):
        major = row.get("cuda_major")
        if major is not None and workload.cuda is not None and key(workload.cuda)[0] != major:
            yield about(workload).unknown(
                rule,
                f"{name} is built for CUDA {major}, and the image has CUDA {workload.cuda}: {both}",
                facts.framework_sources(row),
                remedy=remedy,
            )
            continue
        for library, have in (("cudnn", workload.cudnn), ("nccl", workload.nccl)):
            if have is not None and row[library] and not _matches(have, row[library]):
                yield about(workload).unknown(
                    rule,
                    f"{name} needs {_TITLES[library]} {row[library]}, and the image has {have}: {both}",
                    facts.framework_sources(row),
                    remedy=remedy,
                )


def _ranges(workload: Workload) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of frameworks that state their libraries as ranges, for the CUDA of the workload."""
    if workload.rocm is not None:
        return
    row = facts.tensorflow().get(facts.public(workload.frameworks.get("tensorflow", "")))
    if row is not None and ("tensorflow" in workload.library_cuda or workload.cuda is not None):
        yield f"tensorflow {row['version']}", row
    version = workload.frameworks.get("onnxruntime", "")
    row = facts.onnxruntime(version) if version else None
    if row is not None:
        yield f"onnxruntime {version}", {**row, "nccl": None}
    version = workload.frameworks.get("jax") or workload.frameworks.get("jaxlib") or ""
    row = facts.jax_plugin(workload.library_cuda.get("jax", "")).get(facts.public(version))
    if row is not None:
        yield f"jax {version}", row


# -- ROCm


def rocm_driver(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the ROCm user space against the window of AMD's kernel driver."""
    version = _rocm(workload)
    if host is None or workload is None or version is None or host.vendor != "amd":
        return
    rule = "rocm-driver"
    release = facts.rocm(version)
    if host.amdgpu is None:
        own = f"{host.subject} uses the amdgpu driver of its kernel ({host.kernel or 'release not known'})"
        message = f"{own}, for which no source gives a window of ROCm versions; the workload has ROCm {version}"
        yield about(workload).unknown(
            rule,
            message,
            release.sources if release else (),
            remedy=CompatRemedy.of(
                [RemedyOption(f"run ROCm {version} on one node of the class first")],
                [
                    _amdgpu(item, "install amdgpu {}")
                    for item in (release.drivers if release else ())
                ],
                verb="",
            ),
        )
        return
    # The release's own page outweighs the window, which AMD states for series of drivers.
    driver = facts.amdgpu_release(host.amdgpu)
    if release is not None and any(facts.driver_in(driver, item) for item in release.drivers):
        return
    window = facts.window(driver)
    if window is None:
        known = [row.driver.removesuffix(".x") for row in facts.windows()]
        message = (
            f"no source gives the ROCm versions that amdgpu {host.amdgpu} of {host.subject} serves; the "
            f"workload has ROCm {version}"
        )
        yield about(workload).unknown(
            rule,
            message,
            facts.windows()[0].sources,
            remedy=CompatRemedy.of(
                [
                    *(_amdgpu(item, "amdgpu {}") for item in (release.drivers if release else ())),
                    *(
                        _amdgpu(item, "amdgpu {}, the nearest that is known")
                        for item in nearest(host.amdgpu, known)
                    ),
                ]
            ),
        )
    elif not window.has(version):
        message = (
            f"amdgpu {host.amdgpu} of {host.subject} serves ROCm {window.text}, and the workload has ROCm "
            f"{version}"
        )
        serving = [row.driver.removesuffix(".x") for row in facts.windows() if row.has(version)]
        drivers = [*(release.drivers if release else ()), *reversed(serving)]
        within = [
            _rocm_option(workload, item, f"a ROCm of {window.text}")
            for item in reversed(facts.rocms())
            if window.has(item)
        ]
        yield about(workload).block(
            rule,
            message,
            window.sources,
            remedy=CompatRemedy.of(
                within, [_amdgpu(item, "amdgpu {}") for item in drivers], between=" or "
            ),
            doubt=window.doubt,
        )


def _amdgpu(version: str, text: str) -> RemedyOption:
    """Return the option of a version of AMD's driver; of a range or a series, its first."""
    version = version.partition("-")[0].removesuffix(".x")
    return remedies.of_host(text.format(version), amdgpu=version)


def _rocm_option(workload: Workload, version: str, text: str) -> RemedyOption:
    """Return the option of another ROCm: another image, or another build of PyTorch."""
    if workload.rocm is not None or "torch" not in workload.frameworks:
        return remedies.of_workload(text, rocm=version)
    stated = workload.frameworks["torch"].partition("+")[0]
    return remedies.framework("torch", f"{stated}+rocm{minor(version)}", text, workload)


def _rocm(workload: Workload | None) -> str | None:
    """Return the ROCm version of a workload: its own, otherwise that of its PyTorch build."""
    if workload is None:
        return None
    if workload.rocm is not None:
        return workload.rocm
    torch = _torch(workload)
    return torch[0].rocm if torch is not None else None


def rocm_gpu(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the ROCm release against the GPU's gfx name."""
    version = _rocm(workload)
    if host is None or workload is None or version is None or host.vendor != "amd":
        return
    release = facts.rocm(version)
    if release is None:
        message = f"ROCm {version} is not in the facts; {read_until('rocm.yml', 'ROCm releases')}"
        text = "ROCm {}, the nearest that is known"
        others = [
            _rocm_option(workload, item, text.format(item))
            for item in nearest(version, facts.rocms())
        ]
        yield about(workload).unknown("rocm-gpu", message, remedy=CompatRemedy.of(others))
        return
    for gpu in _models(host):
        if gpu.gfx is None:
            continue
        where = f"{gpu.sku} ({gpu.gfx}) of {host.subject}"
        if release.gfx is None:
            yield about(workload).unknown(
                "rocm-gpu",
                f"no source says which gfx names ROCm {release.version} serves, so that nothing says "
                f"whether it serves {where}",
                release.sources,
                remedy=_rocm_for(workload, gpu),
                doubt=release.doubt,
            )
        elif gpu.gfx not in release.gfx:
            yield about(workload).block(
                "rocm-gpu",
                f"ROCm {release.version} serves {_and(release.gfx)}, and not {where}",
                release.sources,
                remedy=_rocm_for(workload, gpu),
                doubt=(
                    release.gfx_derived,
                    release.doubt,
                ),
            )


def _from_amd(workload: Workload, build: facts.TorchBuild) -> bool:
    """Return whether an image's PyTorch is AMD's own build, which its ROCm release lists."""
    release = facts.rocm(build.rocm or "")
    return (
        workload.kind == "image"
        and release is not None
        and any(same(item, build.release) for item in release.pytorch)
    )


def _rocm_for(workload: Workload, gpu: GpuModel) -> CompatRemedy:
    fitting = [
        item.version
        for item in facts.rocms().values()
        if item.gfx is not None and gpu.gfx in item.gfx
    ]
    options = [_rocm_option(workload, item, f"ROCm {item} or later") for item in fitting]
    return CompatRemedy.of(
        options, otherwise=f"use another class; no known ROCm that fits the rest lists {gpu.gfx}"
    )


def rocm_os(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the ROCm release against the node's operating system, whose kernel contains the driver."""
    version = _rocm(workload)
    if (
        host is None
        or workload is None
        or version is None
        or host.vendor != "amd"
        or host.os is None
    ):
        return
    release = facts.rocm(version)
    if release is None:
        return  # rocm-gpu reports this
    if release.os is None:
        yield about(workload).unknown(
            "rocm-os",
            f"no source says on which operating systems ROCm {release.version} is supported; "
            f"{host.subject} has {_os(host.os)}",
            release.sources,
            remedy=CompatRemedy.of(
                [
                    _rocm_option(
                        workload, item, f"a release whose list is known, {item} for instance"
                    )
                    for item in nearest(
                        version, [name for name, row in facts.rocms().items() if row.os]
                    )
                ]
            ),
        )
        return
    exact = [item for item in release.os if lists_system(item, host.os)]
    served = _serving(release, host)
    # Unknown, not a block: the list has the systems that AMD has tested.
    if not served:
        listed = [item.version for item in facts.rocms().values() if _serving(item, host)]
        remedy = CompatRemedy.of(
            [
                _rocm_option(workload, item, f"ROCm {item}, which lists it")
                for item in nearest(release.version, listed)
            ],
            otherwise="use an operating system of its list",
        )
        message = (
            f"the list of operating systems of ROCm {release.version} has no {_os(host.os)}, which "
            f"{host.subject} runs: {', '.join(release.os)}"
        )
        if exact:
            boards = _and([gpu.sku for gpu in _models(host)])
            message = f"ROCm {release.version} lists {exact[0]}, and {host.subject} has {boards}"
        yield about(workload).unknown(
            "rocm-os",
            message,
            release.sources,
            remedy=remedy,
            doubt=(
                release.os_derived,
                release.doubt,
            ),
        )
    elif "(" in served[0] and facts.boards_of(served[0]) is None:
        yield about(workload).warn(
            "rocm-os",
            f"ROCm {release.version} supports {served[0]} only; {host.subject} runs {_os(host.os)}",
            release.sources,
            doubt=(
                release.os_derived,
                release.doubt,
            ),
        )


def _serving(release: facts.RocmVersion, host: CompatHost) -> list[str]:
    """Return the entries of a ROCm release's list that have the host's system, for all of its boards."""
    boards = [gpu.sku for gpu in _models(host)]
    return [
        item
        for item in release.os or ()
        if lists_system(item, host.os or "") and all(facts.is_for(item, sku) for sku in boards)
    ]


def _os(text: str) -> str:
    """Return the display name of an OS: "Debian 12" for "debian 12"."""
    names = {
        "rhel": "RHEL",
        "sles": "SLES",
        "ubi": "UBI",
        "centos": "CentOS",
        "rocky": "Rocky Linux",
        "rockylinux": "Rocky Linux",
        "ol": "Oracle Linux",
        "amzn": "Amazon Linux",
    }
    return " ".join(names.get(part, part.capitalize()) for part in text.split())


# -- the image itself


def image_backend(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the GPU backend of a workload against the vendor of the node's GPUs."""
    if host is None or workload is None:
        return
    cuda = bool(_with_families(workload)) or bool(workload.library_cuda)
    rocm = _rocm(workload) is not None
    if not cuda and not rocm:
        return
    what = " and ".join(name for name, is_there in (("CUDA", cuda), ("ROCm", rocm)) if is_there)
    rule = "image-backend"
    if host.vendor is None:
        yield about(workload).block(
            rule,
            f"the workload is built for {what}, and {host.subject} has no GPU driver",
            remedy="use a class with GPUs, or an image of backend cpu",
        )
    elif (host.vendor == "nvidia" and not cuda) or (host.vendor == "amd" and not rocm):
        want = "CUDA" if host.vendor == "nvidia" else "ROCm"
        vendor = {"nvidia": "NVIDIA", "amd": "AMD"}[host.vendor]
        yield about(workload).block(
            rule,
            f"the workload is built for {what}, and the GPUs of {host.subject} are {vendor}'s",
            remedy=f"use the same versions built for {want}",
        )


def image_architecture(
    host: CompatHost | None, workload: Workload | None
) -> Iterator[CompatFinding]:
    """Check the CPU architecture of an image against the node's."""
    if host is None or workload is None or workload.architecture in (None, host.architecture):
        return
    yield about(workload).block(
        "image-architecture",
        f"the image is built for {workload.architecture}, and {host.subject} is {host.architecture}",
        remedy=CompatRemedy.of(
            [
                remedies.of_workload(
                    f"the image of the same version for {host.architecture}",
                    architecture=host.architecture,
                )
            ]
        ),
    )


def image_system(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Check the OS inside an image against the systems that CUDA's images and libraries exist for."""
    if workload is None or workload.os is None or workload.cuda is None:
        return
    rule = "image-system"
    for limit in _image_limits():
        if workload.repository is not None and not workload.repository.endswith("nvidia/cuda"):
            continue
        if workload.os != limit.system:
            continue
        version = key(workload.cuda)
        # Compared as far as the image states its version, which may be the minor alone.
        if limit.first is not None and version < key(limit.first)[: len(version)]:
            message = (
                f"NVIDIA's images of {_os(workload.os)} begin with CUDA {limit.first}, and this one says "
                f"{workload.cuda}"
            )
            yield about(workload).block(
                rule, message, limit.sources, remedy=_another_system(limit.first)
            )
        elif limit.last is not None and version > key(limit.last)[: len(version)]:
            message = (
                f"NVIDIA's images of {_os(workload.os)} end with CUDA {limit.last}, and this one says "
                f"{workload.cuda}"
            )
            yield about(workload).block(
                rule, message, limit.sources, remedy=_another_system(limit.last)
            )
    needs = _glibc_need(workload.cuda)
    if needs is None:
        return
    have = facts.glibc(workload.os)
    least, sources = needs
    if have is not None and key(have[0]) < key(least):
        yield about(workload).block(
            rule,
            f"libraries of CUDA {workload.cuda} need glibc {least} or later, and {_os(workload.os)} has "
            f"{have[0]}",
            (*sources, *have[1]),
            remedy="use an image of a later release of the system",
        )


def _another_system(cuda: str) -> CompatRemedy:
    other = RemedyOption("another system")
    return CompatRemedy.of([remedies.cuda(cuda, f"CUDA {cuda}")], [other], between=" or ")


@dataclass(frozen=True)
class _Limit:
    system: str
    first: str | None
    last: str | None
    sources: tuple[Origin, ...]


@cache
def _image_limits() -> tuple[_Limit, ...]:
    """Return the first and last CUDA version with NVIDIA images, by OS."""
    table = load(facts.CUDA)["container_images"]
    sources = origins(facts.CUDA, table["source"])
    names = {
        "ubi7_centos7_last": (("centos 7", "ubi 7"), False),
        "ubuntu2404_first": (("ubuntu 24.04",), True),
        "amzn2023_first": (("amzn 2023",), True),
        "rockylinux10_ubi10_first": (("rockylinux 10", "ubi 10"), True),
    }
    limits = []
    for name, (systems, first) in names.items():
        version = ".".join(map(str, key(table[name])))
        limits += [
            _Limit(system, version if first else None, None if first else version, sources)
            for system in systems
        ]
    return tuple(limits)


def _glibc_need(cuda: str) -> tuple[str, tuple[Origin, ...]] | None:
    """Return the glibc that CUDA's libraries need, from the remark on host compilers."""
    table = load(facts.CUDA)["host_compilers"]
    for remark in table["other"]:
        # The facts state this limit as a sentence.
        need = re.search(r"([\d.]+) and later \S+ needs glibc >= ([\d.]+)", remark)
        if need and key(cuda) >= key(need.group(1)):
            return need.group(2), origins(facts.CUDA, table["source"])
    return None


def image_requirement(
    host: CompatHost | None, workload: Workload | None
) -> Iterator[CompatFinding]:
    """Check the image's own NVIDIA_REQUIRE_* against driver and GPU.

    The container toolkit enforces it when a container starts, unless it gives GPUs by CDI.
    """
    if host is None or workload is None or host.vendor != "nvidia" or not workload.require_driver:
        return
    for condition in workload.require_driver.splitlines():
        yield from _one_condition(condition, host, workload)


def _one_condition(condition: str, host: CompatHost, workload: Workload) -> Iterator[CompatFinding]:
    branch = _branch(host)
    if condition.startswith(require.UNREADABLE):
        yield about(workload).block(
            "image-requirement",
            f"the image has {condition} and no NVIDIA_REQUIRE_CUDA, and the container toolkit does not start an "
            "image whose CUDA version it cannot read",
            facts.cuda_rule("legacy_image")[0],
            remedy=f"correct CUDA_VERSION in the image, or run it with {require.VARIABLE}=true",
        )
        return
    # Alternatives are separated by spaces; one that holds is enough.
    outcomes = [_admits(group, host, branch) for group in condition.split()]
    if not outcomes or True in outcomes:
        return
    driver = host.driver or f"branch {branch}"
    sources, _ = facts.cuda_rule("fwd_hw")
    wanted = next(
        (item for item in condition.split() if item.startswith("cuda")), condition.split()[0]
    )
    if None in outcomes:
        yield about(workload).unknown(
            "image-requirement",
            f"whether the image's own condition {wanted} … admits driver {driver} and the GPUs of "
            f"{host.subject} is not known",
            sources,
            remedy="lock the stack, and name the GPUs in the class",
        )
        return
    refused = f"neither driver {driver} nor the GPUs of {host.subject}"
    others = _refuses_gpus(condition, host)
    if others:
        refused = f"no GPU of {host.subject}"
    message = f"the image's own condition (NVIDIA_REQUIRE_*: {wanted} …) admits {refused}"
    image = f"use an image whose condition admits the GPUs of {host.subject}"
    if host.toolkit_mode == "cdi":
        yield about(workload).warn(
            "image-requirement",
            f"{message}; with CDI the container toolkit does not check it, so that the container starts",
            facts.cuda_rule("legacy_image")[0],
            remedy=image if others else "use an image that names this branch, or a newer driver",
        )
    else:
        remedy: str | CompatRemedy = image
        if not others:
            newer = [
                remedies.driver(name, "driver branch {} or later")
                for name in fixed_branches()
                if branch is not None and int(name) > branch
            ]
            remedy = CompatRemedy.of(newer, [RemedyOption("an image that names this branch")])
        yield about(workload).block("image-requirement", message, sources, remedy=remedy)


def _refuses_gpus(condition: str, host: CompatHost) -> bool:
    """Return whether each alternative of a condition asks for other GPUs, so that no driver meets it."""
    asked = [
        [part for part in group.split(",") if part.startswith(("arch", "brand"))]
        for group in condition.split()
    ]
    return all(parts and _admits(",".join(parts), host, None) is False for parts in asked)


def _admits(group: str, host: CompatHost, branch: int | None) -> bool | None:
    """Evaluate one alternative of NVIDIA_REQUIRE_CUDA: all of its comma-separated conditions must hold.

    None if some cannot be decided.
    """
    outcome: bool | None = True
    for condition in group.split(","):
        parts = re.fullmatch(r"(cuda|driver|brand|arch)(>=|<=|!=|=|<|>)(.+)", condition)
        if parts is None:
            outcome = None
            continue
        name, sign, wanted = parts.groups()
        answers: list[bool | None]
        if name == "brand":
            answers = [_brand(gpu, wanted) if sign == "=" else None for gpu in _models(host)] or [
                None
            ]
        elif name == "arch":
            answers = [_compare(gpu.compute_capability, sign, wanted) for gpu in _models(host)] or [
                None
            ]
        elif name == "driver":
            answers = [_compare(host.driver or (str(branch) if branch else None), sign, wanted)]
        else:
            # The toolkit compares with the CUDA version of the driver, its native one.
            answers = [_compare(facts.native_cuda().get(branch or 0), sign, wanted)]
        if False in answers:
            return False
        if None in answers:
            outcome = None
    return outcome


def _brand(gpu: GpuModel, wanted: str) -> bool | None:
    if gpu.sku.startswith("GeForce"):
        return wanted in ("geforce", "geforcertx")
    if gpu.data_centre:
        return {"tesla": True, "unknown": None}.get(wanted, False)
    return None


def _compare(have: str | None, sign: str, wanted: str) -> bool | None:
    return None if have is None else satisfies(have, sign, wanted)


def reader_findings(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Yield the findings of the reader about what could not be determined."""
    if workload is not None:
        yield from (item for item in workload.reports if item.rule == "workload-told")


def as_pinned(host: CompatHost | None, workload: Workload | None) -> Iterator[CompatFinding]:
    """Yield the findings of the reader about requirements that are not pinned or not covered."""
    if workload is not None:
        yield from (item for item in workload.reports if item.rule == "requirement-open")


RULES: tuple[CompatRule, ...] = (
    CompatRule(
        "workload-told",
        "An image declares its contents",
        "An image whose name follows no known scheme, whose tag is movable (latest), or of which only a "
        "digest is given, has nothing that could be checked. Its metadata does (docker inspect, an OCI "
        "layout, a saved image), and so does the class, which can state versions beside the image's "
        "name. An unknown is never reported as compatible.",
        reader_findings,
    ),
    CompatRule(
        "requirement-open",
        "Requirements pin what uses the GPU",
        "A requirement without an exact version gives another build on another day, one under a marker "
        "another on another Python, and a package that uses the GPU and of which no facts are held cannot "
        "be judged. Each is named with its line.",
        as_pinned,
    ),
    CompatRule(
        "cuda-driver",
        "The driver runs the CUDA runtime",
        "A driver runs the CUDA minor it was released with and all older ones. A newer minor of the same "
        "family runs by minor-version compatibility from the family's oldest driver on, without compiling "
        "PTX of the newer toolkit and without features of newer drivers: allowed, and reported. A newer "
        "family "
        "needs a newer driver, or NVIDIA's forward-compatibility package (cuda-compat) in the image, which "
        "works on data-centre GPUs only, and on the driver branches it lists: allowed and reported "
        "there, refused elsewhere. Facts: cuda.yml (driver_minimum_per_major, releases, forward_compat), "
        "nvidia_drivers.yml (max_cuda), gpus.yml (data_centre).",
        cuda_driver,
    ),
    CompatRule(
        "cuda-gpu",
        "The CUDA runtime has code for the GPU",
        "Each CUDA has a first and a last architecture. Older than the first: only code for an older "
        "capability of the same major number runs. Newer than the last: nothing does. Facts: cuda.yml "
        "(architectures, binary_compat).",
        cuda_gpu,
    ),
    CompatRule(
        "cudnn-cuda",
        "cuDNN is built for the CUDA beside it",
        "cuDNN is released per CUDA family, and its support matrix lists the minors it was tested with. "
        "Facts: cudnn_nccl.yml (cudnn_matrix, image_pairing, wheels), frameworks.yml (image_contents).",
        cudnn_cuda,
    ),
    CompatRule(
        "cudnn-gpu",
        "cuDNN serves the GPU and its driver",
        "The support matrix of a cuDNN version lists compute capabilities and the oldest driver. Of a "
        "version whose matrix was not read, the matrices before and after it decide where they agree. "
        "Facts: cudnn_nccl.yml (cudnn_matrix).",
        cudnn_gpu,
    ),
    CompatRule(
        "nccl-cuda",
        "NCCL is built for the CUDA beside it",
        "NCCL is released per CUDA family. Facts: cudnn_nccl.yml (wheels, image_pairing), "
        "frameworks.yml (image_contents).",
        nccl_cuda,
    ),
    CompatRule(
        "framework-version",
        "Frameworks are in versions and builds that exist",
        "A release of PyTorch has builds for some CUDA and ROCm versions only. A version the facts do not "
        "know cannot be judged. Facts: frameworks.yml.",
        framework_version,
    ),
    CompatRule(
        "framework-python",
        "Frameworks have wheels for the Python beside them",
        "Facts: frameworks.yml (requires_python, python_tags).",
        framework_python,
    ),
    CompatRule(
        "torch-gpu",
        "PyTorch has code for the GPU",
        "A wheel of PyTorch carries machine code for the compute capabilities it was built for. Such code "
        "runs on the same major number and the same or a higher minor; where the wheel carries PTX, the "
        "driver compiles it for later GPUs at the first start. Facts: frameworks.yml "
        "(torch_compute_capabilities, torch_rocm_architectures), cuda.yml (binary_compat).",
        torch_gpu,
    ),
    CompatRule(
        "torch-cpu",
        "PyTorch's wheel for the machine has CUDA",
        "On the package index, PyTorch's wheels for x86_64 are built for CUDA; those for aarch64 are CPU builds up to "
        "2.10. pip takes them without a word, and the job runs on the CPU. The requirements of a release on the machine "
        "decide: a build for CUDA requires CUDA's libraries. PyTorch's own index has builds with CUDA. Facts: wheels.yml.",
        torch_cpu,
    ),
    CompatRule(
        "framework-gpu",
        "TensorFlow, JAX and serving engines serve the GPU and its driver",
        "Each names a lowest compute capability, JAX and Ollama the driver branch too. Facts: frameworks.yml "
        "(tensorflow_compute_capability, jax_minimum, vllm_compute_capability, engine_minimum).",
        framework_gpu,
    ),
    CompatRule(
        "framework-libraries",
        "Frameworks and libraries agree",
        "PyTorch pins exact versions of cuDNN and NCCL, TensorFlow and JAX ranges, vLLM a version of "
        "PyTorch. Requirements that pin something else cannot be installed, or load a library the "
        "framework was not built with. Facts: frameworks.yml.",
        framework_libraries,
    ),
    CompatRule(
        "tensorrt-cuda",
        "TensorRT is published for the CUDA beside it",
        "Each release of TensorRT is published for one or two CUDA families: 10.13.2 was the first for CUDA 13 and "
        "the first without CUDA 11. Facts: frameworks.yml (tensorrt).",
        tensorrt_cuda,
    ),
    CompatRule(
        "rocm-driver",
        "AMD's kernel driver serves the ROCm user space",
        "Each version of AMD's kernel driver serves a window of ROCm releases. The driver of a "
        "distribution's own kernel is in no table. Facts: rocm.yml (amdgpu_driver, releases).",
        rocm_driver,
    ),
    CompatRule(
        "rocm-gpu",
        "ROCm serves the GPU",
        "A ROCm release lists the gfx names it serves. Where a release has no list, the last one before it "
        "and the current documentation decide together. Facts: rocm.yml (releases, gfx_of_gpu).",
        rocm_gpu,
    ),
    CompatRule(
        "rocm-os",
        "ROCm knows the node's operating system",
        "A ROCm release lists the operating systems whose kernels it was tested with. Facts: rocm.yml "
        "(releases, os_footnotes).",
        rocm_os,
    ),
    CompatRule(
        "image-backend",
        "An image is built for the node's GPUs",
        "An image for CUDA does nothing on AMD's GPUs, nor one for ROCm on NVIDIA's, nor either on a node "
        "without a GPU.",
        image_backend,
    ),
    CompatRule(
        "image-architecture",
        "An image is built for the node's CPU",
        "The architecture in the image's metadata is compared with the stack's.",
        image_architecture,
    ),
    CompatRule(
        "image-system",
        "The system inside an image carries CUDA's libraries",
        "NVIDIA makes images of a system from one CUDA version on, or up to one; libraries need a lowest "
        "glibc. Facts: cuda.yml (container_images, host_compilers), distros.yml.",
        image_system,
    ),
    CompatRule(
        "image-requirement",
        "An image's own condition admits the driver",
        "NVIDIA's images state in NVIDIA_REQUIRE_CUDA on which drivers and brands they may start: "
        "alternatives separated by spaces, conditions of one alternative by commas. Read from the image's "
        "metadata.",
        image_requirement,
    ),
)

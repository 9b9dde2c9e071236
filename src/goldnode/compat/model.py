"""Data model of a compatibility check: hosts, workloads, rules and findings.

Values only; the rules are in `compat.rules_*`, the engine is `compat.check`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
)

from goldnode.core.dataclass import dataclass
from goldnode.core.errors import GoldnodeError
from goldnode.facts.host import GpuModel, ModuleFlavour, Origin

JudgedValue = TypeVar("JudgedValue")

if TYPE_CHECKING:
    from goldnode.facts.wheels import GpuWheel  # start-up time: it loads packaging

# block: known not to work, or must not be used. warn: works within stated limits. unknown: no source states
# it.
CompatSeverity = Literal["block", "warn", "unknown"]


@dataclass(frozen=True)
class DeclaredAt:
    """Where the subject of a finding was declared; `line` counts from 1."""

    file: Path
    line: int | None = None


def declared(place: DeclaredAt | None) -> dict[str, Any]:
    """Return the arguments of an error about something that was declared at `place`."""
    return {} if place is None else {"file": place.file, "line": place.line}


class StatedOption(Protocol):
    """One way out of a finding, and what it makes of a combination; see `compat.remedies`."""

    @property
    def text(self) -> str:
        """Return its words."""

    @property
    def change(self) -> Callable[[Any], Any] | None:
        """Return what it makes of a combination of host and workload; None for words alone."""


class StatedRemedy(Protocol):
    """A remedy that is judged before it is printed; see `compat.remedies`."""

    def text(self) -> str:
        """Return the words of what holds."""

    def options(self) -> Sequence[StatedOption]:
        """Return what holds, as changes of a combination."""


@dataclass(frozen=True)
class CompatFinding:
    """One result of a rule.

    `subject` names what it is about ("class a100_sxm4_40gb", "image nvidia/cuda:13.0.0-base-ubuntu24.04").
    `message` is one sentence with the figures, without its full stop. `remedy`, from `way_out`, names the nearest
    combination that fits; it starts with a verb and has no full stop. `doubt` holds the reservations of the facts about
    the deciding row (`conflict`, `confidence`, `unverified`). `accepted` is who accepted it and why, as a
    class or a waiver records it. An accepted finding is shown but does not fail the check. `check` sets
    `fatal`: the subject must not be used.
    """

    rule: str
    severity: CompatSeverity
    subject: str
    message: str
    sources: tuple[Origin, ...]
    way_out: str | StatedRemedy | None = None
    place: DeclaredAt | None = None
    doubt: str | None = None
    accepted: str | None = None
    fatal: bool = False
    row: str | None = None  # id of a row of known_bad.yml, if the finding comes from the list

    @property
    def remedy(self) -> str | None:
        """Return the remedy. One that names a version is judged by the rules now, on first use."""
        if self.way_out is None or isinstance(self.way_out, str):
            return self.way_out
        return self.way_out.text()

    @property
    def options(self) -> Sequence[StatedOption]:
        """Return what the remedy names, as changes of the combination; empty if it is words alone."""
        return (
            () if self.way_out is None or isinstance(self.way_out, str) else self.way_out.options()
        )


@dataclass(frozen=True)
class StackWaiver:
    """Permission to use a stack past its end of life, as the stack records it. No classes: valid for all."""

    reason: str
    owner: str
    expires: dt.date
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Acceptance:
    """An acceptance of a class: findings of `rule`, about `subject` if set, until `expires` (inclusive)."""

    rule: str
    reason: str
    owner: str
    expires: dt.date
    subject: str | None = None


@dataclass(frozen=True)
class CompatHost:
    """The node side of a combination.

    None and empty mean "not stated": a rule that needs the value is silent or reports `unknown`. `kernel` is
    a release as `uname -r` shows it; `driver` an exact upstream version, `branch` its first number. `engine`
    is docker, containerd or podman. `modules` maps other out-of-tree modules to their versions.
    """

    subject: str
    os: str | None = None  # ID and VERSION_ID: "debian 12", "ubuntu 24.04"
    architecture: str = "amd64"
    kernel: str | None = None
    vendor: Literal["nvidia", "amd", "intel"] | None = None
    branch: str | None = None
    driver: str | None = None
    flavour: ModuleFlavour | None = None
    gpus: tuple[GpuModel, ...] = ()
    auto: bool = (
        False  # the class takes the GPU model that a node has; `gpus` is empty until one is known
    )
    nvswitch: bool = False
    fabric_manager: str | None = None  # its version
    engine: str | None = None
    engine_version: str | None = None
    toolkit: str | None = None  # upstream version of the container toolkit
    toolkit_mode: str | None = None
    amdgpu: str | None = None  # version of AMD's out-of-tree driver; None: the in-tree one
    kernel_module: str | None = None  # the kernel's own driver that the stack declares: i915 or xe
    opencl: str | None = None  # version of the stack's intel-opencl-icd
    modules: Mapping[str, str] = field(default_factory=dict)
    # Versions of further parts, by their names in facts/parts.yml; empty: present, version unknown.
    parts: Mapping[str, str] = field(default_factory=dict)
    locked_parts: Mapping[str, str] = field(default_factory=dict)  # those of the lock's packages
    cohort: str | None = None
    place: DeclaredAt | None = None
    # Only for a class or stack of the catalog.
    name: str | None = None  # of the class
    stack: str | None = None
    simulated: bool = False  # the hardware is simulated; rules about it are skipped
    tier: str | None = None  # of the class
    # Why there is no lock with exact versions; None: there is one, or no lock is needed.
    unlocked: str | None = None
    # The lock exists, but is edited, conflicting or unreadable.
    lock_fault: GoldnodeError | None = None
    # Upstream version, if the release does not contain it: 6.1.192 of 6.1.0-56-amd64.
    kernel_version: str | None = None
    page_kib: int | None = None  # of the kernel; None: the stack does not state it
    # Version of the package that ships the module, Debian's revision included.
    driver_package: str | None = None
    packages: tuple[str, ...] = ()  # packages that the stack requests by name
    archives: tuple[str, ...] = ()
    fabric_manager_package: str | None = None
    platform: str | None = None
    end_of_life: dt.date | None = None
    end_of_life_source: str | None = None
    waiver: StackWaiver | None = None
    on: dt.date | None = None  # the day to judge for; None: dates are not judged
    cmdline: tuple[str, ...] | None = None  # words of the kernel command line; None: unknown
    # MIG, GPUDirect Storage, KVM SR-IOV: whether in use, if known.
    features: Mapping[str, bool] = field(default_factory=dict)
    unknown: Literal["block", "warn", "accept"] = "warn"  # handling of facts that no source states
    accept: tuple[Acceptance, ...] = ()
    # Lines of driver, kernel, os, engine, toolkit, gpu, platform …
    places: Mapping[str, DeclaredAt] = field(default_factory=dict)

    def at(self, *names: str) -> DeclaredAt | None:
        """Return the place of the first of `names` in the file, otherwise that of the whole declaration."""
        return next((self.places[name] for name in names if name in self.places), self.place)


class _WatchedHost(CompatHost):
    """A host that notes whether its GPUs were read."""

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name == "gpus":
            object.__getattribute__(self, "__dict__")["gpus_read"] = True
        return value


def reading_gpus(
    host: CompatHost, judge: Callable[[CompatHost], JudgedValue]
) -> tuple[JudgedValue, bool]:
    """Return what a pure function gives for a host, and whether it has read the host's GPUs.

    If not, it gives the same for a host that differs in nothing else.
    """
    watched = object.__new__(_WatchedHost)
    watched.__dict__.update(vars(host))
    value = judge(watched)
    return value, "gpus_read" in watched.__dict__


@dataclass(frozen=True)
class Workload:
    """A workload of a node: an image, a requirements file, or both.

    Versions are upstream's; None means unknown. `cuda` is the runtime ("12.4"), `forward_compat` whether the
    image contains NVIDIA's cuda-compat package (None: unknown), and `forward_compat_version` its version.
    `frameworks` maps torch, tensorflow, jax, vllm … to versions, local part included ("2.8.0+cu128").
    `architectures` are the compute capabilities or gfx names that its binaries were built for, if known.

    `repository` is an image's name without registry and tag, `architecture` Debian's name of its
    architecture. `library_cuda` maps a library or framework to the CUDA major number in the name or extra of
    its wheel ("nvidia-cudnn-cu12" and "jax[cuda12]" state "12"). `require_driver` is the image's
    NVIDIA_REQUIRE_CUDA. `reports` holds findings of the reader, mostly about properties it could not determine.
    """

    subject: str
    cuda: str | None = None
    forward_compat: bool | None = None
    forward_compat_version: str | None = None
    rocm: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    python: str | None = None
    os: str | None = None
    frameworks: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    place: DeclaredAt | None = None
    kind: Literal["image", "requirements"] = "image"
    repository: str | None = None
    architecture: str | None = None
    library_cuda: Mapping[str, str] = field(default_factory=dict)
    require_driver: str | None = None
    minimum_capability: str | None = (
        None  # the least compute capability that the image's notes support
    )
    # Driver branches in the note of its forward-compatibility library; empty: unread, or without a note.
    compat_drivers: tuple[int, ...] = ()
    capability_source: str | None = None  # key of the notes in frameworks.yml
    reports: tuple[CompatFinding, ...] = ()
    # Exact versions of packages that use the GPU, as a requirements file pins them, with extras and lines.
    pins: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pin_places: Mapping[str, DeclaredAt] = field(default_factory=dict)
    # CUDA families that names and local versions of required packages state: cudf-cu13 states "13".
    families: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] = ()  # packages that the file asks for, pinned or not
    # Packages that use the GPU and are no framework or library of the facts, with their lines.
    uses_gpu: Mapping[str, DeclaredAt] = field(default_factory=dict)
    # The resolver that wrote the file, and the packages that require each, as it states them.
    resolved: str | None = None
    locked: bool = False  # a lock file, which is installed without another resolution
    overridden: tuple[
        str, ...
    ] = ()  # packages whose versions its project states against all requirements
    requirers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    machine: str = "x86_64"  # which wheels pip takes
    code: Mapping[str, GpuWheel] = field(
        default_factory=dict
    )  # wheels that were read for this check
    # The parts of a lock file or another file of a project that were read, and those that were left out.
    read: str | None = None
    left_out: str | None = None


class FindingParts(TypedDict, total=False):
    """Optional fields of a finding, besides its message and sources; see `CompatFinding`."""

    remedy: str | None
    doubt: str | Iterable[str | None] | None
    row: str | None
    accepted: str | None


class FindingSubject(NamedTuple):
    """Subject of findings, and where it was declared; see `about`. Its methods create them."""

    name: str
    place: DeclaredAt | None = None

    def finding(
        self,
        rule: str,
        severity: CompatSeverity,
        message: str,
        sources: Iterable[Origin] = (),
        *,
        remedy: str | None = None,
        doubt: str | Iterable[str | None] | None = None,
        row: str | None = None,
        accepted: str | None = None,
    ) -> CompatFinding:
        """Return a finding. `sources` and `doubt` may repeat themselves: several rows can have the same."""
        if doubt is not None and not isinstance(doubt, str):
            doubt = "; ".join(dict.fromkeys(item for item in doubt if item)) or None
        return CompatFinding(
            rule,
            severity=severity,
            subject=self.name,
            message=message,
            sources=tuple(dict.fromkeys(sources)),
            way_out=remedy,
            place=self.place,
            doubt=doubt,
            row=row,
            accepted=accepted,
        )

    def block(
        self, rule: str, message: str, sources: Iterable[Origin] = (), **more: Unpack[FindingParts]
    ) -> CompatFinding:
        """Return a finding that the combination does not work, or must not be used."""
        return self.finding(rule, "block", message, sources, **more)

    def warn(
        self, rule: str, message: str, sources: Iterable[Origin] = (), **more: Unpack[FindingParts]
    ) -> CompatFinding:
        """Return a finding that it works within stated limits."""
        return self.finding(rule, "warn", message, sources, **more)

    def unknown(
        self, rule: str, message: str, sources: Iterable[Origin] = (), **more: Unpack[FindingParts]
    ) -> CompatFinding:
        """Return a finding that no source states whether it works."""
        return self.finding(rule, "unknown", message, sources, **more)


def about(subject: CompatHost | Workload, *names: str) -> FindingSubject:
    """Return the subject of findings: a workload, or a host at the first of `names` that its files declare."""
    if isinstance(subject, CompatHost):
        return FindingSubject(subject.subject, subject.at(*names))
    return FindingSubject(subject.subject, subject.place)


@dataclass(frozen=True)
class CompatRule:
    """A rule: a pure function of host and workload. Either may be absent, and then has no findings.

    `explanation` is the text of `goldnode check --explain ID`: the comparison, why it matters, where the
    facts come from.
    """

    id: str
    title: str
    explanation: str
    check: Any  # Callable[[Host | None, Workload | None], Iterable[Finding]]
    # Its sources: keys of `sources`, by facts file.
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

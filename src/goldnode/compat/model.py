"""What a compatibility check is about, and what it finds. Values only; the rules are in `compat.rules_*`, the engine in `compat.check`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from goldnode.facts.host import Gpu, Origin

# block: is known not to work, or must not be used. warn: works within limits that are said. unknown: no source says.
Severity = Literal["block", "warn", "unknown"]
Flavour = Literal["open", "proprietary"]


@dataclass(frozen=True)
class Place:
    """Where the thing that is found fault with was declared; `line` counts from 1."""

    file: Path
    line: int | None = None


@dataclass(frozen=True)
class Finding:
    """One thing a rule has to say.

    `subject` names what it is about ("class a100_sxm4_40gb", "image nvidia/cuda:13.0.0-base-ubuntu24.04"). `message` is one sentence with
    the figures, without its full stop; `remedy` names the nearest combination that fits, starts with a verb, no full stop. `doubt` carries
    what the facts themselves say against the row that decided (`conflict`, `confidence`, `unverified`). `accepted` is who accepted it and
    why, where a class or a waiver records that; an accepted finding is shown and does not fail the check. `fatal` is set by
    `check`: what this is found of must not be used.
    """

    rule: str
    severity: Severity
    subject: str
    message: str
    sources: tuple[Origin, ...]
    remedy: str | None = None
    place: Place | None = None
    doubt: str | None = None
    accepted: str | None = None
    fatal: bool = False
    row: str | None = None  # of known_bad.yml, where it is one of the list


@dataclass(frozen=True)
class Waiver:
    """Leave to use a stack past its end of life, as its stack records it; no classes: given to all."""

    reason: str
    owner: str
    expires: dt.date
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Acceptance:
    """What a class accepts: findings of `rule`, of `subject` only where it names one, until `expires` (that day included)."""

    rule: str
    reason: str
    owner: str
    expires: dt.date
    subject: str | None = None


@dataclass(frozen=True)
class Host:
    """The node side of a combination. None and empty mean: not stated, so that rules that need it are silent or say `unknown`.

    `kernel` is a release as `uname -r` shows it; `driver` an exact upstream version, `branch` its first number. `engine` is docker,
    containerd or podman. `modules` maps other out-of-tree modules to their versions. `lock` is the age-independent lock, if there is one.
    """

    subject: str
    os: str | None = None  # ID and VERSION_ID: "debian 12", "ubuntu 24.04"
    architecture: str = "amd64"
    kernel: str | None = None
    vendor: Literal["nvidia", "amd"] | None = None
    branch: str | None = None
    driver: str | None = None
    flavour: Flavour | None = None
    gpus: tuple[Gpu, ...] = ()
    nvswitch: bool = False
    fabric_manager: str | None = None  # its version
    engine: str | None = None
    engine_version: str | None = None
    toolkit: str | None = None  # container toolkit's upstream version
    toolkit_mode: str | None = None
    amdgpu: str | None = None  # version of AMD's out-of-tree driver; None: the kernel's own
    modules: Mapping[str, str] = field(default_factory=dict)
    cohort: str | None = None
    place: Place | None = None
    # Of a catalog's class or stack only.
    name: str | None = None  # of the class
    stack: str | None = None
    simulated: bool = False  # the hardware is; what needs it is not judged
    unlocked: str | None = (
        None  # why there is no lock to take exact versions from; None: there is one, or none is needed
    )
    kernel_version: str | None = (
        None  # upstream's, where the release does not carry it: 6.1.192 of 6.1.0-56-amd64
    )
    driver_package: str | None = (
        None  # version of the package that brings the module, Debian's revision included
    )
    packages: tuple[str, ...] = ()  # what the stack asks for by name
    archives: tuple[str, ...] = ()
    fabric_manager_package: str | None = None
    platform: str | None = None
    end_of_life: dt.date | None = None
    end_of_life_source: str | None = None
    waiver: Waiver | None = None
    on: dt.date | None = None  # the day it is judged for; None: what has a date is not judged
    cmdline: tuple[str, ...] | None = None  # words of the kernel's command line; None: not known
    features: Mapping[str, bool] = field(
        default_factory=dict
    )  # MIG, GPUDirect Storage, KVM SR-IOV: whether in use, where that is known
    unknown: Literal["block", "warn", "accept"] = "warn"  # what is done with what no source says
    accept: tuple[Acceptance, ...] = ()
    places: Mapping[str, Place] = field(
        default_factory=dict
    )  # lines of driver, kernel, os, engine, toolkit, gpu, platform …

    def at(self, *names: str) -> Place | None:
        """Where the first of `names` that was written stands, else where the whole is declared."""
        return next((self.places[name] for name in names if name in self.places), self.place)


@dataclass(frozen=True)
class Workload:
    """What is to run on a node: an image, a requirements file, or both. Versions as their own projects write them, None where not known.

    `cuda` is the runtime ("12.4"), `forward_compat` whether the image carries NVIDIA's cuda-compat package (None: not known), and
    `forward_compat_version` its version. `frameworks` maps torch, tensorflow, jax, vllm … to versions, local part included ("2.8.0+cu128").
    `architectures` are the compute capabilities or gfx names that its binaries were built for, where that is known.

    `repository` is an image's name without registry and tag, `architecture` Debian's name of what it was built for. `library_cuda` gives
    the CUDA major number that a wheel's name or extra states ("nvidia-cudnn-cu12" and "jax[cuda12]" state "12"), by library or framework.
    `require_driver` is the image's NVIDIA_REQUIRE_CUDA. `told` is what reading it already found: what could not be learned, mostly.
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
    place: Place | None = None
    kind: Literal["image", "requirements"] = "image"
    repository: str | None = None
    architecture: str | None = None
    library_cuda: Mapping[str, str] = field(default_factory=dict)
    require_driver: str | None = None
    told: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A rule: a pure function of host and workload (either may be absent; a rule says nothing about what it was not given).

    `explanation` is what `goldnode check --explain ID` prints: what is compared, why it matters, where the facts come from.
    """

    id: str
    title: str
    explanation: str
    check: Any  # Callable[[Host | None, Workload | None], Iterable[Finding]]
    facts: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # what it rests on: keys of `sources`, by facts file

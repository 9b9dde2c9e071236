"""Reader of pip's requirements files: options, pins, markers, includes and constraints, as pip reads them.

Readers of other files (`compat.project_files`) add their pins to the same `RequirementReading`.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from goldnode.compat import gpu_packages
from goldnode.compat.model import DeclaredAt, declared
from goldnode.core.errors import WorkloadError, nearest
from goldnode.facts import wheels
from goldnode.facts import workload as facts
from goldnode.facts.workload import key
from goldnode.node.ground.optional import group

# Options of pip that take a value. Those that name an index may imply a CUDA or ROCm build of its
# wheels.
_INDEX = ("--index-url", "-i", "--extra-index-url", "--find-links", "-f")
_VALUED = (
    *_INDEX,
    "--trusted-host",
    "--no-binary",
    "--only-binary",
    "--use-feature",
    "--proxy",
    "--config-settings",
)
_FLAGS = (
    "--pre",
    "--no-index",
    "--require-hashes",
    "--prefer-binary",
    "--no-deps",
    "--no-build-isolation",
)
FRAMEWORKS = ("torch", "tensorflow", "jax", "jaxlib", "vllm")
LIBRARY = re.compile(r"nvidia-(cudnn|nccl|cuda-runtime)-cu(\d\d)")
PLUGIN = re.compile(r"jax-cuda(\d\d)-(?:plugin|pjrt)")


@dataclass
class RequirementLine:
    file: Path
    number: int
    text: str

    def error(self, message: str, remedy: str) -> WorkloadError:
        return WorkloadError(message, file=self.file, line=self.number, remedy=remedy)


@dataclass
class RequirementPin:
    version: str
    line: RequirementLine
    constraint: bool


@dataclass
class RequirementReading:
    """State of the parser: the content so far of a requirements file and the files it includes."""

    python: str | None
    machine: str
    pins: dict[str, RequirementPin] = field(default_factory=dict)
    asked: dict[str, RequirementLine] = field(default_factory=dict)
    extras: dict[str, set[str]] = field(default_factory=dict)
    index: tuple[str, RequirementLine] | None = (
        None  # the build that --index-url implies, for every package
    )
    extra_index: list[tuple[str, RequirementLine]] = field(default_factory=list)
    open: list[tuple[RequirementLine, str, str]] = field(default_factory=list)
    uses_gpu: dict[str, RequirementLine] = field(default_factory=dict)
    # The build of the index that one package comes from, and the CUDA of a conda environment.
    builds: dict[str, tuple[str, RequirementLine]] = field(default_factory=dict)
    cuda: str | None = None
    read: list[Path] = field(default_factory=list)
    # The resolver that wrote the file: its versions agree with what the packages require.
    resolved: str | None = None
    # A lock file: what installs it does not compare requirements again. Its project may override some.
    locked: bool = False
    overridden: set[str] = field(default_factory=set)
    # Packages that require a package, as a resolver's file states them.
    requirers: dict[str, set[str]] = field(default_factory=dict)


def build_of_index(version: str, line: RequirementLine, reading: RequirementReading) -> str:
    """Return PyTorch's version with the build that its index implies, unless the version names a build."""
    _, _, local = version.partition("+")
    if local:
        if reading.index is not None and reading.index[0] != local and not reading.extra_index:
            named, other = reading.index
            raise line.error(
                f"torch is pinned as {version}, but the index of {other.file}:{other.number} is the one "
                f"for {named}",
                f"pin {version.partition('+')[0]}+{named}, or name the index for {local}",
            )
        return version
    if "torch" in reading.builds:
        return f"{version}+{reading.builds['torch'][0]}"
    builds = [
        build for build, _ in (*([reading.index] if reading.index else ()), *reading.extra_index)
    ]
    return _highest(version, builds)


def _highest(version: str, builds: Sequence[str]) -> str:
    """Return the version that pip takes from indexes of these builds: it reads all, and the highest version wins.

    A local version is higher than the release without one (PEP 440). A build that the release does
    not have is on no index.
    """
    there = [f"{version}+{build}" for build in builds]
    there = [
        item for item in there if (torch := facts.torch(item)) is None or torch.known is not False
    ]
    return max(there, key=Version, default=version)


def read_text(path: Path, place: DeclaredAt | None) -> str:
    """Return the text of a file of requirements. Raises WorkloadError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as problem:
        raise WorkloadError(
            f"requirements file {path} does not exist", **declared(place), remedy="correct its name"
        ) from problem
    except (OSError, UnicodeDecodeError) as problem:
        remedy = "correct its name, or who may read it"
        if isinstance(problem, UnicodeDecodeError):
            remedy = "save it as UTF-8"
        raise WorkloadError(
            f"requirements file {path} cannot be read: {problem}", **declared(place), remedy=remedy
        ) from problem


def read_file(
    path: Path, reading: RequirementReading, constraint: bool, place: DeclaredAt | None
) -> None:
    """Read a requirements file. Raises WorkloadError for what pip would reject, and for pins that differ."""
    if path.resolve() in reading.read:
        return
    reading.read.append(path.resolve())
    text = read_text(path, place)
    _read_requirers(text, reading)
    for line in _lines(path, text):
        if line.text.startswith("-"):
            add_option(line, reading, constraint)
        else:
            add_requirement(line, reading, constraint)


# `pip-compile` and `uv pip compile` write the command into the first lines.
_COMPILED = re.compile(r"^#.*autogenerated by (uv|pip-compile)", re.M)
# They name the packages that require one: behind its pin, or in the lines after it.
_VIA = re.compile(r"(?:^|\s)#\s*via\b\s*(.*)$")
_VIA_MORE = re.compile(r"\s+#\s{2,}(\S.*)$")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _read_requirers(text: str, reading: RequirementReading) -> None:
    """Read which packages require one from the comments of a compiled file ("# via torch")."""
    compiled = _COMPILED.search(text[:2000])
    if compiled is None:
        return
    reading.resolved = compiled.group(1)
    name, listing = "", False
    for raw in text.splitlines():
        pin = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*(?:==|@)", raw)
        if pin is not None:
            name, listing = canonicalize_name(pin.group(1)), False
        via = _VIA.search(raw)
        more = _VIA_MORE.match(raw) if listing and via is None else None
        listing = name != "" and (via is not None or more is not None)
        if not listing:
            continue
        comment = via or more
        for item in comment[1].split(",") if comment is not None else ():
            project = _PROJECT.match(item.strip())
            if project is not None:
                reading.requirers.setdefault(name, set()).add(canonicalize_name(project.group()))


def _lines(path: Path, text: str) -> Iterator[RequirementLine]:
    """Yield logical lines without comments. Continued lines are joined and have the number of the first."""
    start, held = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        start = start or number
        whole = raw.rstrip()
        comment = whole.lstrip().startswith("#")
        if whole.endswith("\\") and not comment:
            held += whole[:-1] + " "
            continue
        joined = re.sub(r"(^|\s)#.*$", "", held + ("" if comment else whole)).strip()
        if joined:
            yield _expanded(RequirementLine(path, start, joined))
        start, held = 0, ""
    if held.strip():
        yield _expanded(RequirementLine(path, start, held.strip()))


# pip expands names in capitals that the environment has, and leaves the others as they are. A part of
# a URL before the "@" is a user or a password, which is not needed here and may be shown in messages.
_CREDENTIAL = r"(?![^/\s]*@)"
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}" + _CREDENTIAL)
_LEFT = re.compile(r"\$\{([^}]*)\}" + _CREDENTIAL)


def _expanded(line: RequirementLine) -> RequirementLine:
    """Return the line with the variables that pip expands. Raises WorkloadError for one that pip leaves."""
    text = _VARIABLE.sub(lambda match: os.environ.get(match[1]) or match[0], line.text)
    left = _LEFT.search(text)
    if left is None:
        return dataclasses.replace(line, text=text)
    if _VARIABLE.fullmatch(left[0]):
        raise line.error(
            f"the environment variable {left[1]} is not set, or is empty, so that pip leaves {left[0]} as it is",
            f"export {left[1]} as for pip",
        )
    raise line.error(
        f"pip does not expand {left[0]}: it knows names in capitals, as in ${{TORCH_VERSION}}",
        "write such a name, or the value",
    )


def add_option(
    line: RequirementLine, reading: RequirementReading, constraint: bool = False
) -> None:
    """Read an option of pip. Raises WorkloadError for one that pip does not have."""
    name, _, value = re.sub(r"^(--[a-z-]+)=", r"\1 ", line.text).partition(" ")
    value = value.strip().strip("\"'")
    if not name.startswith("--") and len(name) > 2:  # -rFILE
        name, value = name[:2], name[2:]
    if name in ("-r", "--requirement", "-c", "--constraint"):
        if not value:
            raise line.error(f"{name} names no file", "name the file after it")
        # pip resolves nested files relative to the file that names them.
        read_file(
            (line.file.parent / value),
            reading,
            constraint or name in ("-c", "--constraint"),
            DeclaredAt(line.file, line.number),
        )
    elif name in ("-e", "--editable"):
        add_source(value, line, reading, constraint)
    elif name in _FLAGS:
        return
    elif name in _VALUED:
        if not value:
            raise line.error(f"{name} has no value", "write the value after it")
        build = build_of_url(value) if name in _INDEX else None
        if build is None:
            return
        if name in ("--index-url", "-i"):
            reading.index = (build, line)
        else:
            reading.extra_index.append((build, line))
    else:
        known = [*_VALUED, *_FLAGS, "-r", "-c", "-e", "--requirement", "--constraint", "--editable"]
        raise line.error(f'"{name}" is no option of a requirements file', nearest(name, known))


def build_of_url(url: str) -> str | None:
    """Return the build that an index URL implies: cu128 for ``…/whl/cu128``."""
    return group(re.search(r"(?:^|[/._-])(cu\d{3}|rocm\d+(?:\.\d+)*|cpu)(?:$|[/._-])", url))


def add_requirement(
    line: RequirementLine, reading: RequirementReading, constraint: bool = False
) -> None:
    """Read a requirement (PEP 508), a wheel or a source tree. Raises WorkloadError for anything else."""
    text = re.split(r"\s+--(?:hash|config-settings|global-option)\b", line.text)[0].strip()
    wheel = re.search(r"([^/\s]+\.whl)(?:#\S*)?(?:\s|$)", text)
    if wheel is not None:
        try:
            project, version, *_ = parse_wheel_filename(
                wheel.group(1).replace("%2B", "+").replace("%2b", "+")
            )
        except InvalidWheelFilename as problem:
            raise line.error(f"{problem}", "name the wheel by its whole file name") from None
        _asked(str(project), line, reading, constraint)
        _pinned(str(project), str(version), line, reading, constraint)
        return
    if re.match(r"(?:\.{0,2}/|[a-z+]+://|file:)", text) or re.search(r"\.(?:zip|tar\.gz)$", text):
        add_source(text, line, reading, constraint)
        return
    try:
        requirement = Requirement(text)
    except InvalidRequirement as problem:
        why = str(problem).splitlines()[0].rstrip(".")
        raise line.error(
            f'"{text}" is not a requirement: {why[:1].lower()}{why[1:]}',
            "write it as NAME[EXTRA]==VERSION ; MARKER",
        ) from None
    name = canonicalize_name(requirement.name)
    if not _matters(name):
        return
    applies = _applies(requirement, reading)
    if applies is False:
        return
    if applies is None:
        if not constraint:
            asked = f"{name}{requirement.specifier}"
            reading.open.append(
                (
                    line,
                    f"{asked} is asked for where {requirement.marker} only; the workload's Python is not "
                    "known, so that it is not judged",
                    "write one file per Python",
                )
            )
        return
    if requirement.url is not None:
        add_source(f"{requirement.url}#egg={name}", line, reading, constraint)
        return
    if not constraint:
        reading.asked.setdefault(name, line)
        reading.extras.setdefault(name, set()).update(requirement.extras)
        _asked(name, line, reading, constraint)
    exact = [
        item
        for item in requirement.specifier
        if item.operator in ("==", "===") and not item.version.endswith(".*")
    ]
    if len(exact) == 1:
        _pinned(name, exact[0].version, line, reading, constraint)
    elif (
        not constraint
        and name not in reading.pins
        and (name in FRAMEWORKS or is_library(name) or name in wheels.packages())
    ):
        asked = f" ({requirement.specifier})" if str(requirement.specifier) else ""
        reading.open.append(
            (
                line,
                f"{name} is not pinned{asked}, so that another day gives another version",
                f"pin it: {name}==VERSION",
            )
        )


def add_source(
    text: str, line: RequirementLine, reading: RequirementReading, constraint: bool = False
) -> None:
    """Report a package that is built from a repository, a folder or an archive: the facts cover wheels only."""
    place, _, fragment = text.partition("#")
    egg = re.search(r"(?:^|&)egg=([A-Za-z0-9._-]+)", fragment)
    archive = re.search(r"([A-Za-z0-9._-]+?)-\d[^/]*\.(?:zip|tar\.gz)$", place)
    named = egg or archive
    name = canonicalize_name(named.group(1)) if named else ""
    if constraint or not _matters(name):
        return
    shown = re.sub(r"//[^/@]*@", "//", place)  # without a password
    reading.open.append(
        (
            line,
            f"{name} is not pinned: it is built from {shown}, and which version that gives is not known",
            f"pin a release: {name}==VERSION, or build a wheel of it and pin that file",
        )
    )


def is_library(name: str) -> bool:
    return (
        LIBRARY.fullmatch(name) is not None
        or PLUGIN.fullmatch(name) is not None
        or name in ("nvidia-cuda-runtime", "cuda-toolkit")
    )


def _matters(name: str) -> bool:
    return (
        name in FRAMEWORKS or is_library(name) or gpu_packages.uses_gpu(name) or wheels.covers(name)
    )


def _asked(name: str, line: RequirementLine, reading: RequirementReading, constraint: bool) -> None:
    """Remember a package that uses the GPU, and is no framework or library with facts of its own."""
    library = name.startswith(("nvidia-", "cuda-")) and wheels.covers(name)
    judged = library or name in FRAMEWORKS or is_library(name)
    if not constraint and not judged and gpu_packages.uses_gpu(name):
        reading.uses_gpu.setdefault(name, line)


def _pinned(
    name: str, version: str, line: RequirementLine, reading: RequirementReading, constraint: bool
) -> None:
    if not _matters(name):
        return
    version = _normalized(version)
    other = reading.pins.get(name)
    if other is not None and not _same_pin(version, other.version):
        raise line.error(
            f"{name} is pinned as {version}, and as {other.version} in {other.line.file}:{other.line.number}",
            "keep one of the two",
        )
    # Of two pins that agree, the one with a local version says which build it is.
    if other is None or "+" not in other.version:
        reading.pins[name] = RequirementPin(version, line, constraint)
    if not constraint:
        reading.asked.setdefault(name, line)
    # An earlier, unpinned mention of the package is settled by this pin.
    reading.open = [item for item in reading.open if f"{name} is not pinned" not in item[1]]


def _normalized(version: str) -> str:
    """Return a version as the index has it (PEP 440): v2.8.0 is 2.8.0."""
    try:
        return str(Version(version))
    except InvalidVersion:
        return version


def _same_pin(version: str, other: str) -> bool:
    """Return whether one version satisfies both pins (PEP 440): ``==2.6.0`` takes 2.6.0+cu124, and 2.6 is 2.6.0."""
    try:
        mine, its = Version(version), Version(other)
    except InvalidVersion:
        return version == other
    return Version(mine.public) == Version(its.public) and (
        mine.local == its.local or None in (mine.local, its.local)
    )


# Versions to try for a marker if the Python of the workload is unknown.
_PYTHONS = tuple(f"3.{number}" for number in range(8, 17))


def marker_environment(python: str, machine: str) -> dict[str, str]:
    """Return the variables of markers (PEP 508) for CPython on Linux."""
    short = ".".join(str(part) for part in key(python)[:2])
    full = python if len(key(python)) > 2 else f"{short}.0"
    return {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "python_version": short,
        "python_full_version": full,
        "implementation_version": full,
        "extra": "",
    }


def _applies(requirement: Requirement, reading: RequirementReading) -> bool | None:
    """Return whether a requirement's marker holds on Linux; None if that depends on an unknown Python."""
    marker = requirement.marker
    if marker is None:
        return True
    pythons = (reading.python,) if reading.python else _PYTHONS
    answers = {
        marker.evaluate(dict(marker_environment(python, reading.machine))) for python in pythons
    }
    return answers.pop() if len(answers) == 1 else None

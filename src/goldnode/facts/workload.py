"""Typed access to the facts about CUDA, cuDNN, NCCL, the frameworks and ROCm.

The files are cuda.yml, cudnn_nccl.yml, frameworks.yml and rocm.yml. Each is read and indexed once,
on first use. Versions are compared by `key`. Some values contain a range or a remark ("12.0 -
12.6", "11.x (11.8)"); only this module parses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from goldnode.core.dataclass import dataclass
from goldnode.facts.host import Origin, load, origins
from goldnode.facts.host import doubt as row_doubt

CUDA, CUDNN, FRAMEWORKS, ROCM = "cuda.yml", "cudnn_nccl.yml", "frameworks.yml", "rocm.yml"
VersionKey = tuple[int, ...]


@cache
def key(version: str) -> VersionKey:
    """Return the leading numbers of a version; () for text without any.

    ``2.8.0+cu128`` gives (2, 8, 0), ``v0.6.3.post1`` gives (0, 6, 3).
    """
    leading = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in leading.group(1).split(".")) if leading else ()


def satisfies(have: str, sign: str, wanted: str) -> bool:
    """Return whether a version is in a relation to another; `sign` is one of >=, <=, <, >, = and !=."""
    mine, its = key(have), key(wanted)
    # Pad with zeros: 12.4 and 12.4.0 are equal.
    width = max(len(mine), len(its))
    mine, its = (*mine, *([0] * (width - len(mine)))), (*its, *([0] * (width - len(its))))
    return {
        ">=": mine >= its,
        "<=": mine <= its,
        "<": mine < its,
        ">": mine > its,
        "=": mine == its,
        "!=": mine != its,
    }[sign]


def same(version: str, other: str) -> bool:
    """Return whether the shorter of two versions is a prefix of the longer.

    This is true of "12.4" and "12.4.1", but not of "9.1" and "9.10".
    """
    mine, its = key(version), key(other)
    short = min(len(mine), len(its))
    return short > 0 and mine[:short] == its[:short]


def minor(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(str(part) for part in key(version)[:2])


def public(version: str) -> str:
    """Return a release as the facts name it: without local part, and with three numbers (2.8 is 2.8.0)."""
    name = version.partition("+")[0]
    return f"{name}.0" if re.fullmatch(r"\d+\.\d+", name) else name


def closest(version: str, known: Iterable[str]) -> str | None:
    """Return the highest known version up to `version`, otherwise the lowest known one, or None."""
    ordered = sorted(known, key=key)
    below = [item for item in ordered if key(item) <= key(version)]
    return next(iter([*below[-1:], *ordered[:1]]), None)


def doubt(*rows: Mapping[str, Any] | None) -> str | None:
    """Return the combined reservations of rows of the facts; see `facts.doubt`."""
    return (
        "; ".join(dict.fromkeys(text for row in rows if row and (text := row_doubt(row)))) or None
    )


# -- CUDA


@dataclass(frozen=True)
class CudaFamily:
    """A CUDA major version, with the oldest driver that runs its minors by minor-version compatibility."""

    major: int
    minimum: str
    sources: tuple[Origin, ...]


@dataclass(frozen=True)
class CudaMinor:
    """One CUDA minor ("12.4"): its releases, oldest bundled driver, and oldest driver that runs it."""

    version: str
    releases: tuple[str, ...]
    bundled: str | None
    minimum: str
    sources: tuple[Origin, ...]
    doubt: str | None


@dataclass(frozen=True)
class CudaArchitectureSupport:
    """CUDA's support of one compute capability: first and last version. None: no source states that end."""

    name: str
    capability: str
    first: str | None
    last: str | None
    last_branch: int | None
    sources: tuple[Origin, ...]
    doubt: str | None


@dataclass(frozen=True)
class ForwardCompat:
    """The forward-compatibility package of one CUDA minor.

    `branches` are the older driver branches on which NVIDIA's image may start with it. The package
    was built from branch `native_from`; that branch and later ones do not need it.
    """

    cuda: str
    image: str
    package: str
    native_from: int
    branches: tuple[int, ...]
    accepted: tuple[int, ...]  # all older branches on which NVIDIA's image may start
    brands: str | None
    sources: tuple[Origin, ...]
    doubt: str | None


@cache
def families() -> dict[int, CudaFamily]:
    """Return the CUDA families by major number."""
    return {
        row["major"]: CudaFamily(
            row["major"], row["min_driver_minor_version_compat"], origins(CUDA, row["source"])
        )
        for row in load(CUDA)["driver_minimum_per_major"]
    }


@cache
def cudas() -> dict[str, CudaMinor]:
    """Return the CUDA minors by version, oldest first."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(load(CUDA)["releases"], key=lambda item: key(item["version"])):
        grouped.setdefault(minor(row["version"]), []).append(row)
    minors = {}
    for version, rows in grouped.items():
        bundled = [row["bundled_driver"] for row in rows if row["bundled_driver"]]
        minors[version] = CudaMinor(
            version=version,
            releases=tuple(row["version"] for row in rows),
            bundled=min(bundled, key=key, default=None),
            minimum=min((row["min_driver_minor_version_compat"] for row in rows), key=key),
            sources=origins(CUDA, rows[0]["source"]),
            doubt=doubt(rows[0]),
        )
    return minors


@cache
def architectures() -> dict[str, CudaArchitectureSupport]:
    """Return CUDA's support by compute capability."""
    supported = {}
    for row in load(CUDA)["architectures"]:
        first, last = row["first_cuda"], row["last_cuda"]
        remarks = [doubt(row)]
        if first is not None and not re.fullmatch(r"[\d.]+", first):
            remarks.append(f"as the source has it: {first}")
        for capability in row["cc"]:
            supported[capability] = CudaArchitectureSupport(
                name=row["arch"],
                capability=capability,
                first=None if first is None else ".".join(map(str, key(first))),
                last=_last(last),
                last_branch=row["last_driver_branch"],
                sources=origins(CUDA, row["source"]),
                doubt="; ".join(item for item in remarks if item) or None,
            )
    return supported


def _last(text: str | None) -> str | None:
    """Return the version in parentheses: 12.9 for "12.x (12.9)". Other text is returned unchanged."""
    inner = re.search(r"\(([\d.]+)\)", text or "")
    return inner.group(1) if inner else text


@cache
def forward_compat() -> dict[str, ForwardCompat]:
    """Return the forward-compatibility packages by CUDA minor."""
    return {
        row["cuda"]: ForwardCompat(
            cuda=row["cuda"],
            image=row["image"],
            package=row["compat_package"],
            native_from=row["native_driver_branch_first"],
            branches=tuple(row["of_which_need_cuda_compat"]),
            accepted=tuple(row["older_driver_branches_accepted_by_image"]),
            brands=row["brands_listed"],
            sources=origins(CUDA, row["source"]),
            doubt=doubt(row),
        )
        for row in load(CUDA)["forward_compat"]["entries"]
    }


@cache
def cuda_rule(name: str) -> tuple[tuple[Origin, ...], str | None]:
    """Return the sources and the doubt of rule `name` of cuda.yml."""
    row = next(item for item in load(CUDA)["rules"] if item["id"] == name)
    return origins(CUDA, row["source"]), doubt(row)


@cache
def native_cuda() -> dict[int, str | None]:
    """Return the newest CUDA minor that each driver branch runs natively; None if no source states it."""
    return {int(row["branch"]): row["max_cuda"] for row in load("nvidia_drivers.yml")["branches"]}


@cache
def oldest_of_branch() -> dict[int, VersionKey]:
    """Return the oldest known version of each driver branch."""
    rows = load("nvidia_drivers.yml")["branches"]
    return {
        int(row["branch"]): min(key(str(item[0])) for item in row["point_releases"])
        for row in rows
        if row["point_releases"]
    }


# -- cuDNN and NCCL


@dataclass(frozen=True)
class CudnnSupport:
    """One row of cuDNN's support matrix.

    `cuda` holds inclusive ranges of minors. `capabilities` is `None` if the row states only a
    minimum.
    """

    low: VersionKey
    high: VersionKey
    name: str
    major: int | None  # CUDA major of the package; None if one package serves several
    cuda: tuple[tuple[VersionKey, VersionKey], ...]
    cuda_text: str
    capabilities: tuple[str, ...] | None
    minimum_capability: str | None
    minimum_driver: str | None
    sources: tuple[Origin, ...]
    note: str | None

    def is_for(self, version: str) -> bool:
        """Return whether the row covers cuDNN `version`."""
        return self.low <= key(version)[:3] <= self.high

    @property
    def majors(self) -> tuple[int, ...]:
        """Return the CUDA families that the row is for."""
        return (self.major,) if self.major is not None else tuple({low[0] for low, _ in self.cuda})

    def has_cuda(self, version: str) -> bool:
        """Return whether the row lists CUDA `version`."""
        wanted = key(version)[:2]
        return any(
            low[:2] <= wanted <= high[:2] if len(high) > 1 else wanted[:1] == high
            for low, high in self.cuda
        )

    def has_capability(self, capability: str) -> bool:
        """Return whether the row covers a GPU of `capability`, possibly by a lower minor of its major."""
        if self.capabilities is not None:
            return any(covers(item, capability) for item in self.capabilities)
        return self.minimum_capability is not None and key(capability) >= key(
            self.minimum_capability
        )


def covers(built: str, capability: str) -> bool:
    """Return whether code for `built` runs on a GPU of `capability`: same major, same or higher minor."""
    made, wanted = key(built), key(capability)
    return made[:1] == wanted[:1] and made <= wanted


@cache
def cudnn_matrix() -> tuple[CudnnSupport, ...]:
    """Return cuDNN's support matrices, oldest first."""
    rows = []
    for row in load(CUDNN)["cudnn_matrix"]:
        low, _, high = row["cudnn"].partition(" - ")
        package = key(str(row.get("package", "")).removeprefix("CUDA "))
        spans = tuple(span for item in row["cuda"] for span in _span(item))
        least = row.get("min_cc")
        rows.append(
            CudnnSupport(
                low=key(low),
                high=key(high or low),
                name=row["cudnn"],
                major=next(iter(package), None),
                cuda=spans,
                cuda_text=", ".join(row["cuda"]),
                capabilities=tuple(row["cc"]) if "cc" in row else None,
                minimum_capability=".".join(map(str, key(least))) if least else None,
                minimum_driver=row.get("min_driver"),
                sources=origins(CUDNN, row["source"]),
                note=row.get("note"),
            )
        )
    return tuple(sorted(rows, key=lambda item: item.low))


def _span(text: str) -> list[tuple[VersionKey, VersionKey]]:
    """Parse one CUDA entry of the matrix into at most one inclusive range.

    "12.0 - 12.6" is a range, "11.4 (8.2.2)" and "10.1 Update 2" are one minor, "11.x (no static)"
    is the major alone.
    """
    ends = [key(part) for part in text.split(" - ")]
    return [(ends[0], ends[-1])] if ends[0] else []


@cache
def wheels(library: str, major: str) -> tuple[str, ...]:
    """Return the known wheel versions of "cudnn" or "nccl" for CUDA `major` ("12"); may be empty."""
    return tuple(row[0] for row in load(CUDNN)["wheels"].get(f"{library}_cu{major}", ()))


def wheel_sources() -> tuple[Origin, ...]:
    """Return the sources of the wheel versions."""
    return origins(CUDNN, load(CUDNN)["wheels"]["source"])


@cache
def image_pairing() -> dict[str, Mapping[str, Any]]:
    """Return the versions ("cudnn" and "nccl", lists) in NVIDIA's CUDA images, by CUDA release."""
    return {row["cuda_image"]: row for row in load(CUDNN)["image_pairing"]["entries"]}


def tested_together(library: str, version: str, cuda: str) -> bool:
    """Return whether an NVIDIA image combines this cuDNN or NCCL ("cudnn", "nccl") with this CUDA release."""
    return any(same(version, item) for item in _combined().get((library, cuda), ()))


@cache
def _combined() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the versions of "cudnn" and "nccl" in NVIDIA's CUDA and framework images, by library and CUDA release."""
    versions: dict[tuple[str, str], tuple[str, ...]] = {}
    for cuda, row in image_pairing().items():
        for library in ("cudnn", "nccl"):
            versions[library, cuda] = tuple(row[library] or ())
    for row in load(FRAMEWORKS)["image_contents"]["entries"]:
        for library in ("cudnn", "nccl"):
            if row.get(library) is not None and row.get("cuda") is not None:
                versions[library, row["cuda"]] = (
                    *versions.get((library, row["cuda"]), ()),
                    row[library],
                )
    return versions


# -- frameworks


@dataclass(frozen=True)
class TorchBuild:
    """One wheel of PyTorch: ``2.8.0+cu128``. None means that no source states the value."""

    version: str
    release: str
    build: str | None  # cu128, rocm6.2, cpu
    default: bool  # whether the package index serves it by default
    # Whether the release is known to have this build; None: its builds are unknown.
    known: bool | None
    cudnn: str | None
    nccl: str | None
    requires_python: str | None
    sources: tuple[Origin, ...]
    doubt: str | None

    @property
    def cuda(self) -> str | None:
        """Return the CUDA that it was built with ("12.8")."""
        label = re.fullmatch(r"cu(\d+)(\d)", self.build or "")
        return f"{label.group(1)}.{label.group(2)}" if label else None

    @property
    def rocm(self) -> str | None:
        """Return the ROCm that it was built with."""
        build = self.build or ""
        return build.removeprefix("rocm") if build.startswith("rocm") else None


@cache
def torch_wheels() -> dict[str, Mapping[str, Any]]:
    """Return PyTorch's wheels on the package index by version."""
    return {row["version"]: row for row in load(FRAMEWORKS)["torch_wheels"]}


@cache
def torch_releases() -> dict[str, Mapping[str, Any]]:
    """Return the builds of each PyTorch release ("2.8")."""
    return {row["release"]: row for row in load(FRAMEWORKS)["torch_builds"]}


@cache
def torch(version: str) -> TorchBuild | None:
    """Return the PyTorch build that `version` names, or the default one if it names no build.

    None for a release that the facts do not have.
    """
    local = version.partition("+")[2]
    release = minor(version)
    wheel, builds = torch_wheels().get(public(version)), torch_releases().get(release)
    if wheel is None and builds is None:
        return None
    usual = wheel["pypi_default_cuda"] if wheel else None
    build = local or usual
    row: Mapping[str, Any] = {}
    known: bool | None = None
    # The index's own wheel exists by definition, and every release has a CPU build.
    if (build == usual and wheel is not None) or build == "cpu":
        known = True
    elif builds is not None and build is not None:
        if build.startswith("cu"):
            known = build in builds["cuda_builds"]
            row = builds["cuda_builds"].get(build) or {}
        elif build.startswith("rocm") and builds["rocm_builds"] is not None:
            known = any(same(build.removeprefix("rocm"), item) for item in builds["rocm_builds"])
    pins = wheel if wheel is not None and build == usual else row
    return TorchBuild(
        version=version,
        release=release,
        build=build,
        default=not local,
        known=known,
        cudnn=pins.get("cudnn"),
        nccl=pins.get("nccl"),
        requires_python=wheel["requires_python"] if wheel else None,
        sources=origins(FRAMEWORKS, (wheel if pins is wheel else builds or wheel or {})["source"]),
        doubt=doubt(builds if pins is row else None),
    )


@dataclass(frozen=True)
class BuiltFor:
    """Compute capabilities or gfx names that a framework's build has machine code for.

    `ptx` are those it has PTX for. None: no source found.
    """

    names: tuple[str, ...] | None
    ptx: tuple[str, ...]
    sources: tuple[Origin, ...]
    doubt: str | None


@cache
def torch_built_for(release: str, build: str, machine: str) -> BuiltFor:
    """Return the GPUs that PyTorch `release` ("2.8") in `build` ("cu128") has code for, by CPU `machine`."""
    for row in load(FRAMEWORKS)["torch_compute_capabilities"]:
        if (
            build in str(row["build"]).split(" and ")
            and row["arch"] == machine
            and _within(release, row["releases"])
        ):
            listed = row["compute_capabilities"]
            if listed is None:
                break
            names = tuple(item.removesuffix("+PTX") for item in listed)
            ptx = tuple(item.removesuffix("+PTX") for item in listed if item.endswith("+PTX"))
            return BuiltFor(names, ptx, origins(FRAMEWORKS, row["source"]), doubt(row))
    return BuiltFor(None, (), (), None)


@cache
def torch_gfx(release: str, rocm: str) -> BuiltFor:
    """Return the gfx names that PyTorch `release` built with `rocm` has code for."""
    best = BuiltFor(None, (), (), None)
    for row in load(FRAMEWORKS)["torch_rocm_architectures"]:
        if (
            row["gfx"] is not None
            and _within(release, row["releases"])
            and (row["rocm_from"] is None or key(rocm) >= key(row["rocm_from"]))
        ):
            best = BuiltFor(tuple(row["gfx"]), (), origins(FRAMEWORKS, row["source"]), doubt(row))
    return best


def _within(release: str, span: str) -> bool:
    """Return whether `release` is in a span: "2.8", "2.9 - 2.10", "2.11 and earlier", "2.5 and later"."""
    wanted = key(release)
    if span.endswith(" and earlier"):
        return wanted <= key(span)
    if span.endswith(" and later"):
        return wanted >= key(span)
    low, _, high = span.partition(" - ")
    return key(low) <= wanted <= key(high or low)


def torch_machines(machine: str, release: str) -> list[str]:
    """Return the builds of `release` whose compute capabilities on `machine` are known, oldest CUDA first."""
    machines = {
        build
        for row in load(FRAMEWORKS)["torch_compute_capabilities"]
        if row["arch"] == machine
        and row["compute_capabilities"]
        and _within(release, row["releases"])
        for build in row["build"].split(" and ")
    }
    return sorted(machines, key=lambda item: int(item[2:]))


@cache
def tensorflow() -> dict[str, Mapping[str, Any]]:
    """Return TensorFlow's releases by version; the libraries are those of its and-cuda extra."""
    return {row["version"]: row for row in load(FRAMEWORKS)["tensorflow"]}


@cache
def jax_plugin(major: str) -> dict[str, Mapping[str, Any]]:
    """Return the versions of JAX's plugin for CUDA `major`; empty if the facts list no version."""
    return {
        row["version"]: row
        for row in load(FRAMEWORKS)["jax_plugins"]
        if row["plugin"] == f"jax-cuda{major}-plugin"
    }


@cache
def jax_minimum() -> dict[str, Mapping[str, Any]]:
    """Return the driver branch and compute capability that JAX's wheels need, by CUDA major."""
    return {str(row["cuda_major"]): row for row in load(FRAMEWORKS)["jax_minimum"]}


@cache
def vllm() -> dict[str, Mapping[str, Any]]:
    """Return vLLM's releases by version."""
    return {row["version"]: row for row in load(FRAMEWORKS)["vllm"]}


@cache
def triton_images() -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the contents of Triton's images by release ("25.12") and variant ("vllm")."""
    return {
        (row["release"], row["variant"]): row
        for row in load(FRAMEWORKS)["triton_images"]["entries"]
    }


def image_content(image: str, release: str) -> Mapping[str, Any] | None:
    """Return the contents of a release of an image ("nvidia/vllm", "25.10"), or None if they were not read."""
    return next(
        (
            row
            for row in load(FRAMEWORKS)["image_contents"]["entries"]
            if row["image"] == image and key(row["first"]) <= key(release) <= key(row["last"])
        ),
        None,
    )


def engine_minimum(engine: str, version: str) -> Mapping[str, Any] | None:
    """Return what a release of a serving engine needs; None if no document of this release was read."""
    table = load(FRAMEWORKS)["engine_minimum"]
    newest = table["newest"].get(engine)
    # A later release may need more than the newest document that was read demands.
    if newest is not None and key(version) > key(newest):
        return None
    rows = [
        row
        for row in table["entries"]
        if row["engine"] == engine and key(row["first"]) <= key(version)
    ]
    return max(rows, key=lambda row: key(row["first"]), default=None)


def engines(engine: str) -> list[str]:
    """Return the releases of a serving engine that begin a row, and the newest one that was read."""
    table = load(FRAMEWORKS)["engine_minimum"]
    first = [row["first"] for row in table["entries"] if row["engine"] == engine]
    return [*first, *([table["newest"][engine]] if engine in table["newest"] else [])]


def tensorrt() -> dict[str, Mapping[str, Any]]:
    """Return TensorRT's releases ("10.13.2") with the CUDA versions that each is published for."""
    return {row["release"]: row for row in load(FRAMEWORKS)["tensorrt"]}


def onnxruntime(version: str) -> Mapping[str, Any] | None:
    """Return what ONNX Runtime's package for the GPU is built with, or None if its table was not read."""
    release = minor(version)
    return next(
        (row for row in load(FRAMEWORKS)["onnxruntime"] if _within(release, row["releases"])), None
    )


def framework_row(name: str) -> Mapping[str, Any]:
    """Return a single row of frameworks.yml: tensorflow_compute_capability or vllm_compute_capability."""
    row: Mapping[str, Any] = load(FRAMEWORKS)[name]
    return row


def framework_sources(row: Mapping[str, Any]) -> tuple[Origin, ...]:
    """Return the sources of a row of frameworks.yml."""
    return origins(FRAMEWORKS, row["source"])


# -- ROCm


@dataclass(frozen=True)
class RocmVersion:
    """One ROCm release. None: no source lists it for this release or an earlier one."""

    version: str
    gfx: tuple[str, ...] | None
    os: tuple[str, ...] | None
    drivers: tuple[str, ...]  # amdgpu driver versions that ROCm's own pages call compatible
    pytorch: tuple[str, ...]  # releases of PyTorch that AMD builds for it
    sources: tuple[Origin, ...]
    gfx_derived: str | None
    os_derived: str | None
    doubt: str | None


@cache
def rocms() -> dict[str, RocmVersion]:
    """Return the ROCm releases by version, oldest first.

    A release without its own list inherits the previous list, plus the additions of later releases.
    Lists of operating systems are inherited within a major series only. A gfx in the current
    documentation is supported by every release since its first mention. Inherited lists are marked
    as derived.
    """
    releases: dict[str, RocmVersion] = {}
    current = set(_current_gfx())
    gfx: tuple[str, ...] | None = None
    systems: tuple[str, ...] | None = None
    of: dict[str, str] = {}
    for row in sorted(load(ROCM)["releases"], key=lambda item: key(item["version"])):
        version = row["version"]
        adds = list(row.get("adds", ()))
        if "os" in row:
            systems, of["os"] = tuple(row["os"]), version
        # A new major drops old systems without notice: do not inherit across it.
        elif of.get("os") and key(of["os"])[0] != key(version)[0]:
            systems = None
        if "gfx" in row:
            gfx, of["gfx"] = tuple(row["gfx"]), version
        new_gfx = tuple(item.split()[0] for item in adds if item.startswith("gfx"))
        new_os = tuple(item for item in adds if not item.startswith("gfx"))
        if gfx is not None:
            gfx = (*gfx, *(name for name in new_gfx if name not in gfx))
        if systems is not None:
            systems = (*systems, *(name for name in new_os if name not in systems))
        built_for = gfx
        gfx_derived = os_derived = None
        if gfx is not None and "gfx" not in row:
            built_for = tuple(
                name for name in gfx if key(version) < (7,) or name in current or name in new_gfx
            )
            gfx_derived = f"derived: the gfx list of ROCm {of['gfx']} with what later releases add"
        if systems is not None and "os" not in row:
            os_derived = f"derived: the systems of ROCm {of['os']} with what later releases add"
        own = [
            str(item).split()[0]
            for item in row.get("compatible_amdgpu", ())
            if " - " not in str(item)
        ]
        for item in row.get("compatible_amdgpu", ()):
            if " - " in str(item):
                low, high = str(item).split(" - ")
                own.append(f"{low}-{high}")
        releases[version] = RocmVersion(
            version=version,
            gfx=built_for,
            os=systems,
            drivers=(*([row["amdgpu"]] if "amdgpu" in row else []), *own),
            sources=origins(ROCM, row["source"]),
            pytorch=tuple(re.findall(r"\d+\.\d+", str(row.get("pytorch", "")))),
            gfx_derived=gfx_derived,
            os_derived=os_derived,
            doubt=doubt(row),
        )
    return releases


def _current_gfx() -> Sequence[str]:
    """Return the gfx names of the data-centre list in the current documentation."""
    return [value for name, value in load(ROCM)["gfx_of_gpu"].items() if name != "source"]


@cache
def rocm(version: str) -> RocmVersion | None:
    """Return the ROCm release that `version` names; for "6.2" its newest patch."""
    matching = [
        item
        for name, item in rocms().items()
        if same(version, name) and len(key(version)) <= len(key(name))
    ]
    return matching[-1] if matching else None


@dataclass(frozen=True)
class UserSpaceSupport:
    """ROCm user-space versions that AMD's kernel driver supports: an inclusive range, or single minors."""

    driver: str
    text: str
    low: VersionKey | None
    high: VersionKey | None
    minors: tuple[str, ...]
    sources: tuple[Origin, ...]
    doubt: str | None

    def has(self, version: str) -> bool:
        """Return whether ROCm `version` is in the window."""
        wanted = key(version)[:2]
        if self.low is not None and self.high is not None:
            return self.low <= wanted <= self.high
        return any(key(item) == wanted for item in self.minors)


@cache
def windows() -> tuple[UserSpaceSupport, ...]:
    """Return the user-space windows of AMD's kernel driver, one per named driver version."""
    table = load(ROCM)["amdgpu_driver"]
    span = table["user_space_window"]
    sources = origins(ROCM, [span["source"]])
    rows = []
    for row in span["entries"]:
        for driver in str(row["kmd"]).split(" / "):
            text = str(row["user_space"])
            low, _, high = text.partition(" - ")
            ends = (key(low), key(high)) if high else (None, None)
            minors = () if high else tuple(part.strip() for part in text.split(","))
            rows.append(
                UserSpaceSupport(
                    driver,
                    text=text,
                    low=ends[0],
                    high=ends[1],
                    minors=minors,
                    sources=sources,
                    doubt=doubt(span),
                )
            )
    return tuple(rows)


def amdgpu_release(driver: str) -> str:
    """Return the release of AMD's kernel driver.

    `driver` may be the version of the module, as modinfo prints it: 6.12.12 is the driver of ROCm 6.4.
    """
    names = load(ROCM)["amdgpu_driver"]["module_versions"]
    released = next((name for name, module in names.items() if module == driver), None)
    return driver if released is None else released.removeprefix("ROCm ").removesuffix(".x")


def driver_in(driver: str, named: str) -> bool:
    """Return whether a release of the driver is the named one: a version, ``30.10.x``, or ``30.10.0-30.10.2``."""
    low, _, high = named.partition("-")
    if high:
        return key(low) <= key(driver) <= key(high)
    name = named.removesuffix(".x")
    return same(name, driver) and len(key(name)) <= len(key(driver))


def window(driver: str) -> UserSpaceSupport | None:
    """Return the window of a release of AMD's kernel driver ("30.30.2", "6.3.1") or of its module."""
    wanted = amdgpu_release(driver)
    return next((row for row in windows() if driver_in(wanted, row.driver)), None)


def rocm_for(driver: str, system: str) -> RocmVersion | None:
    """Return a ROCm release whose page lists both a release of AMD's driver and a system ("rhel 9.7")."""
    wanted = amdgpu_release(driver)
    for row in rocms().values():
        listed = any(lists_system(item, system) for item in row.os or ())
        if listed and any(driver_in(wanted, item) for item in row.drivers):
            return row
    return None


_SYSTEMS = {"rocky": "rocky linux", "ol": "oracle linux", "azurelinux": "azure linux"}


def lists_system(listed: str, have: str) -> bool:
    """Return whether an entry of AMD's lists covers a system ("ubuntu 22.04", "sles 15.7", in any case).

    Entries look like "Ubuntu 22.04.5, 22.04.4", "SLES 15 SP6, SP5" or "Debian 12 (MI300X single node)".
    """
    name, _, version = have.casefold().partition(" ")
    text = listed.casefold().partition("(")[0]
    if not text.startswith((f"{name} ", f"{_SYSTEMS.get(name, name)} ")):
        return False
    versions = re.findall(r"\d[\d.]*", text)
    if " sp" in text:  # the first number is that of the release, the others of its service packs
        versions = [f"{versions[0]}.{pack}" for pack in versions[1:]]
    return any(same(version, item) for item in versions)


def boards_of(listed: str) -> tuple[str, ...] | None:
    """Return the boards for which an entry of AMD's lists has a system, or None if it names none.

    "RHEL 9.4 (Instinct)" is for all Instinct boards, "Ubuntu 22.04.5 (not MI350P)" for all but one. Other words in
    brackets, as in "Debian 12 (MI300X single node)", are limits of another kind.
    """
    inside = re.search(r"\(((?:not )?[\w-]+(?:, [\w-]+)*)\)$", listed)
    return tuple(inside[1].split(", ")) if inside is not None else None


def is_for(listed: str, board: str) -> bool:
    """Return whether an entry of AMD's lists has a system for a board ("MI300X")."""
    boards = boards_of(listed)
    if boards is None or boards[0].startswith("not "):
        return boards != (f"not {board}",)
    return board in boards or (boards == ("Instinct",) and board.startswith("MI"))


# -- operating systems of images


@cache
def glibc(system: str) -> tuple[str, tuple[Origin, ...]] | None:
    """Return the glibc of an OS ("ubuntu 22.04", "rocky 9") and its sources, or None if unknown."""
    name, _, version = system.partition(" ")
    # Rebuilds of RHEL ship its glibc.
    names = {
        "rocky": "rhel",
        "rockylinux": "rhel",
        "redhat": "rhel",
        "ubi": "rhel",
        "ol": "rhel",
        "almalinux": "rhel",
    }
    identity = names.get(name, name) + (
        version.replace(".", "") if name == "ubuntu" else version.split(".")[0]
    )
    for row in load("distros.yml")["distributions"]:
        if row["id"] == identity and row.get("glibc"):
            source = row["source"]
            keys = source
            if isinstance(source, dict):
                keys = source.get("glibc_kernel") or source.get("rest")
            return row["glibc"], origins("distros.yml", keys)
    return None

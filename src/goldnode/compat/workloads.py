"""Reader of workloads: image references, image metadata and requirements files.

A bare reference is parsed by the naming schemes of well-known repositories, on any registry.
Properties that remain unknown become a finding, so nothing is skipped silently. A class can state
properties that an image's name does not show. A statement that contradicts the image is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.compat import gpu_packages, require
from goldnode.compat.model import (
    CompatFinding,
    DeclaredAt,
    FindingSubject,
    Workload,
    about,
    declared,
)
from goldnode.compat.project_files import (
    base_image,
    is_dockerfile,
    read_project_file,
    split_extras,
)
from goldnode.compat.requirement_lines import (
    FRAMEWORKS,
    LIBRARY,
    PLUGIN,
    RequirementPin,
    RequirementReading,
    build_of_index,
    read_file,
    read_text,
)
from goldnode.core.errors import WorkloadError
from goldnode.facts import workload as facts
from goldnode.facts.workload import key, minor, same
from goldnode.node.ground.optional import group

if TYPE_CHECKING:
    from goldnode.catalog import models
    from goldnode.catalog.load import CatalogEntry
    from goldnode.compat.image_metadata import ImageMetadata

# -- image references

# Docker's rule: the first component is a registry if it has a dot or a port, or is localhost.
_HOST = re.compile(r"^(?:localhost|[^/]*[.:][^/]*)/")
_NAME = re.compile(
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageReference:
    """An image reference in its parts; `name` is without the registry."""

    text: str
    registry: str | None
    name: str
    tag: str | None
    digest: str | None


def parse_reference(text: str, place: DeclaredAt | None = None) -> ImageReference:
    """Parse an image reference. Raises WorkloadError if no registry would accept it."""
    rest, _, digest = text.partition("@")
    host = _HOST.match(rest)
    registry = host.group()[:-1] if host else None
    path = rest[host.end() :] if host else rest
    name, colon, tag = path.partition(":")
    fault = None
    if not _NAME.fullmatch(name):
        fault = f'its name "{name}" is not lower-case words joined by /'
    elif colon and not _TAG.fullmatch(tag):
        fault = f'its tag "{tag}" is not letters, digits, "_", "." and "-"'
    elif "@" in text and not _DIGEST.fullmatch(digest):
        fault = f'its digest "{digest}" is not sha256: and 64 hexadecimal digits'
    if fault is not None:
        raise WorkloadError(
            f'"{text}" is not an image reference: {fault}',
            **declared(place),
            remedy="write it as [REGISTRY/]NAME[:TAG][@DIGEST]",
        )
    return ImageReference(text, registry, name, tag or None, digest or None)


@dataclass(frozen=True)
class _Stated:
    """Content of a tag: values it states itself, and values derived from it with the facts."""

    written: dict[str, Any] = field(default_factory=dict)
    derived: dict[str, Any] = field(default_factory=dict)
    frameworks: dict[str, str] = field(default_factory=dict)
    library_cuda: dict[str, str] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    gap: str | None = None  # why nothing is known of the tag, though it is of the scheme
    nothing_to_check: bool = False


def _cuda_image(name: str, tag: str) -> _Stated | None:
    """Parse a tag like ``12.4.1-cudnn-runtime-ubuntu22.04``."""
    named = re.match(
        r"(\d+\.\d+(?:\.\d+)?)(?:-(cudnn)(\d*))?-(base|runtime|devel)-([a-z]+)-?(\d[\d.]*)$", tag
    )
    if named is None:
        return None
    cuda, cudnn, cudnn_major, flavour, system, release = named.groups()
    written: dict[str, Any] = {"cuda": cuda, "os": f"{system} {release}"}
    derived: dict[str, Any] = {}
    left = []
    # Base images contain neither cuDNN nor NCCL.
    pair = facts.image_pairing().get(cuda, {}) if cudnn or flavour != "base" else {}
    if cudnn:
        # The facts list the cuDNN and NCCL releases by CUDA image. More than one is ambiguous.
        versions = [
            item for item in pair.get("cudnn") or () if not cudnn_major or same(cudnn_major, item)
        ]
        if len(versions) == 1:
            derived["cudnn"] = versions[0]
        else:
            left.append(f"which cuDNN {cudnn_major}".rstrip())
    if flavour != "base":
        versions = pair.get("nccl") or []
        if len(versions) == 1:
            derived["nccl"] = versions[0]
    # NVIDIA's images contain the cuda-compat package of their CUDA version if one exists.
    if minor(cuda) in facts.forward_compat():
        derived["forward_compat"] = True
    return _Stated(written, derived, open=tuple(left))


def _pytorch_image(name: str, tag: str) -> _Stated | None:
    """Parse a tag like ``2.5.1-cuda12.4-cudnn9-runtime``.

    Devel images are based on nvidia/cuda, which has cuda-compat; runtime images are based on Ubuntu.
    """
    named = re.match(r"(\d+\.\d+(?:\.\d+)?)-cuda(\d+)\.(\d+)(?:-cudnn\d+)?-(runtime|devel)$", tag)
    if named is None:
        return None
    version, major, low, flavour = named.groups()
    derived = {}
    if flavour == "runtime":
        derived = {"forward_compat": False}
    elif f"{major}.{low}" in facts.forward_compat():
        derived = {"forward_compat": True}
    return _Stated(
        {"cuda": f"{major}.{low}"}, derived, frameworks={"torch": f"{version}+cu{major}{low}"}
    )


def _rocm_image(name: str, tag: str) -> _Stated | None:
    """Parse ``rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0`` or ``rocm6.2-py3.9-tf2.16.1-dev``."""
    rocm = re.search(r"(?:^|[_-])rocm(\d+\.\d+(?:\.\d+)?)", tag)
    if rocm is None:
        return None
    written: dict[str, Any] = {"rocm": rocm.group(1)}
    system = re.search(r"(ubuntu|rhel|sles|debian)_?(\d+(?:\.\d+)?)", tag)
    if system is not None:
        written["os"] = f"{system.group(1)} {system.group(2)}"
    python = re.search(r"(?:^|[_-])py(\d+\.\d+)", tag)
    if python is not None:
        written["python"] = python.group(1)
    frameworks = {}
    for framework, pattern in (
        ("torch", r"pytorch_(?:release[_-])?(\d+\.\d+(?:\.\d+)?)"),
        ("tensorflow", r"(?:^|[_-])tf(\d+\.\d+(?:\.\d+)?)"),
        ("jax", r"(?:^|[_-])jax(\d+\.\d+(?:\.\d+)?)"),
        ("vllm", r"vllm_(\d+\.\d+(?:\.\d+)?)"),
    ):
        named = re.search(pattern, tag)
        if named is not None:
            frameworks[framework] = named.group(1) + (
                f"+rocm{rocm.group(1)}" if framework == "torch" else ""
            )
    return _Stated(written, frameworks=frameworks)


def _rocm_dev_image(name: str, tag: str) -> _Stated | None:
    """Parse rocm/dev-ubuntu-22.04 with ``6.2.4-complete``, or rocm/rocm-terminal with ``6.2``."""
    version = re.match(r"(\d+\.\d+(?:\.\d+)?)(?:-|$)", tag)
    if version is None:
        return None
    system = re.search(r"dev-([a-z]+)-(\d[\d.]*)$", name)
    written: dict[str, Any] = {"rocm": version.group(1)}
    if system is not None:
        written["os"] = f"{system.group(1)} {system.group(2)}"
    return _Stated(written)


def _tensorflow_image(name: str, tag: str) -> _Stated | None:
    """Parse a tag like ``2.16.1-gpu``; a tag without -gpu is a CPU build."""
    named = re.match(r"(\d+\.\d+\.\d+(?:rc\d+)?)((?:-[a-z]+)*)$", tag)
    if named is None:
        return None
    version, variants = named.groups()
    if "-gpu" not in variants:
        return _Stated(nothing_to_check=True)
    return _Stated(frameworks={"tensorflow": version}, library_cuda={"tensorflow": "tensorflow"})


def _vllm_image(name: str, tag: str) -> _Stated | None:
    """Parse a tag like ``v0.6.3.post1``, ``v0.11.0-x86_64`` or ``v0.25.0-cu129-ubuntu2404``."""
    named = re.match(
        r"v(\d+\.\d+\.\d+)(\.post\d+)?((?:-(?:x86_64|aarch64|cu\d{3}|ubuntu\d{4}))*)$", tag
    )
    if named is None:
        return None
    release, variants = named.group(1), named.group(3).split("-")[1:]
    written: dict[str, Any] = {}
    derived: dict[str, Any] = {}
    frameworks = {"vllm": release + (named.group(2) or "")}
    machines = {"x86_64": "amd64", "aarch64": "arm64"}
    machine = next((machines[item] for item in variants if item in machines), None)
    if machine is not None:
        written["architecture"] = machine
    cuda = next((f"{item[2:4]}.{item[4]}" for item in variants if item.startswith("cu")), None)
    row = facts.image_content(name, release)
    if row is not None:
        derived = {"python": row["python"], "forward_compat": row["forward_compat"]}
        # The first images for arm64 had another CUDA.
        if "aarch64" not in variants or row.get("note") != "of amd64":
            derived["cuda"] = row["cuda"]
    if cuda is not None:
        written["cuda"] = cuda
        # vLLM and its PyTorch are other builds than those of the package index.
        if derived.pop("cuda", cuda).rpartition(".")[0] != cuda:
            frameworks["vllm"] += f"+cu{cuda.replace('.', '')}"
    return _Stated(written, derived, frameworks)


def _nim_image(name: str, tag: str) -> _Stated | None:
    """Parse the tag of a NIM for one language model, ``1.8.0``; the documents are of NIM for LLMs."""
    return _recorded_image("nim/llm", tag)


def _model_free_nim(name: str, tag: str) -> _Stated | None:
    """Parse the tag of a vLLM NIM without a model, ``2.1.0``."""
    return _recorded_image("nim/vllm-model-free-nim", tag)


def _triton_image(name: str, tag: str) -> _Stated | None:
    """Parse a tag like ``25.12-vllm-python-py3``; the table of Triton's documentation has its content."""
    named = re.match(r"(\d\d\.\d\d)-(trtllm|vllm)-python-py3$", tag)
    if named is None:
        return _recorded_image(name, tag)
    row = facts.triton_images().get((named.group(1), named.group(2)))
    if row is None:
        return _Stated(gap=_not_read(named.group(1)))
    return _Stated(derived={"cuda": row["cuda"], "python": row["python"]})


def _not_read(release: str) -> str:
    return f"is of release {release}, and no document about the contents of this release was read"


def _recorded_image(name: str, tag: str) -> _Stated | None:
    """Parse a tag that begins with a release: ``25.12-py3``, ``v0.5.5``, ``3.3.4-rocm``; the facts have its content."""
    named = re.match(r"v?(\d+(?:\.\d+){1,2})(?:\.post\d+)?(?:-[a-z0-9.-]+)?$", tag)
    if named is None:
        return None
    row = facts.image_content(name, named.group(1))
    # The facts have the contents of the CUDA variants only.
    if row is None or re.search(r"-(?:rocm|intel|xpu|cpu|neuron|gaudi|trtllm)", tag):
        return _Stated(gap=_not_read(tag))
    fields = ("cuda", "python", "cudnn", "nccl", "forward_compat")
    derived = {field: row[field] for field in fields if row.get(field) is not None}
    if row.get("compute_capability") is not None:
        derived["minimum_capability"] = row["compute_capability"]
        keys = row["source"]
        derived["capability_source"] = keys if isinstance(keys, str) else keys[0]
    frameworks = {"torch": row["torch"]} if row.get("torch") else {}
    if name == "tensorrt-llm/release":
        frameworks["tensorrt-llm"] = named.group(1)
    return _Stated(derived=derived, frameworks=frameworks)


def _ollama_image(name: str, tag: str) -> _Stated | None:
    """Parse a tag like ``0.32.15``, with libraries of several CUDA versions, or ``0.32.15-rocm``."""
    named = re.match(r"(\d+\.\d+\.\d+)(-rocm)?$", tag)
    if named is None:
        return None
    version, rocm = named.groups()
    if rocm is None:
        return _Stated(
            derived={"forward_compat": False},
            frameworks={"ollama": version},
            library_cuda={"ollama": "ollama"},
        )
    row = facts.engine_minimum("ollama", version)
    return _Stated(
        derived={} if row is None else {"rocm": row["rocm"]}, frameworks={"ollama": version}
    )


def _own_image(name: str, tag: str) -> _Stated | None:
    """Parse goldnode's own tags: ``12.4.1-runtime-debian12``, with the build id or without it."""
    backend = name.rpartition("/")[2]
    named = re.match(
        r"(\d[\d.]*|distro)-([a-z]+)(\d[\d.]*)?-([a-z]+)(\d[\d.]*)(?:-[0-9a-f]{12})?$", tag
    )
    if named is None:
        return None
    version, flavour, part, system, release = named.groups()
    written: dict[str, Any] = {"os": f"{system} {release}"}
    if backend == "cpu":
        return _Stated(written, nothing_to_check=True)
    if backend != "cuda":
        return _Stated(
            written, gap=f"is for {backend}, and its tag names no version that the facts know"
        )
    pair = facts.image_pairing().get(version, {}) if flavour in ("runtime", "devel") else {}
    derived = {name: pair[name][0] for name in ("cudnn", "nccl") if len(pair.get(name) or ()) == 1}
    # Wheels and Debian's packages have no cuda-compat.
    derived["forward_compat"] = False
    frameworks = {flavour: facts.public(part)} if flavour in ("torch", "jax") and part else {}
    left = ("which cuDNN",) if flavour in ("runtime", "devel") and "cudnn" not in derived else ()
    return _Stated({**written, "cuda": version}, derived, frameworks, open=left)


# Repository (its last two path components), parser of its tags, and an example of a tag.
_SCHEMES: Sequence[tuple[re.Pattern[str], Callable[[str, str], _Stated | None], str]] = (
    (re.compile(r"nvidia/cuda"), _cuda_image, "12.4.1-cudnn-runtime-ubuntu22.04"),
    (re.compile(r"nvidia/tritonserver"), _triton_image, "25.12-vllm-python-py3"),
    (
        re.compile(
            r"nvidia/(?:pytorch|vllm|sglang|tensorflow|tensorrt|nemo|jax|mxnet|dgl|cuda-dl-base)"
        ),
        _recorded_image,
        "25.12-py3",
    ),
    (re.compile(r"tensorrt-llm/release"), _recorded_image, "1.2.0"),
    (re.compile(r"huggingface/text-generation-inference"), _recorded_image, "3.3.4"),
    (re.compile(r"lmsysorg/sglang"), _recorded_image, "v0.5.5"),
    (re.compile(r"(?:.+/)?ollama"), _ollama_image, "0.32.15"),
    # goldnode's own images: the repository is named after the backend.
    (re.compile(r"(?:.+/)?(?:cpu|cuda|rocm|oneapi)"), _own_image, "12.4.1-runtime-debian12"),
    (re.compile(r"pytorch/pytorch"), _pytorch_image, "2.5.1-cuda12.4-cudnn9-runtime"),
    (
        re.compile(r"rocm/(pytorch|tensorflow|jax|vllm)[a-z-]*"),
        _rocm_image,
        "rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0",
    ),
    (re.compile(r"rocm/(dev-.+|rocm-terminal)"), _rocm_dev_image, "6.2.4-complete"),
    (re.compile(r"tensorflow/tensorflow"), _tensorflow_image, "2.16.1-gpu"),
    (re.compile(r"vllm/vllm-openai"), _vllm_image, "v0.6.3"),
)
# NIMs by their whole name. Those for images, embeddings and the like have documents of their own.
_NIMS: Sequence[tuple[re.Pattern[str], Callable[[str, str], _Stated | None], str]] = (
    (re.compile(r"nim/nvidia/vllm-model-free-nim"), _model_free_nim, "2.1.0"),
    (
        re.compile(
            r"nim/(?:meta|mistralai|nv-mistralai|deepseek-ai|qwen|google|microsoft)/"
            r"(?!.*(?:vision|embed|rerank|guard|vila|ocr)).+"
        ),
        _nim_image,
        "1.8.0",
    ),
)


def image(
    text: str, stated: models.WorkloadImage | None = None, *, place: DeclaredAt | None = None
) -> Workload:
    """Return the workload of an image reference, merged with the statements of a class.

    Raises WorkloadError for an invalid reference, and for a statement that contradicts the tag.
    """
    reference = parse_reference(text, place)
    subject = f"image {text}"
    short = "/".join(reference.name.split("/")[-2:])
    scheme = next(
        (
            (read, example)
            for schemes, known in ((_NIMS, reference.name), (_SCHEMES, short))
            for pattern, read, example in schemes
            if pattern.fullmatch(known)
        ),
        None,
    )
    reported = None
    if scheme is not None and reference.tag is not None:
        reported = scheme[0](short, reference.tag)
    if reported is None and reference.tag is None and reference.digest is not None:
        gap: str | None = "is given by digest only, which does not identify its contents"
    elif reported is None and scheme is not None:
        # Without a tag, Docker takes "latest".
        tag = reference.tag or "latest"
        movable = "latest" in tag.split("-") or reference.tag is None
        gap = f'has the tag "{tag}", which ' + (
            "is moved with every release" if movable else f"does not read like {scheme[1]}"
        )
    elif reported is not None:
        gap = reported.gap
    else:
        gap = f"follows no naming scheme that is known: the name {short} does not identify its contents"
    reported = reported or _Stated()
    workload = Workload(
        subject=subject, repository=short, place=place, **{**reported.derived, **reported.written}
    )
    workload = replace(
        workload, frameworks=dict(reported.frameworks), library_cuda=_majors(reported)
    )
    if stated is not None:
        workload = _stated(workload, stated, reported, place)
        if _states_contents(workload):
            gap = None
    reports = [_unreported(workload, f"the image {gap}")] if gap is not None else []
    reports += [
        _unreported(workload, f"nothing says {item} the image holds")
        for item in reported.open
        if workload.cudnn is None
    ]
    return replace(workload, reports=tuple(reports))


def _majors(reported: _Stated) -> dict[str, str]:
    """Return the CUDA major of TensorFlow's image, which follows from its release."""
    version = reported.frameworks.get("tensorflow")
    row = facts.tensorflow().get(facts.public(version or ""))
    if "tensorflow" not in reported.library_cuda or row is None or row["cuda_major"] is None:
        return dict.fromkeys(reported.library_cuda, "")
    return {**dict.fromkeys(reported.library_cuda, ""), "tensorflow": str(row["cuda_major"])}


def _states_contents(workload: Workload) -> bool:
    return any((workload.cuda, workload.rocm, workload.frameworks))


def _unreported(workload: Workload, message: str) -> CompatFinding:
    return about(workload).unknown(
        "workload-told",
        message,
        remedy="state what it holds in the class (cuda, rocm, frameworks …), or check its metadata: a file of "
        "`docker inspect`, or docker:REF",
    )


_STATED = ("cuda", "cudnn", "nccl", "rocm", "python", "forward_compat")


def _stated(
    workload: Workload,
    stated: models.WorkloadImage,
    reported: _Stated | Mapping[str, Any],
    place: DeclaredAt | None,
) -> Workload:
    """Return `workload` with the class's statements applied. Raises WorkloadError for a contradiction."""
    written = reported.written if isinstance(reported, _Stated) else reported
    frameworks = reported.frameworks if isinstance(reported, _Stated) else dict(workload.frameworks)
    whose = "its tag" if isinstance(reported, _Stated) else "its metadata"
    changes: dict[str, Any] = {}
    for name in _STATED:
        value = getattr(stated, name)
        if value is None:
            continue
        have = written.get(name)
        differs = have is not None and (
            value != have if isinstance(value, bool) else not same(str(value), str(have))
        )
        if differs:
            raise _contradiction(
                workload, f"{name} {_shown(value)}", f"{_shown(have)}", whose, place
            )
        # Of two versions that agree, the longer is more precise: 12.4 from the class, 12.4.1 from
        # the tag.
        changes[name] = (
            have if isinstance(have, str) and len(key(have)) > len(key(str(value))) else value
        )
    both = dict(workload.frameworks)
    for name, version in stated.frameworks.items():
        have = frameworks.get(name)
        if have is not None and not _agree(version, have):
            raise _contradiction(workload, f"{name} {version}", have, whose, place)
        both[name] = have if have is not None and len(have) > len(version) else version
    if (
        stated.cuda is not None
        and "tensorflow" in both
        and "tensorflow" not in workload.library_cuda
    ):
        changes["library_cuda"] = {
            **workload.library_cuda,
            "tensorflow": stated.cuda.partition(".")[0],
        }
    if stated.cuda is not None and ("jax" in both or "jaxlib" in both):
        changes["library_cuda"] = {
            **changes.get("library_cuda", workload.library_cuda),
            "jax": stated.cuda.partition(".")[0],
        }
    return replace(workload, frameworks=both, **changes)


def _agree(version: str, other: str) -> bool:
    (mine, _, local), (its, _, its_local) = version.partition("+"), other.partition("+")
    return same(mine, its) and (not local or not its_local or local == its_local)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _contradiction(
    workload: Workload, stated: str, have: str, whose: str, place: DeclaredAt | None
) -> WorkloadError:
    return WorkloadError(
        f"{workload.subject} is stated to have {stated}, and {whose} says {have}",
        **declared(place),
        remedy="correct the statement, or name the image that has it",
    )


# -- image metadata


def metadata(
    path: Path, stated: models.WorkloadImage | None = None, *, place: DeclaredAt | None = None
) -> Workload:
    """Return the workload of image metadata in a file.

    The file is JSON from `docker inspect` or an OCI configuration, an OCI layout directory, or a
    tar of a layout or of `docker save`. Raises WorkloadError for anything else.
    """
    from goldnode.compat import image_metadata  # deferred: a check of names alone does not need it

    with _placed(place):
        content = image_metadata.read(path)
    return _described(content, f"image {path}", stated, place or DeclaredAt(path))


def engine_image(
    reference: str, stated: models.WorkloadImage | None = None, *, place: DeclaredAt | None = None
) -> Workload:
    """Return the workload of an image in the local Docker engine.

    Raises WorkloadError if the engine lacks the image or does not respond.
    """
    from goldnode.compat import image_metadata

    parse_reference(reference, place)
    with _placed(place):
        content = image_metadata.inspect(reference)
    return _described(content, f"image {reference}", stated, place)


@dataclass(frozen=True)
class ReadLayers:
    """The forward-compatibility package in the layers of an image.

    `version` is that of its library, `drivers` the branches in its note. `complete`: all layers were read.
    """

    version: str | None = None
    drivers: tuple[int, ...] = ()
    complete: bool = True
    left_out: str | None = None


def registry_image(
    reference: str,
    config: bytes,
    layers: ReadLayers,
    stated: models.WorkloadImage | None = None,
    *,
    place: DeclaredAt | None = None,
) -> Workload:
    """Return the workload of an image that was read from its registry. Raises WorkloadError."""
    from goldnode.compat import image_metadata

    with _placed(place):
        content = image_metadata.of_config(config, reference)
    workload = _described(content, f"image {reference}", stated, place)
    if layers.version is not None:
        return replace(
            workload,
            forward_compat=True,
            forward_compat_version=layers.version,
            compat_drivers=layers.drivers,
        )
    # A build step may copy the library without its name, so that an incomplete reading never excludes it.
    known = False if layers.complete else (workload.forward_compat or None)
    return replace(workload, forward_compat=known, left_out=layers.left_out)


@contextmanager
def _placed(place: DeclaredAt | None) -> Iterator[None]:
    """Add `place`, where the workload was named, to errors raised in the block."""
    try:
        yield
    except WorkloadError as error:
        raise WorkloadError(error.message, **declared(place), remedy=error.remedy) from error


def _described(
    found: ImageMetadata,
    subject: str,
    stated: models.WorkloadImage | None,
    place: DeclaredAt | None,
) -> Workload:
    """Return the workload of metadata, from its environment variables and labels."""
    run = found.run
    env = dict(item.split("=", 1) for item in (run.env if run else None) or () if "=" in item)
    labels = (run.labels if run else None) or {}
    written: dict[str, Any] = {}

    def take(name: str, *values: str | None) -> None:
        for value in values:
            match = re.match(r"\d+(?:\.\d+)*", value or "")
            if match is not None:
                written[name] = match.group()
                return

    # NVIDIA's base images set these variables and labels, and images built on them inherit them.
    take("cuda", env.get("CUDA_VERSION"), labels.get("com.nvidia.cuda.version"))
    take(
        "cudnn",
        env.get("NV_CUDNN_VERSION"),
        env.get("CUDNN_VERSION"),
        labels.get("com.nvidia.cudnn.version"),
    )
    take(
        "nccl",
        env.get("NV_LIBNCCL_PACKAGE", "").partition("=")[2],
        env.get("NV_LIBNCCL_PACKAGE_VERSION"),
        env.get("NCCL_VERSION"),
    )
    take("rocm", env.get("ROCM_VERSION"))
    take("python", env.get("PYTHON_VERSION"))
    system = labels.get("org.opencontainers.image.ref.name")
    if system in ("ubuntu", "debian") and re.match(
        r"\d", labels.get("org.opencontainers.image.version", "")
    ):
        written["os"] = f"{system} {labels['org.opencontainers.image.version']}"
    if found.architecture:
        written["architecture"] = found.architecture
    compat = _compat(env, found)
    if compat is not None:
        written["forward_compat"] = compat
    frameworks = {}
    for framework, variable in (
        ("torch", "PYTORCH_VERSION"),
        ("tensorflow", "TENSORFLOW_VERSION"),
        ("jax", "JAX_VERSION"),
    ):
        if re.match(r"\d", env.get(variable, "")):
            frameworks[framework] = env[variable]
    workload = Workload(
        subject=subject,
        place=place,
        frameworks=frameworks,
        forward_compat_version=env.get("CUDA_DRIVER_VERSION") if compat else None,
        require_driver=require.conditions(env),
        **written,
    )
    reports = []
    tags = [tag for tag in found.tags or () if tag and "<none>" not in tag]
    if tags:
        named = image(tags[0], place=place)
        workload = replace(
            workload, repository=named.repository, library_cuda=dict(named.library_cuda)
        )
        for name, version in named.frameworks.items():
            # Variables are of the content; a tag can be put on any image.
            frameworks.setdefault(name, version)
        if named.cuda and "cuda" in written and not same(named.cuda, written["cuda"]):
            reports.append(
                FindingSubject(subject, place).warn(
                    "workload-told",
                    f"its tag {tags[0]} says CUDA {named.cuda}, and its metadata CUDA {written['cuda']}, which "
                    "was taken",
                    remedy="tag the image by what it holds",
                )
            )
    if stated is not None:
        workload = _stated(workload, stated, written, place)
    if not _states_contents(workload):
        reports.append(
            _unreported(workload, "its metadata does not mention CUDA, ROCm or a framework")
        )
    return replace(workload, reports=tuple(reports))


def _compat(env: Mapping[str, str], found: ImageMetadata) -> bool | None:
    """Return whether the image contains NVIDIA's forward-compatibility package; None if it has no history.

    Its variables or a step of its history name the package.
    """
    if env.get("NV_CUDA_COMPAT_PACKAGE") or env.get("_CUDA_COMPAT_PATH"):
        return True
    return (
        any("cuda-compat" in step.created_by for step in found.history) if found.history else None
    )


# -- what a user or a class names


def of_text(text: str, *, place: DeclaredAt | None = None) -> Workload:
    """Return the workload of `--image TEXT`. Raises WorkloadError.

    docker:REF queries the local engine. A path (starting with /, ./, ../, ~ or file:, or ending in
    .json or .tar) is metadata. Anything else is a reference.
    """
    if text.startswith("docker:"):
        return engine_image(text.removeprefix("docker:"), place=place)
    if (
        text.startswith("file:")
        or text.startswith(("/", "./", "../", "~"))
        or text.endswith((".json", ".tar"))
    ):
        return metadata(Path(text.removeprefix("file:")).expanduser(), place=place)
    return image(text, place=place)


def of_class(entry: CatalogEntry[models.NodeClass], architecture: str = "amd64") -> list[Workload]:
    """Return the workloads of a class: its images, then its requirements for `architecture`.

    Raises WorkloadError. Paths are relative to the class's file.
    """
    workloads = []
    base = entry.file.parent
    for index, item in enumerate(entry.item.images):
        place = DeclaredAt(entry.file, entry.source.line(("images", index)))
        if item.metadata is not None:
            workload = metadata(base / item.metadata, item, place=place)
            workloads.append(
                replace(
                    workload,
                    subject=f"image {item.ref}",
                    reports=_renamed(workload, f"image {item.ref}"),
                )
            )
        else:
            workloads.append(image(item.ref, item, place=place))
    for index, name in enumerate(entry.item.requirements):
        place = DeclaredAt(entry.file, entry.source.line(("requirements", index)))
        workloads += of_file(base / name, architecture=architecture, place=place)
    return workloads


def _renamed(workload: Workload, subject: str) -> tuple[CompatFinding, ...]:
    return tuple(replace(item, subject=subject) for item in workload.reports)


# -- requirements files


def of_file(
    path: Path,
    *,
    python: str | None = None,
    architecture: str = "amd64",
    place: DeclaredAt | None = None,
) -> list[Workload]:
    """Return the workloads of a file: its Python packages, and of a Dockerfile the image that it is built on.

    Raises WorkloadError as `requirements` does.
    """
    packages = requirements(path, python=python, architecture=architecture, place=place)
    base = base_image(read_text(path, place)) if is_dockerfile(path) else None
    if base is None:
        return [packages]
    return [image(base[0], place=DeclaredAt(path, base[1])), packages]


def requirements(
    path: Path,
    *,
    python: str | None = None,
    architecture: str = "amd64",
    place: DeclaredAt | None = None,
) -> Workload:
    """Return the workload of a requirements file as pip reads it, with the files it includes, or of a project's file.

    Project's files are those of `compat.project_files`: lock files, pyproject.toml, environment.yml, a Dockerfile.

    `python` is the version to evaluate markers for, by default the one that the header of a
    compiled file names. Without either, a marker that depends on it is reported. `place` is where
    the file was named. Raises WorkloadError with file and line for input that pip would reject, and
    for conflicting pins.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(architecture, architecture)
    reading = RequirementReading(python, machine)
    note = read_project_file(path, reading, place=place)
    if note is None:
        reading.python = python or _python_of_header(path)
        read_file(path, reading, False, place)
    python = reading.python
    subject = f"requirements {path}"
    path, _ = split_extras(path)
    # A constraint applies only to packages that something requires.
    pins = {name: pin for name, pin in reading.pins.items() if name in reading.asked}
    where = DeclaredAt(path)
    frameworks = {name: pins[name].version for name in FRAMEWORKS if name in pins}
    library_cuda: dict[str, str] = {}
    values: dict[str, str] = {}
    for name, pin in pins.items():
        named = LIBRARY.fullmatch(name)
        if named is not None:
            library, major = named.groups()
            library_cuda[library.replace("cuda-runtime", "cudart")] = major
            values[library.replace("cuda-runtime", "cuda")] = pin.version
        elif name in ("nvidia-cuda-runtime", "cuda-toolkit"):
            values["cuda"] = pin.version
        plugin = PLUGIN.fullmatch(name)
        if plugin is not None:
            library_cuda["jax"] = plugin.group(1)
            if name.endswith("plugin"):  # the PJRT package alone runs on Pythons that jax does not
                frameworks.setdefault("jax", pin.version)
    for name, extras in reading.extras.items():
        for extra in extras:
            named = re.fullmatch(r"cuda(\d\d)(?:[_-].*)?", extra)
            if name == "jax" and named is not None:
                library_cuda["jax"] = named.group(1)
            if name == "tensorflow" and extra == "and-cuda":
                row = facts.tensorflow().get(facts.public(frameworks.get("tensorflow", "")))
                library_cuda["tensorflow"] = (
                    str(row["cuda_major"]) if row is not None and row["cuda_major"] else "12"
                )
    if "tensorflow" in pins:
        _tensorflow_cuda(pins, library_cuda)
    if "onnxruntime-gpu" in pins and facts.onnxruntime(pins["onnxruntime-gpu"].version) is not None:
        frameworks["onnxruntime"] = pins["onnxruntime-gpu"].version
    if "torch" in frameworks:
        frameworks["torch"] = build_of_index(frameworks["torch"], pins["torch"].line, reading)
    reports = [
        FindingSubject(subject, DeclaredAt(line.file, line.number)).unknown(
            "requirement-open", message, remedy=remedy
        )
        for line, message, remedy in reading.open
    ]
    return Workload(
        subject=subject,
        kind="requirements",
        cuda=values.get("cuda") or reading.cuda,
        cudnn=values.get("cudnn"),
        nccl=values.get("nccl"),
        forward_compat=False,
        python=python,
        frameworks=frameworks,
        library_cuda=library_cuda,
        place=where,
        reports=tuple(reports),
        pins={name: frameworks.get(name, pin.version) for name, pin in pins.items()},
        extras={name: tuple(sorted(extras)) for name, extras in reading.extras.items() if extras},
        pin_places={name: DeclaredAt(pin.line.file, pin.line.number) for name, pin in pins.items()},
        families=_families(reading),
        asked=tuple(reading.asked),
        uses_gpu={
            name: DeclaredAt(line.file, line.number) for name, line in reading.uses_gpu.items()
        },
        resolved=reading.resolved,
        locked=reading.locked,
        overridden=tuple(sorted(reading.overridden)),
        requirers={name: tuple(sorted(names)) for name, names in reading.requirers.items()},
        machine=machine,
        read=None if note is None else note.read,
        left_out=None if note is None else note.left_out,
    )


def _tensorflow_cuda(pins: Mapping[str, RequirementPin], library_cuda: dict[str, str]) -> None:
    """State the CUDA of TensorFlow where the pins are those of tensorflow[and-cuda]: resolvers drop the extra."""
    runtime = next((name for name in pins if name.startswith("nvidia-cuda-runtime-cu")), None)
    if runtime is not None:
        library_cuda.setdefault("tensorflow", runtime.removeprefix("nvidia-cuda-runtime-cu"))


def _families(reading: RequirementReading) -> dict[str, str]:
    """Return the CUDA families that the packages asked for state; those of plug-ins of JAX are judged with JAX."""
    families = {}
    for name in reading.asked:
        pin = reading.pins.get(name)
        family = gpu_packages.family(name, None if pin is None else pin.version)
        if family is not None and not PLUGIN.fullmatch(name):
            families[name] = family
    return families


# `pip-compile` and `uv pip compile` write the Python they resolved for into the first lines.
_COMPILED_FOR = re.compile(
    r"^#.*(?:autogenerated by pip-compile with Python |--python-version[= ])(3\.\d+)", re.M
)


def _python_of_header(path: Path) -> str | None:
    """Return the Python that a compiled requirements file was resolved for, or None."""
    try:
        head = path.read_text(encoding="utf-8-sig")[:2000]
    except (OSError, UnicodeDecodeError):
        return None  # `read_file` reports it
    return group(_COMPILED_FOR.search(head))

"""Reader of image metadata from a file or the local Docker engine, normalised to one model.

Supported formats are the output of `docker inspect`, an OCI configuration, an OCI layout directory,
and a tar archive of a layout or of `docker save`. No layer is opened.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, Field, TypeAdapter, ValidationError

from goldnode.core.errors import WorkloadError

_LARGEST = 8 << 20  # bytes; limit for one JSON document, so that a wrong file is not read whole
_REMEDY = "give the output of `docker inspect`, an OCI configuration, an OCI layout or the file of `docker save`"
_DEEPEST = 4  # levels of nested indexes: an index may name another index


class ImageRunConfig(BaseModel):
    """The run configuration of a container of the image."""

    env: list[str] | None = Field(default=None, alias="Env")
    labels: dict[str, str] | None = Field(default=None, alias="Labels")


class ImageBuildStep(BaseModel):
    """One step of the image's build history."""

    created_by: str = ""


class ImageMetadata(BaseModel):
    """An image's configuration.

    `history` is `None` if the source has no history, which differs from an empty one.
    """

    run: ImageRunConfig | None = Field(validation_alias=AliasChoices("Config", "config"))
    architecture: str | None = Field(
        default=None, validation_alias=AliasChoices("Architecture", "architecture")
    )
    history: list[ImageBuildStep] | None = None
    tags: list[str] | None = Field(default=None, alias="RepoTags")


class _Saved(BaseModel):
    config: str = Field(alias="Config")
    tags: list[str] | None = Field(default=None, alias="RepoTags")


class _Platform(BaseModel):
    os: str = "linux"
    architecture: str | None = None


class _Entry(BaseModel):
    digest: str = Field(pattern=r"^[a-z0-9]+:[0-9a-f]+$")
    platform: _Platform | None = None


class _Manifest(BaseModel):
    """An OCI index, which names manifests, or a manifest, which names a configuration."""

    manifests: list[_Entry] | None = None
    config: _Entry | None = None


def read(path: Path) -> ImageMetadata:
    """Return the metadata in `path`.

    Raises WorkloadError, without a place, for a file in no supported format.
    """
    try:
        if path.is_dir():
            return _packed(
                lambda name: (path / name).read_bytes() if (path / name).is_file() else None
            )
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:

                def member(name: str) -> bytes | None:
                    try:
                        stream = archive.extractfile(name)
                    except KeyError:
                        return None
                    return stream.read(_LARGEST) if stream is not None else None

                return _packed(member)
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is larger than metadata is")
        return _inspect_output(path.read_bytes())
    except FileNotFoundError as problem:
        raise WorkloadError(
            f"{path} does not exist", remedy="correct the name of the file"
        ) from problem
    except ValidationError as problem:
        raise WorkloadError(
            f"{path} is no image metadata: {_problem_text(problem)}", remedy=_REMEDY
        ) from problem
    except (OSError, tarfile.TarError, ValueError) as problem:
        raise WorkloadError(f"{path} is no image metadata: {problem}", remedy=_REMEDY) from problem


def of_config(data: bytes, reference: str) -> ImageMetadata:
    """Return the metadata of an OCI configuration, and the name of its image.

    Raises WorkloadError, without a place, for anything else.
    """
    try:
        metadata = ImageMetadata.model_validate_json(data)
    except ValidationError as problem:
        raise WorkloadError(
            f"the configuration of {reference} is no image metadata: {_problem_text(problem)}",
            remedy="name an image",
        ) from problem
    return metadata.model_copy(update={"tags": [reference]})


def inspect(reference: str) -> ImageMetadata:
    """Return the metadata of an image in the local Docker engine.

    Raises WorkloadError if the engine lacks the image or does not respond.
    """
    # An optional package, which only `docker:REF` needs.
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        image = docker.from_env(timeout=10).images.get(reference)
        made = [ImageBuildStep(created_by=item.get("CreatedBy") or "") for item in image.history()]
        return ImageMetadata.model_validate(image.attrs).model_copy(update={"history": made})
    except ImageNotFound:
        raise WorkloadError(
            f"the local Docker engine does not hold image {reference}",
            remedy=f"run `docker pull {reference}`, or check its name alone",
        ) from None
    except (DockerException, OSError) as problem:
        raise WorkloadError(
            f"the local Docker engine does not answer: {problem}",
            remedy="start it, or give the image's metadata as a file",
        ) from problem
    except ValidationError as problem:
        raise WorkloadError(
            f"the local Docker engine returns no metadata of {reference}: {_problem_text(problem)}"
        ) from problem


def _problem_text(problem: ValidationError) -> str:
    first = problem.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return "it is not valid JSON"
    if first["type"] == "missing":
        return f'it has no key "{where}"'
    if where:
        return f'"{where}": {first["msg"][:1].lower()}{first["msg"][1:]}'
    return first["msg"][:1].lower() + first["msg"][1:]


def _inspect_output(data: bytes) -> ImageMetadata:
    document = TypeAdapter[Any](Any).validate_json(data)
    if isinstance(document, list):
        if len(document) != 1:
            raise ValueError(f"it describes {len(document)} images, expected one")
        document = document[0]
    return ImageMetadata.model_validate(document)


def _packed(member: Callable[[str], bytes | None]) -> ImageMetadata:
    """Return the metadata of the first image of a docker archive or an OCI layout.

    If the layout has several architectures, amd64 is preferred.
    """
    saved = member("manifest.json")
    if saved is not None:
        entries = TypeAdapter(list[_Saved]).validate_json(saved)
        if not entries:
            raise ValueError("its manifest names no image")
        return ImageMetadata.model_validate_json(
            _required_member(member, entries[0].config)
        ).model_copy(update={"tags": entries[0].tags})
    index = member("index.json")
    if index is None:
        raise ValueError("it holds neither manifest.json nor index.json")
    manifest = _Manifest.model_validate_json(index)
    for _ in range(_DEEPEST):
        if manifest.manifests is None:
            break
        images = [
            item
            for item in manifest.manifests
            if item.platform is None or item.platform.os != "unknown"
        ]  # skip attestations, which have the platform unknown/unknown
        if not images:
            raise ValueError("its index names no image")
        chosen = next(
            (
                item
                for item in images
                if item.platform is not None and item.platform.architecture == "amd64"
            ),
            images[0],
        )
        manifest = _Manifest.model_validate_json(_required_member(member, _blob(chosen.digest)))
    if manifest.config is None:
        raise ValueError("its manifest names no configuration")
    return ImageMetadata.model_validate_json(
        _required_member(member, _blob(manifest.config.digest))
    )


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _required_member(member: Callable[[str], bytes | None], name: str) -> bytes:
    opened = member(name)
    if opened is None:
        raise ValueError(f"its manifest names {name}, which it does not hold")
    return opened

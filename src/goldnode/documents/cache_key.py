"""The key of a cache of compiled GPU code, also the manifest of its directory (docs/how-to/cache-keys.md)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from goldnode.documents.base import Digest, Part


class CacheLibrary(Part):
    """A library of the program, by version, by the digest of its content, or by both."""

    version: str | None
    sha256: str | None


class CacheDriver(Part):
    """The driver. null: this driver has no such value."""

    vendor: str | None
    version: str
    flavour: str | None
    cuda: str | None
    gsp_firmware: str | None


class CacheHost(Part):
    """The host, and the interpreter of the program."""

    architecture: str
    cpu_flags: str | None
    cpu_model: str | None
    glibc: str | None
    python_abi: str | None


class CacheComponents(Part):
    """All values that decide. Values of `device` that this hardware does not have are null."""

    device: dict[str, Any]
    driver: CacheDriver
    image: str | None = Field(
        description="digest of the image, or recipe: and the digest of its recipe"
    )
    libraries: dict[str, CacheLibrary]
    host: CacheHost
    options: dict[str, str]
    environment: dict[str, str]
    source: Digest | None


class CacheKeyDocument(Part):
    """The key of a cache with its components."""

    schema_: Literal["goldnode.cache-key/1"] = Field(alias="schema")
    cache: Literal["cuda", "triton", "inductor", "xla", "tensorrt"]
    strength: Literal["exact", "portable"]
    key: str = Field(
        pattern=r"^[a-z]+-(exact|portable)-[0-9a-f]{64}$", description="name of the directory"
    )
    components: CacheComponents

"""Definition of the disk images (`images/disks/disks.yml`): the defaults of every disk and the overrides of
each class.

The stack, not this file, defines kernel, driver and container engine. The definition lists package names per
OS release; the lock pins their versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from goldnode.catalog.load import Catalog
from goldnode.catalog.models import OperatingSystem
from goldnode.core import yamlsource
from goldnode.core.data import data
from goldnode.core.errors import DiskError, nearest
from goldnode.core.formats import check_format
from goldnode.core.yamlsource import YamlSource
from goldnode.oci.model import system_word

DEFINITION = "GOLDNODE_DISK_DEFINITION"  # environment variable: replaces the built-in definition

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_WORD = re.compile(r"[^\s\"'\\]+")


def _package(value: str) -> str:
    if not _PACKAGE.fullmatch(value):
        raise ValueError(f'"{value}" is no package name | correct it')
    return value


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError(
            f'"{value}" is no single word of a kernel command line | write every word as an entry of its own'
        )
    if value.split("=")[0] in ("root", "ro", "rw", "panic", "initrd"):
        raise ValueError(f'"{value}" is goldnode\'s to set, by slot | leave it out')
    return value


def _port(value: str) -> str:
    """Validate a port to listen on: a number from 1 to 65535, and the protocol."""
    number, slash, protocol = value.partition("/")
    if not slash or protocol not in ("tcp", "udp") or not re.fullmatch(r"[1-9]\d{0,4}", number):
        raise ValueError(f'"{value}" is no port | write the number and the protocol: 9100/tcp')
    if int(number) > 65535:
        raise ValueError(f'"{value}" is above the last port | write one from 1 to 65535')
    return value


_Package = Annotated[str, AfterValidator(_package)]
_Port = Annotated[str, AfterValidator(_port)]
_Word = Annotated[str, AfterValidator(_word)]


class _DefinitionModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shape(_DefinitionModel):
    """Parameters of a disk. Sizes in MiB."""

    loader: Literal["systemd-boot", "grub"] = Field(description="Boot loader.")
    layout: Literal["ab", "single"] = Field(
        description="Two root partitions with boot counting, or one."
    )
    esp_mib: int = Field(ge=64, le=4096, description="Size of the EFI system partition, MiB.")
    root_mib: int = Field(
        ge=512,
        le=1048576,
        description="Size of the root filesystem as it is shipped, MiB; it grows at the first boot.",
    )
    command_line: tuple[_Word, ...] = Field(
        description="Words of the kernel's command line, beside those of the class's policy."
    )
    cloud_init: bool = Field(description="Whether the image contains cloud-init.")
    packages: tuple[_Package, ...] = Field(description="Packages beside those of the system.")
    listen: tuple[_Port, ...] = Field(
        default=(),
        description="Ports that programs of a node listen on beside ssh's, for `goldnode disks verify`: `9100/tcp`.",
    )


class Different(_DefinitionModel):
    """Overrides of one class."""

    loader: Literal["systemd-boot", "grub"] | None = Field(
        default=None, description="Overrides the default."
    )
    layout: Literal["ab", "single"] | None = Field(
        default=None, description="Overrides the default."
    )
    esp_mib: int | None = Field(
        default=None, ge=64, le=4096, description="Overrides the default, MiB."
    )
    root_mib: int | None = Field(
        default=None, ge=512, le=1048576, description="Overrides the default, MiB."
    )
    command_line: tuple[_Word, ...] | None = Field(
        default=None, description="Overrides the default."
    )
    cloud_init: bool | None = Field(default=None, description="Overrides the default.")
    packages: tuple[_Package, ...] = Field(default=(), description="Packages that are added.")
    listen: tuple[_Port, ...] = Field(default=(), description="Ports that are added.")


class DefinedSystem(_DefinitionModel):
    """Packages of one OS release and architecture, and its own words of the kernel's command line."""

    packages: tuple[_Package, ...] = Field(
        description="Packages of every disk, beside the essential ones."
    )
    loaders: dict[Literal["systemd-boot", "grub"], tuple[_Package, ...]] = Field(
        description="Packages of each boot loader."
    )
    cloud_init: tuple[_Package, ...] = Field(default=(), description="Packages of cloud-init.")
    command_line: tuple[_Word, ...] | None = Field(
        default=None, description="In place of the default; that of a class counts before it."
    )


class HygieneWaiver(_DefinitionModel):
    """A finding that a check accepts."""

    check: str = Field(description="Name of the check.")
    path: str = Field(description="Path in the root filesystem, or a shell pattern.")
    reason: str = Field(min_length=8, description="Reason for accepting it.")


class HygieneRules(_DefinitionModel):
    """Settings of the root filesystem checks."""

    waivers: tuple[HygieneWaiver, ...] = Field(default=(), description="Accepted findings.")


class DefinitionFile(_DefinitionModel):
    """Schema of `disks.yml`."""

    disks: Literal[1] = Field(description="Number of this file's format.")
    defaults: Shape = Field(description="Defaults of all disks; a class can override them.")
    systems: dict[str, DefinedSystem] = Field(
        description="Packages by OS: `debian12`, and `debian13_arm64` for other architectures than amd64."
    )
    hygiene: HygieneRules = Field(
        default_factory=HygieneRules, description="Settings for the checks of a root filesystem."
    )
    classes: dict[str, Different] = Field(
        default_factory=dict, description="Differences of a class's disk from the defaults."
    )


@dataclass(frozen=True)
class Disk:
    """Disk of one class: its parameters, and the packages to request from apt in addition to the stack."""

    class_: str
    system: str
    shape: Shape
    packages: tuple[str, ...]


class Definition:
    """A validated definition and its source."""

    def __init__(self, document: DefinitionFile, source: YamlSource) -> None:
        self.document, self.source = document, source

    @property
    def file(self) -> Path:
        """Return the file it was read from."""
        return self.source.file

    @property
    def locks(self) -> Path:
        """Return the directory of locks next to the file."""
        return self.file.parent / "locks"

    def error(self, message: str, *path: str | int, remedy: str | None = None) -> DiskError:
        """Return an error that points to the line of `path`."""
        return DiskError(message, file=self.file, line=self.source.line(path), remedy=remedy)

    def shape(self, name: str) -> Shape:
        """Return the parameters of the disk of class `name`.

        Raises DiskError if loader and layout do not match.
        """
        own = self.document.classes.get(name, Different())
        change = {
            key: value
            for key, value in own.model_dump(exclude={"packages", "listen"}).items()
            if value is not None
        }
        every = self.document.defaults
        added = {
            "packages": (*every.packages, *own.packages),
            "listen": (*every.listen, *own.listen),
        }
        shape = every.model_copy(update={**change, **added})
        whose = f'the disk of class "{name}"' if name in self.document.classes else "every disk"
        place: Sequence[str] = (
            ("classes", name, "loader") if own.loader is not None else ("defaults", "loader")
        )
        if shape.loader == "grub" and shape.layout == "ab":
            raise self.error(
                f'{whose} has loader "grub" and layout "ab", and GRUB counts no boots',
                *place,
                remedy="write layout: single, or loader: systemd-boot",
            )
        if shape.loader == "systemd-boot" and shape.layout == "single":
            raise self.error(
                f'{whose} has loader "systemd-boot" and layout "single", and systemd-boot starts one of two '
                "roots",
                *place,
                remedy="write layout: ab, or loader: grub",
            )
        return shape

    def disk(self, name: str, system: OperatingSystem) -> Disk:
        """Return the disk of class `name` on an OS.

        Raises DiskError if the definition lacks that OS, or packages that the class needs.
        """
        key = system_word(f"{system.id}{system.version}".replace(".", ""), system.architecture)
        # No suggestion of another release: the class's stack determines the OS.
        if key not in self.document.systems:
            raise self.error(
                f'class "{name}" runs {system.id} {system.version} for {system.architecture}, and there are no disk images '
                f'of "{key}"',
                "systems",
                remedy=f'add "{key}" to `systems`',
            )
        shape = self.shape(name)
        packages = self.document.systems[key]
        classes = self.document.classes
        if packages.command_line is not None and (
            name not in classes or classes[name].command_line is None
        ):
            shape = shape.model_copy(update={"command_line": packages.command_line})
        if shape.loader not in packages.loaders:
            raise self.error(
                f'"{key}" has no packages of loader "{shape.loader}"',
                "systems",
                key,
                "loaders",
                remedy=nearest(shape.loader, packages.loaders),
            )
        if shape.cloud_init and not packages.cloud_init:
            raise self.error(
                f'"{key}" has no packages of cloud-init',
                "systems",
                key,
                remedy="name them as `cloud_init`",
            )
        names = {
            *packages.packages,
            *packages.loaders[shape.loader],
            *shape.packages,
            *(packages.cloud_init if shape.cloud_init else ()),
        }
        return Disk(name, key, shape, tuple(sorted(names)))

    def check(self, catalog: Catalog) -> None:
        """Raise DiskError for a class that the catalog does not have."""
        for name in self.document.classes:
            if name not in catalog.classes:
                raise self.error(
                    f'class "{name}" is not in the catalog',
                    "classes",
                    name,
                    remedy=nearest(name, catalog.classes),
                )

    def shaping(self, disk: Disk) -> Mapping[str, Any]:
        """Return the part of the definition that determines the bytes of `disk`, as JSON-compatible data."""
        return {
            "shape": disk.shape.model_dump(mode="json"),
            "packages": list(disk.packages),
            "waivers": [item.model_dump(mode="json") for item in self.document.hygiene.waivers],
        }


def builtin_definition() -> Path:
    """Return the path of the built-in definition."""
    return data("images/disks/disks.yml")


def load_definition(path: Path | None = None) -> Definition:
    """Read and validate a definition: `path`, otherwise $GOLDNODE_DISK_DEFINITION, otherwise the built-in
    one.

    Raises DiskError with file and line for the first error.
    """
    if path is None:
        named = os.environ.get(DEFINITION)
        path = Path(named).expanduser() if named else builtin_definition()
    source = yamlsource.read(path, error=DiskError)
    check_format(source, "disks", 1, DiskError)
    definition = Definition(yamlsource.validate(DefinitionFile, source, error=DiskError), source)
    # The empty name checks the defaults themselves.
    for name in ("", *definition.document.classes):
        definition.shape(name)
    return definition

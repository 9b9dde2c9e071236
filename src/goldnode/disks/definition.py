"""The definition of the disk images, `images/disks/disks.yml`: what every class's disk is, and what of a class's is different.

It says nothing of kernels, drivers and engines: those are the stack's. A package is named here once per OS, and the lock has its version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from goldnode import yamlsource
from goldnode.catalog.load import Catalog
from goldnode.catalog.models import OperatingSystem
from goldnode.errors import DiskError, nearest
from goldnode.formats import check_format
from goldnode.yamlsource import Source

DEFINITION = "GOLDNODE_DISK_DEFINITION"  # environment: a definition in place of goldnode's own

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


_Package = Annotated[str, AfterValidator(_package)]
_Word = Annotated[str, AfterValidator(_word)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shape(_Model):
    """What a disk is. Sizes in MiB."""

    loader: Literal["systemd-boot", "grub"] = Field(description="What starts the kernel.")
    layout: Literal["ab", "single"] = Field(description="Two root partitions with boot counting, or one.")
    esp_mib: int = Field(ge=64, le=4096, description="Size of the EFI system partition, MiB.")
    root_mib: int = Field(
        ge=512,
        le=1048576,
        description="Size of the root filesystem as it is shipped, MiB; it grows at the first boot.",
    )
    command_line: tuple[_Word, ...] = Field(
        description="Words of the kernel's command line, beside those of the class's policy."
    )
    cloud_init: bool = Field(description="Whether cloud-init is in it.")
    packages: tuple[_Package, ...] = Field(description="Packages beside those of the system.")


class Different(_Model):
    """What of one class's disk is different."""

    loader: Literal["systemd-boot", "grub"] | None = Field(
        default=None, description="In place of the default."
    )
    layout: Literal["ab", "single"] | None = Field(default=None, description="In place of the default.")
    esp_mib: int | None = Field(default=None, ge=64, le=4096, description="In place of the default, MiB.")
    root_mib: int | None = Field(
        default=None, ge=512, le=1048576, description="In place of the default, MiB."
    )
    command_line: tuple[_Word, ...] | None = Field(default=None, description="In place of the default.")
    cloud_init: bool | None = Field(default=None, description="In place of the default.")
    packages: tuple[_Package, ...] = Field(default=(), description="Packages that are added.")


class System(_Model):
    """The packages of one OS release."""

    packages: tuple[_Package, ...] = Field(description="Packages of every disk, beside the essential ones.")
    loaders: dict[Literal["systemd-boot", "grub"], tuple[_Package, ...]] = Field(
        description="Packages of each boot loader."
    )
    cloud_init: tuple[_Package, ...] = Field(default=(), description="Packages of cloud-init.")


class Waiver(_Model):
    """A finding of a check that may stand."""

    check: str = Field(description="Name of the check.")
    path: str = Field(description="What it found: a path in the root filesystem, or a shell pattern.")
    reason: str = Field(min_length=8, description="Why it may stand.")


class HygieneRules(_Model):
    """What the checks of a root filesystem are told."""

    waivers: tuple[Waiver, ...] = Field(default=(), description="Findings that may stand.")


class DefinitionFile(_Model):
    """`disks.yml`."""

    disks: Literal[1] = Field(description="Number of this file's format.")
    defaults: Shape = Field(description="Every disk, where its class says nothing else.")
    systems: dict[str, System] = Field(description="Packages by OS: `debian12`.")
    hygiene: HygieneRules = Field(
        default_factory=HygieneRules, description="What the checks of a root filesystem are told."
    )
    classes: dict[str, Different] = Field(
        default_factory=dict, description="What of a class's disk is different."
    )


@dataclass(frozen=True)
class Disk:
    """The disk of one class: its shape, and the packages that apt is asked for beside the stack's."""

    class_: str
    system: str
    shape: Shape
    packages: tuple[str, ...]


class Definition:
    """A read definition."""

    def __init__(self, document: DefinitionFile, source: Source) -> None:
        self.document, self.source = document, source

    @property
    def file(self) -> Path:
        """Where it was read."""
        return self.source.file

    @property
    def locks(self) -> Path:
        """The directory of locks beside it."""
        return self.file.parent / "locks"

    def error(self, message: str, *path: str | int, remedy: str | None = None) -> DiskError:
        """An error that names the line of `path`."""
        return DiskError(message, file=self.file, line=self.source.line(path), remedy=remedy)

    def shape(self, name: str) -> Shape:
        """Return the shape of the disk of class `name`. Raises DiskError where what is said of it does not go together."""
        own = self.document.classes.get(name, Different())
        change = {
            key: value for key, value in own.model_dump(exclude={"packages"}).items() if value is not None
        }
        shape = self.document.defaults.model_copy(
            update={**change, "packages": (*self.document.defaults.packages, *own.packages)}
        )
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
                f'{whose} has loader "systemd-boot" and layout "single", and systemd-boot starts one of two roots',
                *place,
                remedy="write layout: ab, or loader: grub",
            )
        return shape

    def disk(self, name: str, system: OperatingSystem) -> Disk:
        """Return the disk of class `name` on this OS. Raises DiskError where no such OS is defined, or what the class says cannot be."""
        key = f"{system.id}{system.version}".replace(".", "")
        # Another release is no way out: the class's stack decides it.
        if key not in self.document.systems:
            raise self.error(
                f'class "{name}" runs {system.id} {system.version}, and there are no disk images of "{key}"',
                "systems",
                remedy=f'add "{key}" to `systems`',
            )
        shape = self.shape(name)
        packages = self.document.systems[key]
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
                f'"{key}" has no packages of cloud-init', "systems", key, remedy="name them as `cloud_init`"
            )
        names = {
            *packages.packages,
            *packages.loaders[shape.loader],
            *shape.packages,
            *(packages.cloud_init if shape.cloud_init else ()),
        }
        return Disk(name, key, shape, tuple(sorted(names)))

    def check(self, catalog: Catalog) -> None:
        """Refuse classes that the catalog does not have. Raises DiskError."""
        for name in self.document.classes:
            if name not in catalog.classes:
                raise self.error(
                    f'class "{name}" is not in the catalog',
                    "classes",
                    name,
                    remedy=nearest(name, catalog.classes),
                )

    def shaping(self, disk: Disk) -> Mapping[str, Any]:
        """What of the definition decides the bytes of `disk`, as plain data."""
        return {
            "shape": disk.shape.model_dump(mode="json"),
            "packages": list(disk.packages),
            "waivers": [item.model_dump(mode="json") for item in self.document.hygiene.waivers],
        }


def builtin_definition() -> Path:
    """Return goldnode's own definition."""
    return Path(__file__).resolve().parents[3] / "images" / "disks" / "disks.yml"


def load_definition(path: Path | None = None) -> Definition:
    """Read the definition at `path`, of $GOLDNODE_DISK_DEFINITION, or goldnode's own. Raises DiskError for the first fault, with its line."""
    if path is None:
        named = os.environ.get(DEFINITION)
        path = Path(named).expanduser() if named else builtin_definition()
    source = yamlsource.read(path, error=DiskError)
    check_format(source, "disks", 1, DiskError)
    found = Definition(yamlsource.validate(DefinitionFile, source, error=DiskError), source)
    for name in ("", *found.document.classes):
        found.shape(name)
    return found

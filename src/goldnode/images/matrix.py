"""The matrix of container images: backend x runtime version x flavour x OS, declared in
`images/containers/matrix.yml`.

A release (one version of one backend) declares its components once: their names as wheels and as
Debian packages, and their versions. Flavours select components. The rows, one per image, follow
from that, with the requests to apt and pip. This module queries no archive.
`goldnode.images.resolve` does that, and locks record its results.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from goldnode.catalog.models import OperatingSystem
from goldnode.core import yamlsource
from goldnode.core.data import data
from goldnode.core.errors import GoldnodeError, ImageError, nearest
from goldnode.core.formats import check_format
from goldnode.core.yamlsource import KeyPath, YamlSource
from goldnode.facts import host as facts
from goldnode.oci.model import AMD64, NAME, Architecture, ImageSpec, system_word

MATRIX = "GOLDNODE_MATRIX"  # environment variable: a matrix file that replaces the built-in one

Backend = Literal["cuda", "rocm", "oneapi", "cpu"]
Layout = Literal["cuda", "python", "none"]


def _fits(pattern: re.Pattern[str], fault: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f'"{value}" {fault}')
        return value

    return AfterValidator(check)


def _requirement(value: str) -> str:
    try:
        Requirement(value)
    except InvalidRequirement as problem:
        raise ValueError(
            f'"{value}" is not a requirement: {str(problem).splitlines()[0]} | write it as NAME==VERSION'
        ) from None
    return value


_Word = Annotated[
    str,
    _fits(
        re.compile(r"[a-z0-9]+(?:[._+][a-z0-9]+)*"),
        "is no part of a tag | use small letters, digits and dots",
    ),
]
_Version = Annotated[
    str,
    _fits(
        re.compile(r"[0-9a-z]+(?:\.[0-9a-z]+)*"), "is no version | use digits and dots, or distro"
    ),
]
_Distribution = Annotated[
    str,
    _fits(
        re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*"),
        "is no name of a wheel | write it as the index does",
    ),
]
_Deb = Annotated[
    str, _fits(re.compile(r"\?essential|[a-z0-9][a-z0-9+.-]+"), "is no package name | correct it")
]
_Vendor = Annotated[
    str,
    _fits(
        re.compile(r"[a-z0-9.:-]+/[a-z0-9._/-]+@sha256:[0-9a-f]{64}"),
        "is no reference by digest | write it as HOST/REPOSITORY@sha256:…, since a tag can be given to "
        "another content",
    ),
]


def _some(value: tuple[str, ...]) -> tuple[str, ...]:
    # Not pydantic's own length check: it counts only valid entries, and hides the error of the
    # invalid one.
    if not value:
        raise ValueError("an empty list, expected at least one entry | add one")
    return value


class _MatrixModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MatrixSystem(_MatrixModel):
    """One OS release that images are built on."""

    id: str = Field(description="ID of its os-release.")
    release: str = Field(description="VERSION_ID of its os-release.")
    codename: str = Field(description="Code name, for the suites of its archives.")
    architectures: Annotated[tuple[Architecture, ...], AfterValidator(_some)] = Field(
        description="Those that its archives have, by dpkg's names."
    )
    python: Annotated[str, Field(pattern=r"^3\.\d+$")] = Field(
        description="Its own Python, which wheels are chosen for."
    )
    glibc: Annotated[str, Field(pattern=r"^2\.\d+$")] = Field(
        description="Its glibc, which bounds the manylinux tags of wheels."
    )
    archives: Annotated[tuple[str, ...], AfterValidator(_some)] = Field(
        description="Ids of catalog/archives.yml."
    )
    released: bool = Field(
        default=True,
        exclude=True,  # no part of what a lock was made for
        description="false: its packages leave the archive within days, so its images are locked and built only by name or glob.",
    )

    @property
    def os(self) -> OperatingSystem:
        """Return the release as the addresses of archives have it."""
        return OperatingSystem.model_validate(
            {
                "id": self.id,
                "version": self.release,
                "codename": self.codename,
                "architecture": self.architectures[0],
            }
        )


class Licence(_MatrixModel):
    """Licence terms of parts of images, and their consequence for publication."""

    title: str = Field(description="Text of the label: an SPDX expression, if one exists.")
    redistribution: Literal["free", "private"] = Field(
        description="private: publishing needs --private."
    )
    note: str = Field(description="Reason in one sentence, with its source.")


class MatrixComponent(_MatrixModel):
    """One part of a release: its source on each OS, and its version in the release."""

    version: str | dict[str, str] | None = Field(
        default=None, description="Expected upstream version, or one per OS; null: none is claimed."
    )
    wheel: _Distribution | None = Field(
        default=None, description="Name of the wheel; its version is `version`."
    )
    requires: tuple[Annotated[str, AfterValidator(_requirement)], ...] = Field(
        default=(), description="Further requirements for pip beside the wheel."
    )
    debs: tuple[_Deb, ...] | dict[str, tuple[_Deb, ...]] = Field(
        default=(), description="Debian packages, or a list per OS."
    )
    from_host: tuple[_Deb, ...] = Field(
        default=(),
        description=(
            "Packages of the host's driver that its packages require: goldnode-driver-from-host provides "
            "them, and no driver is installed."
        ),
    )
    layout: Literal["cuda", "python"] = Field(
        default="python",
        description=(
            "cuda: libraries of the wheel go to /usr/local/cuda-X.Y; python: as pip would install it below "
            "/usr/local."
        ),
    )
    licence: str | None = Field(
        default=None,
        description="Key of `licences`; null: Debian's own archive says it per package.",
    )
    index: str | None = Field(
        default=None,
        description="Name of an index of the site (`indexes` in the site file) that alone has the wheel.",
    )


class MatrixFlavour(_MatrixModel):
    """One flavour of a release: the components that it adds to its parent image."""

    parent: str | None = Field(
        description=(
            "Flavour of this release, or BACKEND-VERSION-FLAVOUR of another, that it begins with; null: "
            "nothing."
        )
    )
    components: tuple[str, ...] | dict[str, tuple[str, ...]] = Field(
        default=(), description="Keys of the release's `components`, or a list per OS."
    )
    debs: tuple[_Deb, ...] | dict[str, tuple[_Deb, ...]] = Field(
        default=(), description="Further Debian packages, or a list per OS."
    )
    os: tuple[str, ...] | None = Field(
        default=None, description="Keys of `systems`; null: all of the release."
    )
    installs: bool = Field(
        default=False,
        description=(
            "For Dockerfiles: apt has the archives of the lock as sources, and pip installs without a virtual "
            "environment."
        ),
    )
    architectures: tuple[Architecture, ...] | None = Field(
        default=None, description="Architectures of its images; null: as the release."
    )
    exercised: bool | None = Field(
        default=None,
        description="Whether it is built and smoked in this project's own tests; null: as the release.",
    )
    title: str | None = Field(default=None, description="Purpose in a few words, for its label.")


class Vendor(_MatrixModel):
    """An image from a vendor as a base."""

    vendor: _Vendor = Field(description="HOST/REPOSITORY@sha256:…")


# `built` becomes None. This leaves a single alternative to validate, so that an error in a vendor's
# reference is reported as such.
_Source = Annotated[
    Vendor | None,
    BeforeValidator(lambda value: None if value == "built" else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "built"},
                {
                    "type": "object",
                    "properties": {
                        "vendor": {"description": "HOST/REPOSITORY@sha256:….", "type": "string"}
                    },
                    "required": ["vendor"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class MatrixRelease(_MatrixModel):
    """One runtime version of one backend."""

    version: _Version = Field(
        description="Version in the tag; distro if the parts share no version."
    )
    os: Annotated[tuple[str, ...], AfterValidator(_some)] = Field(description="Keys of `systems`.")
    architectures: Annotated[tuple[Architecture, ...], AfterValidator(_some)] = Field(
        default=(AMD64,),
        description="Architectures of its images. The name of an image for another than amd64 ends with it.",
    )
    prefer: dict[str, Literal["debs", "wheels"]] = Field(
        default_factory=dict,
        description="Source of components with both forms, by OS; default: wheels.",
    )
    components: dict[str, MatrixComponent] = Field(
        default_factory=dict, description="Parts of the release, by the names that flavours pick."
    )
    flavours: dict[_Word, MatrixFlavour] = Field(
        description="Images of the release, by the part of the tag that names them: base, runtime, devel."
    )
    source: _Source = Field(
        default=None,
        description=(
            "built, or left out: from packages and wheels. {vendor: REFERENCE}: this image of the vendor "
            "replaces the flavours without a parent."
        ),
    )
    exercised: bool = Field(
        default=True, description="Whether it is built and smoked in this project's own tests."
    )
    note: str | None = Field(default=None, description="Note for people who choose an image.")


class BackendRows(_MatrixModel):
    """All releases of one backend."""

    title: str | None = Field(
        default=None, description="Name in labels; null: as in the extended matrix."
    )
    purity: str | None = Field(
        default=None,
        description="Policy in purity.yml that its images are inspected by; null: as in the extended matrix.",
    )
    releases: tuple[MatrixRelease, ...] = Field(description="Runtime versions, each once.")


class MatrixFile(_MatrixModel):
    """images/containers/matrix.yml."""

    matrix: Literal[1] = Field(description="Number of this file's format.")
    extends: Literal["goldnode"] | None = Field(
        default=None,
        description=(
            "goldnode: the images of this file are in addition to goldnode's own, which keep their locks. null: "
            "it replaces them."
        ),
    )
    systems: dict[_Word, MatrixSystem] = Field(
        default_factory=dict,
        description="OS releases that images are built on, by the part of the tag that names them: debian12.",
    )
    licences: dict[str, Licence] = Field(
        default_factory=dict,
        description="Terms that parts are under, by the names that components give.",
    )
    backends: dict[Backend, BackendRows] = Field(description="Backends, with all their releases.")


@dataclass(frozen=True)
class MatrixRow:
    """One image of the matrix, with all data for locks, recipes, labels and tests.

    `debs` (apt's names) and `wheels` (PEP 508) are what this image requests in addition to its
    parent. `parts` are the versions that it declares, including its parent's. `min_driver` is the
    oldest driver on which its CUDA starts (from the facts); None for other backends. `layout` is
    the target of its own wheels, see `Component.layout`; "none" without wheels. `from_host` are the
    packages' requirements on a driver, which the host provides. `installs`: apt and pip are set up
    for Dockerfiles. `vendor` is a reference by digest if the base is not built here.
    """

    image: ImageSpec
    system: MatrixSystem
    title: str
    debs: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    from_host: tuple[str, ...] = ()
    layout: Layout = "none"
    parts: Mapping[str, str] = field(default_factory=dict)
    components: Mapping[str, MatrixComponent] = field(default_factory=dict)
    purity: str = ""
    licences: tuple[str, ...] = ()
    redistribution: Literal["free", "private"] = "free"
    min_driver: str | None = None
    exercised: bool = True
    released: bool = True
    installs: bool = False
    vendor: str | None = None
    index: str | None = None
    note: str | None = None
    file: Path = Path()
    line: int = 1

    @property
    def name(self) -> str:
        """Return the image's name, its identifier everywhere."""
        return self.image.name

    @property
    def archives(self) -> tuple[str, ...]:
        """Ids of the archives that its packages come from."""
        return self.system.archives

    @property
    def architecture(self) -> Architecture:
        """Architecture of the image, by dpkg's name."""
        return self.system.architectures[0]

    @property
    def cuda_home(self) -> str | None:
        """Directory of this release's CUDA, `/usr/local/cuda-12.4`; None for other backends."""
        if self.image.backend != "cuda":
            return None
        return "/usr/local/cuda-" + ".".join(self.image.version.split(".")[:2])

    @property
    def locks(self) -> Path:
        """Directory of the matrix's locks."""
        return self.file.parent / "locks"

    def error(self, message: str, *, remedy: str | None = None) -> ImageError:
        """Return an error that points to this image's flavour in the matrix."""
        return ImageError(message, file=self.file, line=self.line, remedy=remedy)


@dataclass(frozen=True)
class ImageMatrix:
    """All images by name, parents before their children."""

    file: Path
    images: dict[str, MatrixRow]

    def row(self, name: str) -> MatrixRow:
        """Return one image. Raises ImageError for an unknown name and suggests the nearest one."""
        if name not in self.images:
            raise ImageError(
                f'image "{name}" is not in the matrix',
                file=self.file,
                remedy=nearest(name, self.images),
            )
        return self.images[name]

    def chain(self, name: str) -> list[MatrixRow]:
        """Return the image preceded by its ancestors, the root first."""
        rows = [self.row(name)]
        while rows[0].image.parent is not None:
            rows.insert(0, self.row(rows[0].image.parent))
        return rows

    def architectures(self, name: str) -> list[str]:
        """Return the names of an image for all its architectures. Raises ImageError for an unknown name."""
        own = self.row(name).image
        return [
            other
            for other, row in self.images.items()
            if (row.image.backend, row.image.tag.removesuffix(f"_{row.architecture}"))
            == (own.backend, own.tag.removesuffix(f"_{own.architecture}"))
        ]

    def select(self, patterns: Sequence[str] = (), *, exercised: bool = False) -> list[MatrixRow]:
        """Return the images that `patterns` match and all their ancestors, parents first.

        A pattern is a name, a backend, or a glob over names (`cuda-12.4.1-*`). Without patterns,
        all images are selected. `exercised` excludes from these the images that this project does not build itself,
        and those on an OS that is not released, these also from a backend's. Raises ImageError for a pattern
        without a match, with the nearest name.
        """
        from fnmatch import fnmatchcase

        wanted: set[str] = set()
        for pattern in patterns:
            fitting = [
                name
                for name, row in self.images.items()
                if fnmatchcase(name, pattern)
                or (pattern == row.image.backend and (row.released or not exercised))
            ]
            if not fitting:
                known = {*self.images, *(row.image.backend for row in self.images.values())}
                raise ImageError(
                    f'"{pattern}" fits no image of the matrix',
                    file=self.file,
                    remedy=nearest(pattern, known),
                )
            wanted.update(fitting)
        if not patterns:
            wanted = {
                name
                for name, row in self.images.items()
                if (row.exercised and row.released) or not exercised
            }
        whole = {row.name for name in wanted for row in self.chain(name)}
        return [row for name, row in self.images.items() if name in whole]


def absent(name: str, here: Iterable[str]) -> str:
    """Return the remedy for an image name that is not in the store.

    If the matrix has the image: build it. Otherwise: the nearest name in `here` or in the matrix.
    """
    try:
        known = load_matrix().images
    except GoldnodeError:  # a broken matrix is not the problem to report here
        known = {}
    if name in known:
        return f"build it: goldnode images build {name}"
    return nearest(name, {*here, *known})


def builtin_matrix() -> Path:
    """Return goldnode's own matrix file."""
    return data("images/containers/matrix.yml")


def load_matrix(path: Path | None = None) -> ImageMatrix:
    """Read the matrix at `path`, at $GOLDNODE_MATRIX, or goldnode's own.

    Raises ImageError for the first error, with file and line.
    """
    if path is None:
        named = os.environ.get(MATRIX)
        path = Path(named).expanduser() if named else builtin_matrix()
    document, source = _matrix_file(path)
    above: dict[str, MatrixRow] = {}
    if document.extends is not None:
        own, own_source = _matrix_file(builtin_matrix())
        above = _MatrixReader(own, own_source).rows()
        document = _extended(document, own, source)
    rows = {**above, **_MatrixReader(document, source).rows(above)}
    return ImageMatrix(path, _ordered(rows, source))


def _matrix_file(path: Path) -> tuple[MatrixFile, YamlSource]:
    source = yamlsource.read(path, error=ImageError)
    check_format(source, "matrix", 1, ImageError)
    return yamlsource.validate(MatrixFile, source, error=ImageError), source


def _extended(document: MatrixFile, own: MatrixFile, source: YamlSource) -> MatrixFile:
    """Return a site's matrix with the systems, licences, titles and policies of `own` added.

    Raises ImageError if it declares one of these again: two meanings of a name could not be
    distinguished.
    """
    sections: dict[str, object] = {}
    for key in ("systems", "licences"):
        theirs, ours = getattr(document, key), getattr(own, key)
        for name in theirs.keys() & ours.keys():
            raise ImageError(
                f'"{name}" is declared by goldnode\'s own matrix',
                file=source.file,
                line=source.line((key, name)),
                remedy="leave it out, or use another name",
            )
        sections[key] = {**ours, **theirs}
    sections["backends"] = {
        name: group.model_copy(
            update={
                "title": group.title or own.backends[name].title,
                "purity": group.purity or own.backends[name].purity,
            }
        )
        for name, group in document.backends.items()
    }
    return document.model_copy(update=sections)


def _policies() -> list[str]:
    """Return the policy names of purity.yml, by which images are inspected."""
    data = yamlsource.read(builtin_matrix().with_name("purity.yml"), error=ImageError).data
    return sorted(data["backends"])


class _MatrixReader:
    """Converter from a validated file to rows. Every error points to its line."""

    def __init__(self, document: MatrixFile, source: YamlSource) -> None:
        self.document, self.source = document, source

    def error(self, message: str, path: KeyPath, remedy: str | None = None) -> ImageError:
        return ImageError(
            message, file=self.source.file, line=self.source.line(path), remedy=remedy
        )

    def rows(self, above: Mapping[str, MatrixRow] | None = None) -> dict[str, MatrixRow]:
        """Return the images of the file. `above` are those of the matrix that it extends."""
        rows: dict[str, MatrixRow] = {}
        above = above or {}
        policies = _policies()
        for backend, group in self.document.backends.items():
            if group.title is None or group.purity is None:
                # A site's matrix inherits both (`_extended`): only a new backend can lack one.
                lacking = "title" if group.title is None else "purity"
                raise self.error(
                    f'backend "{backend}" has no {lacking}',
                    ("backends", backend),
                    f"give it `{lacking}`",
                )
            # Else the image would be built, and refused only by its inspection.
            if group.purity not in policies:
                raise self.error(
                    f'there is no policy "{group.purity}" in purity.yml',
                    ("backends", backend, "purity"),
                    nearest(group.purity, policies),
                )
            for number, release in enumerate(group.releases):
                path: KeyPath = ("backends", backend, "releases", number)
                self._check_release(release, path)
                for flavour in release.flavours:
                    for name, architecture in self._targets(release, flavour, path):
                        row = self._row(
                            backend,
                            group=group,
                            release=release,
                            flavour=flavour,
                            target=(name, architecture),
                            path=path,
                        )
                        # A name means one image, also where a site extends goldnode's matrix.
                        if (other := rows.get(row.name) or above.get(row.name)) is not None:
                            raise self.error(
                                f'image "{row.name}" is declared twice, first on line {other.line}'
                                + (f" of {other.file}" if row.name in above else ""),
                                (*path, "flavours", flavour),
                                "keep one of the two",
                            )
                        rows[row.name] = row
        # Parents last: a flavour may come before its parent in the file.
        return {name: self._with_parent(row, {**above, **rows}) for name, row in rows.items()}

    def _check_release(self, release: MatrixRelease, path: KeyPath) -> None:
        for index, name in enumerate(release.os):
            self._known("OS", name, self.document.systems, (*path, "os", index))
        for name in release.prefer:
            self._known("OS", name, release.os, (*path, "prefer", name))
        for name, component in release.components.items():
            place = (*path, "components", name)
            if component.licence is not None:
                self._known(
                    "licence", component.licence, self.document.licences, (*place, "licence")
                )
            for key in ("version", "debs"):
                value = getattr(component, key)
                for system in value if isinstance(value, dict) else ():
                    self._known("OS", system, release.os, (*place, key, system))
            if component.wheel is None and not component.debs:
                raise self.error(
                    f'component "{name}" is neither a wheel nor a Debian package',
                    place,
                    "give it `wheel` or `debs`",
                )
            if component.wheel is not None and component.version is None:
                raise self.error(
                    f'component "{name}" is a wheel without a version', place, "give it `version`"
                )

    def _systems(self, release: MatrixRelease, flavour: str, path: KeyPath) -> tuple[str, ...]:
        chosen = release.flavours[flavour].os
        for index, name in enumerate(chosen or ()):
            self._known("OS", name, release.os, (*path, "flavours", flavour, "os", index))
        return release.os if chosen is None else chosen

    def _targets(
        self, release: MatrixRelease, flavour: str, path: KeyPath
    ) -> Iterator[tuple[str, Architecture]]:
        """Yield the OS and architecture of each image of a flavour."""
        own = release.flavours[flavour].architectures
        place = (*path, "architectures")
        if own is not None:
            place = (*path, "flavours", flavour, "architectures")
        for system in self._systems(release, flavour, path):
            known = self.document.systems[system].architectures
            for index, name in enumerate(release.architectures if own is None else own):
                if name not in known:
                    raise self.error(
                        f"{system} is not declared for {name}",
                        (*place, index),
                        f"use one of: {', '.join(known)}",
                    )
                yield system, name

    def _known(self, what: str, name: str, known: Iterable[str], path: KeyPath) -> None:
        if name not in known:
            raise self.error(f'{what} "{name}" is not declared', path, nearest(name, known))

    def _row(
        self,
        backend: str,
        group: BackendRows,
        release: MatrixRelease,
        flavour: str,
        target: tuple[str, Architecture],
        *,
        path: KeyPath,
    ) -> MatrixRow:
        item = release.flavours[flavour]
        system, architecture = target
        word = system_word(*target)
        place = (*path, "flavours", flavour)
        debs: list[str] = list(_of(item.debs, system))
        wheels: list[str] = []
        from_host: list[str] = []
        layouts: set[Literal["cuda", "python"]] = set()
        licences: list[str] = []
        parts: dict[str, str] = {}
        indexes: set[str] = set()
        where = (system,) if isinstance(item.components, dict) else ()
        for index, name in enumerate(_of(item.components, system)):
            self._known(
                "component", name, release.components, (*place, "components", *where, index)
            )
            component = release.components[name]
            version = component.version
            if isinstance(version, dict):
                version = version.get(system)
            packages = _of(component.debs, system)
            # A component that exists as both is a wheel, unless the release prefers debs on this
            # OS.
            as_deb = bool(packages) and (
                component.wheel is None or release.prefer.get(system) == "debs"
            )
            if as_deb:
                debs.extend(packages)
                from_host.extend(component.from_host)
            elif component.wheel is not None and version is not None:
                wheels.append(f"{component.wheel}=={version}")
                wheels.extend(component.requires)
                layouts.add(component.layout)
            else:
                raise self.error(
                    f'component "{name}" has no package on {system}',
                    (*place, "components", *where, index),
                    "name one, or leave it out",
                )
            if component.index is not None and not as_deb:
                indexes.add(component.index)
            if version is not None:
                parts[name] = version
            if component.licence is not None:
                licences.append(component.licence)
        if len(layouts) > 1 or len(indexes) > 1:
            raise self.error(
                "the wheels of one image go to one place and come from one index",
                place,
                "make two flavours of it",
            )
        image = ImageSpec(
            name=f"{backend}-{release.version}-{flavour}-{word}",
            backend=backend,
            version=release.version,
            flavour=flavour,
            os=system,
            parent=self._parent(backend, release, flavour, word),
            architecture=architecture,
        )
        if not NAME.match(image.name):
            raise self.error(
                f'"{image.name}" is no name of an image',
                place,
                "use small letters, digits and dots",
            )
        terms = {self.document.licences[name].redistribution for name in licences}
        vendor = None
        # Only a flavour without a parent is the vendor's image itself.
        if release.source is not None and item.parent is None:
            vendor = release.source.vendor
        return MatrixRow(
            image=image,
            # Only this architecture: requests to apt and pip, and so their digest, do not depend on
            # others.
            system=self.document.systems[system].model_copy(
                update={"architectures": (architecture,)}
            ),
            title=item.title or f"{group.title}, {flavour}",
            debs=tuple(dict.fromkeys(debs)),
            wheels=tuple(dict.fromkeys(wheels)),
            from_host=tuple(sorted(set(from_host))),
            layout=next(iter(layouts), "none"),
            parts=parts,
            components={name: release.components[name] for name in _of(item.components, system)},
            purity=group.purity or "",
            licences=tuple(dict.fromkeys(self.document.licences[name].title for name in licences)),
            redistribution="private" if "private" in terms else "free",
            min_driver=_min_driver(backend, release.version),
            exercised=release.exercised if item.exercised is None else item.exercised,
            released=self.document.systems[system].released,
            installs=item.installs,
            vendor=vendor,
            index=next(iter(indexes), None),
            note=release.note,
            file=self.source.file,
            line=self.source.line(place),
        )

    def _parent(self, backend: str, release: MatrixRelease, flavour: str, word: str) -> str | None:
        stands_on = release.flavours[flavour].parent
        if stands_on is None:
            return None
        if stands_on in release.flavours:
            return f"{backend}-{release.version}-{stands_on}-{word}"
        return f"{stands_on}-{word}"

    def _with_parent(self, row: MatrixRow, rows: Mapping[str, MatrixRow]) -> MatrixRow:
        """Return the row with the parts, licences and terms of its ancestors added."""
        from dataclasses import replace

        parent = row.image.parent
        seen = {row.name}
        parts, licences, terms, exercised = (
            dict(row.parts),
            list(row.licences),
            row.redistribution,
            row.exercised,
        )
        while parent is not None:
            if parent not in rows:
                raise row.error(
                    f'image "{row.name}" has the parent "{parent}", which is not in the matrix',
                    remedy=nearest(parent, rows),
                )
            if parent in seen:
                raise row.error(
                    f'image "{row.name}" is its own parent, by way of "{parent}"',
                    remedy="correct `parent`",
                )
            seen.add(parent)
            below = rows[parent]
            parts = {**below.parts, **parts}
            licences = [*below.licences, *licences]
            # One private part makes the whole image private. An image is exercised only if all its
            # ancestors are.
            terms = "private" if "private" in (terms, below.redistribution) else "free"
            exercised = exercised and below.exercised
            parent = below.image.parent
        return replace(
            row,
            parts=parts,
            licences=tuple(dict.fromkeys(licences)),
            redistribution=terms,
            exercised=exercised,
        )


def _of(value: tuple[str, ...] | dict[str, tuple[str, ...]], system: str) -> tuple[str, ...]:
    return value.get(system, ()) if isinstance(value, dict) else value


def _min_driver(backend: str, version: str) -> str | None:
    """Return the minimum driver of a CUDA version's major family, from the facts (minor-version
    compatibility).
    """
    if backend != "cuda":
        return None
    major = version.partition(".")[0]
    for row in facts.load("cuda.yml")["driver_minimum_per_major"]:
        if str(row["major"]) == major:
            return str(row["min_driver_minor_version_compat"])
    return None


def _ordered(rows: Mapping[str, MatrixRow], source: YamlSource) -> dict[str, MatrixRow]:
    """Return the rows with parents before children, otherwise in their order in the file."""
    ordered: dict[str, MatrixRow] = {}

    def add(row: MatrixRow) -> None:
        if row.image.parent is not None and row.image.parent not in ordered:
            add(rows[row.image.parent])
        ordered.setdefault(row.name, row)

    for row in rows.values():
        add(row)
    return ordered

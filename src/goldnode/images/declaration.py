"""The declaration of a derived image, `derive.yml`: a base, wheels, files and settings of a team's own image.

The paths in it are relative to its directory, where its lock is, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field

from goldnode.core import yamlsource
from goldnode.core.errors import ImageError
from goldnode.core.formats import check_format
from goldnode.core.yamlsource import YamlSource
from goldnode.images.secret_files import secret_text
from goldnode.oci.layout import clean
from goldnode.oci.model import LABELS

DECLARATION = "derive.yml"

_RESERVED = ("org.opencontainers.image.base.", "org.opencontainers.image.ref.name")
# They state facts about the content of the base, which programs and the inspection rely on.
_OF_BASE = frozenset(("CUDA_VERSION", "NVARCH", "NVIDIA_REQUIRE_CUDA", "NVIDIA_PRODUCT_NAME"))
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FORBIDDEN = ("dev", "proc", "sys", "run", "tmp", "usr/lib/goldnode", "var/lib/dpkg")

Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)*$", max_length=200
    ),
]
# A package by its name in the archives (Debian Policy 5.6.1). Its version is in the lock.
Package = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$", max_length=200)]
Version = Annotated[str, Field(pattern=r"^[0-9a-z]+(?:[._][0-9a-z]+)*$", max_length=40)]


class TeamTest(BaseModel):
    """A smoke test of the team's own: a program of the image."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 ._-]*$", max_length=60)] = Field(
        description="Name in the records of smoke tests, where `team ` is put before it."
    )
    run: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description=(
            "Program and arguments. It runs as the image's user in its working directory, without a network, on a "
            "read-only root; /tmp is writable. Status 0 has passed."
        )
    )
    seconds: Annotated[float, Field(gt=0, le=1800)] = Field(
        default=60,
        description="Time limit. A program that exceeds it is killed, and counts as not run.",
    )
    tier: Literal["cpu", "gpu"] = Field(
        default="cpu", description="gpu: it runs only where the image has been given a GPU."
    )


class DeriveFile(BaseModel):
    """derive.yml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    derive: Literal[1] = Field(description="Number of this file's format.")
    name: Name = Field(description="Repository of the image, for instance recsys/trainer.")
    version: Version = Field(
        default="1",
        description="Version in the tag. The first two numbers name the line of its channels.",
    )
    title: str | None = Field(default=None, description="Purpose in a few words, for its label.")
    base: Annotated[str, Field(min_length=1)] = Field(
        description=(
            "Image to begin with: of the matrix, the store (name or digest), a channel, which is followed, or a "
            "registry (HOST/NAME:TAG, HOST/NAME@DIGEST)."
        )
    )
    packages: tuple[Package, ...] = Field(
        default=(),
        description=(
            "Debian packages by name, from the archives of the base's OS. goldnode locks them with what they need."
        ),
    )
    requirements: str | None = Field(
        default=None,
        description="Requirements file of pip. With hashes, exactly these files are installed; without, goldnode locks it.",
    )
    files: dict[str, str] = Field(
        default_factory=dict,
        description="Files and directories to copy, by their absolute path in the image; they belong to root.",
    )
    ignore: str | None = Field(
        default=None,
        description=(
            "File with patterns of files that are not copied, in the form of .dockerignore; null: `.dockerignore` "
            "beside the declaration, if there is one."
        ),
    )
    allow_secrets: dict[str, Annotated[str, Field(min_length=8)]] = Field(
        default_factory=dict,
        description=(
            "Copied files that look like secrets and are none: the path from the declaration, and the reason, which is shown."
        ),
    )
    user: str | None = Field(
        default=None,
        description="User of its containers: UID, UID:GID, or a name that the base has.",
    )
    workdir: str | None = Field(
        default=None, description="Working directory; null: that of the base."
    )
    entrypoint: tuple[str, ...] | None = Field(
        default=None, description="Program and arguments; null: that of the base."
    )
    command: tuple[str, ...] | None = Field(
        default=None,
        description="Arguments that `docker run` replaces; null: none with an entrypoint.",
    )
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(
        default_factory=dict,
        description="Variables in addition to those of the base; ${NAME} is the value of the base.",
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels; those of goldnode and of the base cannot be set."
    )
    tests: tuple[TeamTest, ...] = Field(
        default=(),
        description="Smoke tests of the team, which goldnode-smoke runs after its own. Those of a derived base stay.",
    )
    redistribution: Literal["free", "private"] = Field(
        default="private",
        description="private: publishing needs --private. free needs a free base.",
    )


@dataclass(frozen=True)
class HashedRequirements:
    """Requirements of a file.

    `hashes` are the accepted SHA-256 per project; empty without hashes. `places` are file and line
    per project.
    """

    lines: tuple[str, ...] = ()
    hashes: dict[str, frozenset[str]] = field(default_factory=dict)
    places: dict[str, tuple[Path, int]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Declaration:
    """A validated declaration with its file."""

    data: DeriveFile
    source: YamlSource
    requirements: HashedRequirements

    @property
    def file(self) -> Path:
        """Path of the file."""
        return self.source.file

    @property
    def directory(self) -> Path:
        """Directory that its paths are relative to."""
        return self.source.file.parent

    def error(self, message: str, *path: str | int, remedy: str | None = None) -> ImageError:
        """Return an error that points to a key of the file."""
        return ImageError(message, file=self.file, line=self.source.line(path), remedy=remedy)


def load_declaration(path: Path) -> Declaration:
    """Read a declaration: a file, or `derive.yml` of a directory. Raises ImageError with file and line."""
    file = path / DECLARATION if path.is_dir() else path
    source = yamlsource.read(file, error=ImageError)
    check_format(source, "derive", 1, ImageError)
    # Keys that people try: the general error for an unknown key would not tell them where to go.
    for key in ("apt", "debs"):
        if isinstance(source.data, dict) and key in source.data:
            raise ImageError(
                f'"{key}" is no key of this file',
                file=file,
                line=source.line((key,)),
                remedy="write packages of the distribution as packages: [NAME]",
            )
    data = yamlsource.validate(DeriveFile, source, error=ImageError)
    requirements = HashedRequirements()
    # Its path is relative to the declaration, as those of `files`.
    if data.requirements is not None:
        requirements = read_requirements(file.parent / data.requirements)
    declaration = Declaration(data, source, requirements)
    _check(declaration)
    return declaration


def _check(declared: Declaration) -> None:
    for name in declared.data.labels:
        if name.startswith((LABELS, *_RESERVED)):
            raise declared.error(
                f'label "{name}" is goldnode\'s',
                "labels",
                name,
                remedy="leave it out: it follows from the build",
            )
    for key, values in (("env", declared.data.env), ("labels", declared.data.labels)):
        for name, value in values.items():
            form = secret_text(value)
            if form is not None:
                raise declared.error(
                    f"{name} has {form}, which everyone who has the image can read",
                    key,
                    name,
                    remedy="take it out, and set it when a container starts (`docker run --env NAME`)",
                )
    names: set[str] = set()
    for number, test in enumerate(declared.data.tests):
        if test.name in names:
            raise declared.error(
                f'two tests are named "{test.name}"',
                "tests",
                number,
                remedy="give each its own name: the record has one row for each",
            )
        names.add(test.name)
        form = next(filter(None, map(secret_text, test.run)), None)
        if form is not None:
            raise declared.error(
                f'the test "{test.name}" has {form}, which everyone who has the image can read',
                "tests",
                number,
                remedy="take it out: tests have no network, so they need no login",
            )
    for name in declared.data.env:
        # These describe the libraries of the base, which stay.
        if name in _OF_BASE:
            raise declared.error(
                f"{name} describes the base",
                "env",
                name,
                remedy="leave it out, or choose another base",
            )
    if declared.data.workdir is not None and not declared.data.workdir.startswith("/"):
        raise declared.error(
            f'"{declared.data.workdir}" is no absolute path in the image, so no container starts',
            "workdir",
            remedy=f'write "/{declared.data.workdir}"',
        )
    for target in declared.data.files:
        inside = clean(target)
        if not target.startswith("/") or not inside or ".." in inside.split("/"):
            raise declared.error(
                f'"{target}" is no absolute path in the image',
                "files",
                target,
                remedy="write it as /app/main.py",
            )
        if any(inside == place or inside.startswith(f"{place}/") for place in _FORBIDDEN):
            raise declared.error(
                f'"{target}" is not a place for files of an image',
                "files",
                target,
                remedy="use /app or /opt",
            )


def expanded(value: str, base: dict[str, str]) -> str:
    """Return `value` with each ${NAME} replaced by the value of the base; without one, by nothing."""
    return _VARIABLE.sub(lambda match: base.get(match[1], ""), value)


# Requirements files


def read_requirements(file: Path) -> HashedRequirements:
    """Read a requirements file of pip and the files that it includes with -r.

    Raises ImageError with file and line for anything but requirements, hashes and includes, and for
    a file in which only some requirements have hashes.
    """
    lines: list[str] = []
    hashes: dict[str, frozenset[str]] = {}
    places: dict[str, tuple[Path, int]] = {}
    bare: ImageError | None = None
    for place, number, text, digests in _requirements(file, (file.resolve(),)):
        try:
            requirement = Requirement(text)
        except InvalidRequirement as problem:
            message, remedy = _not_a_requirement(text, problem)
            raise ImageError(message, file=place, line=number, remedy=remedy) from None
        if requirement.url is not None:
            raise ImageError(
                f'"{text}" names an address',
                file=place,
                line=number,
                remedy=f"{_BUILD}, and write NAME==VERSION",
            )
        lines.append(str(requirement))
        places.setdefault(canonicalize_name(requirement.name), (place, number))
        if digests:
            name = canonicalize_name(requirement.name)
            hashes[name] = hashes.get(name, frozenset()) | digests
        elif bare is None:
            bare = ImageError(
                f'"{text}" has no hash, and other requirements have one',
                file=place,
                line=number,
                remedy="add its --hash=sha256:…, or leave all hashes out: goldnode writes a lock",
            )
    if hashes and bare is not None:
        raise bare
    return HashedRequirements(tuple(lines), hashes, places)


_BUILD = "build a wheel of it (`pip wheel --no-deps DIRECTORY`), put that into an index or a directory that pip's configuration names"


def _option_remedy(option: str) -> str:
    """Return the remedy for an option of pip in a requirements file. Its configuration can hold some of them."""
    if option in ("-e", "--editable"):
        return f"an image has no editable installation: {_BUILD}, and write NAME==VERSION"
    if option in ("-c", "--constraint"):
        return "write the versions of the constraints into this file"
    return "move it to pip's configuration (pip.conf)"


def _not_a_requirement(text: str, problem: InvalidRequirement) -> tuple[str, str]:
    """Return message and remedy for a line that names no project: a path, an address, or a slip of the pen."""
    if re.match(r"(?:git|hg|svn|bzr)\+|[a-z]+://", text):
        return f'"{text}" names an address', f"{_BUILD}, and write NAME==VERSION"
    if text.startswith((".", "/", "~")):
        return (
            f'"{text}" is a path, and goldnode installs only wheels of an index',
            f"{_BUILD}, and write NAME==VERSION",
        )
    problem_text = f'"{text}" is not a requirement: {str(problem).splitlines()[0]}'
    return problem_text, "write NAME==VERSION; options of pip belong into its configuration"


_HASH = re.compile(r"\s--hash[= ]\s*(?P<kind>[a-z0-9]+):(?P<value>[0-9a-f]+)(?=\s|$)")


def _requirements(
    file: Path, above: tuple[Path, ...]
) -> Iterator[tuple[Path, int, str, frozenset[str]]]:
    """Yield file, line, text and SHA-256 hashes of every requirement."""
    for number, line in _logical_lines(file):
        include = re.fullmatch(r"(?:-r\s*|--requirement[= ]\s*)(?P<path>\S+)", line)
        if include is not None:
            inner = file.parent / include["path"]
            if inner.resolve() in above:
                raise ImageError(
                    f"{inner} includes itself", file=file, line=number, remedy="remove the line"
                )
            yield from _requirements(inner, (*above, inner.resolve()))
            continue
        if line.startswith("-"):
            option = re.split(r"[\s=]", line)[0]
            raise ImageError(
                f'"{option}" is an option of pip',
                file=file,
                line=number,
                remedy=_option_remedy(option),
            )
        hashes = frozenset(row["value"] for row in _HASH.finditer(line) if row["kind"] == "sha256")
        text = _HASH.sub("", line).strip()
        yield file, number, text, hashes


def _logical_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file without comments, with continued lines joined, and the number of the first."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ImageError(
            f"the requirements cannot be read: {problem}",
            file=file,
            remedy="correct its name or its content",
        ) from problem
    start, parts = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if not parts:
            start = number
        bare = re.sub(r"(^|\s)#.*$", "", line)
        if bare.rstrip().endswith("\\"):
            parts.append(bare.rstrip()[:-1].strip())
            continue
        joined = " ".join(part for part in (*parts, bare.strip()) if part)
        parts = []
        if joined:
            yield start, joined

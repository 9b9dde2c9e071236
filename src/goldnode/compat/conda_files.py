"""Readers of conda's files: environment.yml, and the lock files of pixi and conda-lock.

Of conda's packages, Python, CUDA and PyTorch's own builds are read. conda-forge builds PyTorch and JAX for other GPUs than
their projects do, so that of these only the CUDA is read. Packages of pip in the same file are read as pip's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from goldnode.compat.project_file import ProjectFile, ReadNote, left_out, pin, require_known_extras
from goldnode.compat.requirement_lines import (
    RequirementLine,
    RequirementReading,
    add_option,
    add_requirement,
    add_source,
)
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.text import and_more

# Names of conda for packages that have another one on the package index.
_NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "tensorflow-gpu": "tensorflow"}
_FRAMEWORKS = ("torch", "tensorflow", "jax", "jaxlib")
# Packages whose version is that of CUDA, the surest first.
_CUDA = ("pytorch-cuda", "cudatoolkit", "cuda-version")
_PLATFORMS = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}


@dataclass(frozen=True)
class CondaPackage:
    """A package of conda; `version` is empty unless it is exact, `channel` and `build` unless stated."""

    name: str
    version: str
    build: str
    channel: str
    line: int

    @classmethod
    def of_url(cls, url: str, line: int) -> CondaPackage | None:
        """Return the package that a URL of a channel names: ``…/pytorch/linux-64/NAME-VERSION-BUILD.conda``.

        None for a package that pixi builds from a folder or a repository.
        """
        path = PurePosixPath(urlsplit(url).path)
        if not re.search(r"-[^-]+-[^-]+\.(conda|tar\.bz2)$", path.name):
            return None
        name, version, build = re.sub(r"\.(conda|tar\.bz2)$", "", path.name).rsplit("-", 2)
        return cls(canonicalize_name(name), version, build, path.parent.parent.name, line)

    @property
    def cuda(self) -> str | None:
        """Return the CUDA that a build names: 12.1 of py3.11_cuda12.1_cudnn8, 12.9 of cuda129_mkl."""
        stated = re.search(r"cuda_?(\d\d)\.?(\d)", self.build)
        return f"{stated[1]}.{stated[2]}" if stated is not None else None


def _yaml(file: ProjectFile) -> dict[str, Any]:
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return as_dict(yaml.load(file.text, Loader=loader))  # noqa: S506 - a safe loader
    except yaml.YAMLError as problem:
        raise file.error(f"not YAML: {problem}".splitlines()[0], "correct the file") from None


# -- environment.yml


def environment(file: ProjectFile, reading: RequirementReading) -> ReadNote:
    """Read an environment.yml."""
    data = _yaml(file)
    rows = data.get("dependencies")
    if not isinstance(rows, list):
        raise file.error(
            "it is no environment of conda: it has no list `dependencies`",
            "name a requirements file, a lock file, pyproject.toml, environment.yml or a Dockerfile",
        )
    channels = [str(item) for item in data.get("channels") or ()]
    conda = [_stated(file, item, channels) for item in rows if isinstance(item, str)]
    skipped = _read_conda(file, reading, conda)
    pip = [text for item in rows if isinstance(item, dict) for text in item.get("pip") or ()]
    for text in pip:
        _pip_line(file, reading, str(text))
    return ReadNote(
        f"{len(conda)} packages of conda and {len(pip)} of pip in {file.path.name}", skipped
    )


def _stated(file: ProjectFile, text: str, channels: Iterable[str]) -> CondaPackage:
    """Return the package of `channel::name=version=build`."""
    named = re.match(r"(?:([^:\s]+)::)?([A-Za-z0-9_.-]+)\s*(.*)$", text.strip())
    channel, name, rest = (named[1], named[2], named[3]) if named else (None, text, "")
    exact = re.fullmatch(r"={1,2}\s*([0-9][0-9A-Za-z.]*)(?:\.\*)?(?:=(.*))?", rest)
    # Where a package does not name its channel, that of PyTorch has PyTorch.
    usual = "pytorch" if "pytorch" in channels else next(iter(channels), "")
    return CondaPackage(
        canonicalize_name(name),
        exact[1] if exact else "",
        (exact[2] or "") if exact else "",
        channel or usual,
        file.line(re.escape(text)),
    )


def _pip_line(file: ProjectFile, reading: RequirementReading, text: str) -> None:
    line = RequirementLine(file.path, file.line(re.escape(text)), text.strip())
    if line.text.startswith("-"):
        add_option(line, reading)
    elif line.text:
        add_requirement(line, reading)


# -- Python, CUDA and frameworks


def _read_conda(
    file: ProjectFile, reading: RequirementReading, packages: Iterable[CondaPackage | None]
) -> str | None:
    """Read Python, CUDA and frameworks of conda's packages. Return what is left out."""
    named = {item.name: item for item in packages if item is not None}
    if not named:
        return None
    if "python" in named and named["python"].version:
        reading.python = reading.python or ".".join(named["python"].version.split(".")[:2])
    builds = [item.cuda for name, item in named.items() if _NAMES.get(name, name) in _FRAMEWORKS]
    versions = [named[name].version for name in _CUDA if name in named]
    reading.cuda = next(filter(None, (*builds, *versions)), None) or reading.cuda
    skipped = []
    for item in named.values():
        framework = _NAMES.get(item.name, item.name)
        if framework not in _FRAMEWORKS:
            continue
        line = RequirementLine(file.path, item.line, f"{framework}=={item.version}")
        if not item.version:
            reading.open.append(
                (line, f"{item.name} of conda is not pinned", f"pin it: {item.name}=VERSION")
            )
        elif framework == "torch" and item.channel == "pytorch":
            _read_torch(reading, item, line, cpu="cpuonly" in named)
        else:
            skipped.append(f"{item.name} {item.version}")
    if skipped:
        listed = f"{', '.join(skipped[:6])}{and_more(len(skipped) - 6)}"
        return (
            f"packages of conda other than CUDA: the GPUs that {listed} was built for are not known"
        )
    return "packages of conda other than CUDA and PyTorch's own builds"


def _read_torch(
    reading: RequirementReading, item: CondaPackage, line: RequirementLine, *, cpu: bool
) -> None:
    """Pin torch as PyTorch's own channel builds it, which are the builds of its wheels."""
    cuda = item.cuda or reading.cuda
    if cuda is None and not cpu and "cpu" not in item.build:
        stated = f"{item.name} {item.version} names no build: pytorch-cuda or cpuonly decides it"
        reading.open.append((line, stated, "name pytorch-cuda=VERSION beside it"))
        return
    build = "cpu" if cuda is None else "cu" + "".join(cuda.split(".")[:2])
    add_requirement(line, reading)
    reading.builds["torch"] = (build, line)


# -- pixi.lock


def pixi_lock(file: ProjectFile, reading: RequirementReading) -> ReadNote:
    """Read the environment `default` of a pixi.lock, or the one that is named with it."""
    data = _yaml(file)
    environments = as_dict(data.get("environments"))
    if not environments:
        raise file.error("it is no lock file of pixi: it has no `environments`", "write it again")
    require_known_extras(file, environments)
    if len(file.extras) > 1:
        raise file.error("several environments of pixi are several nodes", "name one of them")
    name = next(iter(file.extras), "default" if "default" in environments else min(environments))
    rows, platform = _of_platform(file, as_dict(environments[name]), name, reading)
    table = {_address(row): row for row in data.get("packages") or ()}
    lines = {
        text.split(": ", 1)[1]: number
        for number, text in reversed(list(enumerate(file.text.splitlines(), 1)))
        if re.match(r"\s+- (?:conda|pypi): ", text)
    }
    reading.resolved, reading.locked = "pixi", True
    addresses = [_address(row) for row in rows]
    conda = [row["conda"] for row in rows if row.get("conda")]
    skipped = _read_conda(
        file, reading, [CondaPackage.of_url(url, lines.get(url, 1)) for url in conda]
    )
    for address in addresses:
        if address not in conda:
            line = RequirementLine(file.path, lines.get(address, 1), "")
            _read_pypi(reading, address, table.get(address, {}), line)
    what = f"{len(rows)} packages of {file.path.name} for {platform}, environment {name}"
    others = left_out(file, set(environments) - {name}, "environments")
    return ReadNote(what, "; ".join(item for item in (skipped, others) if item) or None)


def _address(row: Mapping[str, Any]) -> str:
    return str(row.get("pypi") or row.get("conda") or row.get("url") or row.get("path") or "")


def _of_platform(
    file: ProjectFile, stated: Mapping[str, Any], name: str, reading: RequirementReading
) -> tuple[list[dict[str, Any]], str]:
    platforms = as_dict(stated.get("packages"))
    wanted = _PLATFORMS.get(reading.machine, "linux-64")
    if wanted not in platforms:
        raise file.error(
            f"environment {name} is locked for {', '.join(sorted(platforms))}, and not for {wanted}",
            f"add {wanted} to its platforms, and lock it again",
        )
    return [row for row in platforms[wanted] or () if isinstance(row, dict)], wanted


def _read_pypi(
    reading: RequirementReading, address: str, row: Mapping[str, Any], line: RequirementLine
) -> None:
    """Read a package of pip: a file of an index has a name and a version, a folder or a repository has none."""
    for text in row.get("requires_dist") or ():
        try:
            needed = canonicalize_name(Requirement(text).name)
        except InvalidRequirement:
            continue  # older pixi wrote them in conda's form
        reading.requirers.setdefault(needed, set()).add(canonicalize_name(row["name"]))
    if re.match(r"\.|/", address):
        return  # the project itself
    file_name = unquote(PurePosixPath(urlsplit(address).path).name)
    if file_name.endswith(".whl"):
        name = canonicalize_name(row.get("name") or file_name.split("-")[0])
        pin(reading, line, name, file_name.split("-")[1])
    elif row.get("version") and not address.startswith("git+"):
        pin(reading, line, canonicalize_name(row["name"]), str(row["version"]))
    else:
        where = address.partition("#")[0]
        add_source(f"{where}#egg={row.get('name', '')}", line, reading)


# -- conda-lock.yml


def conda_lock(file: ProjectFile, reading: RequirementReading) -> ReadNote:
    """Read the category `main` of a lock file of conda-lock, with those that are named with it."""
    data = _yaml(file)
    rows = data.get("package")
    if not isinstance(rows, list):
        raise file.error(
            "it is no lock file of conda-lock: it has no list `package`", "write it again"
        )
    platform = _PLATFORMS.get(reading.machine, "linux-64")
    categories = {str(row.get("category", "main")) for row in rows} - {"main"}
    require_known_extras(file, categories)
    wanted = {"main", *file.extras}
    mine = [
        row
        for row in rows
        if row.get("platform") == platform and row.get("category", "main") in wanted
    ]
    if not mine:
        known = sorted({str(row.get("platform")) for row in rows})
        raise file.error(
            f"it is locked for {', '.join(known)}, and not for {platform}",
            f"run `conda-lock lock -p {platform}`",
        )
    reading.resolved, reading.locked = "conda-lock", True
    conda = [row for row in mine if row.get("manager") != "pip"]
    line_of = {
        text[8:].strip(): number
        for number, text in reversed(list(enumerate(file.text.splitlines(), 1)))
        if text.startswith("- name: ")
    }
    skipped = _read_conda(
        file,
        reading,
        [CondaPackage.of_url(row["url"], line_of.get(row["name"], 1)) for row in conda],
    )
    for row in mine:
        if row.get("manager") == "pip":
            line = RequirementLine(file.path, line_of.get(row["name"], 1), "")
            pin(reading, line, canonicalize_name(row["name"]), str(row["version"]))
    what = f"{len(mine)} packages of {file.path.name} for {platform}"
    others = left_out(file, categories - wanted, "categories")
    return ReadNote(what, "; ".join(item for item in (skipped, others) if item) or None)

"""A team's files in a derived image: which are copied, where they go, and which are refused as secrets.

Patterns of `.dockerignore` are relative to the directory of the declaration, as those of a Dockerfile are to its context.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldnode.core.files import sha256_of
from goldnode.images.declaration import Declaration
from goldnode.images.derived_base import DerivedBase
from goldnode.images.ignore import IGNORE, IgnoreFile, load_ignore
from goldnode.images.secret_files import SecretFile, secret_file
from goldnode.node.ground.text import and_more
from goldnode.oci.layers import LayerEntry
from goldnode.oci.layout import clean

# Never part of an image: no pattern takes them back.
_LEFT_OUT = frozenset((".git", ".goldnode", "__pycache__"))


@dataclass(frozen=True)
class TeamFile:
    """A file or link of a team's own. `path` is relative to the root of the image."""

    path: str
    mode: int
    sha256: str = ""
    size: int = 0
    link: str = ""
    source: Path | None = None

    @property
    def row(self) -> list[Any]:
        """Return the row of the recipe."""
        return [self.path, self.mode, self.sha256, self.link]

    def entry(self, epoch: int) -> LayerEntry:
        """Return it as a member of a layer."""
        if self.link:
            return LayerEntry.link(self.path, self.link, epoch)
        source = self.source
        assert source is not None  # noqa: S101 - a file has one
        return LayerEntry(
            self.path, "file", self.mode, epoch, self.size, open=lambda: source.open("rb")
        )


@dataclass(frozen=True)
class TeamFiles:
    """The files of a declaration, sorted by path in the image, and notes for its team."""

    files: tuple[TeamFile, ...]
    notes: tuple[str, ...] = ()


def team_files(declared: Declaration, base: DerivedBase) -> TeamFiles:
    """Return the declared files with their paths in the image, links of the base followed.

    Raises ImageError for a file that does not exist, lies outside of the declaration's directory, or looks like a
    secret without being allowed.
    """
    files: dict[str, TeamFile] = {}
    secrets: dict[str, SecretFile] = {}
    copied: set[str] = set()
    left_out = 0
    ignore = _ignore(declared)
    for target, name in declared.data.files.items():
        source = declared.directory / name
        if not source.resolve().is_relative_to(declared.directory.resolve()):
            raise declared.error(
                f'"{name}" is outside of {declared.directory}',
                "files",
                target,
                remedy="move it below",
            )
        if not source.exists():
            raise declared.error(
                f'"{name}" does not exist', "files", target, remedy="correct its name"
            )
        every = [
            (path, file, os.path.relpath(file, declared.directory)) for path, file in _below(source)
        ]
        rows = [row for row in every if not ignore.leaves_out(row[2])]
        left_out += len(every) - len(rows)
        if every and not rows:
            raise declared.error(
                f'{ignore.file} leaves out "{name}"',
                "files",
                target,
                remedy="correct the patterns, or take it out of `files`",
            )
        for path, file, own in rows:
            place = _placed(declared, base, clean(f"{target}/{path}"), target)
            files[place] = _team_file(declared, place, file, target)
            copied.add(own)
            if not files[place].link and (secret := _secret(declared, own, file, target)):
                secrets[own] = secret
    notes = [f"{left_out} files left out by {ignore.file}"] if left_out else []
    notes += _allowed(declared, secrets, copied)
    return TeamFiles(tuple(files[path] for path in sorted(files)), tuple(notes))


def _ignore(declared: Declaration) -> IgnoreFile:
    """Return the patterns of the file that the declaration names, or of `.dockerignore` if there is one."""
    if declared.data.ignore is not None:
        return load_ignore(declared.directory / declared.data.ignore)
    file = declared.directory / IGNORE
    return load_ignore(file) if file.is_file() else IgnoreFile()


def _secret(declared: Declaration, own: str, file: Path, target: str) -> SecretFile | None:
    try:
        return secret_file(own, file)
    except OSError as problem:
        raise declared.error(
            f"{file} cannot be searched for secrets: {problem.strerror}", "files", target
        ) from problem


def _allowed(
    declared: Declaration, secrets: dict[str, SecretFile], copied: set[str]
) -> Iterator[str]:
    """Yield a note for each secret that the declaration allows. Raises ImageError for the others."""
    allowed = declared.data.allow_secrets
    for path in allowed:
        # Else it would allow a later file of this name.
        if path not in copied:
            raise declared.error(
                f'"{path}" is none of the files that are copied',
                "allow_secrets",
                path,
                remedy=f"write the path from {declared.directory}, or take it out",
            )
    refused = {path: secret for path, secret in sorted(secrets.items()) if path not in allowed}
    if refused:
        rows = [f"{path} ({secret.text()})" for path, secret in refused.items()]
        raise declared.error(
            f"these files look like secrets, and an image keeps them in its layers for good: {'; '.join(rows[:8])}"
            f"{and_more(len(rows) - 8)}",
            "files",
            remedy=(
                f"leave them out in {IGNORE} and mount them when a container starts; a file that is no secret is "
                f"allowed by `allow_secrets: {{{next(iter(refused))}: REASON}}`"
            ),
        )
    for path, reason in allowed.items():
        what = secrets[path].text() if path in secrets else "it does not look like a secret"
        yield f"{path} is allowed ({what}): {reason}"


def _below(source: Path) -> list[tuple[str, Path]]:
    """Return the files of a directory with their relative paths, or the file itself with an empty one."""
    if not source.is_dir():
        return [("", source)]
    places = []
    for folder, folders, names in os.walk(source):
        place = Path(folder)
        links = [name for name in folders if (place / name).is_symlink()]
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and name not in links)
        for name in (*names, *links):
            if not name.endswith(".pyc"):
                places.append(((place / name).relative_to(source).as_posix(), place / name))
    return sorted(places)


def _team_file(declared: Declaration, place: str, file: Path, target: str) -> TeamFile:
    try:
        if file.is_symlink():
            return TeamFile(place, 0o777, link=str(file.readlink()))
        if not file.is_file():
            raise declared.error(f"{file} is no file", "files", target, remedy="remove it")
        mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
        return TeamFile(place, mode, sha256_of(file), file.stat().st_size, source=file)
    except OSError as problem:
        raise declared.error(
            f"{file} cannot be read: {problem.strerror}", "files", target
        ) from problem


def _placed(declared: Declaration, base: DerivedBase, path: str, target: str) -> str:
    """Return a path with the links of the base followed: a layer with `bin/x` would replace the link /bin."""
    snapshot = base.contents.snapshot
    parts = path.split("/")
    for count in range(len(parts) - 1, 0, -1):
        real = snapshot.resolve("/".join(parts[:count]))
        if real is None:
            continue
        entry = snapshot.entries.get(real)
        if entry is not None and entry.kind != "d":
            raise declared.error(
                f"/{real} is a file in the base", "files", target, remedy="use another path"
            )
        path = "/".join((real, *parts[count:])).lstrip("/")
        break
    whole = snapshot.entries.get(path)
    if (whole is not None and whole.kind == "d") or path in snapshot.folders:
        raise declared.error(
            f"/{path} is a directory in the base", "files", target, remedy="name a file below it"
        )
    return path

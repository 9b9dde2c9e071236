"""The file of delegations: which team may sign which targets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from goldnode.channels.updates import DelegatedPaths, UpdateError
from goldnode.core import yamlsource
from goldnode.documents.base import Part
from goldnode.evidence.signatures import load_public

# Targets of a channel of rollouts, and of the channels of images and disks.
IMAGES, CHANNELS = r"images/[^/]+/[^/]+", r"[^/].*/[^/]+/(candidate|canary|stable|known-good|\*)"
_FORMS = {
    IMAGES: "images/CLASS/BUILD.root.gz",
    CHANNELS: "CLASS/disk/CHANNEL for disks, or BACKEND/LINE/CHANNEL for images; `*` matches one part",
}


class Team(Part):
    """A team: its public keys, how many of them must sign, and patterns of what it releases."""

    keys: list[str] = Field(min_length=1, description="files of public keys, relative to this file")
    threshold: int = Field(1, ge=1)
    paths: list[str] = Field(
        min_length=1, description="patterns of targets; `*` matches within one part of a path"
    )


class Delegations(Part):
    """Teams by name. The first one whose patterns match a target decides it."""

    roles: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")], Team]


def load(path: Path, targets: str = IMAGES) -> list[DelegatedPaths]:
    """Read a file of delegations, whose patterns match `targets`. Raises UpdateError with file and line."""
    source = yamlsource.parse(path.read_text(encoding="utf-8"), path, error=UpdateError)
    document = yamlsource.validate(Delegations, source, error=UpdateError)
    teams = []
    for name, team in document.roles.items():
        if name in ("root", "targets", "snapshot", "timestamp", "orders"):
            raise UpdateError(
                f"a team cannot have the name {name}",
                file=path,
                line=source.line(("roles", name)),
                remedy="name it after the team",
            )
        for number, pattern in enumerate(team.paths):
            if re.fullmatch(targets, pattern) is None:
                raise UpdateError(
                    f'"{pattern}" matches no target here',
                    file=path,
                    line=source.line(("roles", name, "paths", number)),
                    remedy=f"write it as {_FORMS[targets]}",
                )
        listed = [key for file in team.keys for key in load_public(path.parent / file)]
        keys = list({key.keyid: key for key in listed}.values())
        if len(keys) < team.threshold:
            raise UpdateError(
                f"{team.threshold} keys of {name} must sign, and it has {len(keys)}",
                file=path,
                line=source.line(("roles", name)),
                remedy="name more keys, or a lower threshold",
            )
        teams.append(DelegatedPaths(name, keys, team.paths, team.threshold))
    return teams

"""Keys of a repository of signed updates: who signs a release and a refresh, the first root, and the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.channels import updates
from goldnode.channels.updates import ROOT, SNAPSHOT, TARGETS, TIMESTAMP, RoleKeys
from goldnode.core.extras import require
from goldnode.evidence.signatures import EnvelopeSigner, KeyPlace, load_key, public_half

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey
    from tuf.api.metadata import Metadata, Root


@dataclass(frozen=True)
class RepositoryKeys:
    """Keys of the roles: `online` sign a refresh, `targets` a release, and `root` the root itself.

    In the next root, a role whose keys are not given keeps them. A threshold that is None stays too; in the first root
    it is 1.
    """

    online: Sequence[KeyPlace] = ()
    targets: Sequence[KeyPlace] = ()
    root: Sequence[KeyPlace] = ()
    root_threshold: int | None = None
    targets_threshold: int | None = None

    def create(self, repository: Path) -> None:
        """Write the first root document of a repository that has none. Raises UpdateError."""
        if self.root and updates.newest_path(repository, ROOT) is None:
            rotate(repository, self)

    def roles(self) -> dict[str, RoleKeys]:
        """Return the roles that change."""
        roles = {
            ROOT: RoleKeys(publics(self.root), self.root_threshold),
            TARGETS: RoleKeys(publics(self.targets), self.targets_threshold),
            **dict.fromkeys((SNAPSHOT, TIMESTAMP), RoleKeys(publics(self.online))),
        }
        return {name: role for name, role in roles.items() if role.keys or role.threshold}


@dataclass(frozen=True)
class RootRotation:
    """A root that was replaced: the new document, and how many keys had to sign before and must sign now."""

    root: Path
    before: Mapping[str, int]
    now: Mapping[str, int]

    def content(self) -> dict[str, object]:
        """Return the fields of the command's document."""
        return {
            "root": str(self.root),
            "threshold": self.now[ROOT],
            "threshold_before": self.before[ROOT],
            "targets_threshold": self.now[TARGETS],
            "targets_threshold_before": self.before[TARGETS],
        }

    def thresholds(self) -> str:
        """Return the change of the thresholds in words."""
        if self.now == self.before:
            return f", which {self.now[ROOT]} keys must sign as before"
        words = ("raised", "LOWERED")
        return "".join(
            f"; threshold of {name} {words[now < self.before[name]]} from {self.before[name]} to {now}"
            for name, now in self.now.items()
            if now != self.before[name]
        )


def rotate(
    repository: Path,
    following: RepositoryKeys,
    present: Sequence[KeyPlace] = (),
    days: int = updates.ROOT_DAYS,
) -> RootRotation:
    """Replace keys of a repository: `present` keys of the root sign, and those of the next one. Raises UpdateError.

    Also for a root that has expired: clients verify the newest root's time alone.
    """
    document = updates.next_root(repository, following.roles(), days)
    secret = [*present, *(key for key in following.root if not is_public(key))]
    return accept_root(repository, updates.sign(document, signers(secret)))


def accept_root(repository: Path, document: Metadata[Root]) -> RootRotation:
    """Write the next root if enough keys of the root before and of itself have signed it. Raises UpdateError."""
    before = updates.newest(repository, ROOT)
    path = updates.accept(repository, ROOT, document)
    now = _thresholds(document.signed)
    return RootRotation(path, now if before is None else _thresholds(before.signed), now)


def _thresholds(root: Root) -> dict[str, int]:
    return {name: root.roles[name].threshold for name in (ROOT, TARGETS)}


def is_public(place: KeyPlace) -> bool:
    """Return whether a file has the public half of a key alone."""
    return isinstance(place, Path) and b"PRIVATE KEY" not in place.read_bytes()


def publics(places: Sequence[KeyPlace]) -> list[SSlibKey]:
    """Return the public halves of keys, which may be files of public keys too. Raises SigningKeyError."""
    return [public_half(place) for place in places]


def signers(places: Sequence[KeyPlace]) -> list[EnvelopeSigner]:
    """Return keys to sign with. Raises SigningKeyError."""
    require("updates")
    return [load_key(place) for place in places]

"""Keys of the channels of a place: the first ones, the next ones, who may sign what, and signatures that are renewed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from goldnode.channels import keys, signed, updates
from goldnode.channels.keys import RepositoryKeys, RootRotation
from goldnode.channels.promotion import SETTLE, ChannelPlace, HistoryStore, alone, commit, look
from goldnode.channels.signed import ChannelSigners
from goldnode.channels.updates import DelegatedPaths
from goldnode.core.errors import ImageError
from goldnode.evidence.signatures import KeyPlace


@dataclass(frozen=True)
class ChannelKeyChange:
    """Keys of the first root of a place, or of the next one, and the roles that targets delegates to.

    `present` are keys of the root that signs: of a new place its first one. Without them the root stays. `teams` are
    those from now on (None: as before). Each role whose targets change hands signs them.
    """

    keys: RepositoryKeys = field(default_factory=RepositoryKeys)
    present: Sequence[KeyPlace] = ()
    teams: Sequence[DelegatedPaths] | None = None
    renew: bool = False


def change_keys(
    place: ChannelPlace,
    store: HistoryStore,
    change: ChannelKeyChange,
    signers: ChannelSigners,
    *,
    roots: Sequence[Path] = (),
    settle: float = SETTLE,
) -> RootRotation | None:
    """Make or change the keys of the channels of a place, in one write. Return the root that was replaced, if one was.

    The present state is verified by `roots`, or by the root that the store saw first, and signed again where a role has
    other keys or targets. Its time does not count: this is the way out of signatures that have expired.
    Raises GoldnodeError.
    """
    with alone(place, store):
        state = look(place.files(), place.name, store, roots, expired=True)
        if state.ahead is not None:
            raise ImageError(
                f"this store has moves that {place.name} does not have yet",
                remedy=f"publish them first: `{place.command} status --repair`",
            )
        channels, rotation = state.there, None
        if channels.files and not channels.trusted:
            raise ImageError(
                f"nothing says whether the channels of {place.name} are yours",
                remedy="name their root document, from a place that you trust, with --root",
            )
        with signed.opened(channels.files) as repository:
            if not channels.files:
                replace(change.keys, root=change.present).create(repository)
            elif change.present and change.keys.roles():
                rotation = keys.rotate(repository, change.keys, change.present)
            signed.release(
                repository, channels.moves, signers, teams=change.teams, renew=change.renew
            )
            after = signed.read_folder(repository / signed.FOLDER)
        commit(place, store, channels.files, after, settle)
    return rotation


def newest_root(place: ChannelPlace, store: HistoryStore) -> Path:
    """Return the store's file of the newest root of a place."""
    root = updates.newest_path(signed.copy_of(store, place.name).parent, updates.ROOT)
    if root is None:
        raise ImageError(f"{place.name} has no root")
    return root

"""Evidence for the requirement `floors`: the nodes that the store has as moved, and the canary results of the site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from goldnode.core import extras
from goldnode.documents.canary import CanaryDocument
from goldnode.fleet.rollout.document import RolloutSettings
from goldnode.fleet.rollout.floors_requirement import RolloutMoves, moves
from goldnode.fleet.store import rollouts
from goldnode.fleet.store.database import StoreDatabase

if TYPE_CHECKING:
    from goldnode.core.file_cache import FileCache
    from goldnode.floors.results import ReadResult


def stored_moves(store: StoreDatabase, settings: RolloutSettings) -> RolloutMoves:
    """Return the nodes that a rollout has moved, by its store. Raises GoldnodeError."""
    with store.read() as connection:
        return moves(rollouts.load(connection, settings).state)


class StoredResults:
    """The results of a site. The requirement is asked again and again: a file that has not changed is read once."""

    def __init__(self) -> None:
        self._cache: FileCache[ReadResult] | None = None

    def read(self, directory: Path | None) -> list[CanaryDocument]:
        """Return the results. Raises GoldnodeError if there are none, or if they cannot be read."""
        extras.require("floors")
        # An extra, and needed for this requirement alone.
        from goldnode.floors import results

        if directory is None:
            raise results.FloorsError(
                "the site file names no directory of canary results (fleet.canary)"
            )
        if self._cache is None:
            self._cache = results.result_cache()
        return results.read([directory], self._cache)

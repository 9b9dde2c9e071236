"""The hosts whose play has ended, so that Ansible finds each of them in constant time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class EndedHosts(list[str]):
    """Names of hosts, as the list that a play of Ansible has, with a membership test in constant time.

    Each time Ansible collects the variables of a host, it looks up all hosts of the play in the list of those that have
    ended (`_get_magic_variables` in ansible/vars/manager.py). A converged fleet ends host by host, so 1,000 hosts take
    10^9 comparisons, a quarter of the run, and 10,000 take a thousand times as many.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(names)
        self._names = set(self)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def append(self, name: str) -> None:
        """Add a host."""
        super().append(name)
        self._names.add(name)

    def remove(self, name: str) -> None:
        """Remove the first of a name. Raise ValueError if there is none."""
        super().remove(name)
        self._names = set(self)


def index_ended_hosts(play: Any) -> None:
    """Replace the list of ended hosts of a play. Another release of Ansible may have none: then nothing changes."""
    if type(getattr(play, "_removed_hosts", None)) is list:
        play._removed_hosts = EndedHosts(play._removed_hosts)

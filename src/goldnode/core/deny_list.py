"""Place of the deny list of a site. A module apart from the site file, so that a task of Ansible imports this alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DenyListPlace:
    """Place of the deny list, and the keys that verify it."""

    file: str
    required: bool  # a missing file is an error: the site file names it
    keys: str | None  # file of the public keys; None: any list is accepted
    seen: str = field(
        default="", compare=False
    )  # file with the numbers of lists that were read; empty: none

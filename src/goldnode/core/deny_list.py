"""Where the deny list of a site is. Apart from the site file, so that a task of Ansible imports this alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DenyListPlace:
    """Where the deny list is, and how it is verified."""

    file: str
    required: bool  # a missing file is an error: the site file names it
    keys: str | None  # file of the public keys; None: any list is accepted
    seen: str = field(
        default="", compare=False
    )  # file with the numbers of lists that were read; empty: none

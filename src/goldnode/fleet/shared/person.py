"""Identity of the person who gives an order, as the kernel knows it.

The login of the audit subsystem survives `sudo` and `su`, so that an order of root names a person.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from goldnode.fleet.shared.identity import PROC, controller

BLANKS = " \t\n\r\f\v"  # that may surround a name
_UNSET = 4294967295  # no login: a service, or a machine without audit


def person(login: Path = PROC / "self/loginuid") -> str:
    """Return USER@MACHINE of the person at this process: the login if there is one, else the user of the process."""
    number = os.getuid()
    try:
        uid = int(login.read_text(encoding="ascii"))
    except (OSError, ValueError):
        uid = _UNSET
    if uid != _UNSET:
        number = uid
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = f"uid-{number}"
    return f"{name}@{controller()}"


def same_person(one: str | None, other: str | None) -> bool:
    """Return whether two identities name one person: `ann`, `ANN@login1`, `ann@example.com` and `EXAMPLE\\ann` do.

    A document names its author without a machine. The name of the user decides, in any case of
    letters: two persons whom this takes for one need a third to approve, but no person passes for
    two. The store's trigger `approval_author` has the same rule in SQL.
    """
    if one is None or other is None:
        return False
    return _user(one) == _user(other)


def _user(identity: str) -> str:
    """Return the name of the user: before the first @, after the first backslash (winbind's DOMAIN\\USER)."""
    name = identity.partition("@")[0]
    return name[name.find("\\") + 1 :].strip(BLANKS).casefold()

"""The user name and password that pip sends to an index: from its configuration, or from a .netrc file.

pip takes, in this order: both from the address itself; both from the configured index that is
nearest to it on the same host and port; the entry of the host in .netrc; a user name alone (a
token), with an empty password; those of another address of the same host and port. goldnode follows
this order (pip 23.2 to 26, `_internal/network/auth.py`), with two differences: it asks no keyring,
and what an https index has never goes to http.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

Login = tuple[str, str]


def pip_login(url: str, indexes: Sequence[str]) -> Login | None:
    """Return user and password for `url`, of the configured `indexes`; None without any."""
    asked = urlsplit(url)
    own = _written(asked)
    if own is not None and own[1] is not None:
        return own[0], own[1]
    same = [
        index
        for index in map(urlsplit, indexes)
        if _host(index) == _host(asked) and (index.scheme, asked.scheme) != ("https", "http")
    ]
    nearest = max(same, key=lambda index: _shared(asked.path, index.path), default=None)
    if nearest is not None and (written := _written(nearest)) is not None:
        if written[1] is not None:
            return written[0], written[1]
        own = written
    if login := _netrc(asked.hostname or ""):
        return login
    others = (written for index in same if (written := _written(index)) is not None)
    other = next(
        ((user, password or "") for user, password in others if own is None or own[0] == user), None
    )
    return other or (None if own is None else (own[0], ""))


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _written(parts: SplitResult) -> tuple[str, str | None] | None:
    """Return user and password of an address; the password is None if there is only a user name."""
    login, at, _ = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    if not at:
        return None
    return unquote(user), unquote(password) if colon else None


def _shared(path: str, index: str) -> int:
    """Return how much of two paths is the same, in whole directories; an equal path is nearest of all."""
    path, index = f"{path.rstrip('/')}/", f"{index.rstrip('/')}/"
    if path == index:
        return len(path) + 1
    return commonprefix([path, index]).rfind("/")  # noqa: RUF071 - in characters, cut to whole directories


def _netrc(host: str) -> Login | None:
    """Return the login of a host in the file of $NETRC, ~/.netrc or ~/_netrc. None in a broken file."""
    named = os.environ.get("NETRC")
    places = [named] if named else ["~/.netrc", "~/_netrc"]
    file = next((path for place in places if (path := Path(place).expanduser()).is_file()), None)
    try:
        entry = netrc.netrc(file).authenticators(host) if file is not None else None
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        return None
    return None if entry is None else (entry[0] or entry[1], entry[2])

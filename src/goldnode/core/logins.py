"""Logins in addresses (``https://user:secret@host``), which belong into no file that goldnode reads.

Such an address ends in locks, class documents, `.sources` files, plans and reports, which others read. The
programs that fetch have files of their own for logins.
"""

from __future__ import annotations

import re

# A user name alone is a login over HTTP: it may be a token. In other schemes (ssh://git@host) it is none.
_HTTP = r"(?:[a-z0-9.]+\+)?(?:https?|ftps?)://[^/?#\s@\"']+@"
_OTHER = r"[a-z][a-z0-9+.-]*://[^/?#\s@:\"']*:[^/?#\s@\"']+@"
_LOGIN = re.compile(f"(?:{_HTTP}|{_OTHER})[^/?#\\s@\"']*", re.IGNORECASE)


def masked(text: str) -> str:
    """Return a text whose addresses have neither user names nor passwords."""
    return re.sub(r"://[^/@\s]+@", "://***@", text)


def login_in(text: str) -> str | None:
    """Return the address in a text that has a login, without that login and its path; None without one."""
    if "@" not in text:
        return None
    match = _LOGIN.search(text)
    return None if match is None else masked(match[0])


def remedy(address: str) -> str:
    """Return where the login of an address belongs."""
    scheme, _, host = address.partition("://***@")
    if scheme.startswith("postgres"):
        return "remove the password: libpq reads it from ~/.pgpass (mode 0600), or from the file in PGPASSFILE"
    return (
        f"remove the login, and write `machine {scheme}://{host} login USER password SECRET` into "
        "/etc/apt/auth.conf.d/NAME.conf (mode 0600) for packages, here and on the nodes, or "
        f"`machine {host.partition(':')[0]} login USER password SECRET` into ~/.netrc for wheels; "
        "`docker login` stores that of a registry"
    )

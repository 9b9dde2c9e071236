"""Why an archive or its key cannot be used: one cause and one remedy for each kind of failure.

Two readers feed the table: exceptions of our own fetches, and the messages of apt. Every error
names the host, the address that was tried, the proxy in use and the original message.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from urllib3 import exceptions as http

from goldnode.core.errors import LockError
from goldnode.core.files import cache_directory
from goldnode.core.logins import masked
from goldnode.node.ground.text import phrase

UnreachableKind = Literal[
    "dns",
    "refused",
    "timeout",
    "tls",
    "proxy",
    "forbidden",
    "missing",
    "portal",
    "unsigned",
    "other-key",
    "expired-key",
    "revoked-key",
    "weak-key",
    "stale",
    "future",
    "hash",
    "space",
    "other",
]

_MIRROR = "name a mirror in goldnode-site.yml, for instance `upstream_mirrors: {{{root}: https://mirror.example}}`"
_PROXY = "set a proxy in the environment, for instance `{variable}=http://proxy.example:3128`, or in this machine's apt"
_CHANGED = (
    "do not go on before the vendor has announced a new key; then update goldnode, or name the key in goldnode-site.yml: "
    "`archives: {{{archive}: {{key: FILE, fingerprints: [FINGERPRINT]}}}}`"
)

# Kind -> cause and remedy. {host}, {root} (scheme and host), {archive}, {variable}, {proxy} and
# {space} are filled in.
TABLE: dict[UnreachableKind, tuple[str, str]] = {
    "dns": ("DNS does not know the name {host}", f"{_PROXY}, or {_MIRROR}"),
    "refused": (
        "{host} refuses the connection",
        f"check the address and a firewall; {_PROXY}, or {_MIRROR}",
    ),
    "timeout": ("{host} does not answer in time", f"{_PROXY}, or {_MIRROR}"),
    "tls": (
        "the certificate of {host} is not trusted here, as with a proxy that inspects TLS, a login page or a wrong clock",
        "install the site's CA certificate (update-ca-certificates), log in to the network, or correct the clock; "
        f"otherwise {_MIRROR}",
    ),
    "proxy": (
        "the proxy {proxy} refuses or cannot be reached",
        "correct {variable} or apt's Acquire::http::Proxy, with user and password where the proxy asks for them, or "
        "set it to DIRECT",
    ),
    "forbidden": (
        "{host} forbids the access",
        "put credentials into /etc/apt/auth.conf.d where the archive asks for them, allow the host in the proxy, or "
        f"{_MIRROR}",
    ),
    "missing": (
        "{host} has no such file",
        "correct the address in goldnode-site.yml, or complete the mirror; if the vendor moved it, name the new place: "
        "`archives: {{{archive}: {{url: …, key: …}}}}`",
    ),
    "portal": (
        "{host} answers with a web page or other data, as a login page of the network does",
        f"log in to the network, {_PROXY}, or {_MIRROR}",
    ),
    "unsigned": (
        "its indexes have no signature",
        "use the vendor's own address, or a mirror that also copies InRelease or Release.gpg",
    ),
    "other-key": ("its indexes are signed by a key that is not pinned", _CHANGED),
    "expired-key": (
        "its signing key has expired",
        "correct the clock, or run again when the vendor has published the renewed key; a renewed key has the same "
        "fingerprint, and goldnode fetches it by itself",
    ),
    "revoked-key": ("its signing key was revoked", _CHANGED),
    "weak-key": (
        "this machine's apt rejects its signing key, whose self-signatures use SHA-1",
        "name a mirror that signs its own indexes: "
        "`archives: {{{archive}: {{url: …, key: …, fingerprints: [FINGERPRINT]}}}}`; for nodes whose apt accepts the key, "
        "as Debian 12's does, lock on a machine with their apt",
    ),
    "stale": (
        "its indexes have passed their Valid-Until date: the mirror is no longer updated, or this machine's clock is ahead",
        "update the mirror, use another one, or correct the clock; for a snapshot of the archive, whose indexes are as old "
        "as it is: `archives: {{{archive}: {{accept_expired: true}}}}` in goldnode-site.yml",
    ),
    "future": (
        "its indexes have a date in the future: this machine's clock is behind, or that of the machine that signed them is ahead",
        "set this machine's clock, for instance with `timedatectl set-ntp true`, and run again",
    ),
    "hash": (
        "an index does not have the hash that the signed Release file states: the mirror is between two states, or a "
        "proxy serves an old file",
        "run again in a few minutes, empty the proxy's cache, or use another mirror",
    ),
    "space": (
        "there is no space left on this machine for its indexes or packages",
        "{space}",
    ),
    "other": ("it cannot be read", f"check the address and the network; {_PROXY}, or {_MIRROR}"),
}

OUT_OF_SPACE = r"No space left on device|Disk quota exceeded"
# Messages of apt 2.6 and 3.0, with gpgv and sqv. The first pattern that occurs decides.
_APT: tuple[tuple[str, UnreachableKind], ...] = (
    (OUT_OF_SPACE, "space"),
    (r"is not valid yet|[Nn]ot live until", "future"),
    (r"SHA1 is not considered secure|is not bound|uses weak algorithm", "weak-key"),
    (
        r"EXPKEYSIG|KEYEXPIRED|certificate (?:is|has) expired.*sqv|Expired on|key .* is expired",
        "expired-key",
    ),
    (r"REVKEYSIG|is revoked|was revoked", "revoked-key"),
    (r"NO_PUBKEY|Missing key|BADSIG|No good signature", "other-key"),
    (r"is expired \(invalid since", "stale"),
    (r"Hash Sum mismatch|unexpected size|Hashes of (?:received|expected) file", "hash"),
    (r"NOSPLIT|NODATA|Clearsigned file isn't valid", "portal"),
    (
        r"Could not resolve|Temporary failure resolving|Name or service not known|No address associated",
        "dns",
    ),
    (r"\b407\b|Proxy Authentication|[Ii]nvalid response from proxy|proxy CONNECT", "proxy"),
    (r"Certificate verification failed|certificate|handshake|SSL connection failed|tls", "tls"),
    (r"Connection refused|\(111:", "refused"),
    (r"timed out|Connection failed|No route to host|Network is unreachable", "timeout"),
    (r"\b40[13]\s+", "forbidden"),
    (
        r"\b(?:404|410)\s+|File not found|does not have a Release file|no longer has a Release file",
        "missing",
    ),
    (r"is not signed", "unsigned"),
)


@dataclass(frozen=True)
class UnreachableArchive:
    """One address that cannot be used: archive, address, kind and the original message."""

    archive: str
    url: str
    kind: UnreachableKind
    detail: str

    def error(
        self, proxy: str, others: Sequence[str] = (), raised: type[LockError] = LockError
    ) -> LockError:
        """Return the error. `proxy` is the one in use, "" for none; `others` are archives that failed as well."""
        parts = urlsplit(masked(self.url))
        scheme = parts.scheme or "http"
        words = {
            "host": parts.hostname or parts.path,
            "root": f"{scheme}://{parts.netloc.rpartition('@')[2]}",
            "archive": self.archive,
            "variable": "https_proxy" if scheme == "https" else "http_proxy",
            "proxy": proxy or "of this machine",
            "space": space_remedy(cache_directory()),
        }
        cause, remedy = (text.format(**words) for text in TABLE[self._of_proxy(proxy)])
        if self.kind == "missing" and scheme not in ("http", "https"):
            cause = "nothing is at its address"
        through = f" through the proxy {proxy}" if proxy else " without a proxy"
        if scheme not in ("http", "https"):
            through = ""
        more = phrase("; {} failed as well", ", ".join(others))
        tried = f"tried {masked(self.url)}{through}: {masked(self.detail)}"
        return raised(
            f'archive "{self.archive}" cannot be used: {cause} ({tried}){more}', remedy=remedy
        )

    def _of_proxy(self, proxy: str) -> UnreachableKind:
        """Return the kind, which is "proxy" if the message of a failed connection names the proxy."""
        host = urlsplit(proxy).hostname
        about_it = self.kind in ("dns", "refused", "timeout") and host and host in self.detail
        return "proxy" if about_it else self.kind


def kind_of(problem: BaseException) -> UnreachableKind:
    """Return the kind of a failed fetch (urllib3, ssl, socket)."""
    # urllib3 wraps: the reason of its last try, then the exception that this came from.
    chain: list[BaseException] = []
    at: BaseException | None = problem
    while at is not None and at not in chain:
        chain.append(at)
        reason = getattr(at, "reason", None)
        at = reason if isinstance(reason, BaseException) else at.__cause__
    for kinds, kind in _EXCEPTIONS:
        if any(isinstance(item, kinds) for item in chain):
            return kind
    return "other"


# In this order: an error of the proxy wraps that of the connection to it.
_EXCEPTIONS: tuple[tuple[tuple[type[BaseException], ...], UnreachableKind], ...] = (
    ((http.ProxyError,), "proxy"),
    ((http.NameResolutionError, socket.gaierror), "dns"),
    ((http.SSLError, ssl.SSLError), "tls"),
    ((ConnectionRefusedError,), "refused"),
    ((http.TimeoutError, TimeoutError), "timeout"),
)


def kind_of_status(status: int) -> UnreachableKind | None:
    """Return the kind of an HTTP status, or None for a good one."""
    if status == 407:
        return "proxy"
    if status in (401, 403):
        return "forbidden"
    if status in (404, 410):
        return "missing"
    return None if status == 200 else "other"


def apt_troubles(text: str, addresses: Iterable[tuple[str, str]]) -> list[UnreachableArchive]:
    """Return the troubles in apt's messages, one per archive: the most specific one.

    `addresses` are (archive, address). Messages that name none of them are left out.
    """
    # The longest first: one address may begin with another.
    known = sorted(addresses, key=lambda row: -len(row[1]))
    order = [kind for _, kind in _APT]
    troubles: dict[str, UnreachableArchive] = {}
    # apt continues a message on indented lines, and writes file:/x for file:///x.
    for line in re.sub(r"\n\s+", " ", text).splitlines():
        if not line.startswith(("E:", "W:", "Err:")):
            continue
        normalized = re.sub(r"\b(file|copy):/+", r"\1:///", line)
        owners = [(name, url) for name, url in known if url.rstrip("/") in normalized]
        if not owners:
            continue
        kind: UnreachableKind = next(
            (kind for pattern, kind in _APT if re.search(pattern, line)), "other"
        )
        for name, url in [row for row in owners if row[1] == owners[0][1]]:
            before = troubles.get(name)
            if before is None or _rank(kind, order) < _rank(before.kind, order):
                detail = re.sub(r"\s+", " ", line.partition(": ")[2])
                troubles[name] = UnreachableArchive(name, url, kind, detail)
    return list(troubles.values())


def is_out_of_space(text: str) -> bool:
    """Return whether apt's messages are those of a full file system."""
    return re.search(OUT_OF_SPACE, text) is not None


def space_remedy(place: Path) -> str:
    """Return the remedy for a full file system of `place`, goldnode's cache or a temporary directory."""
    cache = cache_directory()
    variable = "GOLDNODE_CACHE" if place == cache or cache in place.parents else "TMPDIR"
    return f"free space on the file system of {place}, or name a directory on another one: `{variable}=DIRECTORY`"


def apt_error(
    text: str, addresses: Sequence[tuple[str, str]], proxy: Callable[[str], str]
) -> LockError | None:
    """Return the error for a failed `apt-get update`, or None where no message names an archive."""
    troubles = apt_troubles(text, addresses)
    if not troubles:
        return None
    first = troubles[0]
    return first.error(proxy(first.url), [row.archive for row in troubles[1:]])


def _rank(kind: UnreachableKind, order: Sequence[UnreachableKind]) -> int:
    return order.index(kind) if kind in order else len(order)

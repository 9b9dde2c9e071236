"""The keys of known_hosts files, indexed by key.

OpenSSH looks up a host and gets its keys. With hashed names that takes one HMAC per line and host: 0.06 s for 10,000
lines in Python. Here the key that a host has shown selects its lines, mostly one, and only their names are compared.
The answer is the same: a key is trusted where a line has both the key and the name (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

HASHED, CA, REVOKED = "|1|", "@cert-authority", "@revoked"
DEFAULT_PORT = 22


def lookup_name(host: str, port: int) -> str:
    """Return the name that a line has for a host, as OpenSSH writes it."""
    name = host.lower()
    return name if port == DEFAULT_PORT else f"[{name}]:{port}"


class KnownHosts:
    """The lines of some known_hosts files. A missing file has no lines, and a line that cannot be parsed is skipped, as in OpenSSH."""

    def __init__(self, files: Iterable[str]) -> None:
        self._lines: dict[tuple[str, str], _Names] = {}
        self._types: dict[str, int] = {}
        # Asked for each connection: looking through 10,000 lines took as long as half a session.
        self._revoked: list[str] = []
        self._authorities = False
        for file in files:
            try:
                text = Path(file).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            for line in text.splitlines():
                self._add(line)

    def _add(self, line: str) -> None:
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", CA, REVOKED):
            return
        names, kind, key = words[:3]
        self._lines.setdefault((marker, key), _Names()).add(names)
        self._authorities |= marker == CA
        if marker == REVOKED:
            self._revoked.append(key)
        if marker == "":
            self._types[kind] = self._types.get(kind, 0) + 1

    @property
    def empty(self) -> bool:
        """Whether there is no line at all."""
        return not self._lines

    def key_types(self) -> list[str]:
        """Return the types of the keys of hosts, the most frequent first."""
        return sorted(self._types, key=lambda kind: -self._types[kind])

    def has_authorities(self) -> bool:
        """Return whether a line names an authority that signs the keys of hosts."""
        return self._authorities

    def revoked_keys(self) -> list[str]:
        """Return the revoked keys in base64, of whichever host."""
        return list(self._revoked)

    def trusts(self, key: bytes, name: str, *, authority: bool = False) -> bool:
        """Return whether a line has this public key (its blob) and this name, and none revokes the key."""
        text = base64.b64encode(key).decode()
        # For whichever host: the caller asks OpenSSH about such a key.
        if (REVOKED, text) in self._lines:
            return False
        marker = CA if authority else ""
        lines = self._lines.get((marker, text))
        return lines is not None and lines.match(name)


class _Names:
    """The names of the lines with one key. Machines that were cloned have one key, so that there may be many."""

    __slots__ = ("_exact", "_others")  # a line of known_hosts each, of many thousand

    def __init__(self) -> None:
        self._exact: set[str] = set()
        self._others: list[str] | None = None

    def add(self, names: str) -> None:
        """Add the names of a line."""
        if any(letter in names for letter in "|*?!"):
            self._others = self._others or []
            self._others.append(names)
        else:
            self._exact.update(names.lower().split(","))

    def match(self, name: str) -> bool:
        """Return whether a line has this name."""
        return name in self._exact or any(_matches(names, name) for names in self._others or ())


def _matches(names: str, name: str) -> bool:
    if names.startswith(HASHED):
        return _is_hash_of(names, name)
    return matches_patterns(names.split(","), name)


def _is_hash_of(hashed: str, name: str) -> bool:
    salt, _, digest = hashed.removeprefix(HASHED).partition("|")
    try:
        key, want = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.digest(key, name.encode(), "sha1"), want)


def matches_patterns(patterns: Iterable[str], name: str) -> bool:
    """Return whether a list of patterns matches: one does, and no negated one (ssh_config(5), PATTERNS)."""
    matched = False
    for pattern in patterns:
        if matches_pattern(pattern.removeprefix("!"), name):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether one pattern matches a name, without regard to case. `*` is any text, `?` one character."""
    if "*" not in pattern and "?" not in pattern:
        return pattern.lower() == name
    parts = {"*": ".*", "?": "."}
    expression = "".join(parts.get(one) or re.escape(one) for one in pattern.lower())
    return re.fullmatch(expression, name, re.DOTALL) is not None

"""Modes of files with secrets: one rule for each kind of secret, applied where the secret is read."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.errors import SigningKeyError


@dataclass(frozen=True)
class SecretRule:
    """A kind of secret: its name in messages, and the bits of a mode that it may not have."""

    name: str
    forbidden: int

    @property
    def widest(self) -> str:
        """Return the widest mode that is accepted, as chmod takes it."""
        return "o=" if self.forbidden == _OTHERS else "600"


_ALL, _OTHERS = 0o077, 0o007
MIRROR_KEY = SecretRule("secret key of the mirror", _ALL)
MODULE_KEY = SecretRule("secret key of kernel modules", _ALL)
# The service and its reverse proxy, or a group of certificates such as Debian's ssl-cert, may share it.
TLS_KEY = SecretRule("secret key of TLS", _OTHERS)
TOKEN = SecretRule("token", _OTHERS)
AUTHORITY_KEY = SecretRule("secret key of the authority of nodes", _ALL)


def fault(path: Path, rule: SecretRule) -> SigningKeyError | None:
    """Return the error of a file with a wider mode than its kind allows; None if it is right, or absent."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None  # reading it reports that
    if not mode & rule.forbidden:
        return None
    return SigningKeyError(
        f"others can read or change the {rule.name}: its mode is {mode:04o}",
        file=path,
        remedy=f"make another one if others used this machine, and run `chmod {rule.widest} {path}`",
    )


def require(path: Path, rule: SecretRule) -> None:
    """Raise SigningKeyError for a file with a wider mode than its kind allows."""
    wrong = fault(path, rule)
    if wrong is not None:
        raise wrong

"""SHA-256 and SHA-1 from Python's own implementation, if it has one.

hashlib loads OpenSSL first, which takes longer than all hashing of a check.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha1 as sha1
    from hashlib import sha256 as sha256
else:

    def _first(wanted, *modules):
        for name in (*modules, "hashlib"):
            try:
                return getattr(__import__(name), wanted)
            except (ImportError, AttributeError):
                continue
        raise ImportError(wanted)

    sha256 = _first("sha256", "_sha2", "_sha256")  # names of the module since Python 3.12, and before

    def sha1(data):
        """Return a SHA-1 object. Only fingerprints of keys need one."""
        return _first("sha1", "_sha1")(data)

"""SHA-256 and SHA-1 from Python's own modules if it has them. hashlib loads OpenSSL first, which takes longer
than all hashing of a check.
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

    sha256 = _first("sha256", "_sha2", "_sha256")  # _sha2 since Python 3.12, _sha256 before

    def sha1(data):
        """Return a SHA-1 object. Imported on use, since only key fingerprints need it."""
        return _first("sha1", "_sha1")(data)

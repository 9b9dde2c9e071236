"""SHA-256 from Python itself where it has it: hashlib loads OpenSSL first, which takes longer than all that a check hashes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256 as sha256
else:

    def _first():
        for name in ("_sha2", "_sha256"):  # since 3.12, and before
            try:
                return __import__(name).sha256
            except (ImportError, AttributeError):
                continue
        return __import__("hashlib").sha256

    sha256 = _first()

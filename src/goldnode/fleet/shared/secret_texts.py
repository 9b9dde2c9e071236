"""Secrets in logs and command lines, which leave no file that goes to others.

Two nets: the values of secrets that goldnode itself knows, and texts that look like one. A text that is replaced
without need costs a word of a log.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass

REPLACED = "[removed: secret]"
SHORTEST = 6  # characters of a known secret: a shorter one is a word of many texts
_LARGEST = 256 << 20  # bytes of a compressed file that are read
_KEY = r"(?:pass(?:word|wd|phrase)|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)"
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"(authorization:?\s+(?:bearer|basic|token)\s+)\S+",
        # --password X; then password=X and "password": "X", also at the end of a longer name
        rf"(\s--?[\w-]{{0,40}}{_KEY}[\w-]{{0,40}}[= ]\s*)(?!-)[^\s\"',;{{}}\[\]]+",
        rf"({_KEY}[\w.-]{{0,40}}[\"']?\s*[:=]\s*[\"']?)[^\s\"',;{{}}\[\]]+",
        r"(://)[^/@\s:]{0,200}:[^/@\s]{1,200}(?=@)",
        r"()\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abpr]-[\w-]{10,}|AKIA[0-9A-Z]{16}|hf_\w{20,}|whsec_[\w+/=]{16,})",
        r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    )
)


@dataclass(frozen=True)
class CleanedFile:
    """A file without secrets: its bytes, and the number of replaced places."""

    data: bytes
    replaced: int


def cleaned(data: bytes, secrets: Collection[str] = ()) -> CleanedFile:
    """Return a file without secrets; a gzip file is read and written again.

    :param secrets: values that goldnode knows.

    A compressed file that cannot be read is replaced by a sentence: it cannot be searched.
    """
    if data[:2] == b"\x1f\x8b":
        try:
            reader = zlib.decompressobj(wbits=31)
            text = reader.decompress(data, _LARGEST)
            whole = reader.eof
        except zlib.error:
            whole = False
        if not whole:
            return CleanedFile(b"removed: this compressed file cannot be searched for secrets\n", 1)
        inner = cleaned(text, secrets)
        # Without a time, so that equal contents are equal files.
        return CleanedFile(gzip.compress(inner.data, 6, mtime=0), inner.replaced)
    return _text(data, secrets)


def _text(data: bytes, secrets: Collection[str]) -> CleanedFile:
    # Each byte is one character, so that any encoding and binary data stay as they are.
    text, count = data.decode("latin-1"), 0
    for secret in sorted(secrets, key=len, reverse=True):
        raw = secret.encode().decode("latin-1")
        if len(secret) >= SHORTEST and raw in text:
            count += text.count(raw)
            text = text.replace(raw, REPLACED)
    for pattern in _PATTERNS:
        text, replaced = pattern.subn(rf"\g<1>{REPLACED}", text)
        count += replaced
    return CleanedFile(text.encode("latin-1"), count)

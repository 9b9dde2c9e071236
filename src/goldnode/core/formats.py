"""Check of a file's format number, so that a file from a later goldnode is reported as such."""

from __future__ import annotations

from goldnode.core.errors import GoldnodeError
from goldnode.core.yamlsource import YamlSource


def check_format(source: YamlSource, key: str, reads: int, error: type[GoldnodeError]) -> None:
    """Refuse a document whose `key` is a number other than `reads`.

    Raises `error`. The model reports values that are not integers.
    """
    written = source.data.get(key) if isinstance(source.data, dict) else None
    if isinstance(written, int) and not isinstance(written, bool) and written != reads:
        if written > reads:
            remedy = "install the goldnode that it was written for"
        else:
            remedy = f"write {key}: {reads}"
        raise error(
            f"this file has format {written}, and this goldnode reads {reads}",
            file=source.file,
            line=source.line((key,)),
            remedy=remedy,
        )

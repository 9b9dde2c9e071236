"""Reports of dual runs as the site has them: files, signed where it has a key."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from goldnode.documents.dual import DualDocument
from goldnode.dual import signing
from goldnode.evidence import signed_file
from goldnode.fleet.rollout.dual_requirement import NoReportError

_LARGEST = 256 << 20  # bytes of a report


def read(path: Path, keys: Sequence[Path] = ()) -> DualDocument:
    """Return a report. Raises NoReportError, and GoldnodeError for a wrong signature.

    :param keys: files of public keys, one of which must have signed the report. Empty: it is not verified.
    """
    data = _content(path)
    if keys:
        envelope = signed_file.envelope_of(path)
        if not os.path.lexists(envelope):
            raise NoReportError(
                f"{path} is not signed; compare again with `goldnode dual compare --report --key`"
            )
        signed_file.check(_content(envelope), path, data, keys, signing.REPORT)
    try:
        return DualDocument.model_validate_json(data)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise NoReportError(
            f"{path} is no report of `goldnode dual compare`: {where}: {first['msg']}"
        ) from None


def _content(path: Path) -> bytes:
    """Return the content of a file. Raises NoReportError."""
    try:
        # Without waiting: the name could be a pipe that no program writes to.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            # Of the opened file, not of its name, which may point elsewhere by now.
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NoReportError(f"{path} is no regular file")
            data = file.read(_LARGEST + 1)
    except OSError as problem:
        raise NoReportError(f"{path} cannot be read: {problem.strerror}") from None
    if len(data) > _LARGEST:
        raise NoReportError(f"{path} is larger than {_LARGEST} bytes")
    return data

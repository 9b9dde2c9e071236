"""The inbox: reports that Ansible and the service have received and no ingest has stored yet, each file complete.

Works without the extra `report`, so that any controller can fetch reports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldnode.core.files import replace_file
from goldnode.node.ground.verdict_files import LARGEST_REPORT, REPORT

INBOX = "inbox"  # directory in that of the fleet's data
_KEYS = ("class", "cohort", "source", "engine", "capture", "verdict", "gate")


def put(data: Path, node: str, report: Mapping[str, Any]) -> Path:
    """Write the report of a node into the inbox, whole or not at all. The same report has the same name.

    Raise ValueError for a report that is too large.
    """
    return put_document(data, content_of(node, report))


def content_of(node: str, report: Mapping[str, Any]) -> bytes:
    """Return the content of a file of the inbox for the report of a node. Raise ValueError if it is too large."""
    kept = {key: report[key] for key in _KEYS if report.get(key) is not None}
    text = json.dumps(
        {"schema": REPORT, "node": node, **kept}, separators=(",", ":"), sort_keys=True
    )
    content = text.encode()
    if len(content) > LARGEST_REPORT:
        raise ValueError(f"the report has {len(content)} bytes, more than {LARGEST_REPORT}")
    return content


def put_document(data: Path, content: bytes) -> Path:
    """Write a document into the inbox as it is, whole or not at all. The same bytes have the same name."""
    file = data / INBOX / f"{hashlib.sha256(content).hexdigest()[:32]}.json"
    if not file.exists():
        replace_file(file, content)
    return file

"""Signatures of records and reports of dual runs, as those of baselines: a DSSE envelope beside the file."""

from __future__ import annotations

from goldnode.dual.errors import DualError
from goldnode.evidence.signed_file import SignedKind

RECORD = SignedKind(
    "record", "application/vnd.goldnode.dual-record+json", "record it again with --key", DualError
)
REPORT = SignedKind(
    "report", "application/vnd.goldnode.dual+json", "compare again with --key", DualError
)

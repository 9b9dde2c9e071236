"""Reports without names: serial numbers, UUIDs, network addresses and host names become keyed digests.

The same name has the same digest in every report, so that the history of a node stays one. The key
is beside the directory of the data and not in it: without it, the digest of a guessed name cannot
be computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from dataclasses import replace
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.fleet.ingest.report import NodeReport
from goldnode.fleet.ingest.results import CanaryResult
from goldnode.node.probe import command

_BYTES = 32  # of a key


class FleetNames:
    """Digests of names under the key of one directory of data."""

    def __init__(self, data: Path) -> None:
        self.file = data.with_name(f"{data.absolute().name}.anonymous-key")
        if not self.file.exists():
            self._make()
        self._key = self.file.read_bytes()
        if len(self._key) < _BYTES:
            raise GoldnodeError(
                f"the key of anonymous names has {len(self._key)} bytes, and {_BYTES} are needed",
                file=self.file,
                remedy="put it back from a copy; without one, remove it: names then get other digests than before",
            )

    def _make(self) -> None:
        """Write the key under another name and link it: no process reads half of it, and the first one wins."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        # Such a file is for its owner alone.
        handle, fresh = tempfile.mkstemp(prefix=f".{self.file.name}.", dir=self.file.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(secrets.token_bytes(_BYTES))
                out.flush()
                os.fsync(out.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(fresh, self.file)
        finally:
            Path(fresh).unlink()

    def name(self, kind: str, value: str) -> str:
        """Return the digest of a name."""
        return f"{kind}-{hmac.new(self._key, value.encode(), hashlib.sha256).hexdigest()[:12]}"

    def report(self, report: NodeReport) -> NodeReport:
        """Return a report without names."""
        content = {"hostname": report.node, "capture": report.capture, "verdict": report.verdict}
        anonymised = command.anonymous(content, self.name)
        cohort = report.origin.cohort
        origin = replace(
            report.origin, cohort=None if cohort is None else self.name("COHORT", cohort)
        )
        # Reasons quote what was found, which may be a name.
        gate = None if report.gate is None else {**report.gate, "reasons": []}
        return replace(
            report,
            node=anonymised["hostname"],
            capture=anonymised["capture"],
            verdict=anonymised["verdict"],
            origin=origin,
            gate=gate,
        )

    def result(self, result: CanaryResult) -> CanaryResult:
        """Return a canary result without names: its node has the same digest as in reports."""
        names = command.NAMES
        return replace(
            result,
            node=self.name(names["hostname"], result.node),
            boot_id=self.name(names["boot_id"], result.boot_id),
        )

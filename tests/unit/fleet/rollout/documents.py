"""A rollout document for tests, with changes."""

from __future__ import annotations

from pathlib import Path

from goldnode.fleet.control.document_files import load
from goldnode.fleet.rollout.document import RolloutFile, RolloutSettings

OLD, NEW = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"
TEXT = f"""\
schema: goldnode.rollout/1
rollout: r1
class: l4
from: {{stack: debian12_r580, lock: "{OLD}"}}
to: {{stack: debian12_r580, lock: "{NEW}"}}
pools:
  canary: {{nodes: 2, spread: leaf}}
waves:
- {{name: canary, pool: canary, soak: 4h}}
- {{name: first, nodes: 6, soak: 4h}}
- {{name: all, percent: 100%}}
limits: {{planned: 4, failed: 8, total: 10}}
require:
- boot: {{base_rate: 0.2%}}
timeout: 1h
"""


def written(directory: Path, *changes: tuple[str, str], text: str = TEXT) -> RolloutFile:
    """Write the document with changes, and read it."""
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after, 1)
    path = directory / "rollout.yml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def settings(directory: Path, *changes: tuple[str, str]) -> RolloutSettings:
    """Return the settings of the document with changes."""
    return written(directory, *changes).settings

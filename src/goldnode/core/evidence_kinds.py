"""The kinds of signed evidence: class files, rollouts and statements name the same."""

from __future__ import annotations

from typing import Literal

EvidenceKind = Literal[
    "boot", "canary", "floors", "dual", "smoke", "disk", "prove-gpu", "module-build"
]

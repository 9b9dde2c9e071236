"""Other out-of-tree kernel modules of the stack: built, ordered and proved like the driver's own."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence, Tuple

from ...host import Host
from ..finding import Finding
from ..model import Action, Note, Observed, Refusal, Waiting
from .files import Wanted

Document = Mapping[str, Any]


def observe(host: Host, document: Document, seen: Observed) -> None:
    """Read what this domain judges into its field of `seen`. Reads only."""


def wanted(document: Document, seen: Observed) -> List[Wanted]:
    """The files of goldnode's own that this domain wants. Pure."""
    return []


def plan(document: Document, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Changes beyond those files, what cannot be judged here, and what waits for a drain. Pure."""
    return [], [], []


def refusals(document: Document, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Reasons of this domain to touch nothing. Pure."""
    return []


def findings(document: Document, seen: Observed) -> List[Finding]:
    """One finding per item this domain's part of the class declares. Pure."""
    return []

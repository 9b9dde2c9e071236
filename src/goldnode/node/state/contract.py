"""The extension points of the engine: what a domain provides, and what a handler of actions gets.

A domain is a module below `domains/` that has these functions and a row in `engine.DOMAINS`; a
handler is a function in the `HANDLERS` of a module below `handlers/`. The type checker holds both
against these protocols.
"""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeAlias,
)

from ..ground.document import ClassDocument
from ..ground.host import Host
from .domains.files import Wanted
from .finding import Finding
from .model import Action, Note, Observed, Refusal, Waiting


class Domain(Protocol):
    """One part of a node's state, from reading it to judging it. All functions but `observe` are pure."""

    def observe(self, host: Host, document: ClassDocument, seen: Observed) -> None:
        """Read what this domain needs of the node, batched, and add it to `seen`."""

    def wanted(self, document: ClassDocument, seen: Observed) -> List[Wanted]:
        """Return the files that the class wants."""

    def plan(
        self, document: ClassDocument, seen: Observed
    ) -> Tuple[List[Action], List[Note], List[Waiting]]:
        """Return the actions beyond writing files, what cannot be judged here, and what waits for a drain."""

    def refusals(
        self, document: ClassDocument, seen: Observed, actions: Sequence[Action]
    ) -> List[Refusal]:
        """Return the reasons for which nothing may be changed."""

    def findings(self, document: ClassDocument, seen: Observed) -> List[Finding]:
        """Return the findings of the health check about this domain."""


class Writer(Protocol):
    """The interface that a handler acts through: the part of :class:`.apply.Applier` that handlers use."""

    host: Host
    document: ClassDocument
    say: Callable[[str], None]
    apt: Tuple[str, ...]
    planned: List[Action]
    outcomes: Dict[Tuple[str, str], Dict[str, Any]]

    def link(self, action: Action) -> None:
        """Make the symbolic link of an action."""

    def remember(self, key: str, names: List[str], forget: bool = False) -> None:
        """Add names to a list of the record of this class, or take them out of it."""

    def update_grub(self) -> None:
        """Run update-grub. Raises NodeError where it fails."""


Handler: TypeAlias = "Callable[[Writer, Action], Optional[str]]"

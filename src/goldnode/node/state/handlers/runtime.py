"""Handlers of the actions that domain `runtime` plans: each takes the applier and one action, makes the change, and may tell more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Optional

if TYPE_CHECKING:
    from ..apply import Applier
    from ..model import Action

HANDLERS: Dict[str, Callable[[Applier, Action], Optional[str]]] = {}

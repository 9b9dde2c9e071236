"""Rules over what is to run on a node, alone or together with the node."""

from __future__ import annotations

from goldnode.compat.model import Rule

RULES: tuple[Rule, ...] = ()

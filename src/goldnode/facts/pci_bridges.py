"""Bridges inside GPUs' packages and on their cards, as `facts/pci_bridges.yml` states them."""

from __future__ import annotations

from functools import cache

from goldnode.facts.host import load


@cache
def on_package() -> tuple[str, ...]:
    """Return the PCI ids of ports whose link below never leaves a package or card, sorted.

    What a node is given as ``health.on_package`` in its class document: such a link says nothing of the slot (node/probe/pci.py).
    """
    return tuple(sorted({one for row in load("pci_bridges.yml")["bridges"] for one in row["downstream"]}))

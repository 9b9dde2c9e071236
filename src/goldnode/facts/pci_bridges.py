"""PCI bridges inside GPU packages and on their cards, from `facts/pci_bridges.yml`."""

from __future__ import annotations

from functools import cache

from goldnode.facts.host import load


@cache
def on_package() -> tuple[str, ...]:
    """Return the PCI ids of ports whose downstream link never leaves a package or card, sorted.

    The class document has them as ``health.on_package``. The state of such a link is no evidence
    about the slot (node/probe/pci.py).
    """
    return tuple(
        sorted({one for row in load("pci_bridges.yml")["bridges"] for one in row["downstream"]})
    )

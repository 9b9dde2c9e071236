"""Numbers that a comparison needs. They need no package of the extra `floors`."""

from __future__ import annotations

import math

MARGIN, ALPHA = 0.02, 0.025  # accepted loss of a change, and the error of each bound
NODES, RUNS = 8, 5  # changed nodes, and runs of each before and after
CONTROL = 4  # nodes of a control arm


def nodes_needed(control: int | None, alpha: float) -> int:
    """Return the fewest changed nodes whose losses can be significant at level `alpha`."""
    changed = 1
    while True:
        least = 0.5**changed if control is None else 1 / math.comb(changed + control, changed)
        if least <= alpha:
            return changed
        changed += 1

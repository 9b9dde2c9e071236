"""Performance floors: signed baselines, and the tests against them.

Samples are turned so that more is better before anything is computed: a latency is negated.
`oriented` does it, and every function of this package that takes `values` expects it.
"""

from __future__ import annotations

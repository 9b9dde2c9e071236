"""Performance floors: signed baselines, and the tests against them."""

from __future__ import annotations

"""Dual run: the same inputs on two stacks, and the comparison of outputs and times."""

from __future__ import annotations

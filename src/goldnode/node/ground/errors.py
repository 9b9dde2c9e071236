"""The one exception for failures that a person can put right."""

from __future__ import annotations


class NodeError(Exception):
    """An expected failure: one sentence and a remedy.

    Any other exception is a bug in goldnode.
    """

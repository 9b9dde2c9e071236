"""Canary suite: jobs that show whether a node works and how fast, their launchers and results."""

from __future__ import annotations

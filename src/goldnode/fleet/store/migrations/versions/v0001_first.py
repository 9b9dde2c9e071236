"""Version 1: the first schema."""

from __future__ import annotations

from alembic import op

from goldnode.fleet.store.tables import metadata

revision = "0001"
down_revision = None

# `tables.py` has these as version 1 made them. A version that changes one copies it here first.
_TABLES = (
    "goldnode_schema",
    "node",
    "rollout",
    "class_limits",
    "member",
    "step",
    "hold",
    "buffer",
    "observation",
    "approval",
    "frozen",
    "denied",
    "log",
    "log_head",
)


def upgrade() -> None:
    """Create the tables."""
    metadata.create_all(op.get_bind(), tables=[metadata.tables[name] for name in _TABLES])

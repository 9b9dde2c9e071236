"""Version 1: the first schema."""

from __future__ import annotations

from alembic import op

from goldnode.fleet.store.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables. A later version that changes `tables.py` copies this version of it here first."""
    metadata.create_all(op.get_bind())

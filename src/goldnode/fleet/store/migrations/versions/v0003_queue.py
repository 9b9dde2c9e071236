"""Version 3: requests of the queue. Services of version 2 go on granting nodes without it."""

from __future__ import annotations

from alembic import op

from goldnode.fleet.store.tables import request

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table. A later version that changes it in `tables.py` copies this version of it here first."""
    request.create(op.get_bind())

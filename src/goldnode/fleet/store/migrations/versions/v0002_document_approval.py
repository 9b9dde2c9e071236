"""Version 2: an approval names the document that was approved. Services of version 1 go on writing `approval`."""

from __future__ import annotations

from alembic import op

from goldnode.fleet.store.tables import document_approval

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table. A later version that changes it in `tables.py` copies this version of it here first."""
    document_approval.create(op.get_bind())

"""Entry point of Alembic: run the migrations on the connection that `goldnode.fleet.store.schema` provides."""

from __future__ import annotations

from alembic import context

from goldnode.fleet.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()

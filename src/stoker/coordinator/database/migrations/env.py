"""How Alembic runs our steps: on the connection that it is handed, all in one transaction."""

from __future__ import annotations

from alembic import context

from stoker.coordinator.database.tables import METADATA

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=METADATA, render_as_batch=True, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
if connection.in_transaction():
    connection.commit()

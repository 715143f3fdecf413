"""Alembic's entry: runs the revisions on the connection that the store hands over, inside the store's transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()

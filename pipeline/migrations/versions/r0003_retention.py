"""What retention needs: the size of each picture, and events by age."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """One column, one index."""
    op.execute("ALTER TABLE events ADD COLUMN jpeg_bytes INTEGER")
    op.execute("CREATE INDEX events_by_age ON events (t_wall)")

"""What an event says beside its caption: the zone, whether the counts disagree, and the details of a JSON caption."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Three columns; older events have no zone, no mismatch and no details."""
    op.execute("ALTER TABLE events ADD COLUMN zone TEXT")
    op.execute("ALTER TABLE events ADD COLUMN count_mismatch INTEGER NOT NULL DEFAULT 0")
    op.execute("ALTER TABLE events ADD COLUMN details TEXT")

"""Events, and an index to read one camera's backwards."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From an empty database."""
    op.execute(
        "CREATE TABLE events ("
        "id INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE, "
        "camera TEXT NOT NULL, frame_seq INTEGER NOT NULL, pts_s REAL NOT NULL, "
        "track_ids TEXT NOT NULL, boxes TEXT NOT NULL, reason TEXT NOT NULL, status TEXT NOT NULL, "
        "caption TEXT, model TEXT, t_captured REAL NOT NULL, t_selected REAL NOT NULL, "
        "t_sent REAL, t_first_token REAL, t_last_token REAL, t_wall REAL NOT NULL, error TEXT, jpeg_path TEXT)"
    )
    op.execute("CREATE INDEX events_by_camera ON events (camera, id)")

"""Full-text search over captions, kept by triggers so that no writer can forget it."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"

FORGET = "INSERT INTO captions(captions, rowid, caption) VALUES ('delete', old.id, old.caption);"
LEARN = "INSERT INTO captions(rowid, caption) VALUES (new.id, new.caption);"


def upgrade() -> None:
    """The index and its triggers."""
    op.execute(
        "CREATE VIRTUAL TABLE captions USING fts5(caption, content='events', content_rowid='id', tokenize='porter')"
    )
    for name, when, body in (
        ("inserted", "INSERT", LEARN),
        ("deleted", "DELETE", FORGET),
        ("updated", "UPDATE OF caption", FORGET + LEARN),
    ):
        op.execute(f"CREATE TRIGGER caption_{name} AFTER {when} ON events BEGIN {body} END")

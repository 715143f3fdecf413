"""The event store's tables, and the steps that brought them about, in order. A step that was released never changes."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Column, Connection, Engine, Float, Integer, MetaData, String, Table, text

EVENTS = Table(
    "events",
    MetaData(),
    Column("id", Integer, primary_key=True),  # grows in the order in which events ended
    Column("event_id", String, unique=True, nullable=False),
    Column("camera", String, nullable=False),
    Column("frame_seq", Integer, nullable=False),
    Column("pts_s", Float, nullable=False),
    Column("track_ids", String, nullable=False),  # JSON
    Column("boxes", String, nullable=False),  # JSON
    Column("reason", String, nullable=False),
    Column("status", String, nullable=False),
    Column("caption", String),
    Column("model", String),
    Column("t_captured", Float, nullable=False),
    Column("t_selected", Float, nullable=False),
    Column("t_sent", Float),
    Column("t_first_token", Float),
    Column("t_last_token", Float),
    Column("t_wall", Float, nullable=False),
    Column("error", String),
    Column("jpeg_path", String),
)


def events_table(connection: Connection) -> None:
    """Events, and an index to read one camera's backwards."""
    connection.execute(
        text(
            "CREATE TABLE events ("
            "id INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE, "
            "camera TEXT NOT NULL, frame_seq INTEGER NOT NULL, pts_s REAL NOT NULL, "
            "track_ids TEXT NOT NULL, boxes TEXT NOT NULL, reason TEXT NOT NULL, status TEXT NOT NULL, "
            "caption TEXT, model TEXT, t_captured REAL NOT NULL, t_selected REAL NOT NULL, "
            "t_sent REAL, t_first_token REAL, t_last_token REAL, t_wall REAL NOT NULL, error TEXT, jpeg_path TEXT)"
        )
    )
    connection.execute(text("CREATE INDEX events_by_camera ON events (camera, id)"))


def caption_search(connection: Connection) -> None:
    """Full-text search over captions, kept by triggers so that no writer can forget it."""
    connection.execute(
        text(
            "CREATE VIRTUAL TABLE captions USING fts5(caption, content='events', content_rowid='id', tokenize='porter')"
        )
    )
    forget = "INSERT INTO captions(captions, rowid, caption) VALUES ('delete', old.id, old.caption);"
    learn = "INSERT INTO captions(rowid, caption) VALUES (new.id, new.caption);"
    for name, when, body in (
        ("inserted", "INSERT", learn),
        ("deleted", "DELETE", forget),
        ("updated", "UPDATE OF caption", forget + learn),
    ):
        connection.execute(text(f"CREATE TRIGGER caption_{name} AFTER {when} ON events BEGIN {body} END"))


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (events_table, caption_search)


def migrate(engine: Engine) -> None:
    """Bring a database, new or old, up to the last step; the number of steps taken is its `user_version`."""
    with engine.connect() as connection:
        connection.execute(text("BEGIN IMMEDIATE"))
        taken = connection.execute(text("PRAGMA user_version")).scalar_one()
        for step in MIGRATIONS[taken:]:
            step(connection)
        connection.execute(text(f"PRAGMA user_version = {max(taken, len(MIGRATIONS))}"))
        connection.commit()

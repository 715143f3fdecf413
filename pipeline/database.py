"""Connections to the database of events: to write to it, or only to read it, also on a disk that is read-only."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, create_engine, text
from sqlalchemy import event as sa_event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

BUSY_S = 10.0


def connect(path: Path) -> Engine:
    """The database at `path`, made if it is missing."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_S})

    @sa_event.listens_for(engine, "connect")
    def _settings(connection: object, _: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()  # pyright: ignore[reportAttributeAccessIssue] - the driver's connection
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # events are few; each must survive the plug being pulled
        cursor.close()

    return engine


def connect_to_read(path: Path) -> Engine:
    """The database at `path`, to which nothing is written."""
    name = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    engine = _reading(f"{name}?mode=ro")  # with the log that a killed writer left, which holds the newest events
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT count(*) FROM sqlite_master"))
        return engine
    except OperationalError:
        engine.dispose()
    return _reading(f"{name}?mode=ro&immutable=1")  # there is no log, and none can be made


def _reading(name: str) -> Engine:
    return create_engine(f"sqlite:///file:{name}&uri=true", connect_args={"timeout": BUSY_S})

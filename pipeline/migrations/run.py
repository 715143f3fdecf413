"""Brings a database, new or old, to the newest revision, in one transaction that no second process can enter."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text


class NewerDatabase(Exception):
    """The database was written by a newer Watchword. One line that names its revision."""


def migrate(engine: Engine) -> None:
    """Run the revisions that `engine`'s SQLite database lacks. Raises `NewerDatabase`, and whatever SQLAlchemy does."""
    config, script = _script()
    with engine.connect() as connection:
        connection.execute(text("BEGIN IMMEDIATE"))
        present = _revision(connection)
        if present is not None and present not in {known.revision for known in script.walk_revisions()}:
            raise NewerDatabase(f"it was written by a newer Watchword (revision {present}): use that one")
        if present != script.get_current_head():
            config.attributes["connection"] = connection
            if present is not None and not inspect(connection).has_table("alembic_version"):
                command.stamp(config, present)
            command.upgrade(config, "head")
        connection.commit()


def _script() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config, ScriptDirectory.from_config(config)


def require_current(engine: Engine) -> None:
    """Raise `NewerDatabase` unless `engine`'s database is of this version, neither newer nor older."""
    with engine.connect() as connection:
        present = _revision(connection)
    if present != _script()[1].get_current_head():
        raise NewerDatabase(f"it was written by another Watchword (revision {present}): use that one")


def _revision(connection: Connection) -> str | None:
    """The database's revision, None for an empty one. The first releases counted their steps in `user_version`."""
    if inspect(connection).has_table("alembic_version"):
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    taken = connection.execute(text("PRAGMA user_version")).scalar_one()
    return f"{taken:04}" if taken else None

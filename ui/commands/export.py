"""`watchword export`: stored events and their pictures, out of the data directory."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn

from ui.commands.engine_flags import default
from ui.commands.options import DATA_DIR, DataDir
from ui.errors import UsageError

if TYPE_CHECKING:
    from pipeline.store import EventStore

MOMENTS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S")


def export(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A folder to make, or a file called .zip.", show_default=False)
    ],
    data_dir: DataDir = None,
    camera: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Only this camera's events. {default('all')}")
    ] = None,
    words: Annotated[
        str | None, typer.Option(metavar="WORDS", help=f"Only captions with all of these words. {default('all')}")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"Only events from this local time on, like 2026-06-01 or '2026-06-01 14:30'. {default('the first')}",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Only events before it. {default('the last')}"),
    ] = None,
) -> int:
    """Write stored events as JSON lines with their pictures; Watchword may be running meanwhile."""
    from pipeline.export import export as write
    from pipeline.query import EventQuery
    from pipeline.store import DATABASE

    data_dir, out = (data_dir or Path(DATA_DIR)).expanduser(), out.expanduser()
    start, end = _moment("--since", since), _moment("--until", until)
    if not (data_dir / DATABASE).is_file():
        raise UsageError(f"{data_dir} holds no events; --data-dir names the directory of a run")
    if out.exists():
        raise UsageError(f"{out} exists already; name another")
    query = EventQuery(
        words=words,
        camera=camera,
        since=start,
        until=end,
    )
    store = _open(data_dir)
    columns = (TextColumn("{task.completed} events"),)
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        num_events = write(store, query, out, lambda done: progress.update(task, completed=done))
    store.close()
    typer.echo(f"{num_events} event{'' if num_events == 1 else 's'} in {out}")
    return 0


def _open(data_dir: Path) -> EventStore:
    """The store; only to be read where its disk takes nothing any more, as one that fails, and has to be saved."""
    from pipeline.archive import StoreError
    from pipeline.store import EventStore

    try:
        return EventStore(data_dir)
    except StoreError as refused:
        try:
            return EventStore(data_dir, read_only=True)
        except StoreError:
            raise refused from None


def _moment(flag: str, text: str | None) -> float | None:
    """Unix time of what a person typed as local time. Raises UsageError for anything that is no time."""
    if text is None:
        return None
    for form in MOMENTS:
        try:
            return datetime.strptime(text, form).timestamp()
        except ValueError:
            continue
    raise UsageError(f"{flag} {text}: it takes a local time like 2026-06-01 or '2026-06-01 14:30'")

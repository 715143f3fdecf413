"""Which stored events somebody asks for, as SQL. Nothing a person types is taken for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, bindparam, column, literal_column, select, table

from pipeline.events import EventStatus
from pipeline.schema import EVENTS

CAPTIONS = table("captions", column("rowid"))


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Events that satisfy everything that is not None; times are Unix seconds of the frame, `until` excluded.

    `words` must all be in the caption, in any order. Each also finds its English inflections and longer words that
    begin with it.
    """

    words: str | None = None
    camera: str | None = None
    status: EventStatus | None = None
    since: float | None = None
    until: float | None = None

    def select(self) -> Select[tuple[object, ...]] | None:
        """Rows of `EVENTS` in no particular order; None where nothing can match."""
        query = select(EVENTS)
        if self.words is not None:
            phrases = _phrases(self.words)
            if not phrases:
                return None
            query = query.select_from(CAPTIONS.join(EVENTS, EVENTS.c.id == CAPTIONS.c.rowid)).where(
                literal_column("captions").op("MATCH")(bindparam("match", " ".join(phrases)))
            )
        for wanted, given in ((EVENTS.c.camera, self.camera), (EVENTS.c.status, self.status)):
            if given is not None:
                query = query.where(wanted == given)
        if self.since is not None:
            query = query.where(EVENTS.c.t_wall >= self.since)
        if self.until is not None:
            query = query.where(EVENTS.c.t_wall < self.until)
        return query

    def newest_first(self, limit: int, before: str | None = None) -> Select[tuple[object, ...]] | None:
        """Up to `limit` rows, the last kept first; only those kept before the event with id `before`, if given."""
        query = self.select()
        if query is None:
            return None
        # The index of words is read backwards and no further than the limit; ordering by the table's own key would
        # collect and sort every match first.
        key = EVENTS.c.id if self.words is None else CAPTIONS.c.rowid
        if before is not None:
            query = query.where(key < select(EVENTS.c.id).where(EVENTS.c.event_id == before).scalar_subquery())
        return query.order_by(key.desc()).limit(limit)


def _phrases(words: str) -> Sequence[str]:
    """Each word quoted for FTS5, and open at its end."""
    return [f'"{word}"*' for word in words.replace('"', " ").split() if any(c.isalnum() for c in word)]

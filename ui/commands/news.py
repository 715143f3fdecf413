"""The feed as a terminal shows it: a line when a camera's state changes, a line per event, and a count of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, Callable

from camera_sources.base import SourceState, SourceStatus
from pipeline.events import Event, EventStatus
from pipeline.feed import CameraChanged, CameraRemoved, EventEnded, FeedItem, StoreChanged
from pipeline.jsonl import STDOUT
from ui.words import REASONS, UNDESCRIBED

Say = Callable[[str], None]
"""Where lines go, one at a time."""

TROUBLED = (SourceState.DOWN, SourceState.STALE)


class News:
    """Follows one feed and says what happened, to `say`. `num_by_status` counts the events that ended."""

    def __init__(self, say: Say) -> None:
        self.num_by_status: Counter[EventStatus] = Counter()
        self._say = say
        self._states: dict[str, SourceState] = {}
        self._was_live: set[str] = set()
        self._store_trouble = ""

    async def follow(self, feed: AsyncIterable[FeedItem]) -> None:
        """Tell everything until the feed ends."""
        async for item in feed:
            self.take(item)

    def take(self, item: FeedItem) -> None:
        """Tell one piece of news."""
        match item:
            case CameraChanged():
                self._camera(item.camera_id, item.status)
            case CameraRemoved():
                self._states.pop(item.camera_id, None)
                self._was_live.discard(item.camera_id)
                self._say(f"{item.camera_id} is not watched any more")
            case EventEnded():
                self.num_by_status[item.event.status] += 1
                self._say(describe_event(item.event))
            case StoreChanged():
                self._store(item)
            case _:
                pass

    def summary(self, output: str) -> str:
        """How many events there were, and what became of them. `output` is where they are."""
        num_events = self.num_by_status.total()
        kinds = {"captioned" if status is EventStatus.OK else status.value: n for status, n in self._counted()}
        detail = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        where = "" if output == STDOUT else f" in {output}"
        return f"{num_events} event{'' if num_events == 1 else 's'}{where}{': ' if detail else ''}{detail}"

    def _counted(self) -> list[tuple[EventStatus, int]]:
        return [(status, self.num_by_status[status]) for status in EventStatus if self.num_by_status[status]]

    def _store(self, item: StoreChanged) -> None:
        before, self._store_trouble = self._store_trouble, item.reason
        if item.reason and item.reason != before:
            self._say(f"events are not being stored: {item.reason} (they wait in memory; an end loses them)")
        elif before and not item.reason:
            lost = f"; {item.num_lost} were lost for lack of room" if item.num_lost else ""
            self._say(f"events are stored again{lost}")

    def _camera(self, camera: str, status: SourceStatus) -> None:
        before = self._states.get(camera)
        self._states[camera] = status.state
        # A file is live from the start, and every stream connects at first: neither is news.
        is_news = status.state is not before and (before is not None or status.state in TROUBLED)
        if is_news and status.state is not SourceState.CONNECTING:
            self._say(describe_state(camera, status, again=camera in self._was_live))
        if status.state is SourceState.LIVE:
            self._was_live.add(camera)


def describe_state(camera: str, status: SourceStatus, *, again: bool) -> str:
    """A camera's new state in one line; `again` if it was live before."""
    why = f": {status.reason}" if status.reason else ""
    match status.state:
        case SourceState.LIVE:
            return f"{camera} is live{' again' if again else ''}"
        case SourceState.STALE:
            return f"{camera} is silent{why}"
        case SourceState.DOWN:
            return f"{camera} is down{why} (trying again)"
        case SourceState.ENDED:
            return f"{camera} has ended{why}"
        case SourceState.CONNECTING:
            return f"{camera} is connecting"


def describe_event(event: Event) -> str:
    """An event that ended, in one line: where, when, why, the words, and how long after the picture they were there."""
    words = event.caption or UNDESCRIBED[event.status] + (f": {event.error}" if event.error else "")
    lag_s = None if event.t_last_token is None else event.t_last_token - event.t_captured
    lag = "" if lag_s is None or event.caption is None else f"  [{lag_s:.1f} s after the picture]"
    where = f" in {event.zone}" if event.zone else ""
    doubt = f"  [the detector counts {len(event.track_ids)}]" if event.count_mismatch else ""
    return (
        f"{event.camera} at {event.pts_s:.1f} s, {REASONS[event.reason]}{where}: {' '.join(words.split())}{doubt}{lag}"
    )

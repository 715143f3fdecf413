"""One event's own page: its picture with the people in it, its words, and where its time went. Plain HTML."""

from __future__ import annotations

import asyncio
import io
from html import escape
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from PIL import Image

from pipeline.events import Event
from pipeline.picture_note import Cut, read_note
from ui.web.board import Board, Card, CardState
from ui.web.captions import seconds, shown, time_of_day

if TYPE_CHECKING:
    from pipeline.store import EventStore


def build_event_page(board: Board, store: EventStore | None) -> APIRouter:
    """The route `/event/ID` over these two."""
    router = APIRouter()

    @router.get("/event/{event_id}", response_class=HTMLResponse)
    async def event_page(event_id: str) -> Response:
        if store is None:
            return HTMLResponse(_alone("Events are not kept here."), 404)
        event = await asyncio.to_thread(store.get, event_id)
        if event is None:
            card = board.card(event_id)
            is_on_its_way = card is not None and not card.state.is_final
            text = "This event is still being described." if is_on_its_way else "There is no such event any more."
            return HTMLResponse(_alone(text, refresh=is_on_its_way), 200 if is_on_its_way else 404)
        return HTMLResponse(await asyncio.to_thread(_page_of, store, event))

    return router


def _page_of(store: EventStore, event: Event) -> str:
    older = next(iter(store.recent(1, before=event.event_id)), None)
    newer = store.next_after(event.event_id)
    jpeg = store.jpeg(event.event_id)
    said = {name: escape(str(value), quote=True) for name, value in shown(Card.of(event)).items()}
    return _HTML.format(
        **said,
        title=f"{said['camera']}, {said['when']}",
        links=_link(older, "prev", "← Older") + _link(newer, "next", "Newer →"),
        picture=_picture(event, jpeg, said) if jpeg else '<p class="void">Its picture is not kept any more.</p>',
        words=said["text"] or said["detail"] or said["word"],
        how="" if event.caption else "quietly",
        facts=_rows(_facts(event)),
        times=_rows(_times(event)),
        bar=_bar(event),
    )


def _link(event: Event | None, rel: str, words: str) -> str:
    if event is None:
        return f'<span class="quiet">{words}</span>'
    where = f"{event.camera}, {time_of_day(event.t_wall)}"
    return (
        f'<a class="quiet" rel="{rel}" href="{escape(event.event_id, quote=True)}" title="{escape(where)}">{words}</a>'
    )


def _picture(event: Event, jpeg: bytes, said: dict[str, str]) -> str:
    with Image.open(io.BytesIO(jpeg)) as image:
        width, height = image.size
    cut = read_note(jpeg)
    boxes = "" if cut is None else "".join(_box(event, index, cut) for index in range(len(event.boxes)))
    source = f"../events/{said['id']}.jpg?full=true"
    shape = f"aspect-ratio: {width} / {height}; --ar: {width / height:.4f}"
    return (
        f'<div class="event-pic" style="{shape}"><img src="{source}" '
        f'alt="{said["text"] or "The picture of this event"}" width="{width}" height="{height}">'
        f'<div class="cam-boxes" aria-hidden="true">{boxes}</div></div>'
    )


def _box(event: Event, index: int, cut: Cut) -> str:
    box = event.boxes[index]
    left, right = ((x - cut.left) / cut.width * 100 for x in (box.x1, box.x2))
    top, bottom = ((y - cut.top) / cut.height * 100 for y in (box.y1, box.y2))
    left, top, right, bottom = max(0.0, left), max(0.0, top), min(100.0, right), min(100.0, bottom)
    if right <= left or bottom <= top:
        return ""
    place = f"left: {left:.2f}%; top: {top:.2f}%; width: {right - left:.2f}%; height: {bottom - top:.2f}%"
    name = f"person {event.track_ids[index]} · {box.conf:.0%}"
    return f'<div class="cam-box{" low" if top < 8 else ""}" style="{place}"><span>{name}</span></div>'


def _facts(event: Event) -> list[tuple[str, str]]:
    said = shown(Card.of(event))
    count = len(event.boxes)
    facts = [
        ("Camera", event.camera),
        ("Zone", event.zone or ""),
        ("Why", said["why"]),
        ("People, says the detector", str(count)),
        ("People, says the caption", "a different number" if event.count_mismatch else ""),
        ("Title", event.details.title if event.details else ""),
        ("Model", event.model or ""),
        ("Frame", f"{event.frame_seq} (stream time {seconds(event.pts_s)})"),
        ("State", said["word"] if CardState(event.status) is not CardState.OK else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _times(event: Event) -> list[tuple[str, str]]:
    """Each stretch between two points of an event's life that it reached."""
    start = event.t_captured
    stretches = [
        ("Frame age when chosen", start, event.t_selected),
        ("Frame age when sent to the engine", start, event.t_sent),
        ("First word after sending (TTFT)", event.t_sent, event.t_first_token),
        ("Writing the rest", event.t_first_token, event.t_last_token),
        ("Glass to caption", start, event.t_last_token),
    ]
    return [(name, seconds(max(0.0, end - begin))) for name, begin, end in stretches if begin is not None and end]


def _rows(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)


def _bar(event: Event) -> str:
    points = (event.t_captured, event.t_sent, event.t_first_token, event.t_last_token)
    if None in points or event.t_last_token is None or event.t_last_token <= event.t_captured:
        return ""
    ends = [point for point in points if point is not None]
    parts = zip(("wait", "first", "rest"), ends, ends[1:], strict=False)
    spans = "".join(f'<i class="{name}" style="flex-grow: {max(0.0, b - a):.4f}"></i>' for name, a, b in parts)
    return f'<div class="event-bar" aria-hidden="true">{spans}</div>'


def _alone(text: str, *, refresh: bool = False) -> str:
    again = '<meta http-equiv="refresh" content="2">' if refresh else ""
    head, said = _HEAD.format(title="Event", more=again), _NO_EVENT.format(text=escape(text))
    return f"{head}</header>{said}</main></body></html>"


_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">{more}
<title>{title} – Watchword</title>
<link rel="icon" href="../static/favicon.svg">
<link rel="stylesheet" href="../static/style.css">
<link rel="stylesheet" href="../static/event.css">
<script type="module" src="../static/event.js"></script>
</head>
<body class="alone">
<main class="ww event">
<header class="ww-head"><a class="ww-brand" href="../"><img src="../static/favicon.svg" alt=""><b>Watchword</b></a>
"""

_NO_EVENT = """<div class="void"><h1>{text}</h1>
<a class="chip" href="../">To the cameras</a></div>"""

_HTML = (
    _HEAD.replace("{more}", "")
    + """<nav aria-label="Events">{links}</nav></header>
<article class="event-grid" data-event="{id}">
  <div class="panel">{picture}</div>
  <div class="panel event-side">
    <p class="card-meta num"><span class="why">{why}</span><span>{camera}</span><time datetime="{iso}">{when}</time></p>
    <h1 class="{how}">{words}</h1>
    <p class="card-doubt">{contradicts}</p>
    <h2>Where the time went</h2>
    {bar}
    <dl class="num">{times}</dl>
    <h2>Facts</h2>
    <dl class="num">{facts}</dl>
  </div>
</article>
</main>
</body>
</html>
"""
)

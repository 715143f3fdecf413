"""The chat box: one conversation per browser, with the same engine that writes the captions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import openai
from nicegui import background_tasks, ui
from nicegui.events import GenericEventArguments

from pipeline.events import Event
from pipeline.store import StoreError
from ui.conversation import Conversation
from ui.errors import broke_off, say
from ui.web.captions import seconds, time_of_day
from ui.web.elements import Text, box, set_attributes, trusted
from ui.web.recall import as_notes, recall
from ui.web.rich_text import to_html
from ui.web.uploads import Uploads

if TYPE_CHECKING:
    from pipeline.store import EventStore

STARTERS = (
    "Why is the sky blue?",
    "Why do people ride bicycles?",
)
SIGHTED_STARTER = "What did the cameras see?"
DEFAULT_QUESTION = "Describe the image."
LONGEST = 8000
PAINT_S = 0.06
"""Words are shown in bunches this far apart, so that a fast answer does not flood a slow browser."""


class ChatBox:
    """One browser's conversation and its controls. `is_own` says that the engine is restarted when it dies.

    `store` is where the notes of what the cameras saw come from, None without one; `uploads` where added pictures lie.
    """

    def __init__(self, conversation: Conversation, *, is_own: bool, store: EventStore | None, uploads: Uploads) -> None:
        self._conversation = conversation
        self._store = store
        self._uploads = uploads
        self._is_own = is_own
        self._answering: asyncio.Task[None] | None = None
        with box("section", "panel p-chat", aria_labelledby="chat-title"):
            with box("div", "panel-head"):
                Text("h2", "Chat", id="chat-title")
                self._clear = Text("button", "New conversation", "quiet", type="button")
                self._clear.on("click", self._start_over)
            self._talk = box("div", "talk", role="log", aria_label="Conversation", tabindex="0")
            self._show_void()
            with box("form", "ask") as form:
                trusted(_TOOLS, "ask-tools")
                Text("label", "Message", "sr", for_="chat-input")
                self._input = box("textarea", id="chat-input", rows="1", placeholder="Ask the engine anything …")
                self._button = Text("button", "Send", "send", type="submit")
            form.on("submit", self._submitted, js_handler=_SUBMIT)
            self._input.on("keydown", js_handler=_ENTER)
        ui.context.client.on_disconnect(self._stop)

    def _show_void(self) -> None:
        with self._talk, box("div", "void"):
            Text("b", "Talk to the engine")
            Text("span", "About anything, a picture, or what the cameras saw. It answers while it describes them.")
            with box("div", "chips"):
                for question in STARTERS:
                    Text("button", question, "chip", type="button").on("click", partial(self._ask, question))
                ask = Text("button", SIGHTED_STARTER, "chip", type="button")
                ask.on("click", partial(self._ask, SIGHTED_STARTER, recalls=True))

    def _submitted(self, event: GenericEventArguments) -> None:
        if self._answering is not None:
            self._stop()
            return
        asked = event.args if isinstance(event.args, dict) else {}
        text, picture = str(asked.get("text") or "").strip()[:LONGEST], str(asked.get("picture") or "")
        self._ask(text or (DEFAULT_QUESTION if picture else ""), picture, recalls=bool(asked.get("recalls")))

    def _ask(self, text: str, picture: str = "", *, recalls: bool = False) -> None:
        if not text or self._answering is not None:
            return
        if not any("turn" in child.classes for child in self._talk):
            self._talk.clear()
        image = self._uploads.get(picture) if picture else None
        with self._talk:
            mine = Turn("mine")
            mine.put(text)
            if image is not None:
                mine.show_picture(f"live/chat/pictures/{picture}.jpg")
            turn = Turn("theirs")
        if picture and image is None:
            turn.end("failed", tone="bad", state="No answer", note="The picture is not kept any more; add it again.")
            return
        self._answering = background_tasks.create(self._answer(text, image, recalls, turn))
        self._show_button()

    async def _answer(self, text: str, image: bytes | None, recalls: bool, turn: Turn) -> None:
        try:
            events = await asyncio.to_thread(recall, self._store, text) if recalls and self._store else []
            await self._stream(text, image, as_notes(events) if events else None, turn)
            turn.cite(events, nothing_seen=recalls and not events)
        except asyncio.CancelledError:
            turn.end("stopped", state="Stopped")
        except (openai.OpenAIError, LookupError, StoreError) as error:
            turn.end("failed", tone="bad", state="No answer", note=self._why(error))
        finally:
            self._answering = None
            self._show_button()

    async def _stream(self, text: str, image: bytes | None, notes: str | None, turn: Turn) -> None:
        t_asked = t_painted = time.monotonic()
        t_first: float | None = None
        said, num_pieces = "", 0
        async with aclosing(self._conversation.ask(text, image=image, notes=notes)) as pieces:
            async for piece in pieces:
                now = time.monotonic()
                t_first = t_first or now
                said, num_pieces = said + piece, num_pieces + 1
                if now - t_painted >= PAINT_S:
                    turn.put(said)
                    t_painted = now
        turn.put(said)
        pace = _pace(t_asked, t_first, time.monotonic(), num_pieces, self._conversation.finish_reason)
        turn.end("ok", note=pace)

    def _why(self, error: Exception) -> str:
        is_away = isinstance(error, openai.APIConnectionError) and not isinstance(error, openai.APITimeoutError)
        if not (is_away and self._is_own):
            return say(error)
        if broke_off(error):
            return "The engine stopped while answering; it restarts by itself. Ask again in a moment."
        return "The engine is being started. Ask again in a moment."

    def _stop(self) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def _start_over(self) -> None:
        self._stop()
        self._conversation.clear()
        self._talk.clear()
        self._show_void()

    def _show_button(self) -> None:
        answering = self._answering is not None
        self._button.set_text("Stop" if answering else "Send")
        self._button.classes(add="stop" if answering else "", remove="" if answering else "stop")


class Turn:
    """One message. Errors and stops are states under it, never its words."""

    def __init__(self, whose: str) -> None:
        self.root = box("div", f"turn {whose}")
        with self.root:
            self._text = trusted("", "turn-text") if whose == "theirs" else Text("div", "", "turn-text")
            with box("div", "turn-foot num") as self._foot:
                self._state = Text("span", "", "state")
                self._note = Text("span", "")
        self._foot.set_visibility(False)
        if whose == "theirs":
            set_attributes(self.root, {"data_state": "streaming"})

    def put(self, text: str) -> None:
        """Show `text` as the whole message: a person's as it is, a model's with the Markdown it is likely to hold."""
        if isinstance(self._text, ui.html):
            self._text.set_content(to_html(text))
        else:
            self._text.set_text(text)

    def show_picture(self, source: str) -> None:
        """Show the picture that goes with the message, above it."""
        with self.root:
            box("img", "turn-pic", src=source, alt="The picture you added").move(target_index=0)

    def cite(self, events: Sequence[Event], *, nothing_seen: bool) -> None:
        """Say which events the answer could draw on, each a link to its page."""
        if not events and not nothing_seen:
            return
        with self.root, box("div", "turn-foot turn-events num"):
            Text("span", "It was told of" if events else "The cameras have described nothing yet.")
            for event in events:
                words = f"{time_of_day(event.t_wall)} {event.camera}"
                where = {"href": f"event/{event.event_id}", "target": "_blank", "rel": "noopener"}
                Text("a", words, title=event.caption, **where)

    def end(self, how: str, *, tone: str = "idle", state: str = "", note: str = "") -> None:
        """The message ended: `state` says how when it is not as usual, `note` adds a detail."""
        set_attributes(self.root, {"data_state": how})
        set_attributes(self._state, {"data_tone": tone})
        self._state.set_text(state)
        self._state.set_visibility(bool(state))
        self._note.set_text(note)
        self._foot.set_visibility(bool(state or note))


def _pace(t_asked: float, t_first: float | None, t_end: float, num_pieces: int, finish_reason: str | None) -> str:
    if t_first is None:
        return "The answer was empty"
    words = [f"first word after {seconds(t_first - t_asked)}"]
    if num_pieces > 1 and t_end > t_first:
        words.append(f"{(num_pieces - 1) / (t_end - t_first):.0f} tokens/s")
    if finish_reason == "length":
        words.append("cut at its length limit")
    return " · ".join(words)


_TOOLS = """
<input type="file" id="add-picture" class="sr" accept="image/jpeg,image/png,image/webp,image/bmp,image/gif"
  aria-label="Add a picture">
<label for="add-picture" class="tool" title="Add a picture; pasting or dropping one works, too">
  <svg viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.4">
    <rect x="1.7" y="2.7" width="12.6" height="10.6" rx="2"/><circle cx="5.6" cy="6.3" r="1.2"/>
    <path d="m2 12 4-3.6 2.6 2.2L11 8l3.3 3"/></svg> Picture</label>
<span class="added" hidden><img alt="The picture to be sent"><button type="button"
  aria-label="Remove the picture">×</button></span>
<label class="tool"><input type="checkbox" id="recalls"> Use what the cameras saw</label>
<span class="ask-wrong" role="alert"></span>
"""

# The text travels with the event and the box empties in the browser at once; Enter sends, Shift+Enter breaks the line.
_SUBMIT = """(event) => {
  event.preventDefault();
  const form = event.target;
  if ("lost" in document.body.dataset || "busy" in form.dataset) return;
  const input = form.querySelector("textarea");
  emit({ text: input.value, picture: form.dataset.picture ?? "", recalls: form.querySelector("#recalls").checked });
  if (form.querySelector(".send").classList.contains("stop")) return;
  input.value = "";
  form.dispatchEvent(new Event("sent"));
}"""
_ENTER = """(event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!event.target.form.querySelector(".send").classList.contains("stop")) event.target.form.requestSubmit();
}"""

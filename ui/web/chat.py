"""The chat box: one conversation per browser, with the same engine that writes the captions."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial

import openai
from nicegui import background_tasks, ui
from nicegui.events import GenericEventArguments

from ui.conversation import Conversation
from ui.errors import broke_off, say
from ui.web.captions import seconds
from ui.web.elements import Text, box, set_attributes, trusted
from ui.web.rich_text import to_html

STARTERS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Why is the sky blue?",
)
PAINT_S = 0.06
"""Words are shown in bunches this far apart, so that a fast answer does not flood a slow browser."""


class ChatBox:
    """One browser's conversation and its controls. `is_own` says that the engine is restarted when it dies."""

    def __init__(self, conversation: Conversation, *, is_own: bool) -> None:
        self._conversation = conversation
        self._is_own = is_own
        self._answering: asyncio.Task[None] | None = None
        with box("section", "panel p-chat", aria_labelledby="chat-title"):
            with box("div", "panel-head"):
                with box("div"):
                    Text("h2", "Chat", id="chat-title")
                    Text("p", "Text only: it does not see the cameras.", "aside")
                self._clear = Text("button", "New conversation", "quiet", type="button")
                self._clear.on("click", self._start_over)
            self._talk = box("div", "talk", role="log", aria_label="Conversation", tabindex="0")
            self._show_void()
            with box("form", "ask") as form:
                Text("label", "Message", "sr", for_="chat-input")
                self._input = box("textarea", id="chat-input", rows="1", placeholder="Ask the engine anything …")
                self._button = Text("button", "Send", "send", type="submit")
            form.on("submit", self._submitted, js_handler=_SUBMIT)
            self._input.on("keydown", js_handler=_ENTER)
        ui.context.client.on_disconnect(self._stop)

    def _show_void(self) -> None:
        with self._talk, box("div", "void"):
            Text("b", "Talk to the engine")
            Text("span", "Answers stream from the engine that describes the pictures, while it describes them.")
            with box("div", "chips"):
                for question in STARTERS:
                    Text("button", question, "chip", type="button").on("click", partial(self._ask, question))

    def _submitted(self, event: GenericEventArguments) -> None:
        if self._answering is not None:
            self._stop()
        else:
            self._ask(str(event.args or "").strip())

    def _ask(self, text: str) -> None:
        if text and self._answering is None:
            if not any("turn" in child.classes for child in self._talk):
                self._talk.clear()
            with self._talk:
                Turn("mine").put(text)
                turn = Turn("theirs")
            self._answering = background_tasks.create(self._answer(text, turn))
            self._show_button()

    async def _answer(self, text: str, turn: Turn) -> None:
        try:
            await self._stream(text, turn)
        except asyncio.CancelledError:
            turn.end("stopped", state="Stopped")
        except (openai.OpenAIError, LookupError) as error:
            turn.end("failed", tone="bad", state="No answer", note=self._why(error))
        finally:
            self._answering = None
            self._show_button()

    async def _stream(self, text: str, turn: Turn) -> None:
        t_asked = t_painted = time.monotonic()
        t_first: float | None = None
        said, num_pieces = "", 0
        async with aclosing(self._conversation.ask(text)) as pieces:
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


# The text travels with the event and the box empties in the browser at once; Enter sends, Shift+Enter breaks the line.
_SUBMIT = """(event) => {
  event.preventDefault();
  if ("lost" in document.body.dataset) return;
  const input = event.target.querySelector("textarea");
  emit(input.value);
  if (!event.target.querySelector(".send").classList.contains("stop")) input.value = "";
}"""
_ENTER = """(event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!event.target.form.querySelector(".send").classList.contains("stop")) event.target.form.requestSubmit();
}"""

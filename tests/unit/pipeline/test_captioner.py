"""One try against a real server: what is sent, what is told, and what each failure is called."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from pipeline.captioner import CaptionError, OpenAICaptioner
from pipeline.config import PipelineConfig, RetryConfig
from pipeline.events import Reason
from tests.unit.pipeline.fakes import job
from tests.unit.pipeline.scripted_server import Hangup, Page, Refusal, ScriptedServer, Silence, Step, Words

JOB = job("e1", [1], Reason.NEW_TRACK)


@dataclass
class Told:
    """A `Progress` that remembers."""

    sent_at: list[float] = field(default_factory=list)
    text: str = ""

    def sent(self, t_sent: float) -> None:
        self.sent_at.append(t_sent)

    def words(self, text: str, t_token: float) -> None:
        self.text += text


@asynccontextmanager
async def asking(url: str, **settings: object) -> AsyncIterator[OpenAICaptioner]:
    captioner = OpenAICaptioner(PipelineConfig("none.pt", url, **settings))  # pyright: ignore[reportArgumentType]
    try:
        yield captioner
    finally:
        await captioner.close()


async def test_the_request_and_the_caption() -> None:
    async with ScriptedServer([Words(pause_s=0.02)]) as server, asking(server.url, max_caption_tokens=17) as captioner:
        told, started = Told(), time.monotonic()
        caption = await captioner.caption(JOB, told)
    [chat] = server.chats
    assert chat.headers["x-request-class"] == "background"
    assert set(chat.body) == {"model", "messages", "max_tokens", "temperature", "stream"}, "nothing others do not know"
    assert (chat.body["model"], chat.body["max_tokens"], chat.body["stream"]) == ("scripted-vlm", 17, True)
    assert [part["type"] for part in chat.body["messages"][0]["content"]] == ["image_url", "text"]
    assert (caption.text, caption.model) == ("A man stands.", "scripted-vlm")
    shown = JOB.selection.frame
    assert (caption.camera_id, caption.frame_seq, caption.t_captured) == (shown.camera_id, shown.seq, shown.t_mono)
    assert started <= caption.t_sent <= caption.t_first_token < caption.t_last_token <= time.monotonic()
    assert (told.text, told.sent_at) == ("A man stands.", [caption.t_sent])


async def test_control_characters_of_a_model_reach_nobody() -> None:
    words = ("\x1b", "[31mA man", "\x00\x07\r\n", "sits\x9b\x7f.\n")
    async with ScriptedServer([Words(words)], models=("m\x1bm",)) as server, asking(server.url) as captioner:
        told = Told()
        caption = await captioner.caption(JOB, told)
    assert caption.text == "[31mA man  sits."
    assert told.text.strip() == caption.text
    assert caption.model == "mm"
    assert server.chats[0].body["model"] == "m\x1bm"


async def test_a_given_model_is_not_looked_up_and_a_found_one_only_once() -> None:
    async with ScriptedServer(models=("first", "second")) as server:
        async with asking(server.url, model="mine") as captioner:
            assert (await captioner.caption(JOB, Told())).model == "mine"
        assert [asked.path for asked in server.asked] == ["/v1/chat/completions"]
        async with asking(server.url) as captioner:
            for _ in range(2):
                assert (await captioner.caption(JOB, Told())).model == "first"
    assert [asked.path for asked in server.asked[1:]].count("/v1/models") == 1


async def test_a_model_that_is_gone_is_looked_up_anew() -> None:
    async with ScriptedServer([Refusal(404, "model_not_found"), Words()]) as server, asking(server.url) as captioner:
        with pytest.raises(CaptionError, match="answered 404: model_not_found"):
            await captioner.caption(JOB, Told())
        server.models = ("another",)
        assert (await captioner.caption(JOB, Told())).model == "another"


async def test_the_environment_s_key_stays_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    async with ScriptedServer() as server:
        async with asking(server.url) as captioner:
            await captioner.caption(JOB, Told())
        async with asking(server.url, api_key="ours") as captioner:
            await captioner.caption(JOB, Told())
    assert "sk-of" not in str(server.asked)
    assert server.chats[-1].headers["authorization"] == "Bearer ours"


@pytest.mark.parametrize(
    ("step", "message", "retryable", "was_sent"),
    [
        (Refusal(400, "bad image"), "answered 400: bad image", False, True),
        (Refusal(401, "bad key"), "answered 401: bad key", False, True),
        (Refusal(404, "gone"), "answered 404: gone", False, True),
        (Refusal(408, "slow"), "answered 408: slow", True, True),
        (Refusal(409, "busy"), "answered 409: busy", True, True),
        (Refusal(429, "full"), "answered 429: full", True, True),
        (Refusal(500, "oops"), "answered 500: oops", True, True),
        (Refusal(503, "dead"), "answered 503: dead", True, True),
        (Hangup(), r"the engine at http://127.* broke off the connection", True, False),
        (Silence(), "did not answer in time", True, False),
        (Words(breaks=True), "broke off", True, True),
        (Words(words=("A ",), breaks=True), "broke off", True, True),
        (Words(ends_with={"message": "engine died", "code": None}), "engine died", True, True),
        (Words(ends_with={"message": "too long", "code": "400"}), "too long", False, True),
        (Words(words=()), "without words", False, True),
        (Words(words=(" ", "\n")), "without words", False, True),
        (Page(), "is a web page", False, True),
        (Refusal(307, headers=(("Location", "http://127.0.0.1:99999/"),)), "cannot be asked: .*port", True, False),
        (Refusal(400, "a\x1b[2Jb\x9b"), r"answered 400: a\[2Jb$", False, True),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_failures(step: Step, message: str, retryable: bool, was_sent: bool) -> None:
    quick = RetryConfig(deadline_s=0.4)
    async with ScriptedServer([step]) as server, asking(server.url, model="m", retry=quick) as captioner:
        told = Told()
        with pytest.raises(CaptionError, match=message) as caught:
            await captioner.caption(JOB, told)
    assert caught.value.retryable is retryable
    assert bool(told.sent_at) is was_sent
    assert len(server.chats) == 1, "the client does not try again by itself"
    assert "\n" not in str(caught.value)


async def test_the_server_s_wish_to_wait_is_passed_on() -> None:
    script: list[Step] = [
        Refusal(429, headers=(("Retry-After", "7"),)),
        Refusal(429, headers=(("Retry-After", "Wed, 21 Oct 2099 07:28:00 GMT"),)),
        Refusal(429),
    ]
    async with ScriptedServer(script) as server, asking(server.url, model="m") as captioner:
        wishes = []
        for _ in range(3):
            with pytest.raises(CaptionError) as caught:
                await captioner.caption(JOB, Told())
            wishes.append(caught.value.retry_after_s)
    assert wishes == [7.0, None, None]


async def test_nobody_listening_is_said_in_one_line_without_secrets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with asking(f"http://user:hunter2@127.0.0.1:{port}/v1") as captioner:
        with pytest.raises(
            CaptionError, match=rf"^no answer from the engine at http://.*127\.0\.0\.1:{port}/v1$"
        ) as caught:
            await captioner.caption(JOB, Told())
    assert caught.value.retryable
    assert "hunter2" not in str(caught.value)


async def test_an_echoed_picture_never_reaches_the_message() -> None:
    echo = "cannot read data:image/jpeg;base64," + "QUJD" * 5000 + " sorry\nsecond line"
    async with ScriptedServer([Refusal(400, echo)]) as server, asking(server.url, model="m") as captioner:
        with pytest.raises(CaptionError) as caught:
            await captioner.caption(JOB, Told())
    assert "QUJD" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_server_without_models_is_told_apart() -> None:
    async with ScriptedServer(models=()) as server, asking(server.url) as captioner:
        with pytest.raises(CaptionError, match="serves no model"):
            await captioner.caption(JOB, Told())


async def test_cancelling_ends_the_request() -> None:
    async with ScriptedServer([Silence()]) as server, asking(server.url, model="m") as captioner:
        trying = asyncio.create_task(captioner.caption(JOB, Told()))
        await server.was_asked.wait()
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
        await asyncio.wait_for(server.chats[0].dropped.wait(), 5)

"""One phase against a scripted server, without the command around it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.unit.bench.scripted_llm import ScriptedLLM
from ui.bench.client import Client
from ui.bench.endpoint import Endpoint
from ui.bench.frames import FrameSource, default_image
from ui.bench.lengths import Lengths
from ui.bench.phase import Measured, run_phase
from ui.bench.recorder import Kind, Outcome, Recording
from ui.bench.scenario import Fixed, Phase


def frames_for(seed: str) -> FrameSource:
    return FrameSource(default_image(), (32, 32), seed=seed, salt="s")


def endpoint(server: ScriptedLLM) -> Endpoint:
    return Endpoint(server.url, model="scripted", api_key=None, say=lambda line: None)


async def test_cancelling_cuts_every_request_and_leaves_no_task() -> None:
    phase = Phase("busy", chats=2, cameras=2, rate=50.0, duration_s=60.0)
    measured = Measured(phase, 1)
    with ScriptedLLM(gap_s=0.01) as server:
        async with endpoint(server) as asked:
            running = asyncio.create_task(run_phase(measured, Client(asked, "s"), frames_for, "0"))
            async with asyncio.timeout(20):
                while {rec.kind for rec in measured.recordings if rec.t_tokens} != set(Kind):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert asyncio.all_tasks() == {asyncio.current_task()}
    outcomes = {rec.outcome for rec in measured.recordings}
    assert outcomes <= {Outcome.CUT, Outcome.OK}
    assert Outcome.CUT in outcomes
    assert all(rec.prompt_tokens for rec in measured.recordings if rec.kind is not Kind.CAMERA)  # cut or not
    assert not measured.is_whole
    assert measured.t_begin is not None


async def test_the_last_captions_are_waited_for_and_chats_end_at_their_tokens() -> None:
    steady = Fixed(Lengths(40, 12))
    measured = Measured(Phase("camera", chats=2, cameras=1, tokens=30, chat_lengths=steady), 1)
    with ScriptedLLM(gap_s=0.002, encode_s=0.2) as server:
        async with endpoint(server) as asked:
            await run_phase(measured, Client(asked, "s"), frames_for, "0")
    assert measured.is_whole
    assert {rec.outcome for rec in measured.recordings} == {Outcome.OK}
    assert [measured.tokens_of(chat) for chat in range(2)] == [30, 30]
    lengths = [rec.num_tokens for rec in measured.recordings if rec.kind is Kind.CHAT and rec.stream == 0]
    assert lengths == [12, 12, 6]
    assert measured.progress(0.0) == 1.0
    camera = [rec for rec in measured.recordings if rec.kind is Kind.CAMERA]
    assert camera[-1].t_end is not None
    assert measured.t_end is not None
    assert camera[-1].t_end >= measured.t_end


async def test_token_times_are_those_of_the_server() -> None:
    """Lower bounds hold on any machine: nothing arrives before it was sent."""
    recording = Recording(Kind.CHAT, 0, 0.0)
    with ScriptedLLM(gap_s=0.02, ttft_s=0.1) as server:
        async with endpoint(server) as asked:
            await Client(asked, "s").talk(Lengths(40, 15), Random(0), recording)
    assert recording.ttft is not None
    assert recording.ttft >= 0.1
    assert len(recording.gaps) == 14
    assert sum(recording.gaps) >= 13 * 0.02  # only the first token may have come late
    assert recording.completion_tokens == 15

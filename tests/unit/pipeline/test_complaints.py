"""What users of such systems complain of, held against the whole pipeline; `tests/cameras/README.md` lists the rest."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from pipeline.captioner import OpenAICaptioner
from pipeline.config import RetryConfig
from pipeline.events import EventStatus
from tests.cameras.fixtures import free_port
from tests.unit.pipeline.fakes import PERSON, ListSource, RuleDetector, ScriptedCaptioner, frame
from tests.unit.pipeline.running import gate, running
from tests.unit.pipeline.scripted_server import ScriptedServer

OFTEN = gate(interval_s=0.3, cooldown_s=0.0, lost_s=0.6)


def paced(camera_id: str, num: int = 1000) -> ListSource:
    """A camera that stays for a while: 10 frames a second by its own clock, ten times as fast by ours."""
    return ListSource([frame(n, camera_id=camera_id) for n in range(num)], camera_id=camera_id, every_s=0.01)


async def test_a_provider_that_is_down_at_boot_is_asked_again_and_captions_begin_once_it_is_up() -> None:
    port = free_port()
    config = replace(OFTEN, base_url=f"http://127.0.0.1:{port}/v1", retry=RetryConfig(delays_s=(0.05,), deadline_s=5.0))
    detector = RuleDetector(lambda _: [PERSON])
    async with running([paced("a")], detector, OpenAICaptioner(config), realtime=True, config=config) as run:
        await run.until(lambda: any(event.status is EventStatus.FAILED for event in run.ended()))
        assert not any(event.caption for event in run.ended()), "what failed is a state, not words"
        async with ScriptedServer(port=port):
            await run.until(lambda: any(event.caption == "A man stands." for event in run.ended()))


async def test_no_frame_is_captioned_twice() -> None:
    captioner = ScriptedCaptioner()
    sources = [paced(name, 120) for name in ("a", "b")]
    async with running(sources, RuleDetector(lambda _: [PERSON]), captioner, realtime=True, config=OFTEN) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), 20)
    asked = Counter((job.selection.frame.camera_id, job.selection.frame.seq) for job in captioner.calls)
    assert len(asked) > 6
    assert set(asked.values()) == {1}

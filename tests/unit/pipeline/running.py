"""A pipeline around scripted parts, with everything its feed said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from camera_sources.base import Source
from pipeline.captioner import Captioner
from pipeline.config import CameraConfig, GateConfig, PipelineConfig, RetryConfig
from pipeline.detector import Detector
from pipeline.events import Event
from pipeline.feed import CaptionQueued, EventEnded, Feed, FeedItem, Subscription
from pipeline.worker import Pipeline

CONFIG = PipelineConfig("none.pt", "http://127.0.0.1:9/v1", retry=RetryConfig(delays_s=()))


@dataclass
class Run:
    """A pipeline and what its feed said so far."""

    pipeline: Pipeline
    news: list[FeedItem] = field(default_factory=list)

    def ended(self) -> list[Event]:
        """Events that ended, in order."""
        return [item.event for item in self.news if isinstance(item, EventEnded)]

    def queued(self) -> list[str]:
        """Ids of events that were queued, in order."""
        return [item.selection.event_id for item in self.news if isinstance(item, CaptionQueued)]

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Look until `condition` holds."""
        for _ in range(int(timeout_s / 0.005)):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"not within {timeout_s} s; the feed said {self.news[-20:]}")

    async def follow(self, subscription: Subscription) -> None:
        """Collect the news."""
        async for item in subscription:
            self.news.append(item)


def assemble(
    sources: Sequence[Source],
    detector: Detector,
    captioner: Captioner,
    *,
    realtime: bool = False,
    config: PipelineConfig = CONFIG,
    feed: Feed | None = None,
) -> Pipeline:
    """A pipeline over scripted parts, not started."""
    by_id = {source.camera_id: source for source in sources}
    return Pipeline(
        config,
        [CameraConfig(camera_id, "scripted", realtime=realtime) for camera_id in by_id],
        store=None,
        feed=feed or Feed(),
        detector=detector,
        captioner=captioner,
        open=lambda camera: by_id[camera.camera_id],
    )


@asynccontextmanager
async def running(
    sources: Sequence[Source],
    detector: Detector,
    captioner: Captioner,
    *,
    realtime: bool = False,
    config: PipelineConfig = CONFIG,
) -> AsyncIterator[Run]:
    """Start the pipeline; at the end it is stopped, and `Run.news` is complete."""
    async with following(
        lambda feed: assemble(sources, detector, captioner, realtime=realtime, config=config, feed=feed)
    ) as run:
        yield run


@asynccontextmanager
async def following(assembled: Callable[[Feed], Pipeline]) -> AsyncIterator[Run]:
    """Start the pipeline that `assembled` makes for a feed; at the end it is stopped, and `Run.news` is complete."""
    feed = Feed()
    run = Run(assembled(feed))
    with feed.subscribe(100_000) as subscription:
        listening = asyncio.create_task(run.follow(subscription))
        try:
            await run.pipeline.start()
            yield run
        finally:
            await run.pipeline.stop()
            subscription.close()
            await listening


def gate(**settings: float) -> PipelineConfig:
    """`CONFIG` with another gate."""
    return PipelineConfig(
        CONFIG.detector,
        CONFIG.base_url,
        retry=CONFIG.retry,
        gate=GateConfig(**settings),  # pyright: ignore[reportArgumentType]
    )

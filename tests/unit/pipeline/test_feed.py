"""The feed: nobody waits for a slow listener, and a slow listener loses its own oldest news only."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pipeline.feed import CaptionDelta, Feed, FeedItem, FrameSeen, Subscription


def words(number: int) -> CaptionDelta:
    return CaptionDelta("event", str(number), 0.0)


def picture(camera_id: str, seq: int) -> FrameSeen:
    return FrameSeen(camera_id, seq, 4, 3, b"", (), 0.0)


async def rest(subscription: Subscription) -> list[FeedItem]:
    subscription.close()
    return [item async for item in subscription]


async def test_everything_arrives_in_order() -> None:
    feed = Feed()
    with feed.subscribe() as subscription:
        for number in range(10):
            feed.publish(words(number))
        assert await rest(subscription) == [words(n) for n in range(10)]
    assert subscription.num_dropped == 0


async def test_the_oldest_is_dropped_and_counted_for_the_slow_one_only() -> None:
    feed = Feed()
    slow, fast = feed.subscribe(3), feed.subscribe(100)
    for number in range(10):
        feed.publish(words(number))
    assert (slow.num_dropped, fast.num_dropped) == (7, 0)
    assert await rest(slow) == [words(7), words(8), words(9)]
    assert len(await rest(fast)) == 10


async def test_only_the_newest_picture_of_a_camera_waits() -> None:
    feed = Feed()
    subscription = feed.subscribe(4)
    feed.publish(words(0))
    for seq in range(50):
        feed.publish(picture("a", seq))
        feed.publish(picture("b", seq))
    assert subscription.num_dropped == 0
    assert await rest(subscription) == [words(0), picture("a", 49), picture("b", 49)]


async def test_other_threads_wake_a_waiting_listener() -> None:
    feed = Feed()
    subscription = feed.subscribe()
    waiting = asyncio.create_task(anext(subscription))
    await asyncio.sleep(0.02)
    thread = threading.Thread(target=lambda: feed.publish(words(1)))
    thread.start()
    assert await asyncio.wait_for(waiting, 2) == words(1)
    thread.join()


async def test_many_threads_lose_nothing() -> None:
    feed = Feed()
    subscription = feed.subscribe(4000)
    threads = [
        threading.Thread(target=lambda k=k: [feed.publish(words(k * 1000 + n)) for n in range(1000)]) for k in range(4)
    ]
    for thread in threads:
        thread.start()
    got = {await asyncio.wait_for(anext(subscription), 5) for _ in range(4000)}
    assert got == {words(n) for n in range(4000)}


async def test_closing_ends_the_iteration_and_the_delivery() -> None:
    feed = Feed()
    subscription = feed.subscribe()
    waiting = asyncio.create_task(anext(subscription))
    await asyncio.sleep(0.02)
    subscription.close()
    subscription.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 2)
    feed.publish(words(1))
    assert not feed.has_subscribers
    assert await rest(subscription) == []


async def test_a_subscription_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Feed().subscribe(0)

"""The pipeline put together: real threads, tracker, gate, queue and ledger; scripted frames, persons and captions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camera_sources.base import SourceError, SourceState, SourceStatus
from camera_sources.frame import Frame
from camera_sources.images import ImagesSource
from pipeline.captioner import CaptionError
from pipeline.config import CameraConfig
from pipeline.events import Box, EventStatus, Reason
from pipeline.feed import CameraChanged, CaptionDelta, CaptionQueued, EventEnded, Feed, FrameSeen
from pipeline.worker import Pipeline, PipelineError
from tests.unit.pipeline.fakes import PERSON, ListSource, RuleDetector, ScriptedCaptioner, frame
from tests.unit.pipeline.running import CONFIG, assemble, gate, running

OK, FAILED, CANCELLED, SUPERSEDED = EventStatus.OK, EventStatus.FAILED, EventStatus.CANCELLED, EventStatus.SUPERSEDED
FAST_GATE = gate(interval_s=0.3, cooldown_s=0.0, lost_s=0.6)
SOON = 20.0  # seconds within which any scripted run is over


def frames(until_s: float, *, fps: int = 10, camera_id: str = "cam", size: tuple[int, int] = (320, 240)) -> list[Frame]:
    return [frame(n, pts_s=n / fps, camera_id=camera_id, size=size) for n in range(round(until_s * fps))]


def somebody(_: Frame) -> Sequence[Box]:
    return (PERSON,)


def threads_of_ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "perception" or t.name.startswith("read-")]


async def test_a_file_read_unpaced_gives_every_event_in_order() -> None:
    captioner = ScriptedCaptioner("Somebody stands.")
    detector = RuleDetector(lambda f: [PERSON] if 2 <= f.pts_s < 25 or f.pts_s >= 30 else [])
    async with running([ListSource(frames(33))], detector, captioner) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    events = run.ended()
    assert [(round(e.pts_s, 1), e.reason, e.status) for e in events] == [
        (2.2, Reason.NEW_TRACK, OK),
        (12.2, Reason.INTERVAL, OK),
        (22.2, Reason.INTERVAL, OK),
        (30.2, Reason.NEW_TRACK, OK),
    ]
    assert {e.caption for e in events} == {"Somebody stands."}
    assert all(len(e.track_ids) == len(e.boxes) == 1 for e in events)
    assert all(e.frame_seq == round(e.pts_s * 10) for e in events)
    for e in events:
        times = (e.t_captured, e.t_selected, e.t_sent, e.t_first_token, e.t_last_token)
        assert None not in times
        assert list(times) == sorted(times), "one clock"  # pyright: ignore[reportArgumentType]
    assert sum(len(batch) for batch in detector.batches) == 165, "5 a second of PTS, none dropped"


async def test_unpaced_the_reader_waits_for_the_caption() -> None:
    captioner, source = ScriptedCaptioner(wait=True), ListSource(frames(30))
    async with running([source], RuleDetector(somebody), captioner) as run:
        await run.until(lambda: captioner.calls)
        await asyncio.sleep(0.3)
        assert source.num_read == 3, "frames 0 and 0.2 s began the track; nothing was read beyond"
        captioner.go.set()
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    assert Counter(e.status for e in run.ended()) == {OK: 3}


async def test_words_stream_through_the_feed_before_the_end() -> None:
    async with running([ListSource(frames(1))], RuleDetector(somebody), ScriptedCaptioner("Two words")) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    told = [i for i in run.news if isinstance(i, CaptionQueued | CaptionDelta | EventEnded)]
    assert [type(item) for item in told] == [CaptionQueued, CaptionDelta, CaptionDelta, EventEnded]
    assert "".join(i.text for i in told if isinstance(i, CaptionDelta)).strip() == "Two words"


async def test_one_request_in_flight_per_camera_and_cameras_side_by_side() -> None:
    captioner = ScriptedCaptioner(wait=True)
    sources = [ListSource(frames(9, camera_id=name), camera_id=name, every_s=0.005) for name in ("a", "b")]
    async with running(sources, RuleDetector(somebody), captioner, realtime=True, config=FAST_GATE) as run:
        await run.until(lambda: len(captioner.calls) == 2)
        await run.until(lambda: all(s.status().state is SourceState.ENDED for s in sources))
        assert captioner.most_running == 2
        assert {job.selection.frame.camera_id for job in captioner.calls} == {"a", "b"}
        captioner.go.set()
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)


async def test_a_newer_picture_supersedes_the_waiting_follow_up_but_never_the_first() -> None:
    captioner = ScriptedCaptioner(wait=True)
    source = ListSource(frames(6), every_s=0.005)
    async with running([source], RuleDetector(somebody), captioner, realtime=True, config=FAST_GATE) as run:
        await run.until(lambda: sum(e.status is SUPERSEDED for e in run.ended()) >= 3)
        captioner.go.set()
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    events = run.ended()
    assert all(e.reason is Reason.INTERVAL for e in events if e.status is SUPERSEDED)
    captioned = [e for e in events if e.status is OK]
    assert captioned[0].reason is Reason.NEW_TRACK
    newest_superseded = max(e.frame_seq for e in events if e.status is SUPERSEDED)
    assert max(e.frame_seq for e in captioned) > newest_superseded, "the newest picture was the one described"
    assert all(e.caption is None and e.t_sent is None for e in events if e.status is SUPERSEDED)


async def test_a_waiting_follow_up_is_cancelled_when_its_track_ends_and_the_first_is_not() -> None:
    captioner = ScriptedCaptioner(wait=True)
    detector = RuleDetector(lambda f: [PERSON] if f.pts_s < 2 else [])
    async with running(
        [ListSource(frames(6), every_s=0.005)], detector, captioner, realtime=True, config=FAST_GATE
    ) as run:
        await run.until(lambda: any(e.status is CANCELLED for e in run.ended()))
        captioner.go.set()
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    events = run.ended()
    assert [e.reason for e in events if e.status is CANCELLED] == [Reason.INTERVAL]
    assert [e.reason for e in events if e.status is OK] == [Reason.NEW_TRACK]


async def test_a_paced_camera_drops_what_the_detector_cannot_take_and_counts_it() -> None:
    def slow(f: Frame) -> Sequence[Box]:
        time.sleep(0.05)
        return ()

    source = ListSource(frames(20), every_s=0.005)
    async with running([source], RuleDetector(slow), ScriptedCaptioner(), realtime=True) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
        [camera] = run.pipeline.status().cameras
    assert camera.num_unseen > 10
    assert camera.num_unseen + camera.num_detected == 100, "5 of 10 frames a second were due, 20 s long"


async def test_a_costly_detector_is_asked_less_often() -> None:
    def costly(f: Frame) -> Sequence[Box]:
        started = time.thread_time()
        while time.thread_time() - started < 0.1:
            pass
        return ()

    source = ListSource(frames(40), every_s=0.005)
    async with running([source], RuleDetector(costly), ScriptedCaptioner(), realtime=True) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
        [camera] = run.pipeline.status().cameras
    assert camera.num_detected + camera.num_unseen < 190, "5 a second would have been 200; 0.1 s each affords 4"


async def test_a_backend_that_refuses_fails_events_and_nothing_else() -> None:
    captioner = ScriptedCaptioner(CaptionError("http://x answered 404: no such model", retryable=False))
    async with running([ListSource(frames(25))], RuleDetector(somebody), captioner) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    assert [(e.status, e.caption, e.error) for e in run.ended()] == [
        (FAILED, None, "http://x answered 404: no such model")
    ] * 3


async def test_a_captioner_with_a_defect_fails_its_event_and_goes_on() -> None:
    class Defective(ScriptedCaptioner):
        async def _answer(self, job: object, progress: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise KeyError("defect\nwith a second line")

    async with running([ListSource(frames(15))], RuleDetector(somebody), Defective()) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    assert [e.status for e in run.ended()] == [FAILED, FAILED]
    assert all(e.error and "internal error" in e.error and "\n" not in e.error for e in run.ended())


async def test_stop_cancels_what_is_under_way_and_is_quick() -> None:
    captioner = ScriptedCaptioner(wait=True)
    source = ListSource(frames(600), is_live=False, every_s=0.005)
    async with running([source], RuleDetector(somebody), captioner, realtime=True, config=FAST_GATE) as run:
        await run.until(lambda: len(run.queued()) >= 2)
        started = time.monotonic()
        await run.pipeline.stop()
        await run.pipeline.stop()
        assert time.monotonic() - started < 4
        await asyncio.wait_for(run.pipeline.wait_ended(), 1)
    assert sorted(run.queued()) == sorted(e.event_id for e in run.ended())
    assert {e.status for e in run.ended()} <= {CANCELLED, SUPERSEDED}
    assert CANCELLED in {e.status for e in run.ended()}
    assert captioner.closed
    assert captioner.num_running == 0
    assert threads_of_ours() == []


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["Words here.", "fail"]), min_size=1, max_size=5),
    waits=st.booleans(),
    stop_after_s=st.floats(0, 0.4),
    realtime=st.booleans(),
    presence=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_every_event_ends_exactly_once_whenever_it_stops(
    steps: list[str], waits: bool, stop_after_s: float, realtime: bool, presence: list[bool]
) -> None:
    script = [CaptionError("no", retryable=False) if step == "fail" else step for step in steps]
    detector = RuleDetector(lambda f: [PERSON] if presence[int(f.pts_s) % 20] else [])

    async def main() -> None:
        captioner = ScriptedCaptioner(*script, wait=waits)
        async with running(
            [ListSource(frames(60), every_s=0.001)], detector, captioner, realtime=realtime, config=FAST_GATE
        ) as run:
            await asyncio.sleep(stop_after_s)
        assert sorted(run.queued()) == sorted(e.event_id for e in run.ended())
        assert all((e.caption is not None) == (e.status is OK) for e in run.ended())

    asyncio.run(main())
    assert threads_of_ours() == []


async def test_a_detector_that_breaks_is_told_and_leaves_nothing_open() -> None:
    def breaks(f: Frame) -> Sequence[Box]:
        if f.pts_s > 5:
            raise RuntimeError("out of memory")
        return (PERSON,)

    captioner = ScriptedCaptioner(wait=True)
    source = ListSource(frames(60), every_s=0.002)
    async with running([source], RuleDetector(breaks), captioner, realtime=True, config=FAST_GATE) as run:
        with pytest.raises(PipelineError, match=r"the detector broke: .*out of memory"):
            await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    assert sorted(run.queued()) == sorted(e.event_id for e in run.ended())


async def test_a_source_that_breaks_ends_its_camera_and_no_other() -> None:
    class Breaking(ListSource):
        def read(self, timeout_s: float) -> Frame | None:
            if self.num_read == 5:
                raise OSError("unplugged")
            return super().read(timeout_s)

    sources = [
        Breaking(frames(9, camera_id="bad"), camera_id="bad"),
        ListSource(frames(9, camera_id="ok"), camera_id="ok"),
    ]
    async with running(sources, RuleDetector(somebody), ScriptedCaptioner()) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
        states = {camera.camera_id: camera.source.state for camera in run.pipeline.status().cameras}
    assert "ok" in {e.camera for e in run.ended()}
    assert states["bad"] is SourceState.ENDED


async def test_a_source_that_cannot_start_leaves_nothing_running() -> None:
    class Missing(ListSource):
        def start(self) -> None:
            raise SourceError("/nowhere.mp4: no such file")

    good = ListSource(frames(9, camera_id="good"), camera_id="good")
    pipeline = assemble([good, Missing([], camera_id="bad")], RuleDetector(somebody), ScriptedCaptioner())
    with pytest.raises(SourceError, match="no such file"):
        await pipeline.start()
    assert threads_of_ours() == []
    assert good.status().state is SourceState.ENDED
    await pipeline.stop()


def test_two_cameras_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="ids must differ: door, door"):
        Pipeline(CONFIG, [CameraConfig("door", "a.mp4"), CameraConfig("door", "b.mp4")], store=None, feed=Feed())


async def test_every_photograph_of_a_folder_with_people_is_told(tmp_path: Path) -> None:
    for number in range(6):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((240, 320, 3), 40 * number, dtype=np.uint8))
    detector = RuleDetector(lambda f: [PERSON] if f.image[0, 0, 0] in (0, 40, 120, 200) else [])
    source = ImagesSource(tmp_path, camera_id="cam", realtime=False)
    async with running([source], detector, ScriptedCaptioner()) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    assert [(round(e.pts_s), e.reason, e.status) for e in run.ended()] == [
        (n, Reason.NEW_TRACK, OK) for n in (0, 1, 3, 5)
    ]


async def test_a_state_that_cannot_be_read_breaks_the_pipeline_aloud() -> None:
    class Broken(ListSource):
        def status(self) -> SourceStatus:
            raise OSError("no status")

    async with running([Broken(frames(1))], RuleDetector(somebody), ScriptedCaptioner(wait=True)) as run:
        with pytest.raises(PipelineError, match="watch broke"):
            await asyncio.wait_for(run.pipeline.wait_ended(), SOON)


async def test_frames_that_wait_at_the_same_time_share_a_batch() -> None:
    def slow(f: Frame) -> Sequence[Box]:
        time.sleep(0.01)
        return ()

    detector, names = RuleDetector(slow), ("a", "b", "c")
    sources = [ListSource(frames(8, camera_id=name), camera_id=name) for name in names]
    async with running(sources, detector, ScriptedCaptioner()) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    assert Counter(name for batch in detector.batches for name in batch) == dict.fromkeys(names, 40)
    assert sum(len(batch) > 1 for batch in detector.batches) > 10
    assert all(len(set(batch)) == len(batch) for batch in detector.batches)


async def test_previews_are_small_and_few_and_states_are_reported() -> None:
    size = (1920, 1080)
    ten_a_second = [replace(f, t_mono=1000 + n / 10) for n, f in enumerate(frames(4, size=size))]
    source = ListSource(ten_a_second, every_s=0.02)
    async with running(
        [source], RuleDetector(somebody), ScriptedCaptioner(), realtime=True, config=replace(CONFIG, detector_fps=10.0)
    ) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), SOON)
    pictures = [item for item in run.news if isinstance(item, FrameSeen)]
    times = [picture.t_captured for picture in pictures]
    assert len(pictures) >= 3
    assert min(np.diff(times)) > 0.19, "at most 5 a second"
    decoded = cv2.imdecode(np.frombuffer(pictures[-1].jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    assert decoded.shape == (360, 640, 3)
    assert (pictures[-1].width, pictures[-1].height) == size
    assert [track.box for track in pictures[-1].tracks] == [PERSON]
    states = [item.status.state for item in run.news if isinstance(item, CameraChanged)]
    assert states[0] is SourceState.LIVE
    assert states[-1] is SourceState.ENDED
    assert max(item.detector_fps for item in run.news if isinstance(item, CameraChanged)) > 0

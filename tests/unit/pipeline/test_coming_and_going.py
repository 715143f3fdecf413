"""Cameras added, changed and removed in a running pipeline: the others run on, and every event ends exactly once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from camera_sources.base import Source, SourceError, SourceState
from camera_sources.frame import Frame
from pipeline.config import CameraConfig, GateConfig, Zone
from pipeline.events import Box, EventStatus
from pipeline.feed import CameraChanged, CameraRemoved, Feed, FrameSeen
from pipeline.worker import Pipeline, PipelineError
from tests.unit.pipeline.fakes import PERSON, ListSource, RuleDetector, ScriptedCaptioner, frame
from tests.unit.pipeline.running import CONFIG, Run, following, gate

MANY = 3000  # frames: more than any test here reads


def endless(camera_id: str) -> ListSource:
    frames = [frame(n, camera_id=camera_id) for n in range(MANY)]
    return ListSource(frames, camera_id=camera_id, is_live=False, every_s=0.005)


def opened(config: CameraConfig) -> Source:
    if config.source == "missing":
        raise SourceError("missing: no such file")
    return endless(config.camera_id)


def pipeline_of(captioner: ScriptedCaptioner, feed: Feed, *names: str) -> Pipeline:
    return Pipeline(
        gate(interval_s=0.3, cooldown_s=0.0, lost_s=0.6),
        [CameraConfig(name, "scripted") for name in names],
        store=None,
        feed=feed,
        detector=RuleDetector(lambda _: [PERSON]),
        captioner=captioner,
        open=opened,
    )


def num_events(run: Run, camera: str) -> int:
    return sum(event.camera == camera for event in run.ended())


async def test_a_camera_comes_and_goes_while_another_runs() -> None:
    captioner = ScriptedCaptioner()
    async with following(lambda feed: pipeline_of(captioner, feed, "a")) as run:
        await run.until(lambda: num_events(run, "a") >= 1)
        await run.pipeline.add(CameraConfig("b", "scripted"))
        await run.until(lambda: num_events(run, "b") >= 2)
        with pytest.raises(ValueError, match="a camera is named b already"):
            await run.pipeline.add(CameraConfig("b", "scripted"))
        with pytest.raises(SourceError):
            await run.pipeline.add(CameraConfig("c", "missing"))
        await run.pipeline.remove("b")
        assert [camera.camera_id for camera in run.pipeline.status().cameras] == ["a"]
        await run.until(lambda: any(isinstance(item, CameraRemoved) for item in run.news))
        num_b, num_a = num_events(run, "b"), num_events(run, "a")
        await run.until(lambda: num_events(run, "a") >= num_a + 2)
        assert num_events(run, "b") == num_b
        assert [item.camera_id for item in run.news if isinstance(item, CameraRemoved)] == ["b"]
        with pytest.raises(KeyError):
            await run.pipeline.remove("b")
        at = next(i for i, item in enumerate(run.news) if isinstance(item, CameraRemoved))
        late = [item for item in run.news[at:] if isinstance(item, CameraChanged | FrameSeen)]
        assert {item.camera_id for item in late} <= {"a"}
    assert sorted(run.queued()) == sorted(event.event_id for event in run.ended())


async def test_what_is_under_way_of_a_removed_camera_is_cancelled_and_kept() -> None:
    captioner = ScriptedCaptioner(wait=True)
    async with following(lambda feed: pipeline_of(captioner, feed, "a", "b")) as run:
        await run.until(lambda: len(captioner.calls) == 2)
        await run.pipeline.remove("a")
        await run.until(lambda: any(isinstance(item, CameraRemoved) for item in run.news))
        ended = [event for event in run.ended() if event.camera == "a"]
        assert ended
        assert {event.status for event in ended} <= {EventStatus.CANCELLED, EventStatus.SUPERSEDED}
        assert captioner.num_running == 1, "b's goes on"
        captioner.go.set()
        await run.until(lambda: any(e.camera == "b" and e.status is EventStatus.OK for e in run.ended()))
    assert sorted(run.queued()) == sorted(event.event_id for event in run.ended())


async def test_a_camera_is_changed_in_its_place_or_stays_as_it_was() -> None:
    zone = Zone("lawn", ((0, 0), (1, 0), (1, 1), (0, 1)))
    captioner = ScriptedCaptioner()
    async with following(lambda feed: pipeline_of(captioner, feed, "a", "b", "c")) as run:
        await run.pipeline.replace("b", CameraConfig("b", "scripted", zones=(zone,)))
        await run.until(lambda: any(event.zone == "lawn" for event in run.ended()))
        with pytest.raises(SourceError):
            await run.pipeline.replace("b", CameraConfig("b", "missing"))
        num_b = num_events(run, "b")
        await run.until(lambda: num_events(run, "b") > num_b)
        await run.pipeline.replace("b", CameraConfig("b2", "scripted"))
        assert [camera.camera_id for camera in run.pipeline.status().cameras] == ["a", "b2", "c"]
        with pytest.raises(ValueError, match="named a already"):
            await run.pipeline.replace("b2", CameraConfig("a", "scripted"))
        await run.until(lambda: num_events(run, "b2") >= 1)
    assert [item.camera_id for item in run.news if isinstance(item, CameraRemoved)] == ["b"]
    assert sorted(run.queued()) == sorted(event.event_id for event in run.ended())


async def test_zones_prompt_and_pace_change_without_a_gap_in_the_picture_and_with_the_same_tracks() -> None:
    lawn = Zone("lawn", ((0, 0), (1, 0), (1, 1), (0, 1)))
    before = CameraConfig("a", "scripted", prompt="Before.")
    after = replace(before, zones=(lawn,), prompt="After.", min_height=0.1, detector_fps=9.0, transport="tcp")
    captioner, sources = ScriptedCaptioner(), list[ListSource]()

    def open_one(config: CameraConfig) -> Source:
        sources.append(endless(config.camera_id))
        return sources[-1]

    async with following(
        lambda feed: Pipeline(
            gate(interval_s=0.3, cooldown_s=0.0, lost_s=0.6),
            [before],
            store=None,
            feed=feed,
            detector=RuleDetector(lambda _: [PERSON]),
            captioner=captioner,
            open=open_one,
        )
    ) as run:
        await run.until(lambda: num_events(run, "a") >= 2)
        await run.pipeline.replace("a", after)
        await run.until(lambda: any(event.zone == "lawn" for event in run.ended()))
        await run.until(lambda: captioner.calls[-1].prompt == "After.")
        assert len({track_id for event in run.ended() for track_id in event.track_ids}) == 1
        assert (len(sources), sources[0].status().state) == (1, SourceState.LIVE)
        await run.pipeline.replace("a", replace(after, transport="udp"))
        assert (len(sources) > 1, sources[0].status().state) == (True, SourceState.ENDED)
    assert sorted(run.queued()) == sorted(event.event_id for event in run.ended())


NOWHERE = Zone("nowhere", ((0.9, 0), (1, 0), (1, 0.1)))
STRICTER = GateConfig(interval_s=0.3, cooldown_s=0.0, min_confidence=0.95)


@pytest.mark.parametrize(
    "change", [CameraConfig("a", "scripted", zones=(NOWHERE,)), CameraConfig("a", "scripted", gate=STRICTER)]
)
async def test_a_zone_or_a_confidence_that_shuts_everybody_out_does_so_at_once(change: CameraConfig) -> None:
    async with following(lambda feed: pipeline_of(ScriptedCaptioner(), feed, "a", "b")) as run:
        await run.until(lambda: num_events(run, "a") >= 1)
        await run.pipeline.replace("a", change)
        num_b = num_events(run, "b")
        await run.until(lambda: num_events(run, "b") >= num_b + 2)
        shut_out = num_events(run, "a")
        await run.until(lambda: num_events(run, "b") >= num_b + 5)
        assert num_events(run, "a") == shut_out


async def test_a_camera_that_cannot_start_yet_keeps_no_other_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.patient.TRY_AGAIN_S", 0.1)
    is_there = False

    def open_later(config: CameraConfig) -> Source:
        if config.camera_id == "webcam" and not is_there:
            raise SourceError("webcam 0: there is no /dev/video0")
        return endless(config.camera_id)

    async with following(
        lambda feed: Pipeline(
            CONFIG,
            [CameraConfig("webcam", "0"), CameraConfig("a", "scripted")],
            store=None,
            feed=feed,
            detector=RuleDetector(lambda _: [PERSON]),
            captioner=ScriptedCaptioner(),
            open=open_later,
            patient=True,
        )
    ) as run:
        await run.until(lambda: num_events(run, "a") >= 1)
        webcam = run.pipeline.status().cameras[0]
        assert (webcam.source.state, webcam.source.reason) == (
            SourceState.DOWN,
            "webcam 0: there is no /dev/video0",
        )
        is_there = True
        await run.until(lambda: num_events(run, "webcam") >= 1)
        assert run.pipeline.status().cameras[0].source.state is SourceState.LIVE


async def test_a_detector_that_breaks_after_all_ended_and_another_came_is_noticed() -> None:
    def rule(f: Frame) -> list[Box]:
        if f.camera_id == "late":
            raise RuntimeError("out of memory")
        return []

    sources = {"short": ListSource([frame(0, camera_id="short")], camera_id="short"), "late": endless("late")}
    async with following(
        lambda feed: Pipeline(
            CONFIG,
            [CameraConfig("short", "scripted")],
            store=None,
            feed=feed,
            detector=RuleDetector(rule),
            captioner=ScriptedCaptioner(),
            open=lambda config: sources[config.camera_id],
        )
    ) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), 20)
        await run.pipeline.add(CameraConfig("late", "scripted"))
        with pytest.raises(PipelineError, match="out of memory"):
            await asyncio.wait_for(run.pipeline.wait_broken(), 20)


async def test_who_comes_and_goes_while_the_backend_is_busy_is_told_of_all_the_same() -> None:
    """2 is there for a second only, within 1's cooldown; the clip ends before that is over."""
    other = Box(220, 60, 300, 220, 0.9)
    detector = RuleDetector(lambda f: [PERSON, other] if 1 <= f.pts_s < 2 else [PERSON])
    source = ListSource([frame(n) for n in range(40)])
    async with following(
        lambda feed: Pipeline(
            CONFIG,
            [CameraConfig("cam", "scripted", realtime=False)],
            store=None,
            feed=feed,
            detector=detector,
            captioner=ScriptedCaptioner(),
            open=lambda _: source,
        )
    ) as run:
        await asyncio.wait_for(run.pipeline.wait_ended(), 20)
    first, second = run.ended()
    assert (first.pts_s, len(first.track_ids)) == (0.2, 1)
    assert second.pts_s == pytest.approx(1.8)
    assert len(second.track_ids) == 2
    assert second.count_mismatch, "the scripted caption speaks of somebody, and two were in view"

"""Many cameras on this machine: `python -m tests.bench.cameras [--cameras 8] [--seconds 60] [--size 1920x1080]`.

GStreamer's RTSP server plays a clip with people, scaled and cut to `--fps`, to every camera; the real capture
processes, detector, trackers and gates look at it, and captions are answered at once by nobody. Prints each camera's
frame age at the gate (seconds between decoding and judging) and the detector's rate, and every minute the memory of app
and capture processes, so that a long run shows whether it stays flat.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from camera_sources.base import SourceState
from pipeline.config import CameraConfig, PipelineConfig
from pipeline.events import Caption, CaptionJob
from pipeline.feed import Feed, FrameSeen
from pipeline.worker import Pipeline
from tests.cameras.fixtures import RtspServer

CLIP = "one-by-one-person-detection.mp4"
MB = 1e6


class NoWords:
    """A captioner that answers at once, so that only the camera side is measured."""

    async def caption(self, job: CaptionJob, progress: object) -> Caption:
        frame, now = job.selection.frame, time.monotonic()
        return Caption(frame.camera_id, frame.seq, frame.t_mono, "Somebody.", "none", now, now, now)

    async def close(self) -> None:
        pass


def make_clip(data: Path, out: Path, size: str, fps: int) -> None:
    """The clip as a camera of that size and rate would send it: no B-frames, a key frame every two seconds."""
    scale = f"scale={size.replace('x', ':')}"
    encode = ["-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency", "-g", str(2 * fps), "-an"]
    encode += ["-threads", "1"]  # else each frame has several slices, which GStreamer's payloader tears apart
    command = ["ffmpeg", "-loglevel", "error", "-i", data / "videos" / CLIP, "-t", "40", "-vf", scale, "-r", str(fps)]
    subprocess.run([*command, *encode, out], check=True)


def memory_mb() -> tuple[float, float]:
    """Own memory of this process, and of its capture processes together: no libraries, no shared pictures."""
    me = psutil.Process()
    captures = [child for child in me.children() if "camera_sources.capture_child" in child.cmdline()]
    own_mb = [(info.rss - info.shared) / MB for info in (process.memory_info() for process in (me, *captures))]
    return own_mb[0], sum(own_mb[1:])


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def measure(options: argparse.Namespace, url: str) -> None:
    cameras = [CameraConfig(f"camera {number}", url) for number in range(options.cameras)]
    config = PipelineConfig(detector=str(options.detector), base_url="http://127.0.0.1:9/v1")
    feed, ages = Feed(), defaultdict[str, list[float]](list)
    pipeline = Pipeline(config, cameras, store=None, feed=feed, captioner=NoWords())

    async def listen() -> None:
        async for item in news:
            if isinstance(item, FrameSeen):
                ages[item.camera_id].append(time.monotonic() - item.t_captured)

    with feed.subscribe(4096) as news:
        listening = asyncio.create_task(listen())
        await pipeline.start()
        await asyncio.sleep(options.warm_up)
        for readings in ages.values():
            readings.clear()
        first = memory_mb()
        began, cpu = time.monotonic(), os.times()
        print(f"{'minute':>6} {'app MB':>8} {'captures MB':>12} {'load':>6}")
        while (passed := time.monotonic() - began) < options.seconds:
            app, captures = memory_mb()
            print(f"{passed / 60:6.1f} {app:8.0f} {captures:12.0f} {os.getloadavg()[0]:6.1f}", flush=True)
            await asyncio.sleep(min(60.0, options.seconds - passed))
        last, used = memory_mb(), os.times()
        print(f"\n{'camera':<10} {'state':<10} {'detector fps':>12} {'age p50 s':>10} {'p99':>6} {'longest':>8}")
        for reading in pipeline.status().cameras:
            found = ages[reading.camera_id]
            print(
                f"{reading.camera_id:<10} {reading.source.state:<10} {reading.detector_fps:12.1f} "
                f"{quantile(found, 0.5):10.2f} {quantile(found, 0.99):6.2f} {max(found, default=float('nan')):8.2f}"
            )
        assert all(reading.source.state is SourceState.LIVE for reading in pipeline.status().cameras)
        app_s = used.user + used.system - cpu.user - cpu.system
        print(f"\napp: {app_s / options.seconds:.2f} cores; memory {first[0]:.0f} -> {last[0]:.0f} MB,", end=" ")
        print(f"captures {first[1]:.0f} -> {last[1]:.0f} MB")
        await pipeline.stop()
        news.close()
        await listening


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=20.0)
    parser.add_argument("--size", default="1920x1080")
    parser.add_argument("--fps", type=int, default=15)
    parser.add_argument("--detector", default=Path("~/.cache/watchword/assets/yolov8n.pt").expanduser())
    parser.add_argument("--clip", type=Path, help="one made before, in place of --size and --fps")
    options = parser.parse_args()
    data = os.environ.get("WATCHWORD_TEST_DATA")
    if data is None:
        sys.exit("WATCHWORD_TEST_DATA is unset: no clips")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        clip = options.clip or Path(folder) / "clip.mp4"
        if options.clip is None:
            make_clip(Path(data), clip, options.size, options.fps)
        with RtspServer(clip) as server:
            asyncio.run(measure(options, server.url))


if __name__ == "__main__":
    main()

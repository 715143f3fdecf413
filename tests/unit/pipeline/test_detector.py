"""YOLO on arrays: persons only, in the pixels of each frame; and what is said of weights that do not do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from camera_sources.frame import Frame
from pipeline.detector import DetectorError, YoloDetector
from pipeline.yolo_import import import_ultralytics

REPOSITORY = Path(__file__).parents[3]


def load(weights: str | Path, **settings: Path) -> YoloDetector:
    return YoloDetector(str(weights), min_confidence=0.4, **settings)


def picture(clip: Path, at_s: float) -> Frame:
    capture = cv2.VideoCapture(str(clip))
    capture.set(cv2.CAP_PROP_POS_MSEC, at_s * 1000)
    has_frame, image = capture.read()
    capture.release()
    assert has_frame
    return Frame("cam", 0, time.monotonic(), time.time(), at_s, np.asarray(image, dtype=np.uint8))


@pytest.mark.clips
def test_persons_and_nothing_else_in_one_batch_of_several_sizes(weights: Path, clips: Path) -> None:
    room = clips / "one-by-one-person-detection.mp4"
    frames = [
        picture(room, 12.0),
        picture(clips / "car-detection.mp4", 10.0),
        picture(room, 2.0),
        picture(clips / "tools_data_skeleton_S001C001P001R001A001_rgb.avi", 1.0),
    ]
    detections = load(weights).detect(frames)
    assert [detection.frame for detection in detections] == frames
    assert [len(detection.boxes) for detection in detections] == [1, 0, 0, 1]
    [box] = detections[0].boxes
    assert (box.x1, box.y1, box.x2, box.y2) == pytest.approx((384, 17, 518, 391), abs=12)
    assert box.conf > 0.8
    height, width = frames[3].image.shape[:2]
    [tall] = detections[3].boxes
    assert 0 <= tall.x1 < tall.x2 <= width
    assert tall.y2 > 640, "in the frame's own pixels"
    assert tall.y2 <= height


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("/nowhere/yolo.pt", "detector weights /nowhere/yolo.pt: no such file"),
        ("yolo.onxx", "detector weights yolo.onxx: no such file"),
        ("my-own-model.pt", "detector weights my-own-model.pt: neither a file here nor a published"),
    ],
)
def test_missing_weights_are_named(given: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match=re.escape(message)) as caught:
        load(given, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_directory_and_a_file_that_is_no_model_are_named(tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match="no such file"):
        load(tmp_path)
    text = tmp_path / "notes.pt"
    text.write_text("this is no model")
    with pytest.raises(DetectorError, match=r"notes\.pt: not a YOLO model \(.+\)") as caught:
        load(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["notes.txt", "model.yaml", "weights"])
def test_a_file_that_no_model_is_named_like_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("this is no model")
    with pytest.raises(DetectorError, match=rf"{name}: not a YOLO model by its name; give an ultralytics \.pt file"):
        load(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04aaaa"])
def test_junk_is_refused_in_plain_words(content: bytes, tmp_path: Path) -> None:
    junk = tmp_path / "junk.pt"
    junk.write_bytes(content)
    with pytest.raises(DetectorError) as caught:
        load(junk)
    assert str(caught.value).endswith("the file is empty, truncated or corrupted)")
    assert "ERROR" not in str(caught.value)
    assert str(caught.value).count("(") == str(caught.value).count(")") == 1


def test_a_model_of_a_format_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    """Ultralytics opens these only at the first picture."""
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"junk")
    with pytest.raises(DetectorError, match=r"junk\.onnx: cannot be run here \(.+\)$") as caught:
        load(junk)
    assert "\n" not in str(caught.value)


def test_a_model_without_persons_or_without_boxes_is_named(tmp_path: Path) -> None:
    from ultralytics import YOLO

    for yaml, message in (("yolov8n.yaml", "knows no class named person"), ("yolov8n-cls.yaml", "gives no boxes")):
        untrained = tmp_path / f"{yaml}.pt"
        YOLO(yaml).save(untrained)
        with pytest.raises(DetectorError, match=message):
            load(untrained)


def test_pillow_stays_as_it_was(tmp_path: Path) -> None:
    import_ultralytics()
    unreadable = tmp_path / "torn.jpg"
    unreadable.write_bytes(b"no picture")
    with pytest.raises(UnidentifiedImageError):
        Image.open(unreadable)


LOADER = """
import socket, sys
asked = []
def refuse(host, *rest, **names):
    asked.append(host)
    raise OSError("no network in this test")
socket.getaddrinfo = refuse
from pipeline.detector import DetectorError, YoloDetector
from pathlib import Path
try:
    YoloDetector(sys.argv[1], min_confidence=0.4, cache_dir=Path(sys.argv[2]))
except DetectorError as error:
    print(error)
print("asked", *asked)
"""


@pytest.mark.parametrize(("by_name", "said"), [(False, ""), (True, "cannot be downloaded; fetch it elsewhere")])
def test_the_net_is_used_only_for_a_name_the_user_gave(weights: Path, tmp_path: Path, by_name: bool, said: str) -> None:
    environment = {**os.environ, "YOLO_CONFIG_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADER, "yolo26n.pt" if by_name else str(weights), str(tmp_path)],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    *_, asked = done.stdout.splitlines()
    assert ("github.com" in asked) is by_name, done.stdout
    assert (asked == "asked") is not by_name
    assert said in done.stdout
    assert list(tmp_path.rglob("*.pt")) == []

"""`watchword.yaml`: what is wrong is said with line, field and suggestion; what is right means what it says."""

from __future__ import annotations

import stat
from pathlib import Path
from urllib.parse import quote

import pytest

from pipeline.config import CameraConfig, GateConfig, Zone
from pipeline.settings import document
from pipeline.settings.fault import SettingsError
from pipeline.settings.models import CameraSettings

EXAMPLE = Path(document.__file__).with_name("example.yaml")

GOOD = """\
# our cameras
cameras:
  - name: yard   # the one over the gate
    source: rtsp://10.0.0.7/live
    username: guard
    password: "p@ss:word/1"
    zones:
      - name: drive
        polygon: [[0, 0.5], [1, 0.5], [1, 1]]
  # the hall
  - name: hall
    source: 0
"""


def faults(tmp_path: Path, text: str | bytes) -> list[str]:
    path = tmp_path / "w.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as caught:
        document.read(path)
    assert "hunter2" not in str(caught.value)
    return [line.removeprefix(f"{path}") for line in caught.value.lines]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "cameras:\n  - name: yard\n    soruce: rtsp://h/1\n",
            [
                ":2: cameras[0].source (camera yard): is missing",
                ":3: cameras[0].soruce (camera yard): unknown setting; did you mean source?",
            ],
            id="a key misspelt",
        ),
        pytest.param("detecter: x.pt\n", [":1: detecter: unknown setting; did you mean detector?"], id="at the top"),
        pytest.param(
            "cameras:\n  - name: a\n    url: rtsp://h/1\n    source: x.mp4\n",
            [":3: cameras[0].url (camera a): unknown setting; did you mean source?"],
            id="another word for it",
        ),
        pytest.param(
            "cameras:\n  - name: a\n    source: x\n    zones:\n      - name: z\n        polygon: [[0, 0], [1, 1]]\n",
            [":6: cameras[0].zones[0].polygon (camera a): needs 3 to 64 points, has 2"],
            id="two points",
        ),
        pytest.param(
            "cameras:\n  - name: a\n    source: x\n    zones:\n      - name: z\n        polygon:\n"
            "          - [0, 0]\n          - [1, 0]\n          - [640, 480]\n",
            [
                ":6: cameras[0].zones[0].polygon (camera a): has point 3 at [640, 480], outside the picture: "
                "shares of it go from 0 to 1"
            ],
            id="pixels",
        ),
        pytest.param(
            "cameras:\n  - {name: a, source: x}\n  - {name: b, source: y}\n  - {name: a, source: z}\n",
            [":4: cameras[2].name (camera a): two cameras are named a; give each a name of its own"],
            id="twins",
        ),
        pytest.param(
            "cameras:\n  - name: a\n    source: rstp://u:hunter2@h/1\n",
            [
                ":3: cameras[0].source (camera a): rstp://***@h/1: unknown scheme 'rstp'; use one of rtsp, rtsps, "
                "rtmp, rtmps, http, https"
            ],
            id="a bad scheme",
        ),
        pytest.param(
            "cameras:\n  - name: a\n    source: rtsp://h/1\n    username: u\n    password_file: /nowhere/secret\n",
            [":5: cameras[0].password_file (camera a): cannot read /nowhere/secret: no such file or directory"],
            id="a secret that is not there",
        ),
        pytest.param(
            "cameras:\n  - name: a\n    source: rtsp://h/1\n    username: u\n    password_env: NOT_SET_ANYWHERE\n",
            [":5: cameras[0].password_env (camera a): the environment variable NOT_SET_ANYWHERE is not set"],
            id="a variable that is not set",
        ),
        pytest.param(
            "cameras:\n  - name: a\n    source: rtsp://h/1\n    username: u\n    password: 1234\n",
            [":5: cameras[0].password (camera a): must be text (put it in quotes), not a number"],
            id="a password without quotes",
        ),
        pytest.param("model: a\nmodel: hunter2\n", [":2: model is given twice"], id="a key twice"),
        pytest.param("cameras: [\n", [":2: not valid YAML: "], id="no YAML"),
        pytest.param("- a\n", [":1: must be settings (name: value), the cameras below `cameras:`"], id="a list"),
        pytest.param("&a {cameras: [*a]}\n", [":1: a part of it contains itself"], id="itself"),
        pytest.param(b"cameras: \xff\n", [": is not UTF-8 text"], id="no text"),
        pytest.param(
            "retention: {days: 0}\npage: {port: 70000}\n",
            [":2: page.port: must be at most 65535, not 70000", ":1: retention.days: must be more than 0, not 0"],
            id="limits",
        ),
        pytest.param(
            "cameras:\n  - {name: a, source: x, prompt: 'In {zone} are {cuont}.'}\n",
            [":2: cameras[0].prompt (camera a): asks for {zone}, and the camera has no zones to stand in"],
            id="facts",
        ),
        pytest.param(
            "cameras:\n  - {name: a, source: x, picture: half}\n",
            [':2: cameras[0].picture (camera a): must be crop or full, not "half"'],
            id="choices",
        ),
        pytest.param("base_url: llm.example\n", [":1: base_url: llm.example does not begin with"], id="an address"),
        pytest.param(
            "cameras:\n  - name: a\n    source: rtsp://u:hunter2@h/1\n    username: u\n",
            [":2: cameras[0] (camera a): the source's URL has a user in it already; drop that or username"],
            id="two users",
        ),
    ],
)
def test_what_is_wrong_is_said_with_line_field_and_suggestion(
    tmp_path: Path, text: str | bytes, expected: list[str]
) -> None:
    found = faults(tmp_path, text)
    assert len(found) == len(expected), found
    for line, begin in zip(found, expected, strict=True):
        assert line.startswith(begin)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: no such file or directory"):
        document.read(tmp_path / "nowhere.yaml")


def test_the_example_is_good_and_shows_the_defaults() -> None:
    settings = document.read(EXAMPLE).settings
    (yard,) = settings.cameras
    plain = CameraSettings(name="yard", source=yard.source)
    shown = yard.model_copy(update={"zones": ()}).model_dump() | {"transport": None, "detector_fps": None}
    assert shown == plain.model_dump() | {"prompt": "Describe the image."}
    text = EXAMPLE.read_text()
    assert [name for name in CameraSettings.model_fields if f"{name}:" not in text] == []
    assert [name for name in type(settings).model_fields if f"{name}:" not in text] == []


def test_a_camera_means_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.yaml").write_text(GOOD)
    yard, hall = (camera.to_config() for camera in document.read(tmp_path / "w.yaml").settings.cameras)
    assert yard == CameraConfig(
        "yard",
        f"rtsp://guard:{quote('p@ss:word/1', safe='')}@10.0.0.7/live",
        zones=(Zone("drive", ((0, 0.5), (1, 0.5), (1, 1))),),
        gate=GateConfig(),
    )
    assert (hall.camera_id, hall.source) == ("hall", "0")
    monkeypatch.setenv("YARD", "s3cret")
    camera = CameraSettings(name="a", source="rtsp://h/1", username="u", password_env="YARD")
    assert camera.to_config().source == "rtsp://u:s3cret@h/1"
    assert "s3cret" not in repr(camera)
    assert "p@ss" not in repr(CameraSettings(name="a", source="rtsp://h/1", username="u", password="p@ss"))


def test_edits_keep_comments_and_what_was_changed_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(GOOD)
    path.chmod(0o644)
    yard, hall = document.read(path).settings.cameras
    document.put_camera(path, hall.model_copy(update={"min_size": 0.2}), "hall")
    document.put_camera(path, CameraSettings(name="gate", source="x.mp4", loop=True), None)
    text = path.read_text()
    assert text == GOOD + "    min_size: 0.2\n  - name: gate\n    source: x.mp4\n    loop: true\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    document.put_camera(path, yard.model_copy(update={"name": "yard2"}), "yard")
    assert "  - name: yard2  # the one over the gate\n" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "a password was written"
    document.drop_camera(path, "hall")
    assert [camera.name for camera in document.read(path).settings.cameras] == ["yard2", "gate"]
    assert "# our cameras" in path.read_text()
    assert list(tmp_path.iterdir()) == [path], "no temporary file stays"

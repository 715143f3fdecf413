"""The commands that README shows, and how each is run here: as it stands, with stand-ins, or why it cannot be."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.architecture.sources import README_PAGES, ROOT

PAGES = tuple(ROOT / page for page in README_PAGES)

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+#.*$")
SHELL = ("sh", "bash", "shell", "console")


@dataclass(frozen=True, slots=True)
class Shown:
    """How a command is run: `among` which others (the name of a test), with `stand_ins` for what is not here.

    With `because` it is not run, only read by the program that it calls.
    """

    among: str = ""
    stand_ins: dict[str, str] = field(default_factory=dict)
    because: str = ""


CAMERAS = {"rtsp://camera-1/live": "{rtsp}", "rtsp://camera-2/live": "{rtsp}"}
SMOLVLM = "MODEL=HuggingFaceTB/SmolVLM-256M-Instruct make run"
QWEN = "MODEL=Qwen/Qwen2.5-VL-3B-Instruct make run"

SHOWN = {
    # Start
    "make run": Shown("start"),
    "make test": Shown(because="this is one of the tests it runs"),
    # Your cameras, your model
    "SOURCE=yard.mp4 make run": Shown("start"),
    "SOURCE=0 make run": Shown(because="it takes a webcam"),
    "SOURCE=rtsp://camera-1/live make run": Shown("start", CAMERAS),
    "SOURCE='yard=rtsp://camera-1/live\ngate=rtsp://camera-2/live' make run": Shown("start", CAMERAS),
    SMOLVLM: Shown("start", {"HuggingFaceTB/SmolVLM-256M-Instruct": "{smolvlm}"}),
    "DETECTOR=yolo26n.pt make run": Shown("start"),
    "read -rs SOURCE && export SOURCE && make run": Shown("start"),
    ". .venv/bin/activate": Shown("session"),
    "watchword config example > watchword.yaml": Shown("session"),
    "watchword config check watchword.yaml": Shown("session"),
    "watchword run --config watchword.yaml": Shown("session"),
    QWEN: Shown("start", {"Qwen/Qwen2.5-VL-3B-Instruct": "{qwen2_5_vl}"}),
    "watchword selftest Qwen/Qwen2.5-VL-3B-Instruct": Shown("selftest", {"Qwen/Qwen2.5-VL-3B-Instruct": "{llama}"}),
    "vllm serve Qwen/Qwen2.5-VL-3B-Instruct": Shown(because="vLLM is another program"),
    "watchword run --base-url http://gpu-box:8000/v1 rtsp://camera-1/live": Shown(
        "another engine", {**CAMERAS, "http://gpu-box:8000/v1": "{engine}"}
    ),
    "watchword watch rtsp://camera-1/live --jsonl -": Shown("watch", CAMERAS),
    "watchword watch yard.mp4 --no-realtime --jsonl events.jsonl": Shown("watch"),
    "watchword export june.zip --since 2026-06-01 --until 2026-07-01": Shown("session"),
    "watchword serve --port 8000": Shown("serve", {"8000": "{port}"}),
    'watchword chat "Why is the sky blue?"': Shown("session"),
    'watchword chat "Describe the image." --image photo.jpg': Shown("session"),
    # Tuning
    "watchword bench --cameras 1,2,4 --png gaps.png": Shown("session"),
    "watchword tune --png curve.png": Shown("session"),
}


def blocks(*languages: str) -> list[str]:
    """The text of every fenced block in one of `languages`, of README first."""
    return [text for page in PAGES for language, text in _BLOCK.findall(page.read_text()) if language in languages]


def commands() -> list[str]:
    """Every command of a shell block, without its comment; one that goes on in a second line is one command."""
    found: list[str] = []
    for block in blocks(*SHELL):
        begun = ""
        for line in block.splitlines():
            begun += line if line.count("'") % 2 or begun else _COMMENT.sub("", line)
            if begun.count("'") % 2:
                begun += "\n"
            elif begun:
                found.append(_COMMENT.sub("", begun).strip())
                begun = ""
    return found


def among(test: str) -> list[str]:
    """README's commands that belong to one test, in README's order."""
    return [command for command in dict.fromkeys(commands()) if command in SHOWN and SHOWN[command].among == test]

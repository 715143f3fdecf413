"""ultralytics' LLM client, unmodified, in a process of its own: answers on standard output, one JSON object.

Usage: python -m tests.api.ultralytics_client BASE_URL IMAGE_PATH
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

os.environ.update(YOLO_OFFLINE="true", YOLO_AUTOINSTALL="false")


def answers(base_url: str, path: str) -> dict[str, Any]:
    import numpy as np
    import openai
    from PIL import Image
    from ultralytics import LLM

    pil = Image.open(path)
    pixels = np.asarray(pil.convert("RGB"))[:, :, ::-1]
    large = np.random.default_rng(0).integers(0, 255, (2160, 3840, 3), np.uint8)
    said: dict[str, Any] = {}
    for api, text in (("responses", "output_text"), ("chat.completions", "")):

        def words(reply: Any, text: str = text) -> str:
            return getattr(reply, text) if text else reply.choices[0].message.content

        llm = LLM("scripted", api=api, base_url=base_url, api_key="none", prompt="Be brief.")
        said[api] = {
            "text": words(llm("What is YOLO?")),
            "path": words(llm("What is it?", image=path)),
            "array": words(llm(pixels)),
            "pil": words(llm(pil)),
            "4k": words(llm("What is it?", image=large)),
            "turns": words(llm([{"role": "user", "content": "hi"}])),
            "async": words(asyncio.run(llm.async_call("hi", temperature=0.0))),
            "streamed": len(list(llm("hi", stream=True))),
        }
        try:
            llm("What is it?", image="https://example.org/cat.jpg")
        except openai.BadRequestError as error:
            said[api]["url"] = str(error)
    return said


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(answers(*sys.argv[1:])) + "\n")

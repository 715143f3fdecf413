"""Whether an engine can see at all, found out at the start: a model for text alone would fail every caption."""

from __future__ import annotations

import openai
from openai import AsyncOpenAI

from camera_sources.url import redact
from pipeline.captioner import BACKGROUND, one_line

ASK_S = 30.0
REFUSALS = frozenset({400, 415, 422})
GREY = (  # 64 x 64 pixels
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAAAAACPAi4CAAAAK0lEQVR42u3MMREAAAgE"
    "oNfkRjeEmwcBqMlNRyAQCAQCgUAgEAgEAsHzYAFAdAEArKmlZAAAAABJRU5ErkJggg=="
)


async def blindness(base_url: str, *, model: str | None, api_key: str | None) -> str | None:
    """How the engine refused a small picture, as one line for people; None if it took it or cannot be asked now."""
    try:
        async with AsyncOpenAI(base_url=base_url, api_key=api_key or "none", max_retries=0, timeout=ASK_S) as client:
            name = model or (await client.models.list()).data[0].id
            try:
                await client.chat.completions.create(
                    model=name,
                    messages=[
                        {
                            "role": "user",
                            "content": [
                                {"type": "image_url", "image_url": {"url": GREY}},
                                {"type": "text", "text": "Describe the image."},
                            ],
                        }
                    ],
                    max_tokens=1,
                    temperature=0.0,
                    extra_headers=BACKGROUND,
                )
            except openai.APIStatusError as error:
                if error.status_code in REFUSALS:
                    why = one_line(redact(str(error.message)))
                    return f"{name} cannot describe pictures, so no caption will come about; name another model ({why})"
    except (openai.OpenAIError, ValueError, IndexError, ExceptionGroup):
        return None  # captions will tell, if it stays so
    return None

"""Conversations that the engine and the reference answer alike: text pieces and pictures in the order they are written.

The pictures are drawn here, so that a test needs no files and is the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw


@dataclass(frozen=True, eq=False)
class Prompt:
    """One conversation of a single turn."""

    name: str
    parts: tuple[str | Image.Image, ...]

    @property
    def images(self) -> list[Image.Image]:
        """Its pictures, in order."""
        return [part for part in self.parts if not isinstance(part, str)]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """In the chat format of transformers; pictures are marked, not held."""
        content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in self.parts]
        return [{"role": "user", "content": content}]


def noise(seed: int, width: int, height: int) -> Image.Image:
    """Coarse coloured noise: tiles and rows all differ."""
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height))


def scene() -> Image.Image:
    """A house with a red roof on a meadow, 240 x 160: something that a model can speak of."""
    image = Image.new("RGB", (240, 160), "lightblue")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 110, 240, 160), fill="green")
    draw.rectangle((70, 60, 170, 130), fill="white", outline="black")
    draw.polygon(((60, 60), (120, 20), (180, 60)), fill="red")
    draw.rectangle((110, 90, 130, 130), fill="brown")
    return image


def default_prompts(*, with_images: bool) -> tuple[Prompt, ...]:
    """Four prompts, short and long; with images, two share all words but not the picture, which are of one size."""
    text = Prompt("short text", ("Name three animals and say what each of them eats.",))
    if with_images:
        one, other = scene(), noise(1, 240, 160)
        question = "Describe this picture in one sentence."
        return (
            text,
            Prompt("picture", (one, question)),
            Prompt("other picture", (other, question)),
            Prompt("two pictures", ("Compare this picture", one, "with that one", other, ". What differs?")),
        )
    facts = " ".join(f"Camera {number} saw {number * number} people." for number in range(1, 25))
    return (
        text,
        Prompt("question", ("What does a heat pump do, and why does it need less power than a heater?",)),
        Prompt("long text", (f"{facts} Which camera saw the most people, and how many were there?",)),
        Prompt("other writing", ("Große Bäume stehen neben der Straße. 日本語の短い文。 Translate both sentences.",)),
    )

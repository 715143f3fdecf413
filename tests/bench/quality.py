"""What text backends cost in quality: `python -m tests.bench.quality MODEL_DIR CAPTIONS_DIR [BACKEND[+NOISE],… [NUM]]`.

Teacher-forced on photographs with human captions: the ratio of its loss to torch's in float32, and how often both find
the same token most likely. The bound for a mode that is chosen by itself: at most 1.02, at least 0.95.

NOISE is put on the image rows that the backend gets (not torch in float32), relative to their own differences from
their mean: what an encoder may be off by, in the measure of `encoder_choice.relative_error`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from backend.models.adapter import ModelAdapter, encoded
from backend.models.registry import load
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.kv_pool import KvPool
from backend.runtime.text_backend import TextBackend, make_text

NUM_SLOTS = 512


def encode(adapter: ModelAdapter, photograph: Path, caption: str) -> tuple[list[int], int, list[int], torch.Tensor]:
    """Token ids, how many of them are the prompt, which are the image's, and the embeddings, its rows in place."""
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Describe the image."}]}
    prompt = adapter.prepare([message], [Image.open(photograph).convert("RGB")])
    rows = encoded(adapter.encode(prompt.images[0]))
    token_ids = [*prompt.token_ids, *adapter.tokenizer.encode(caption, add_special_tokens=False)]
    inside = {i for span in prompt.spans for i in range(span.start, span.end)}
    embeds = adapter.embed(torch.tensor([0 if i in inside else token for i, token in enumerate(token_ids)]))
    for span in prompt.spans:
        embeds[span.start : span.end] = rows[span.offset : span.offset + span.length]
    return token_ids, len(prompt.token_ids), sorted(inside), embeds


def with_noise(embeds: torch.Tensor, places: list[int], noise: float, generator: torch.Generator) -> torch.Tensor:
    """A copy of `embeds` whose rows at `places` are off by `noise`."""
    noisy, rows = embeds.clone(), embeds[places]
    spread = (rows - rows.mean(dim=0)).square().mean().sqrt()
    noisy[places] = rows + noise * spread * torch.randn(rows.shape, generator=generator)
    return noisy


@dataclass
class Tally:
    """What one variant, a backend with its noise, has lost so far, and how often it agreed."""

    name: str
    text: TextBackend
    noise: float
    generator: torch.Generator
    loss: float = 0.0
    agreed: int = 0

    def logits(self, embeds: torch.Tensor, of_image: list[int], start: int) -> torch.Tensor:
        """Of every token from `start` on, given those before it."""
        given = with_noise(embeds, of_image, self.noise, self.generator) if self.noise else embeds.clone()
        places = torch.arange(len(embeds))
        inputs = AttentionInputs((0, len(embeds)), (len(embeds),), ((0,),), places)
        return self.text.logits(self.text.forward(given, places[None], inputs)[start - 1 : -1])


def variants_of(adapter: ModelAdapter, names: str) -> list[Tally]:
    """Float32 first, then those named."""
    pool = KvPool(adapter.spec, num_blocks=1, block_size=NUM_SLOTS, dtype=torch.float32, device=adapter.device)
    texts: dict[str, TextBackend] = {}
    tallies = []
    for name in ("torch", *names.split(",")):
        backend, _, noise = name.partition("+")
        if backend not in texts:
            texts[backend] = make_text(backend, adapter, pool, attention="sdpa")
        tallies.append(Tally(name, texts[backend], float(noise or 0), torch.Generator().manual_seed(1)))
    return tallies


def main(model: str, captions: str, names: str = "native-int8,native-int4", num: str = "100") -> None:
    adapter = load(model, device="cpu", dtype="float32")
    exact, *others = tallies = variants_of(adapter, names)
    total = 0
    lines = (Path(captions) / "captions.jsonl").read_text(encoding="utf-8").splitlines()[: int(num)]
    with torch.inference_mode():
        for done, row in enumerate(map(json.loads, lines), 1):
            photograph = Path(captions) / "images" / row["image"]
            token_ids, start, of_image, embeds = encode(adapter, photograph, row["captions"][0])
            target, best = torch.tensor(token_ids[start:]), torch.empty(0)
            for tally in tallies:
                logits = tally.logits(embeds, of_image, start)
                tally.loss += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
                best = logits.argmax(-1) if tally is exact else best
                tally.agreed += int((best == logits.argmax(-1)).sum())
            total += len(target)
            if done % 10 == 0 or done == len(lines):
                print(f"{done} photographs, {total} tokens, float32's loss {exact.loss / total:.4f}", flush=True)
                for t in others:
                    print(f"  {t.name}: {t.loss / exact.loss:.4f} x, same token in {t.agreed / total:.2%}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

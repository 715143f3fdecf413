"""What a text backend costs in quality: `python -m tests.bench.quality MODEL_DIR CAPTIONS_DIR [BACKEND] [NUM] [NOISE]`.

Teacher-forced on photographs with human captions: the ratio of its loss to torch's in float32, and how often both find
the same token most likely. The bound for a mode that is chosen by itself: at most 1.02, at least 0.95.

NOISE is put on the image rows that the backend gets (not torch in float32), relative to their own differences from
their mean: what an encoder may be off by, in the measure of `encoder_choice.relative_error`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from PIL import Image

from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from backend.runtime.attention.base import AttentionInputs
from backend.runtime.kv_pool import KvPool
from backend.runtime.text_backend import make_text

NUM_SLOTS = 512


def encode(adapter: ModelAdapter, photograph: Path, caption: str) -> tuple[list[int], int, list[int], torch.Tensor]:
    """Token ids, how many of them are the prompt, which are the image's, and the embeddings, its rows in place."""
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Describe the image."}]}
    prompt = adapter.prepare([message], [Image.open(photograph).convert("RGB")])
    paused, rows = adapter.encode(prompt.images[0]), None
    while rows is None:
        try:
            next(paused)
        except StopIteration as end:
            rows = end.value
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


def main(model: str, captions: str, backend: str = "native-int8", num: str = "100", noise: str = "0") -> None:
    adapter = load(model, device="cpu", dtype="float32")
    texts = []
    for name in ("torch", backend):
        pool = KvPool(adapter.spec, num_blocks=1, block_size=NUM_SLOTS, dtype=torch.float32, device=adapter.device)
        texts.append(make_text(name, adapter, pool, attention="sdpa"))
    losses, agreed, total, generator = [0.0, 0.0], 0, 0, torch.Generator().manual_seed(1)
    lines = (Path(captions) / "captions.jsonl").read_text(encoding="utf-8").splitlines()[: int(num)]
    with torch.inference_mode():
        for row in map(json.loads, lines):
            photograph = Path(captions) / "images" / row["image"]
            token_ids, start, of_image, embeds = encode(adapter, photograph, row["captions"][0])
            inputs_of = (embeds, with_noise(embeds, of_image, float(noise), generator))
            places = torch.arange(len(token_ids))
            inputs = AttentionInputs((0, len(token_ids)), (len(token_ids),), ((0,),), places)
            best = []
            for index, text in enumerate(texts):
                logits = text.logits(text.forward(inputs_of[index].clone(), places[None], inputs)[start - 1 : -1])
                target = torch.tensor(token_ids[start:])
                losses[index] += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
                best.append(logits.argmax(-1))
            agreed += int((best[0] == best[1]).sum())
            total += len(best[0])
    print(
        f"{backend}: {total} tokens, loss {losses[1] / total:.4f} = {losses[1] / losses[0]:.4f} x float32's, ", end=""
    )
    print(f"same most likely token in {agreed / total:.2%}")


if __name__ == "__main__":
    main(*sys.argv[1:])

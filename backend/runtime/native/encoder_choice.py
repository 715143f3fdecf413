"""Whether a vision transformer computes in int8: only where that is faster here and its embeddings stay close enough.

Closeness is measured when a model is first loaded, on made-up pictures: the root mean square of int8's error, relative
to that of the embeddings' own differences from their mean. `MAX_ERROR` is what the embedded model bears: with noise of
that size on its image rows the loss on captions stays within 2 % and the most likely token in at least 95 % of cases
(`python -m tests.bench.quality` measures both). Where the whole tower is too far off, the blocks nearest to its two
ends stay float32; the patches and the connector always do. What was measured is remembered per machine and model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from backend.readings import Readings, RememberedReadings, processor_name
from backend.runtime.native.compiler import find_kernel_obstacle, kernel_cache, ready_numba

if TYPE_CHECKING:
    from PIL import Image

    from backend.models.adapter import ModelAdapter, VisionBlocks
    from backend.runtime.native.encoder import NativeBlock

MAX_ERROR = 0.025
KEPT_FRACTIONS = (0.0, 0.125, 0.25)
"""Which share of the blocks at either end is tried in float32, until the error is small enough."""
_SIDE = 256
_NUM_TIMED = 3

Say = Callable[[str], None]


def choose_encoder(adapter: ModelAdapter, quantization: str, cache_dir: Path, say: Say) -> None:
    """Have the adapter's tower compute in int8 where `quantization`, as of the settings, allows and it pays.

    "int8" does not ask for speed, but for closeness, and so does "int4", which is for the text model alone. Says what
    was chosen and why; a model without a vision transformer is left as it is.
    """
    blocks = adapter.vision_blocks
    if blocks is None or quantization == "none":
        return
    obstacle = _find_obstacle(blocks)
    if obstacle is not None:
        say(f"Vision encoder: float32; {obstacle}")
        return
    memory, key = RememberedReadings(kernel_cache(cache_dir) / "choices.json"), _key(blocks)
    readings = memory.recall(key)
    ready_numba()
    try:
        if readings is None:
            say("Measuring how the vision encoder runs best here; kernels are compiled once per machine (a minute) …")
            readings = _measure(blocks)
            memory.remember(key, readings)
        elif _is_chosen(readings, quantization):
            _install(_make(blocks), blocks, int(readings["kept"][0]))
        if not _is_chosen(readings, quantization):
            _install([], blocks, len(blocks))
    except Exception as error:  # numba and LLVM raise many unrelated types; none of them may prevent a start
        _install([], blocks, len(blocks))
        say(f"Vision encoder: float32; int8 fails: {str(error).partition(chr(10))[0] or type(error).__name__}")
    else:
        say(f"Vision encoder: {_describe(readings, quantization, len(blocks))}{memory.caveat(key)}")
    blocks.settle()


def relative_error(rows: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """Root mean square of `rows` - `exact`, relative to that of the `exact` rows' differences from their mean."""
    truth = torch.cat(list(exact)).double()
    error = torch.cat(list(rows)).double() - truth
    return (error.norm() / (truth - truth.mean(dim=0)).norm()).item()


def probe_pictures() -> list[Image.Image]:
    """Three pictures with what photographs have: smooth shades, edges, textures of every size."""
    from PIL import Image

    generator = torch.Generator().manual_seed(1)
    place = torch.linspace(-1.0, 1.0, _SIDE)
    shades = torch.stack([place[:, None] + 0 * place, place * place[:, None], place + 0 * place[:, None]])
    discs = (place[:, None] ** 2 + (place - 0.3) ** 2 < 0.2).float() * 2 - 1
    stripes = torch.sign(torch.sin(40 * place[:, None] * (1 + place)))
    texture = torch.zeros(3, _SIDE, _SIDE)
    for size in (4, 16, 64, _SIDE):
        noise = torch.randn(1, 3, size, size, generator=generator)
        texture += torch.nn.functional.interpolate(noise, (_SIDE, _SIDE), mode="bilinear")[0] * (8 / size) ** 0.5
    mixed = torch.where(discs > 0, texture, shades)
    patterns = torch.where(discs > 0, stripes, 0.5 * texture)
    bytes_ = [((picture.clamp(-1, 1) + 1) * 127.5).byte() for picture in (texture, mixed, patterns)]
    return [Image.fromarray(b.permute(1, 2, 0).contiguous().numpy()) for b in bytes_]


def _find_obstacle(blocks: VisionBlocks) -> str | None:
    obstacle = find_kernel_obstacle(int8=True)
    if obstacle is None:
        from backend.runtime.native.vision_weights import find_block_obstacle

        obstacle = find_block_obstacle(blocks.parts(0))
    return obstacle


def _key(blocks: VisionBlocks) -> str:
    """The machine and the model: the first block's and the last one's weights stand for all."""
    digest = blake2b(digest_size=16)
    for index in (0, len(blocks) - 1):
        digest.update(blocks.parts(index).up.weight.detach().contiguous().view(torch.uint8).numpy().data)
    return repr(
        (
            "vision",
            processor_name(),
            torch.get_num_threads(),
            torch.__version__,
            version("numba"),
            len(blocks),
            digest.hexdigest(),
        )
    )


def _make(blocks: VisionBlocks) -> list[NativeBlock]:
    """Every block in int8, their pace measured."""
    from backend.runtime.native.encoder import NativeBlock, Workshop

    workshop = Workshop(blocks.num_patches, blocks.parts(0), blocks.pacer)
    made = [NativeBlock(workshop, blocks.parts(index)) for index in range(len(blocks))]
    made[0].measure()
    return made


def _install(made: Sequence[NativeBlock], blocks: VisionBlocks, num_kept: int) -> None:
    """Have all but `num_kept` blocks at either end computed by `made`."""
    for index in range(len(blocks)):
        if num_kept <= index < len(blocks) - num_kept:
            blocks.replace(index, made[index])
        else:
            blocks.restore(index)


def _measure(blocks: VisionBlocks) -> Readings:
    """Milliseconds of a tile either way, the error, and how many blocks at either end stayed float32 for it."""
    pictures = probe_pictures()
    exact, float_ms = _encode(blocks, pictures)
    made = _make(blocks)
    error, int8_ms, num_kept = math.inf, math.inf, 0
    for num_kept in dict.fromkeys(math.ceil(len(blocks) * share) for share in KEPT_FRACTIONS):
        _install(made, blocks, num_kept)
        rows, int8_ms = _encode(blocks, pictures)
        error = relative_error(rows, exact)
        if error <= MAX_ERROR:
            break
    return {"float32": [float_ms], "int8": [int8_ms], "error": [error], "kept": [num_kept]}


def _encode(blocks: VisionBlocks, pictures: Sequence[Image.Image]) -> tuple[list[torch.Tensor], float]:
    """The rows of each picture, and the milliseconds of the quickest."""
    rows, quickest_s = [], math.inf
    for picture in pictures:
        begin = time.perf_counter()
        rows.append(blocks.encode_probe(picture))
        quickest_s = min(quickest_s, time.perf_counter() - begin)
    return rows, quickest_s * 1e3


def _is_chosen(readings: Readings, quantization: str) -> bool:
    is_close = readings["error"][0] <= MAX_ERROR
    return is_close and (quantization != "auto" or readings["int8"][0] < readings["float32"][0])


def _describe(readings: Readings, quantization: str, num_blocks: int) -> str:
    float_ms, int8_ms, error, num_kept = (readings[name][0] for name in ("float32", "int8", "error", "kept"))
    measured = f"float32 {float_ms:.0f} ms a tile, int8 {int8_ms:.0f}; its embeddings are off by {error:.1%}"
    if not _is_chosen(readings, quantization):
        return f"float32 ({measured}, {MAX_ERROR:.1%} are allowed)"
    kept = f"; {2 * num_kept:.0f} of {num_blocks} blocks stay float32" if num_kept else ""
    return f"int8 ({measured}, {MAX_ERROR:.1%} are allowed{kept})"

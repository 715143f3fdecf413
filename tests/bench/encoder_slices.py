"""Times a vision encoder slice by slice: `python -m tests.bench.encoder_slices MODEL [--quantization int8]`.

Prints, for one image, the number of slices, the median and the longest slice, and the whole image, each slice as the
shortest of its repeats. `--cpu-time` counts processor time instead of time on the clock: on a busy machine, with one
thread, that is the figure to go by.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from backend.models.adapter import ModelAdapter
from backend.models.registry import load
from backend.runtime.native.encoder_choice import choose_encoder
from backend.types.request import ImageInput


def main() -> None:
    """Load, encode, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quantization", choices=("none", "int8"), default="none")
    parser.add_argument("--size", type=int, default=512, help="pixels per side of the square image")
    parser.add_argument("--whole-image", action="store_true", help="no tiles, where the model would make some")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    adapter = load(options.model, device=options.device, dtype="auto")
    choose_encoder(adapter, options.quantization, Path("~/.cache/watchword").expanduser(), print)
    if options.whole_image:
        adapter._processor.image_processor.do_image_splitting = False  # type: ignore[attr-defined]
    pixels = (torch.rand(options.size, options.size, 3, generator=torch.Generator().manual_seed(1)) * 255).byte()
    message = {"role": "user", "content": [{"type": "image"}]}
    image = adapter.prepare([message], [Image.fromarray(pixels.numpy())]).images[0]
    clock = time.process_time if options.cpu_time else time.perf_counter
    runs = [_time_slices(adapter, image, clock) for _ in range(options.repeat)]
    slices_ms = [min(times) * 1e3 for times in zip(*runs, strict=True)]
    print(
        f"{adapter.spec.family}: {len(slices_ms)} slices; median {statistics.median(slices_ms):.2f} ms, longest "
        f"{max(slices_ms):.2f} ms (slice {slices_ms.index(max(slices_ms))}); whole image {sum(slices_ms):.0f} ms"
    )


def _time_slices(adapter: ModelAdapter, image: ImageInput, clock: Callable[[], float]) -> list[float]:
    """Seconds of each slice."""
    encoder = adapter.encode(image)
    times: list[float] = []
    with torch.inference_mode():
        for _ in range(image.num_slices):
            begin = clock()
            try:
                next(encoder)
            except StopIteration:
                assert len(times) == image.num_slices - 1, "announced slices finish the image"
            if adapter.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(clock() - begin)
    return times


if __name__ == "__main__":
    main()

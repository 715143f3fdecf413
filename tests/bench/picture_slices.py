"""How long the slices of a picture are: `python -m tests.bench.picture_slices [--side 512] [--threads 2]`.

Random weights of Qwen2.5-VL-3B's tower, two blocks of it (one with windows, one without); times are those of the
thread, so that what else runs on the machine does not count.
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from backend.models.patch_tower import PatchTower

REAL_BLOCKS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=512, help="pixels of the square picture's side")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = Qwen2_5_VLVisionConfig(
        depth=2, hidden_size=1280, intermediate_size=3420, num_heads=16, fullatt_block_indexes=[1], out_hidden_size=2048
    )
    tower = PatchTower(Qwen2_5_VisionTransformerPretrainedModel(config).eval())
    side = round(options.side / 28)
    layout = tower.layout((side, side))
    pixels = torch.randn(4 * side * side, 3 * 2 * 14 * 14)
    taken = []
    with torch.inference_mode():
        run = tower.run(pixels, layout)
        while True:
            begin = time.thread_time()
            try:
                next(run)
            except StopIteration:
                break
            finally:
                taken.append((time.thread_time() - begin) * 1e3)
    taken.sort()
    blocks = sum(taken) / 2 * REAL_BLOCKS / 1e3
    print(f"{side * side} embeddings, {len(taken)} slices for 2 blocks; all {REAL_BLOCKS} blocks: about {blocks:.1f} s")
    median, p95 = taken[len(taken) // 2], taken[int(len(taken) * 0.95)]
    print(f"slice in ms: median {median:.1f}, p95 {p95:.1f}, max {taken[-1]:.1f}")


if __name__ == "__main__":
    main()

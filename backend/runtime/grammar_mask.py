"""Grammars of single rows, put into their logits: what may not come next gets -inf.

The grammar itself is opaque (`backend.types.request.Grammar`); one that fails does so for its own request alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backend.runtime.upload import upload_bytes
from backend.types.step import Chunk

_MAX_REASON_LEN = 200


def mask_rows(logits: torch.Tensor, chunks: Sequence[Chunk]) -> dict[str, str]:
    """Change logits [n, V] in place, one chunk a row; returns the reason for each request whose grammar failed."""
    failed: dict[str, str] = {}
    for row, chunk in enumerate(chunks):
        if chunk.sampling.grammar is None:
            continue
        try:
            packed = chunk.sampling.grammar.mask(chunk.history)
        except Exception as error:  # foreign code on a client's grammar: whatever goes wrong in it is that request's
            reason = str(error).partition("\n")[0][:_MAX_REASON_LEN]
            failed[chunk.request_id] = f"the grammar of its answer cannot go on: {type(error).__name__}: {reason}"
            continue
        allowed = unpack(upload_bytes(packed, logits.device), logits.shape[-1])
        logits[row].masked_fill_(~allowed, float("-inf"))
    return failed


def unpack(packed: torch.Tensor, num: int) -> torch.Tensor:
    """Bool [num] of uint8 [n]: bit `i % 8` of byte `i // 8`, False beyond the last byte."""
    bits = ((packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1).bool().flatten()[:num]
    return torch.nn.functional.pad(bits, (0, num - len(bits)))

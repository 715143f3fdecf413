"""Grammars of single rows, put into their logits: what may not come next gets -inf.

The grammar itself is opaque (`backend.types.Grammar`); one that fails does so for its own request alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backend.types import Chunk

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
        allowed = unpack(packed, logits.shape[-1]).to(logits.device, non_blocking=True)
        logits[row].masked_fill_(~allowed, float("-inf"))
    return failed


def unpack(packed: bytes, num: int) -> torch.Tensor:
    """Bool [num] on the CPU: bit `i % 8` of byte `i // 8`, False beyond the last byte."""
    data = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    bits = ((data[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1).bool().flatten()[:num]
    return torch.nn.functional.pad(bits, (0, num - len(bits)))

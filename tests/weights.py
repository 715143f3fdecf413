"""Random weights that make a model talk: deterministic, and spread widely enough that greedy outputs wander."""

from __future__ import annotations

import torch


def randomize(model: torch.nn.Module, seed: int, *, text_std: float = 0.15) -> None:
    """Deterministic weights: matrices of the text model normal with `text_std`, norms left at one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() >= 2:
                fan_in = parameter.shape[-1] if parameter.dim() == 3 else parameter[0].numel()  # 3: stacked experts
                std = text_std if "embed" in name or "lm_head" in name else 1.3 / fan_in**0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

"""Attention backends by name. A backend's module, and whatever it needs, is imported only when it is chosen."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from backend.errors import ConfigError

if TYPE_CHECKING:
    from backend.runtime.attention.base import AttentionBackend
    from backend.runtime.kv_pool import KvPool

BACKENDS = {
    "flex": "backend.runtime.attention.flex:FlexAttention",
    "reference": "backend.runtime.attention.reference:ReferenceAttention",
    "sdpa": "backend.runtime.attention.sdpa:SdpaAttention",
}


def make_attention(name: str, pool: KvPool) -> AttentionBackend:
    """The backend `name` over `pool`. Raises `ConfigError`, listing the choices, for an unknown name."""
    if name not in BACKENDS:
        raise ConfigError(f"attention {name!r} is unknown; choose one of: {', '.join(sorted(BACKENDS))}")
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(import_module(module), attribute)(pool)

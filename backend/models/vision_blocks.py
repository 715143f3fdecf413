"""The blocks of a sliced, SigLIP-shaped tower, offered to an encoder that computes them in its own way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.models.adapter import BlockParts
from backend.models.packed_linear import unpack_linear

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from backend.models.adapter import Pacer
    from backend.models.tiled_vision import TiledVision


class TowerBlocks:
    """`VisionBlocks` over the tower's own list of layers, which `slice_blocks` has been through."""

    def __init__(self, adapter: TiledVision, pacer: Pacer, vision: Any) -> None:
        """`vision` is the tower as transformers makes it: patches, encoder and config."""
        self._adapter = adapter
        self.pacer: Pacer = pacer
        self.num_patches: int = vision.embeddings.num_patches
        self._layers: torch.nn.ModuleList = vision.encoder.layers
        self._loaded: list[Any] = list(self._layers)
        self._activation: str = vision.config.hidden_act

    def __len__(self) -> int:
        return len(self._layers)

    def parts(self, index: int) -> BlockParts:
        """See `VisionBlocks.parts`."""
        block, attention = self._loaded[index], self._loaded[index].self_attn
        query, key, value, out = (
            unpack_linear(getattr(attention, name).module) for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        )
        network = block.mlp.module
        return BlockParts(
            norm1=block.layer_norm1,
            qkv=(query, key, value),
            out=out,
            norm2=block.layer_norm2,
            up=unpack_linear(network[0]),
            down=unpack_linear(network[-1]),
            activation=self._activation,
            num_heads=attention.num_heads,
            scaling=attention.scale,
        )

    def replace(self, index: int, block: torch.nn.Module) -> None:
        """See `VisionBlocks.replace`."""
        self._layers[index] = block

    def restore(self, index: int) -> None:
        """See `VisionBlocks.restore`."""
        self._layers[index] = self._loaded[index]

    def settle(self) -> None:
        """See `VisionBlocks.settle`."""
        is_as_loaded = all(a is b for a, b in zip(self._layers, self._loaded, strict=True))
        self._loaded = []
        self._adapter.recount_slices(takes_batches=is_as_loaded)

    def encode_probe(self, picture: Image.Image) -> torch.Tensor:
        """See `VisionBlocks.encode_probe`."""
        return self._adapter.encode_probe(picture)

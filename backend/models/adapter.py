"""What the engine asks of a model family, and where families are registered.

An adapter owns one loaded HF model: it turns messages into tokens and images (`prepare`), images into embeddings
(`encode`), tokens into hidden states (`forward`) and hidden states into logits. It knows nothing of scheduling, of the
KV pool's layout or of HTTP. Families differ only here.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from backend.types.request import ImageInput, Prepared

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

Message = Mapping[str, Any]
"""HF chat format: `role`, and `content` as a string or a list of `{"type": "text", "text"}` / `{"type": "image"}`."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts the engine sizes itself by.

    One image gives at most `max_embeds_per_image` rows (0: text only) and at least `min_embeds_per_image`. At most
    `max_image_side` pixels of its shorter side are used (0: not known), so that one far larger may come reduced.
    `max_atomic_len` is the longest run of image tokens that must be computed within one step (0: none must).
    The encoder gives a row of `hidden_size` for each image token, and `num_extra_rows` more for deeper layers.
    """

    family: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    num_position_rows: int
    eos_token_ids: frozenset[int]
    image_token_id: int | None
    max_embeds_per_image: int
    min_embeds_per_image: int = 0
    max_image_side: int = 0
    max_atomic_len: int = 0
    num_extra_rows: int = 0

    @property
    def image_row_size(self) -> int:
        """Numbers in what the encoder gives for one image token."""
        return self.hidden_size * (1 + self.num_extra_rows)

    @property
    def takes_images(self) -> bool:
        """Whether the model accepts images at all."""
        return self.image_token_id is not None


@dataclass(frozen=True, slots=True)
class TextParts:
    """The text model as HF modules, for a text backend that computes them in its own way.

    Logits are the head's output / `logit_divisor`, then capped at `logit_cap` if there is one.
    """

    decoder: Any
    head: Any
    logit_divisor: float
    logit_cap: float | None


class Pacer(Protocol):
    """Who pauses an encoder: a part of it says how long it will take, and the slice ends before if it gets too long."""

    slice_s: float

    def spend(self, seconds: float) -> None:
        """Say that what comes next takes so long. May switch to whoever resumed the encoder, for a while."""
        ...


@dataclass(frozen=True, slots=True)
class BlockParts:
    """One block of a SigLIP-shaped vision transformer as torch modules: pre-norms, attention over all, an MLP."""

    norm1: Any
    qkv: tuple[Any, Any, Any]
    out: Any
    norm2: Any
    up: Any
    down: Any
    activation: str
    num_heads: int
    scaling: float


class VisionBlocks(Protocol):
    """The blocks of a tower, for an encoder that computes them in its own way."""

    num_patches: int

    @property
    def pacer(self) -> Pacer:
        """Who pauses the tower."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...

    def parts(self, index: int) -> BlockParts:
        """The modules of block `index` as it was loaded."""
        ...

    def replace(self, index: int, block: Any) -> None:
        """Have `block`, a module from hidden states [1, n, H] to the same, compute block `index`."""
        ...

    def restore(self, index: int) -> None:
        """Have block `index` computed as it was loaded."""
        ...

    def settle(self) -> None:
        """Count slices anew and let go of what was replaced; nothing can be changed after this."""
        ...

    def encode_probe(self, picture: Image.Image) -> torch.Tensor:
        """Rows [m, H] of a picture's last tile, its overview, by the blocks as they are now, without a pause."""
        ...


def encoded(encoder: Generator[None, None, T]) -> T:
    """What `ModelAdapter.encode` or `encode_together` returns, for whoever has nothing to do in its pauses.

    As there, the caller holds `torch.inference_mode()`.
    """
    while True:
        try:
            next(encoder)
        except StopIteration as end:
            return end.value


class ModelAdapter(Protocol):
    """One loaded model behind the engine's own vocabulary. Created by `backend.models.registry.load`."""

    spec: ModelSpec
    tokenizer: PreTrainedTokenizerBase
    chat_template: Any
    device: torch.device
    dtype: torch.dtype

    @property
    def vision_blocks(self) -> VisionBlocks | None:
        """The blocks of its tower, where that is a vision transformer whose blocks may be exchanged."""
        ...

    def prepare(
        self, messages: Sequence[Message], images: Sequence[Image.Image], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Prepared:
        """Apply the chat template and the processor; images are RGB, in order of appearance, tools in HF's form.

        Each image is read once and let go before the next: `images` may make them when they are asked for.

        Pure apart from CPU time; called off the event loop, never on the engine thread. Raises `Rejected` when the
        template refuses the messages or the number of placeholders does not match the images.
        """
        ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [T, E] of ids int64 [T]; ids at image placeholders may be any safe id.

        E is the hidden size H, or more where images bring features for further layers: then the rest is zeros here.
        """
        ...

    def encode(self, image: ImageInput) -> Generator[None, None, torch.Tensor]:
        """Encode one image in pauses: yields after every slice but the last, returns rows [num_embeds, E].

        Exactly `image.num_slices` resumptions finish it. Several generators may be alive at once; closing one early is
        allowed at any pause. The caller holds `torch.inference_mode()` around every resumption.
        """
        ...

    def encode_together(self, images: Sequence[ImageInput]) -> Generator[None, None, tuple[torch.Tensor, ...]]:
        """Encode images of one layout as one batch: as many slices as one of them has, and the rows of each.

        Rows are those of `encode` up to the order of sums. Otherwise as `encode`.
        """
        ...

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, plan: object) -> torch.Tensor:
        """One flattened step: embeds [T, E], positions int64 [R, T] -> final-normed hidden states [T, H].

        `plan` reaches the registered attention function unchanged, once per layer.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, V] fp32 of hidden states [n, H], soft-capping and scaling included."""
        ...

    def text_parts(self) -> TextParts:
        """What `forward` and `logits` compute with."""
        ...

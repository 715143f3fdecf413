"""SmolLM2-135M-Instruct out of its GGUF file, as HF tensors, an HF config and an HF tokenizer.

Reads the file with the `gguf` package alone. transformers' own GGUF loader would need `accelerate`, and its tokenizer
conversion loses the step that splits numbers into digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, TokenType, dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

IMAGE_TOKEN = "<|image|>"
UNUSED_TOKEN = "<empty_output>"
"""A notebook marker that chat never meets. The image token takes its id, so the vocabulary keeps its size."""

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_TENSORS = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}


class SmolLM2:
    """One opened GGUF file. Tensors are dequantised to fp32 as they are asked for."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self.config = self._config()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights of HF's `LlamaModel`, fp32, by their names in it. The output head is the embedding itself."""
        return {_hf_name(tensor.name): self._dequantised(tensor) for tensor in self._reader.tensors}

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The byte-level BPE tokenizer, `IMAGE_TOKEN` in the place of `UNUSED_TOKEN`; without a chat template."""
        tokens: list[str] = self._value("tokenizer.ggml.tokens")
        kinds: list[int] = self._value("tokenizer.ggml.token_type")
        special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        vocabulary[IMAGE_TOKEN] = vocabulary.pop(UNUSED_TOKEN)
        special[special.index(UNUSED_TOKEN)] = IMAGE_TOKEN

        merges = [tuple(merge.split(" ")) for merge in self._value("tokenizer.ggml.merges")]
        backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        backend.decoder = decoders.ByteLevel()
        end = tokens[self._value("tokenizer.ggml.eos_token_id")]
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            bos_token=tokens[self._value("tokenizer.ggml.bos_token_id")],
            eos_token=end,
            pad_token=end,
            unk_token=tokens[self._value("tokenizer.ggml.unknown_token_id")],
            extra_special_tokens=[token for token in special if token not in tokens[:3]],
            model_max_length=self.config.max_position_embeddings,
            clean_up_tokenization_spaces=False,
        )

    def _config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=self._value("llama.vocab_size"),
            hidden_size=self._value("llama.embedding_length"),
            intermediate_size=self._value("llama.feed_forward_length"),
            num_hidden_layers=self._value("llama.block_count"),
            num_attention_heads=self._value("llama.attention.head_count"),
            num_key_value_heads=self._value("llama.attention.head_count_kv"),
            max_position_embeddings=self._value("llama.context_length"),
            rms_norm_eps=round(self._value("llama.attention.layer_norm_rms_epsilon"), 9),
            rope_parameters={"rope_type": "default", "rope_theta": self._value("llama.rope.freq_base")},
            bos_token_id=self._value("tokenizer.ggml.bos_token_id"),
            eos_token_id=self._value("tokenizer.ggml.eos_token_id"),
            pad_token_id=self._value("tokenizer.ggml.padding_token_id"),
            tie_word_embeddings=True,
        )

    def _value(self, key: str) -> Any:
        return self._reader.fields[key].contents()

    def _dequantised(self, tensor: Any) -> torch.Tensor:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if ".attn_q." in tensor.name:
            return _unpermuted(weight, self._value("llama.attention.head_count"))
        if ".attn_k." in tensor.name:
            return _unpermuted(weight, self._value("llama.attention.head_count_kv"))
        return weight


def _hf_name(name: str) -> str:
    if name in OUTER_TENSORS:
        return OUTER_TENSORS[name]
    _, layer, part, kind = name.split(".")
    return f"layers.{layer}.{LAYER_TENSORS[part]}.{kind}"


def _unpermuted(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """GGUF interleaves the halves of each head's rotary pairs, HF keeps them apart. Both [num_heads * head_dim, in]."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)

"""Opens a checkpoint: an HF directory or id, checked before anything large is read and again after.

Everything that can be wrong with a checkpoint ends here as a one-line `ModelLoadError`. Knows no model family.
"""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig

from backend.errors import ModelLoadError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Any of these is enough to make a tokenizer from."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary scalings whose frequencies follow the longest position of the whole step: a sequence would depend on its batch
mates, and a chunked prompt would differ from a whole one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that exists and whose family is known; nothing but its config has been read."""

    source: str
    config: PreTrainedConfig
    device: torch.device
    dtype: torch.dtype
    local_files_only: bool

    def load_part(self, loader: Callable[..., T], **options: Any) -> T:
        """`loader` (a `from_pretrained`) on this checkpoint. Raises `ModelLoadError` with the reason's first line."""
        return _load_part(self.source, self.local_files_only, loader, options)

    def load_model(self, loader: Callable[..., Any]) -> PreTrainedModel:
        """The model that `loader` makes, on the checkpoint's device, in eval mode, every weight from the checkpoint.

        transformers fills missing weights with random numbers and only warns; here they are an error, and so are
        weights of another shape, which it is told to let through because its own error says nothing of them.
        """
        model, info = self.load_part(
            loader,
            config=self.config,
            dtype=self.dtype,
            low_cpu_mem_usage=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        self._refuse_other_shapes(info["mismatched_keys"])
        missing = sorted(info["missing_keys"])
        if missing:
            some = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
            raise ModelLoadError(f"model {self.source!r} lacks {len(missing)} of its weights ({some})")
        return model.to(self.device).eval()  # type: ignore[arg-type]  # transformers' annotation of .to() is off

    def _refuse_other_shapes(self, mismatched: Collection[tuple[str, Sequence[int], Sequence[int]]]) -> None:
        if not mismatched:
            return
        name, stored, expected = min(mismatched)
        raise ModelLoadError(
            f"model {self.source!r}: {len(mismatched)} of its weights have other shapes than its config.json says "
            f"({name} is {_shape(stored)}, expected {_shape(expected)}); config and weights must be of one model"
        )


def open_checkpoint(model: str, *, device: str, dtype: str, families: tuple[str, ...]) -> Checkpoint:
    """Read and check the config of `model`. Raises `ModelLoadError`; reads no weights."""
    _quieten_transformers()
    target = _resolve_device(device)
    path = Path(model).expanduser()
    source = str(path) if path.is_dir() else model
    local_files_only = path.is_dir() or not _is_hub_reachable()
    try:
        raw, _ = PreTrainedConfig.get_config_dict(source, local_files_only=local_files_only)
    except Exception as error:
        raise ModelLoadError(_not_found(model, local_files_only, error)) from error
    family = raw.get("model_type")
    if family not in families:
        what = f"is of family {family!r}" if family else "has no config.json that names its family (model_type)"
        raise ModelLoadError(f"model {model!r} {what}; supported are: {', '.join(sorted(families))}")
    if path.is_dir() and not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelLoadError(f"model {model!r} has no tokenizer: its directory lacks tokenizer.json")
    config = _load_part(source, local_files_only, AutoConfig.from_pretrained, {})
    _refuse_batch_dependent_rope(model, config.get_text_config())
    _refuse_two_way_text(model, config, config.get_text_config())
    return Checkpoint(source, config, target, _resolve_dtype(dtype, target), local_files_only)


def _load_part(source: str, local_files_only: bool, loader: Callable[..., T], options: Mapping[str, Any]) -> T:
    try:
        return loader(source, local_files_only=local_files_only, trust_remote_code=False, **options)
    except SafetensorError as error:
        raise ModelLoadError(
            f"model {source!r}: its weights are damaged or cut short ({one_line(error)}); download them again"
        ) from error
    except Exception as error:  # transformers, safetensors and huggingface_hub raise a dozen unrelated types
        raise ModelLoadError(f"model {source!r} cannot be loaded: {one_line(error)}") from error


def _quieten_transformers() -> None:
    """Its reports and bars are for its authors: what matters of them is checked here. Downloads keep their bars."""
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    enable_progress_bars()


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(str(size) for size in sizes)


def _resolve_device(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError("device cuda: torch sees no CUDA GPU here; use --device cpu")
    return torch.device(device)


def _resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise ModelLoadError(f"dtype {dtype!r} is unknown; choose one of: auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _is_hub_reachable() -> bool:
    """Whether it is worth asking the hub: without this an offline machine spends half a minute on its client's retries.

    Behind a proxy the question cannot be asked directly, and the client is left to find out.
    """
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return False
    if not {"http", "https", "all"}.isdisjoint(urllib.request.getproxies()):
        return True
    url = urlsplit(ENDPOINT)
    try:
        address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
        socket.create_connection(address, timeout=3.0).close()
    except OSError:
        return False
    return True


def _not_found(model: str, local_files_only: bool, error: Exception) -> str:
    path = Path(model).expanduser()
    if path.is_dir():
        return f"model {model!r}: the directory has no readable config.json"
    if path.is_absolute() or model.startswith(".") or model.count("/") > 1:
        return f"model {model!r}: no such directory"
    if local_files_only:
        return f"model {model!r} is no directory and not in the local cache, and the Hugging Face hub cannot be reached"
    return f"model {model!r} is neither a directory nor a Hugging Face id: {one_line(error)}"


def _refuse_batch_dependent_rope(model: str, text_config: PreTrainedConfig) -> None:
    parameters = getattr(text_config, "rope_parameters", None) or {}
    per_layer_type = [p for p in parameters.values() if isinstance(p, dict)]
    for rope in per_layer_type or [parameters]:
        if rope.get("rope_type") in BATCH_DEPENDENT_ROPE:
            raise ModelLoadError(
                f"model {model!r} scales its rotary positions by {rope['rope_type']!r}, which would make one request "
                "depend on others; set another rope_type in its config.json"
            )


def _refuse_two_way_text(model: str, *configs: PreTrainedConfig) -> None:
    """Refuse a model whose words see those behind them: an encoder of text, which has no next token."""
    if any(getattr(config, "use_bidirectional_attention", None) for config in configs):
        raise ModelLoadError(
            f"model {model!r} has use_bidirectional_attention in its config.json: its words see the words behind them, "
            "so it encodes text and cannot continue it"
        )

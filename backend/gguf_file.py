"""A GGUF file as a model by name: turned once into an ordinary HF directory in the cache, then loaded as any other.

transformers reads the file (config, tokenizer, weights, for the architectures that it knows); the weights are
dequantised to float32. Its own `from_pretrained` on such a file would need `accelerate`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.demo.lock import exclusive
from backend.errors import ModelLoadError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SUFFIX = ".gguf"

Say = Callable[[str], None]


def is_gguf(model: str) -> bool:
    """Whether a model is named by such a file."""
    return model.endswith(SUFFIX) and Path(model).expanduser().is_file()


def as_directory(model: str, cache_dir: Path, say: Say) -> str:
    """The HF directory of a model that is named by a GGUF file; whatever else is named comes back as it is.

    Raises `ModelLoadError`, one line, for a file that is broken or of an architecture that transformers does not read,
    and for a cache that cannot be written.
    """
    if not is_gguf(model):
        return model
    source = Path(model).expanduser().resolve()
    facts = source.stat()
    key = hashlib.sha256(f"{source} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:12]
    directory = cache_dir.expanduser() / "gguf" / f"{source.stem}-{key}"
    if directory.is_dir():  # complete: nothing need be written, also where nothing can be
        return str(directory)
    lock = directory.with_name(f"{directory.name}.lock")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(lock, lambda: say(f"{model} is being read by another …")):
            if not directory.is_dir():
                say(f"Reading {model}; its weights, dequantised, are kept in {directory}")
                _keep(model, *_read(model, source), directory)
    except OSError as error:
        raise _unwritable(model, directory, error) from error
    return str(directory)


def _keep(model: str, weights: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write the directory; it has its name only once it is complete, also on the disk. Raises `ModelLoadError`."""
    unfinished = directory.with_name(f"{directory.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        weights.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        for path in (*unfinished.rglob("*"), unfinished):
            _flush(path)
        unfinished.rename(directory)
        _flush(directory.parent)
    except Exception as error:
        # safetensors and tokenizers have errors of their own for what the disk says, known by these words alone.
        if isinstance(error, OSError) or re.search(r"\bos error \d+", str(error)):
            raise _unwritable(model, directory, error) from error
        raise _unreadable(model, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _flush(path: Path) -> None:
    """Bring a file, or the names in a directory, onto the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(model: str, directory: Path, error: Exception) -> ModelLoadError:
    reason = (error.strerror if isinstance(error, OSError) else None) or one_line(error)
    return ModelLoadError(
        f"model {model!r} cannot be kept in {directory.parent}: {reason}; choose another place with --cache-dir"
    )


def _unreadable(model: str, error: Exception) -> ModelLoadError:
    return ModelLoadError(f"model {model!r} cannot be read as a GGUF file: {one_line(error)}")


def _read(model: str, source: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The weights in float32, and the tokenizer. Raises `ModelLoadError`."""
    try:
        return _parse(source)
    except ModelLoadError:
        raise
    except Exception as error:  # gguf and transformers raise a dozen unrelated types on a file that is no good
        raise _unreadable(model, error) from error


def _parse(source: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from backend.models.hf_adapter import TEXT_FAMILIES

    place: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(source.parent, **place)
    if config.model_type not in TEXT_FAMILIES:
        raise ModelLoadError(
            f"model {source.name!r} is of family {config.model_type!r}; supported in a GGUF file are: "
            f"{', '.join(TEXT_FAMILIES)}"
        )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **place)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model, torch_dtype=torch.float32)[
        "tensors"
    ]
    _fill(model, tensors, source.name)
    return model, tokenizer


def _fill(model: PreTrainedModel, tensors: dict[str, Any], name: str) -> None:
    """Put the weights in; raises `ModelLoadError` for any that is not in the file."""
    missing = set(model.load_state_dict(tensors, strict=False).missing_keys)
    if getattr(model.config, "tie_word_embeddings", False):
        missing.discard("lm_head.weight")
    if missing:
        raise ModelLoadError(f"model {name!r} lacks {len(missing)} of its weights ({min(missing)}, …)")

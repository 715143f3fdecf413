"""The embedded demo model, assembled once into an ordinary HF checkpoint directory (`fast_vlm`).

Parts: EfficientNet-Lite2 (vision tower), the connector in this package, SmolLM2-135M-Instruct (language model). The
directory appears whole or not at all, and is assembled anew when the recipe (parts or code) changes. What it is good
for, and under which terms, is in MODEL_CARD.md. Imports no torch: a supervisor may call it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from rich.progress import Progress

from backend.demo.assets import LANGUAGE_MODEL, VISION_TOWER, AssetError, announce, ensure_asset, scratch_dir, writing

HERE = Path(__file__).parent
CONNECTOR = HERE / "demo_connector.safetensors"
MODEL_CARD = HERE / "MODEL_CARD.md"
RECIPE_FILES = (HERE / "checkpoint.py", HERE / "smollm2.py", HERE / "chat_template.jinja", CONNECTOR, MODEL_CARD)
STAMP = "assembled.json"


def ensure_demo_model(cache_dir: Path, progress: Progress) -> Path:
    """The demo model's directory, assembled if need be. Safe beside other processes. Raises `AssetError`."""
    target = cache_dir / "demo-model"
    with writing(target, progress):
        recipe = _recipe()
        if not _is_assembled(target, recipe):
            _assemble(target, recipe, cache_dir, progress)
    return target


def _assemble(target: Path, recipe: str, cache_dir: Path, progress: Progress) -> None:
    tower = ensure_asset(VISION_TOWER, cache_dir, progress)
    language_model = ensure_asset(LANGUAGE_MODEL, cache_dir, progress)
    announce(progress, f"Assembling the demo model in {target} …")
    with scratch_dir(target) as scratch:
        _save_checkpoint(scratch, tower, language_model)
        shutil.copy(MODEL_CARD, scratch / "README.md")
        sizes = {path.name: path.stat().st_size for path in sorted(scratch.iterdir())}
        (scratch / STAMP).write_text(json.dumps({"recipe": recipe, "sizes": sizes}, indent=1))
        if target.exists():
            target.replace(scratch / "previous")  # a directory cannot be replaced while it has content
        scratch.replace(target)
    shutil.rmtree(target / "previous", ignore_errors=True)


def _save_checkpoint(directory: Path, tower: Path, language_model: Path) -> None:
    """Run `backend.demo.checkpoint` in a process of its own, so that the caller, a supervisor, never holds torch."""
    command = [sys.executable, "-m", "backend.demo.checkpoint", str(directory), str(tower), str(language_model)]
    done = subprocess.run([*command, str(CONNECTOR)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        killed = "the process was killed; it needs 2 GB of memory"
        lines = done.stderr.strip().splitlines()
        reason = killed if done.returncode < 0 or not lines else lines[-1]
        raise AssetError(f"the demo model could not be assembled from its parts: {reason}.")


def _is_assembled(target: Path, recipe: str) -> bool:
    """Whether `target` was assembled by this recipe and still has all its files, by size."""
    try:
        stamp = json.loads((target / STAMP).read_text())
        return stamp["recipe"] == recipe and all(
            (target / name).stat().st_size == size for name, size in stamp["sizes"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def _recipe() -> str:
    """Digest of everything that shapes the checkpoint: the pinned parts, the connector, the code."""
    digest = hashlib.sha256()
    for asset in (VISION_TOWER, LANGUAGE_MODEL):
        digest.update(asset.sha256.encode())
    for path in RECIPE_FILES:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()

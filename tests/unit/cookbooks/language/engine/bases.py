"""Bases of every family to train on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stoker.cookbooks.language.bundled import TinyShape, write_base

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
BASES: dict[str, tuple[TinyShape, dict[str, Any]]] = {
    "llama": (TinyShape(hidden=32, inner=48, seed=1), {}),
    "llama, tied, llama3 rope": (TinyShape(hidden=32, inner=48, seed=2, is_tied=True), {"rope_scaling": LLAMA3}),
    "mistral, window": (TinyShape(family="mistral", hidden=32, inner=48, seed=3), {"sliding_window": 5}),
    "qwen2, biases": (TinyShape(family="qwen2", hidden=32, inner=48, seed=4), {}),
    "qwen3, norms of heads": (TinyShape(family="qwen3", hidden=32, inner=48, seed=5, is_tied=True), {}),
}
"""Every family, and between them every part that a base may have."""


def made_base(folder: Path, name: str) -> Path:
    """Write one of `BASES`."""
    shape, said = BASES[name]
    write_base(folder, shape)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | said))
    return folder

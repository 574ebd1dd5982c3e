"""Bases that are quantised on disk, by bitsandbytes' own functions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from bitsandbytes import functional
from safetensors.torch import load_file, save_file


def saved(folder: Path, into: Path, *, double: bool = True, kind: str = "nf4", skipped: tuple[str, ...] = ()) -> Path:
    """Save a base as transformers does with bitsandbytes: by its own functions, in its own layout."""
    shutil.copytree(folder, into)
    tensors: dict[str, Any] = {}
    for name, weight in load_file(into / "model.safetensors").items():
        if not name.endswith("_proj.weight") or name.endswith(skipped or "nothing"):
            tensors[name] = weight
        elif kind == "int8":
            codes, sizes, _ = functional.int8_vectorwise_quant(weight.half())
            tensors |= {name: codes, name.removesuffix("weight") + "SCB": sizes}
            tensors[name.removesuffix("weight") + "weight_format"] = torch.tensor(0, dtype=torch.uint8)
        else:
            codes, state = functional.quantize_4bit(weight, quant_type=kind, blocksize=64, compress_statistics=double)
            tensors[name] = codes
            tensors |= {f"{name}.{part}": one for part, one in state.as_dict(packed=True).items()}
    save_file({name: one.contiguous() for name, one in tensors.items()}, into / "model.safetensors")
    said = {"quant_method": "bitsandbytes", "load_in_8bit": kind == "int8", "load_in_4bit": kind != "int8"}
    configure(into, {**said, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": double})
    return into


def configure(folder: Path, said: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": said}))


def by_bitsandbytes(folder: Path) -> dict[str, Any]:
    """Every matrix as bitsandbytes reads it."""
    tensors = load_file(folder / "model.safetensors")
    found = {}
    for name in (one for one in tensors if one.endswith("_proj.weight")):
        parts = {part: one for part, one in tensors.items() if part.startswith(f"{name}.")}
        if parts:
            parts = {part.removeprefix(f"{name}."): one for part, one in parts.items()}
            state = functional.QuantState.from_dict(parts, device=torch.device("cpu"))
            found[name] = functional.dequantize_4bit(tensors[name], state)
        elif (sizes := tensors.get(name.removesuffix("weight") + "SCB")) is not None:
            found[name] = functional.int8_vectorwise_dequant(tensors[name], sizes)
        else:
            found[name] = tensors[name]
    return found

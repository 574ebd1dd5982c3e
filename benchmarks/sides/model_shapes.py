"""What transformers itself says of small and real models: how many parameters, and how much autograd keeps.

    python model_shapes.py OUT.json

Parameters are counted on the meta device. What autograd keeps for the backward pass is counted tensor by tensor, each
storage once and without the model's own weights, on the first GPU if there is one; the models are tiny, and every
dimension is another prime multiple, so that a formula that is right for them is right by its terms.
The tests of `stoker.devices.estimate` read the file as `tests/recordings/model_shapes.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from vram_cases import MODELS

TINY: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": None},
    "qwen2": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 4, "head_dim": 48},
    "gemma": {"num_key_value_heads": 1, "head_dim": 48},
    "phi3": {"num_key_value_heads": 4, "pad_token_id": 0},
    "gpt_neox": {"tie_word_embeddings": False},
    "gpt2": {"n_embd": 256, "n_layer": 3, "n_head": 8, "n_positions": 256, "vocab_size": 1013},
}
PLAIN = {
    "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "intermediate_size": 704, "vocab_size": 1013,
    "max_position_embeddings": 256,
}  # fmt: skip
MORE_COUNTED: dict[str, dict[str, Any]] = {
    "llama-biases": {
        "model_type": "llama", **PLAIN, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True,
        "head_dim": 64, "tie_word_embeddings": True,
    },
    "gpt2-inner": {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "n_inner": 300, "vocab_size": 997},
    "neox-tied": {"model_type": "gpt_neox", **PLAIN, "tie_word_embeddings": True},
    "neox-sequential": {"model_type": "gpt_neox", **PLAIN, "use_parallel_residual": False, "attention_bias": False},
    "qwen3-untied": {"model_type": "qwen3", **PLAIN, "num_key_value_heads": 2, "head_dim": 40},
    "mistral-heads": {
        "model_type": "mistral", **PLAIN, "num_key_value_heads": 4, "head_dim": 48, "sliding_window": None,
    },
    "llama-default": {"model_type": "llama"},
    "qwen2-default": {"model_type": "qwen2"},
    "qwen3-default": {"model_type": "qwen3"},
    "gemma-default": {"model_type": "gemma"},
    "gpt2-default": {"model_type": "gpt2"},
    "gpt_neox-default": {"model_type": "gpt_neox"},
    "mistral-default": {"model_type": "mistral"},
    "phi3-default": {"model_type": "phi3"},
}  # fmt: skip
VARIANTS: list[dict[str, Any]] = [
    {"method": "full"},
    {"method": "full", "checkpointing": True},
    {"method": "full", "dtype": "fp32", "autocast": "bf16"},
    {"method": "full", "attention": "eager"},
    {"method": "full", "dtype": "fp32"},
    {"method": "lora"},
    {"method": "lora", "adapter_dtype": "bf16"},
    {"method": "lora", "checkpointing": True},
    {"method": "lora", "dropout": 0.1},
    {"method": "lora", "adapter_dtype": "bf16", "dropout": 0.1},
    {"method": "lora", "autocast": "bf16"},
    {"method": "lora", "targets": "some"},
    {"method": "lora", "adapter_dtype": "bf16", "targets": "some"},
    {"method": "lora", "attention": "eager"},
]
SOME = {"phi3": "qkv_proj,down_proj", "gpt_neox": "query_key_value,dense_4h_to_h", "gpt2": "c_attn"}
BATCH, SEQUENCE = 2, 128


def main() -> int:
    import torch
    import transformers

    said: dict[str, Any] = {
        "made_by": "benchmarks/sides/model_shapes.py",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "parameters": {},
        "saved": [],
    }
    tiny = {f"tiny-{family}": tiny_config(family) for family in TINY}
    for name, config in {**MODELS, **tiny, **MORE_COUNTED}.items():
        said["parameters"][name] = {"config": config, **_counted(config)}
    for family in TINY:
        for variant in VARIANTS:
            wanted = {"batch": BATCH, "sequence": SEQUENCE, **variant}
            if wanted.get("targets") == "some":
                wanted["targets"] = SOME.get(family, "q_proj,v_proj,down_proj")
            row: dict[str, Any] = {"config": tiny_config(family), "training": wanted}
            try:
                row |= _saved(row["config"], wanted)
            except Exception as error:  # noqa: BLE001 - what can't be counted is written down as such
                row["error"] = repr(error)[:500]
            said["saved"].append(row)
            print(family, variant, row.get("saved_bytes"), row.get("error", ""), flush=True)
    Path(sys.argv[1]).write_text(json.dumps(said, indent=1) + "\n")
    return 0


def tiny_config(family: str) -> dict[str, Any]:
    plain = {} if family == "gpt2" else PLAIN
    return {"model_type": family, **plain, **TINY[family]}


def _counted(config: dict[str, Any]) -> dict[str, int]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    names = {"lm_head", "embed_out", "embed_tokens", "wte", "wpe", "embed_in"}
    inside = [part for name, part in model.named_modules() if name.rpartition(".")[2] not in names]
    linears = [part for part in inside if type(part).__name__ in ("Linear", "Conv1D")]
    return {
        "count": sum(parameter.numel() for parameter in model.parameters()),
        "linear_count": sum(parameter.numel() for part in linears for parameter in part.parameters(recurse=False)),
    }


def _saved(config: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    import torch
    from vram_training import DTYPES, build

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = build(config, wanted, device=device)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            kept.setdefault(address, tensor)
        return tensor

    ids = torch.randint(0, config["vocab_size"], (wanted["batch"], wanted["sequence"]), device=device)
    autocast = wanted.get("autocast", "")
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast(device, getattr(torch, DTYPES[autocast or "bf16"]), enabled=bool(autocast)),
    ):
        outputs = model(input_ids=ids, labels=ids)
    rows: dict[str, list[int]] = {}
    for tensor in kept.values():
        row = rows.setdefault(f"{str(tensor.dtype)[6:]} {tuple(tensor.shape)}", [0, 0])
        row[0] += 1
        row[1] += tensor.untyped_storage().nbytes()
    del outputs
    return {
        "saved_bytes": sum(size for _, size in rows.values()),
        "trained": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "tensors": rows,
    }


if __name__ == "__main__":
    sys.exit(main())

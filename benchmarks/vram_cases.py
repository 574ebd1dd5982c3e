"""The models and trainings whose GPU memory is measured, and what each measurement is for.

`develop`: looked at while the estimator was written; its constants may come from here and from nowhere else.
`calibrate`: small runs of the kinds that are judged; they fill the calibration book.
`judge`: measured once the estimator stood, and never used for it.

Whatever a case says about its training has the name that `stoker machines estimate` gives it.
"""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]

MODELS: dict[str, dict[str, Any]] = {
    "llama-1.1b": {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000, "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
    },
    "llama-3.2b": {
        "model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256,
        "tie_word_embeddings": True, "max_position_embeddings": 131072,
    },
    "qwen2-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
    },
    "qwen3-1.7b": {
        "model_type": "qwen3", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
        "tie_word_embeddings": True, "max_position_embeddings": 40960,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "tie_word_embeddings": True, "max_position_embeddings": 40960,
    },
    "gpt2-medium": {
        "model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "n_positions": 1024, "vocab_size": 50257,
    },
    "pythia-410m": {
        "model_type": "gpt_neox", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096, "vocab_size": 50304, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    },
    "gemma-2b": {
        "model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384, "vocab_size": 256000,
        "max_position_embeddings": 8192,
    },
    "mistral-7b": {
        "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32768, "sliding_window": None,
        "max_position_embeddings": 32768,
    },
    "phi3-mini": {
        "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "pad_token_id": 32000,
        "max_position_embeddings": 4096,
    },
}  # fmt: skip


def _case(role: str, model: str, batch: int, sequence: int, **training: object) -> Case:
    said = {"batch": batch, "sequence": sequence, **training}
    return {"role": role, "model": model, "training": said}


def _kind(model: str, *sizes: tuple[str, int, int], **training: object) -> list[Case]:
    return [_case(role, model, batch, sequence, **training) for role, batch, sequence in sizes]


CASES: list[Case] = [
    *_kind("pythia-410m", ("develop", 1, 512), ("develop", 8, 1024), method="full"),
    *_kind("pythia-410m", ("develop", 4, 1024), method="full", padded=True),
    *_kind("pythia-410m", ("develop", 4, 1024), method="full", dtype="fp32", autocast="bf16", optimiser="adamw-fused"),
    *_kind("pythia-410m", ("develop", 4, 1024), method="full", dtype="fp32", autocast="bf16", checkpointing=True),
    *_kind("qwen3-1.7b", ("develop", 1, 512), ("develop", 4, 1024), method="lora"),
    *_kind("qwen3-1.7b", ("develop", 4, 1024), method="lora", checkpointing=True),
    *_kind("qwen3-1.7b", ("develop", 4, 1024), method="lora", keeps_outputs=False, expandable_segments=True),
    *_kind("qwen3-1.7b", ("develop", 4, 1024), method="lora", padded=True),
    *_kind("qwen3-1.7b", ("develop", 4, 1024), method="lora", loss_chunk=1024),
    *_kind("qwen3-1.7b", ("develop", 2, 1024), method="full", optimiser="adamw-fused"),
    *_kind("qwen3-1.7b", ("develop", 1, 1024), method="full", loss_chunk=512, optimiser="sgd-momentum"),
    *_kind("qwen3-1.7b", ("develop", 2, 1024), method="full", accumulation=2, expandable_segments=True),
    *_kind("phi3-mini", ("develop", 2, 1024), method="lora", targets="qkv_proj,o_proj", dropout=0.1, rank=32),
    *_kind("phi3-mini", ("develop", 1, 1024), method="lora", adapter_dtype="bf16", attention="eager"),
    *_kind("phi3-mini", ("develop", 2, 1024), method="full", checkpointing=True, optimiser="sgd"),
    *_kind("llama-1.1b", ("calibrate", 1, 512), ("judge", 4, 512), ("judge", 8, 1024), method="lora"),
    *_kind("llama-1.1b", ("calibrate", 2, 512), ("judge", 4, 2048), method="lora", checkpointing=True),
    *_kind("llama-1.1b", ("calibrate", 1, 512), ("judge", 4, 1024), ("judge", 1, 2048), method="full"),
    *_kind("qwen2-0.5b", ("calibrate", 2, 512), ("judge", 8, 1024), method="lora", adapter_dtype="bf16", rank=8),
    *_kind(
        "qwen2-0.5b", ("calibrate", 1, 512), ("judge", 4, 1024), ("judge", 8, 512),
        method="full", dtype="fp32", autocast="bf16", optimiser="adamw-fused",
    ),
    *_kind("gpt2-medium", ("calibrate", 2, 512), ("judge", 8, 1024), ("judge", 16, 512), method="full"),
    *_kind("gpt2-medium", ("calibrate", 2, 512), ("judge", 8, 1024), method="lora", targets="c_attn", dropout=0.05),
    *_kind(
        "llama-3.2b", ("calibrate", 1, 512), ("judge", 2, 2048), ("judge", 8, 512), method="lora", checkpointing=True
    ),
    *_kind(
        "llama-3.2b", ("calibrate", 1, 512), ("judge", 4, 1024),
        method="full", optimiser="adamw-fused", checkpointing=True,
    ),
    *_kind("gemma-2b", ("calibrate", 1, 512), ("judge", 4, 1024), method="lora", autocast="bf16", targets="attention"),
    *_kind(
        "mistral-7b", ("calibrate", 1, 512), ("judge", 2, 1024), ("judge", 1, 2048),
        method="lora", targets="q_proj,v_proj",
    ),
    *_kind("llama-1.1b", ("calibrate", 2, 512), ("judge", 4, 1024), method="lora", padded=True, dropout=0.05, rank=64),
    *_kind(
        "gemma-2b", ("calibrate", 1, 512), ("judge", 2, 1024),
        method="full", optimiser="adamw-fused", checkpointing=True,
    ),
    *_kind("qwen3-0.6b", ("calibrate", 1, 512), ("judge", 4, 2048), method="lora", expandable_segments=True),
]  # fmt: skip


def name_of(case: Case) -> str:
    """Return a case a name that says what it is: `llama-1.1b lora 4×512`."""
    said = dict(case["training"])
    size = f"{said.pop('batch')}×{said.pop('sequence')}"
    rest = [f"{key}={value}" for key, value in said.items() if key != "method"]
    return " ".join([case["model"], str(said["method"]), size, *rest])

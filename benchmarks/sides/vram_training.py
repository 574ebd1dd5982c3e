"""Trains a few steps of each case on the first GPU, one process per case, and writes down what memory they took.

    python vram_training.py OUT.json [--roles develop,calibrate] [--until SECONDS]

Needs torch, transformers and peft; models have random weights. The parent imports everything and never touches the
GPU; each case is forked from it, so a measurement begins without a context.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from vram_cases import CASES, MODELS

STEPS = 5
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--roles", default="develop,calibrate,judge")
    parser.add_argument("--until", type=float, default=540.0)
    given = parser.parse_args()
    started = time.monotonic()
    import accelerate
    import peft
    import torch
    import transformers

    asked = [{**case, "config": MODELS[case["model"]]} for case in CASES if case["role"] in given.roles.split(",")]
    said: dict[str, Any] = {
        "commands": [" ".join(["python", *sys.argv])],
        "measured_at": datetime.now(UTC).isoformat(timespec="minutes"),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
            "accelerate": accelerate.__version__,
        },
        "gpu": _smi("name,driver_version,memory.total"),
        "idle_used_mib": _smi("memory.used"),
        "measured": [],
    }
    for number, case in enumerate(asked):
        if time.monotonic() - started > given.until:
            said["measured"].append({**case, "error": "no time was left"})
            continue
        said["measured"].append(_forked(case, f"{given.out}.{number}"))
        with open(given.out, "w", encoding="utf-8") as file:
            json.dump(said, file, indent=1)
        print(f"{time.monotonic() - started:6.1f} s", json.dumps(said["measured"][-1])[:400], flush=True)
    return 0


def _forked(case: dict[str, Any], path: str) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        try:
            found = _measure(case)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what was found
            found = {"error": "".join(traceback.format_exception(error))[-3000:]}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file)
        os._exit(0)
    os.waitpid(child, 0)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        os.unlink(path)
    except (OSError, ValueError):
        found = {"error": "the process died"}
    return {**case, **found}


def _measure(case: dict[str, Any]) -> dict[str, Any]:
    wanted = case["training"]
    if wanted.get("expandable_segments"):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    torch.manual_seed(0)
    free_before = _smi_number("memory.used")
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    bare = _driver_used()
    model = build(case["config"], wanted)
    optimiser = _optimiser(model, wanted)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    facts: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "built_bytes": torch.cuda.memory_allocated(),
        "bare_context_bytes": bare["process_bytes"],
    }
    started = time.monotonic()
    facts["reserved_by_step"] = []
    for _ in range(STEPS):
        _step(model, optimiser, case["config"]["vocab_size"], wanted)
        facts["reserved_by_step"].append(torch.cuda.memory_reserved())
    torch.cuda.synchronize()
    facts["step_s"] = (time.monotonic() - started) / STEPS
    facts["allocated_bytes"] = torch.cuda.max_memory_allocated()
    facts["reserved_bytes"] = torch.cuda.max_memory_reserved()
    phases: dict[str, int] = {}
    _step(model, optimiser, case["config"]["vocab_size"], wanted, phases)
    facts["phases"] = phases
    facts["kept_bytes"] = torch.cuda.memory_allocated()
    facts |= _driver_used()
    facts["device_used_before_mib"] = free_before
    stats = torch.cuda.memory_stats()
    facts["retries"] = stats["num_alloc_retries"]
    facts["small_reserved_bytes"] = stats["reserved_bytes.small_pool.peak"]
    facts["accelerate_bytes"] = _accelerate(case["config"], wanted)
    return facts


def build(config: dict[str, Any], wanted: dict[str, Any], *, device: str = "cuda") -> Any:
    """Return a model with random weights, ready to be trained as wanted."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    read = AutoConfig.for_model(**config)
    read.use_cache = False
    dtype = getattr(torch, DTYPES[wanted.get("dtype", "bf16")])
    with torch.device(device):
        attention = wanted.get("attention", "sdpa")
        model = AutoModelForCausalLM.from_config(read, dtype=dtype, attn_implementation=attention)
    model.train()
    if wanted.get("checkpointing"):
        model.gradient_checkpointing_enable()
    if wanted["method"] == "lora":
        if wanted.get("checkpointing"):
            model.enable_input_require_grads()
        model = _with_adapters(model, wanted)
    return model


def _with_adapters(model: Any, wanted: dict[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = wanted.get("targets", "all-linear")
    if targets == "attention":
        targets = "q_proj,k_proj,v_proj,o_proj"
    lora = LoraConfig(
        r=wanted.get("rank", 16),
        lora_alpha=32,
        lora_dropout=wanted.get("dropout", 0.0),
        target_modules=targets if targets == "all-linear" else targets.split(","),
        task_type="CAUSAL_LM",
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    return get_peft_model(model, lora, autocast_adapter_dtype=wanted.get("adapter_dtype", "fp32") == "fp32")


def _optimiser(model: Any, wanted: dict[str, Any]) -> Any:
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    match wanted.get("optimiser", "adamw"):
        case "adamw":
            return torch.optim.AdamW(trained, lr=1e-5)
        case "adamw-fused":
            return torch.optim.AdamW(trained, lr=1e-5, fused=True)
        case "sgd":
            return torch.optim.SGD(trained, lr=1e-5)
        case "sgd-momentum":
            return torch.optim.SGD(trained, lr=1e-5, momentum=0.9)
        case other:
            message = f"unknown optimiser {other}"
            raise ValueError(message)


def _step(
    model: Any, optimiser: Any, vocabulary: int, wanted: dict[str, Any], phases: dict[str, int] | None = None
) -> None:
    """Train one step. Into `phases` goes the most that was allocated in each part of it, and what was left after it."""
    import torch

    def leave(name: str) -> None:
        if phases is not None:
            torch.cuda.synchronize()
            phases[name] = max(phases.get(name, 0), torch.cuda.max_memory_allocated())
            phases[f"after_{name}"] = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()

    if phases is not None:
        torch.cuda.reset_peak_memory_stats()
    autocast = wanted.get("autocast", "")
    for _ in range(wanted.get("accumulation", 1)):
        ids = torch.randint(0, vocabulary, (wanted["batch"], wanted["sequence"]), device="cuda")
        with torch.autocast("cuda", getattr(torch, DTYPES[autocast or "bf16"]), enabled=bool(autocast)):
            outputs = _forward(model, ids, wanted)
        loss = outputs.loss
        if not wanted.get("keeps_outputs", True):
            del outputs
        leave("forward")
        loss.backward()
        leave("backward")
    optimiser.step()
    leave("step")
    optimiser.zero_grad(set_to_none=True)


def _forward(model: Any, ids: Any, wanted: dict[str, Any]) -> Any:
    if wanted.get("loss_chunk"):
        return _chunked(model, ids, wanted["loss_chunk"])
    if wanted.get("padded"):
        mask = ids.new_ones(ids.shape)
        mask[0, ids.shape[1] * 7 // 8 :] = 0
        return model(input_ids=ids, labels=ids, attention_mask=mask)
    return model(input_ids=ids, labels=ids)


def _chunked(model: Any, ids: Any, chunk: int) -> Any:
    """Return the loss without ever having all logits: chunk by chunk, each computed again for the backward pass."""
    from types import SimpleNamespace

    import torch
    from torch.utils.checkpoint import checkpoint

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = inner.base_model(input_ids=ids).last_hidden_state.flatten(0, 1)
    head = inner.get_output_embeddings()

    def loss_of(part: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(head(part).float(), labels, reduction="sum")

    pairs = zip(hidden.split(chunk), ids.flatten().split(chunk), strict=True)
    losses = [checkpoint(loss_of, part, labels, use_reentrant=False) for part, labels in pairs]
    return SimpleNamespace(loss=torch.stack(losses).sum() / ids.numel())


def _driver_used() -> dict[str, Any]:
    """What the driver says that this process holds, and the whole device."""
    import torch

    free, total = torch.cuda.mem_get_info()
    told = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    rows = [[part.strip() for part in line.split(",")] for line in told.splitlines() if line.strip()]
    mine = [row[1] for row in rows if row[0] == str(os.getpid())]
    if not mine and len(rows) == 1:
        mine = [rows[0][1]]
    used = int(mine[0]) * 2**20 if mine and mine[0].isdecimal() else None
    return {"process_bytes": used, "device_used_bytes": total - free}


def _accelerate(config: dict[str, Any], wanted: dict[str, Any]) -> int:
    """What `accelerate estimate-memory` says of training this model with Adam, in the weights' type."""
    from accelerate import init_empty_weights
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModelForCausalLM

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    total, _ = calculate_maximum_sizes(model)
    is_whole = wanted.get("dtype", "bf16") == "fp32" and not wanted.get("autocast")
    usage = estimate_training_usage(total, "float32" if is_whole else "bfloat16")
    return int(max(usage.values()))


def _smi(fields: str) -> str:
    told = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return told.stdout.strip()


def _smi_number(field: str) -> int:
    text = _smi(field).splitlines()[0].strip()
    return int(text) if text.isdecimal() else -1


if __name__ == "__main__":
    sys.exit(main())

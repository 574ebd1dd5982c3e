"""On a machine with a GPU: how fast PEFT trains adapters of rank 16 on all linears, and how much memory that takes.

    python benchmarks/sides/adapters_peft.py OUT.json [--only PART,PART] [--limit SECONDS] [--until SECONDS] [--tiny]

    matrix                      the card's bf16 matrix rate
    eager-fp32, eager-bf16      one adapter, three sizes; its weights in fp32, as PEFT makes them, or in bf16
    compiled-SIZE               the same under torch.compile (whole model, fixed shapes, bf16 adapter); first call timed
    graphs-SIZE                 the same with mode="reduce-overhead" (CUDA graphs); not in the default list
    layers-SIZE                 each block compiled by itself (short to compile); not in the default list
    liger-SIZE                  with Liger's kernels, as they come and compiled; not in the default list
    processes-SIZE              8 processes at once, from a barrier on, in a common window; at 1024 for the memory

Peers get their quick settings: sdpa, no dropout, no clipping, fused AdamW, tokens on the card already, the loss never
read in a step. Where 8 processes don't fit on the card, as many as fit; the count is told.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
import gpu_parts  # noqa: E402 - found by the line above, from wherever this is started
from adapters_cases import MEMBERS, MEMORY_SIZE, MODEL, RANK, SEQUENCE, SIZES, TARGETS, TINY  # noqa: E402 - the same
from gpu_parts import Say  # noqa: E402 - the same

WINDOW_S = 6.0
FITS = {8192: (6, 5, 4)}
"""Counts of processes to try, where 8 are known not to fit: one takes 29 GB there."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = gpu_parts.parse(parser)
    # The parts are forked from here and find it imported. Not so PEFT: with bitsandbytes it touches the GPU.
    from transformers.models.llama import modeling_llama  # noqa: F401

    side = Side(tiny=given.tiny)
    usual: dict[str, gpu_parts.Part] = {
        "matrix": side.matrix,
        "eager-bf16": partial(side.eager, "bf16"),
        "eager-fp32": partial(side.eager, "fp32"),
        **{f"processes-{size}": partial(side.processes, size) for size in (MEMORY_SIZE, *SIZES)},
        **{f"compiled-{size}": partial(side.compiled, size, "whole") for size in SIZES},
    }
    extra: dict[str, gpu_parts.Part] = {
        **{f"graphs-{size}": partial(side.compiled, size, "graphs") for size in SIZES},
        **{f"layers-{size}": partial(side.compiled, size, "layers") for size in SIZES},
        **{f"liger-{size}": partial(side.liger, size) for size in SIZES},
    }
    return gpu_parts.run_parts("peft", usual | extra, given.only or list(usual), given)


class Side:
    """PEFT on one device."""

    def __init__(self, *, tiny: bool) -> None:
        self.shape = TINY if tiny else MODEL
        self.device = "cpu" if tiny else "cuda"
        self.window_s = 0.2 if tiny else 2.0
        self.dtype = "float32" if tiny else "bfloat16"

    def matrix(self, say: Say) -> None:
        import torch

        edge = 256 if self.device == "cpu" else 8192
        one, other = (torch.randn(edge, edge, device=self.device, dtype=getattr(torch, self.dtype)) for _ in range(2))
        for _ in range(5):
            one @ other
        gpu_parts.synchronise(self.device)
        rates = []
        for _ in range(5):
            begun = time.perf_counter()
            for _ in range(20):
                one @ other
            gpu_parts.synchronise(self.device)
            rates.append(20 * 2 * edge**3 / (time.perf_counter() - begun))
        say("flop_per_s", max(rates))
        say("rates", rates)

    def eager(self, dtype: str, say: Say) -> None:
        model, built_s = self._built(dtype)
        say("built_s", built_s)
        for size in SIZES:
            gpu_parts.forget_peaks(self.device)
            say(str(size), self._rate(self._step(model, size), size))

    def compiled(self, size: int, way: str, say: Say) -> None:
        import torch

        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor-of-peft")  # noqa: S108 - a cache to look into
        model, built_s = self._built("bf16")
        say("built_s", built_s)
        if way == "layers":
            for layer in model.get_base_model().model.layers:
                layer.compile(dynamic=False)
            run = model
        else:
            run = torch.compile(model, dynamic=False, mode="reduce-overhead" if way == "graphs" else None)
        step = self._step(model, size, run)
        begun = time.perf_counter()
        step()
        gpu_parts.synchronise(self.device)
        say("compile_s", time.perf_counter() - begun)
        for _ in range(3):
            step()
        gpu_parts.forget_peaks(self.device)
        say(str(size), self._rate(step, size))

    def liger(self, size: int, say: Say) -> None:
        """Measure PEFT with Liger's kernels; the quicker of both ways counts. Full rows: nothing is left to pack."""
        import torch
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama()
        model, built_s = self._built("bf16")
        say("built_s", built_s)
        found = [self._rate(self._step(model, size), size)]
        say("plain", found[0])
        say(str(size), found[0])
        try:
            step = self._step(model, size, torch.compile(model, dynamic=False))
            for _ in range(4):
                step()
        except Exception as error:  # noqa: BLE001 - not every version of torch compiles around these kernels
            say("not_compiled", f"{error}"[-200:])
        else:
            gpu_parts.forget_peaks(self.device)
            found.append(self._rate(step, size))
            say("compiled", found[1])
        say(str(size), max(found, key=lambda one: float(one["tokens_per_s"])))

    def processes(self, size: int, say: Say) -> None:
        told: list[dict[str, Any]] = []
        for count in FITS.get(size, (MEMBERS,)):
            told = self._at_once(count, size)
            if not any("error" in one for one in told):
                break
            say(f"with_{count}", next(one["error"][-200:] for one in told if "error" in one))
        if faults := [one["error"] for one in told if "error" in one]:
            raise RuntimeError(faults[0])
        say("count", len(told))
        say("tokens_per_s", sum(one["tokens_per_s"] for one in told))
        say("each", told)
        for name in ("allocated_bytes", "reserved_bytes", "process_bytes"):
            say(name, sum(one.get(name, 0) for one in told))
        say("device_used_bytes", max(one.get("device_used_bytes", 0) for one in told))

    def _at_once(self, count: int, size: int) -> list[dict[str, Any]]:
        context = multiprocessing.get_context("fork")
        barrier, answers = context.Barrier(count), context.SimpleQueue()
        started = [context.Process(target=self._one_of_many, args=(size, barrier, answers)) for _ in range(count)]
        for process in started:
            process.start()
        told = [answers.get() for _ in started]
        for process in started:
            process.join()
        return told

    def _one_of_many(self, size: int, barrier: Any, answers: Any) -> None:
        try:
            answers.put(self._in_window(size, barrier))
        except BaseException as error:  # noqa: BLE001 - out of memory is an answer, too
            barrier.abort()
            answers.put({"error": f"{type(error).__name__}: {error}"})

    def _in_window(self, size: int, barrier: Any) -> dict[str, Any]:
        import torch

        torch.set_num_threads(2)
        model, _ = self._built("bf16")
        step = self._step(model, size)
        gpu_parts.forget_peaks(self.device)
        for _ in range(4):
            step()
        gpu_parts.synchronise(self.device)
        barrier.wait(90)
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < self.window_s * WINDOW_S / 2:
            step()
            steps += 1
        gpu_parts.synchronise(self.device)
        took_s = time.perf_counter() - begun
        told = {"tokens_per_s": steps * size / took_s, "steps": steps, "took_s": took_s}
        barrier.wait(90)
        told |= gpu_parts.memory(self.device)
        barrier.wait(90)
        return told

    def _built(self, dtype: str) -> tuple[Any, float]:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoConfig, AutoModelForCausalLM

        begun = time.perf_counter()
        torch.manual_seed(0)
        config = AutoConfig.for_model(**self.shape)
        config.use_cache = False
        with torch.device(self.device):
            model = AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, self.dtype), attn_implementation="sdpa"
            )
            lora = LoraConfig(
                r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules=list(TARGETS), task_type="CAUSAL_LM"
            )
            model = get_peft_model(model, lora, autocast_adapter_dtype=dtype == "fp32")
        if dtype == "bf16":
            for parameter in model.parameters():
                parameter.data = parameter.data.to(getattr(torch, self.dtype))
        model.train()
        gpu_parts.synchronise(self.device)
        return model, time.perf_counter() - begun

    def _step(self, model: Any, size: int, run: Any = None) -> Callable[[], None]:
        import torch

        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        tokens = torch.randint(0, self.shape["vocab_size"], (size // SEQUENCE, SEQUENCE), device=self.device)
        run = model if run is None else run

        def step() -> None:
            run(input_ids=tokens, labels=tokens).loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        return step

    def _rate(self, step: Callable[[], None], size: int) -> dict[str, Any]:
        return gpu_parts.rate(step, size, device=self.device, window_s=self.window_s)


if __name__ == "__main__":
    sys.exit(main())

"""The logits of a model at some positions: produced by transformers, or compared by Stoker with those of another run.

    logits.py produce|compare pass|decode POSITIONS VOCABULARY FOLDER

`produce` computes them without a plug-in around it; `compare` reads two traces and decides every measure. `pass`: all
positions at once. `decode`: also the second half one by one, as a comparison asks for them. One thread each.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

LAYERS, WIDTH, INNER, HEADS = 12, 768, 2048, 12
REPEATS = 3


def main() -> None:
    way, what, count, vocabulary, home = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])
    has_decode = what == "decode"
    if way == "produce":
        work, parameters = _producer(count, vocabulary, has_decode=has_decode)
    else:
        work, parameters = _comparer(count, vocabulary, home, has_decode=has_decode), 0
    work()
    seconds, cpu_s = min(_timed(work) for _ in range(REPEATS))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    told = {"seconds": seconds, "cpu_seconds": cpu_s, "peak_rss_bytes": peak, "parameters": parameters}
    print(json.dumps(told))


def _producer(count: int, vocabulary: int, *, has_decode: bool) -> tuple[Any, int]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(1)
    shape = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_attention_heads=HEADS, **shape)).eval()
    ids = torch.randint(3, vocabulary, (1, count))
    half = count // 2

    def produce() -> None:
        with torch.no_grad():
            model(input_ids=ids, use_cache=True).logits[0].numpy().tobytes()
            cache = None
            for begin, end in ((0, half), *((at, at + 1) for at in range(half, count))) if has_decode else ():
                made = model(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True)
                cache = made.past_key_values
                made.logits[0].numpy().tobytes()

    return produce, sum(one.numel() for one in model.parameters())


def _comparer(count: int, vocabulary: int, home: Path, *, has_decode: bool) -> Any:
    import numpy as np

    from stoker.crossval.ladder import Outcome
    from stoker.crossval.parity import compare_traces
    from stoker.crossval.trace import Trace, TraceHeader, TraceWriter

    random = np.random.default_rng(1)
    rows = [random.normal(scale=3.0, size=vocabulary).astype("<f4") for _ in range(count)]
    facts = {"runtime": "torch", "version": "", "model": "m", "sha256": "", "tensors": 0, "used": 0}
    header = TraceHeader(
        **facts,  # type: ignore[arg-type]
        ids=tuple(range(count)),
        texts=("",),
        tokens=(),
        n_vocab=vocabulary,
        n_layers=LAYERS,
        ran={"weights": "F32"},
        has_decode=has_decode,
    )
    for name, factor in (("one", 1.0), ("two", 1.0 + 1e-6)):
        folder = home / name
        folder.mkdir(parents=True, exist_ok=True)
        with TraceWriter(str(folder)) as writer:
            for pos, row in enumerate(rows):
                writer.append("logits.f32", (row * np.float32(factor)).tobytes())
                if has_decode and pos >= count // 2:
                    writer.append("decode.f32", (row * np.float32(factor)).tobytes())
            writer.finish(header)

    def compare() -> None:
        parity = compare_traces(Trace(str(home / "two")), Trace(str(home / "one")))
        assert parity.outcome is Outcome.PASSED, parity.reason
        steps = {step.name: len(step.positions) for step in parity.steps}
        assert (steps["logits"], steps["decode"]) == (count, (count - count // 2) * has_decode)

    return compare


def _timed(work: Any) -> tuple[float, float]:
    """Return wall and processor time."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - used


main()

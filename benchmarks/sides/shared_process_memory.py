"""On a machine with a GPU: the device memory of shared processes of adapters, each case in its own process.

    PYTHONPATH=src python benchmarks/sides/shared_process_memory.py OUT.json [--only CASE,CASE] [--limit S] [--tiny]

The base has random weights and is made where it is used: nothing is read or downloaded. Each case runs some steps of
the engine: the first compiles, the second records, the others replay. With `--tiny` the same in small on the CPU, and
the peak of the process's RAM is reported.
"""

from __future__ import annotations

import argparse
import resource
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
import gpu_parts  # noqa: E402 - found by the line above, from wherever this is started
from gpu_parts import Say  # noqa: E402 - the same
from shared_process_cases import CASES, Case, shape_of, targets  # noqa: E402 - the same

STEPS = 5
LENGTHS = (1.0, 0.75, 0.5)
SEGMENT = 128


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = gpu_parts.parse(parser)
    from stoker.cookbooks.language.compute import slots as compute_slots  # noqa: F401 - the parts are forked from here

    parts: dict[str, gpu_parts.Part] = {name: partial(measure, case, given.tiny) for name, case in CASES.items()}
    return gpu_parts.run_parts("companies", parts, given.only or list(CASES), given)


def measure(case: Case, tiny: bool, say: Say) -> None:  # noqa: FBT001 - of a command line
    """Run one case and say what it took."""
    import torch

    from stoker.cookbooks.language.compute.banks import AdapterSpec, Optim, fresh_adapter
    from stoker.cookbooks.language.compute.slots import Slots

    device, dtype = ("cpu", torch.float32) if tiny else ("cuda", torch.bfloat16)
    say("case", {**case, "config": shape_of(tiny=tiny), "where": device, "dtype": str(dtype).partition(".")[2]})
    used_before = gpu_parts.memory(device).get("device_used_bytes", 0) if tiny else _used_before()
    base = random_base(shape_of(tiny=tiny), device, dtype)
    say("base_bytes", base.size_bytes)
    compiles = case.get("compiled", True)
    chosen: dict[str, Any] = {} if compiles else {"compiles": False, "records": False}
    slots = Slots(base, count=case["adapters"], rank=case["rank"], targets=targets(), **chosen)
    for slot in range(case["adapters"]):
        spec = AdapterSpec(rank=case["rank"], alpha=2.0 * case["rank"], targets=targets(), seed=slot)
        slots.load(slot, fresh_adapter(base.shape, spec), Optim(clip=1.0))
    if not tiny:
        say("seated_bytes", torch.cuda.memory_allocated())
    shares = LENGTHS if case.get("lengths") else (1.0,)
    shown = [_rows(case, int(case["sequence"] * share), base.shape.vocabulary) for share in shares]
    losses = []
    for number in range(STEPS * len(shown)):
        rows = shown[number % len(shown)]
        everybody = case["adapters"]
        losses.append(slots.step(rows, update=[True] * everybody, rates=[1e-4] * everybody).losses[0])
    say("losses", losses)
    if tiny:
        say("process_bytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    told = gpu_parts.memory(device)
    # What the driver has beyond the allocator's is the context: it stays as it is.
    context_bytes = told["device_used_bytes"] - used_before - torch.cuda.memory_reserved()
    say("memory", {**told, "context_bytes": context_bytes, "peak_bytes": told["reserved_bytes"] + context_bytes})


def random_base(config: dict[str, Any], device: str, dtype: Any) -> Any:
    """Make a base of a shape, with random weights, where it is used."""
    import torch

    from stoker.cookbooks.language.compute.base_weights import BaseWeights, LayerWeights
    from stoker.cookbooks.language.compute.frozen_base import shape_of as read

    shape = read(config)
    model, hidden = shape.model, shape.hidden
    draws = torch.Generator(device).manual_seed(0)

    def drawn(*size: int) -> Any:
        return torch.empty(*size, device=device, dtype=dtype).normal_(0.0, 0.02, generator=draws)

    def ones(size: int) -> Any:
        return torch.ones(size, device=device, dtype=dtype)

    def layer() -> LayerWeights:
        return LayerWeights(
            norm1=ones(hidden),
            qkv=drawn(model.q_width + 2 * model.kv_width, hidden),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            o=drawn(hidden, model.q_width),
            o_bias=None,
            norm2=ones(hidden),
            gate_up=drawn(2 * model.inner, hidden),
            gate_up_bias=None,
            down=drawn(hidden, model.inner),
            down_bias=None,
        )

    embedding = drawn(model.vocabulary, hidden)
    return BaseWeights(
        shape=shape,
        device=device,
        dtype=dtype,
        embedding=embedding,
        layers=tuple(layer() for _ in range(shape.layers)),
        norm=ones(hidden),
        head=embedding if model.is_tied else drawn(model.vocabulary, hidden),
    )


def _rows(case: Case, length: int, vocabulary: int) -> Any:
    import torch

    from stoker.cookbooks.language.compute.passes import AdapterSlotRows

    adapters, rows = case["adapters"], case["rows"]
    tokens = torch.randint(0, vocabulary, (adapters, rows, length), generator=torch.Generator().manual_seed(length))
    segments = (torch.arange(length) // SEGMENT).expand(adapters, rows, length).contiguous()
    return AdapterSlotRows(
        slots=tuple(range(adapters)),
        tokens=tokens,
        labels=tokens.roll(-1, dims=-1),
        segments=segments if case.get("packed") else None,
        denominators=[float(rows * length)] * adapters,
    )


def _used_before() -> int:
    """What the driver has in use before this process has a context; asked of its program, which needs none."""
    said = gpu_parts.smi("memory.used").splitlines()
    return int(said[0]) * 2**20 if said and said[0].isdecimal() else 0


if __name__ == "__main__":
    sys.exit(main())

"""On a machine with a GPU: how fast a company of adapters is trained by the engine, and how much memory that takes.

    PYTHONPATH=src python benchmarks/sides/adapters_company.py OUT.json [--only PART,PART] [--limit SECONDS] [--tiny]

    8x512, 8x2048, 8x8192       8 members of rank 16; tokens of each in a step
    1x512, 1x2048, 1x8192       one member
    32x512                      32 members
    ranks-SIZE                  8 members of ranks 8, 16 and 64 in turns
    packed-SIZE                 8 members, rows of sequences of 32 to 512 tokens laid end to end
    padded-SIZE                 8 members, a sequence of 256 to 512 tokens in each row; only these are counted
    memory                      8 members at 1,024 tokens, in a process that did nothing else
    again-2048                  like 8x2048 in a fresh process: start-up with warm caches
    rungs-SIZE                  8 members: plain, with graphs, compiled, both; not in the default list

Tokens begin in the computer's memory, losses are read after every step: as a company does it. Start-up is told by
itself: reading the base, the first step (compiling), the second (recording).
"""

from __future__ import annotations

import argparse
import itertools
import shutil
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

BATCHES = 6
"""Different ones, shown in turns."""
MIXED = (8, 16, 64)
RUNGS = {"plain": (False, False), "graphs": (False, True), "compiled": (True, False), "both": (True, True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("/tmp/adapters-base"), help="made unless it is there")  # noqa: S108 - large, and wanted again
    given = gpu_parts.parse(parser)
    from transformers.models.llama import modeling_llama  # noqa: F401 - the same

    from stoker.cookbooks.language.compute import slots as compute_slots  # noqa: F401 - the parts are forked from here

    side = Side(given.base, tiny=given.tiny)
    usual: dict[str, gpu_parts.Part] = {
        **{f"{MEMBERS}x{size}": partial(side.company, MEMBERS, size) for size in SIZES},
        **{f"1x{size}": partial(side.company, 1, size) for size in SIZES},
        "32x512": partial(side.company, 32, 512),
        **{f"ranks-{size}": partial(side.mixed, size) for size in (512, 2048)},
        **{f"packed-{size}": partial(side.ragged, size, packed=True) for size in (512, 2048)},
        "padded-2048": partial(side.ragged, 2048, packed=False),
        "memory": partial(side.company, MEMBERS, MEMORY_SIZE),
        "again-2048": partial(side.company, MEMBERS, 2048),
    }
    extra: dict[str, gpu_parts.Part] = {
        "prepare": side.prepare,
        **{f"rungs-{size}": partial(side.rungs, size) for size in SIZES},
    }
    asked = given.only or list(usual)
    if not (given.base / "config.json").exists():
        asked = ["prepare", *asked]
    return gpu_parts.run_parts("company", usual | extra, asked, given)


class Side:
    """The engine on one device, over a base in a folder."""

    def __init__(self, base: Path, *, tiny: bool) -> None:
        self.folder = base
        self.shape = TINY if tiny else MODEL
        self.device = "cpu" if tiny else "cuda"
        self.window_s = 0.2 if tiny else 2.0
        self.dtype = "float32" if tiny else "bfloat16"

    def prepare(self, say: Say) -> None:
        """Write the base as the hub lays it out."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        begun = time.perf_counter()
        torch.manual_seed(0)
        with torch.device(self.device):
            config = AutoConfig.for_model(**self.shape)
            model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, self.dtype))
        fresh = self.folder.with_name(f"{self.folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        model.save_pretrained(fresh)
        fresh.rename(self.folder)
        say("made_s", time.perf_counter() - begun)

    def over(self, base: Any, size: int, say: Say) -> None:
        """Measure adapters over a base that is there already."""
        self._told(self._loaded(base, say, [RANK] * MEMBERS), self._batches(MEMBERS, size), MEMBERS * size, say)

    def company(self, members: int, size: int, say: Say) -> None:
        slots = self._slots(say, [RANK] * members)
        self._told(slots, self._batches(members, size), members * size, say)

    def mixed(self, size: int, say: Say) -> None:
        ranks = [rank for rank, _ in zip(itertools.cycle(MIXED), range(MEMBERS))]
        say("ranks", ranks)
        self._told(self._slots(say, ranks), self._batches(MEMBERS, size), MEMBERS * size, say)

    def ragged(self, size: int, say: Say, *, packed: bool) -> None:
        batches = self._batches(MEMBERS, size, cut=_laid if packed else _padded)
        counted = [int((rows.labels != -100).sum()) for rows in batches]
        say("tokens", counted)
        mean = sum(counted) / len(counted) if not packed else MEMBERS * size
        self._told(self._slots(say, [RANK] * MEMBERS), batches, mean, say)

    def rungs(self, size: int, say: Say) -> None:
        import torch

        for name, (compiles, records) in RUNGS.items():
            torch.compiler.reset()
            slots = self._slots(lambda _, __: None, [RANK] * MEMBERS, compiles=compiles, records=records)
            found: dict[str, Any] = {}
            self._told(slots, self._batches(MEMBERS, size), MEMBERS * size, found.__setitem__)
            say(name, found)
            del slots
            gpu_parts.forget_peaks(self.device)

    def _slots(self, say: Say, ranks: list[int], **how: bool) -> Any:
        from stoker.cookbooks.language.compute.base_weights import load_base

        begun = time.perf_counter()
        base = load_base(self.folder, device=self.device, dtype=self.dtype)
        gpu_parts.synchronise(self.device)
        say("load_s", time.perf_counter() - begun)
        return self._loaded(base, say, ranks, **how)

    def _loaded(self, base: Any, say: Say, ranks: list[int], **how: bool) -> Any:
        from stoker.cookbooks.language.compute.banks import AdapterSpec, fresh_adapter
        from stoker.cookbooks.language.compute.slots import Slots

        begun = time.perf_counter()
        slots = Slots(base, count=len(ranks), rank=max(ranks), targets=TARGETS, **how)
        for slot, rank in enumerate(ranks):
            spec = AdapterSpec(rank=rank, alpha=2 * rank, targets=TARGETS, seed=slot)
            slots.load(slot, fresh_adapter(base.shape, spec))
        gpu_parts.synchronise(self.device)
        say("seat_s", time.perf_counter() - begun)
        return slots

    def _batches(self, members: int, size: int, cut: Callable[..., Any] | None = None) -> list[Any]:
        import torch

        from stoker.cookbooks.language.compute.passes import AdapterSlotRows

        draws = torch.Generator().manual_seed(0)
        made = []
        for _ in range(BATCHES):
            wanted = (members, size // SEQUENCE, SEQUENCE)
            tokens = torch.randint(0, self.shape["vocab_size"], wanted, generator=draws)
            labels = torch.randint(0, self.shape["vocab_size"], wanted, generator=draws)
            segments = cut(labels, draws) if cut is not None else None
            counts = (labels != -100).sum((1, 2)).tolist()
            everyone = tuple(range(members))
            made.append(
                AdapterSlotRows(slots=everyone, tokens=tokens, labels=labels, segments=segments, denominators=counts)
            )
        return made

    def _told(self, slots: Any, batches: list[Any], tokens: float, say: Say) -> None:
        members = slots.count
        update, rates = [True] * members, [1e-4] * members
        turns = itertools.cycle(batches)
        losses: list[list[float]] = []

        def step() -> None:
            result = slots.step(next(turns), update=update, rates=rates)
            losses.append(result.losses)

        for name in ("first_s", "second_s"):
            begun = time.perf_counter()
            step()
            say(name, time.perf_counter() - begun)
        for _ in range(2 * len(batches)):
            step()
        found = gpu_parts.rate(step, tokens, device=self.device, window_s=self.window_s)
        if not all(loss == loss for loss in losses[-1]):  # noqa: PLR0124 - NaN alone is not itself
            raise RuntimeError(f"a loss is no number: {losses[-1]}")
        say("losses", [losses[0], losses[-1]])
        for name, value in found.items():
            say(name, value)


def _laid(labels: Any, draws: Any) -> Any:
    """Lay sequences of 32 to 512 tokens end to end in each row; give which one each token belongs to."""
    import torch

    segments = torch.zeros_like(labels)
    for row in segments.flatten(0, 1):
        begin, number = 0, 0
        while begin < len(row):
            end = begin + int(torch.randint(32, SEQUENCE + 1, (), generator=draws))
            row[begin:end] = number
            begin, number = end, number + 1
    return segments


def _padded(labels: Any, draws: Any) -> Any:
    """Leave one sequence of 256 to 512 tokens in each row; what follows it is not learned."""
    import torch

    for row in labels.flatten(0, 1):
        row[int(torch.randint(SEQUENCE // 2, SEQUENCE + 1, (), generator=draws)) :] = -100


if __name__ == "__main__":
    sys.exit(main())

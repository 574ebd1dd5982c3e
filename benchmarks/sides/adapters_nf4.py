"""On a machine with a GPU: eight adapters over a base in four bits, beside the same base in bf16.

    PYTHONPATH=src python benchmarks/sides/adapters_nf4.py OUT.json [--only PART,PART] [--limit SECONDS] [--tiny]

    8x512, 8x2048       tokens of each in a step; a Llama of 8 G parameters with random weights, in either precision

`base_bytes` is what the base takes by its tensors, `reserved_bytes` what the allocator held at most.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
import gpu_parts  # noqa: E402 - found by the line above, from wherever this is started
from adapters_cases import SHAPES, TINY  # noqa: E402 - the same
from adapters_company import Side  # noqa: E402 - the same
from gpu_parts import Say  # noqa: E402 - the same

SIZES = (512, 2048)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = gpu_parts.parse(parser)
    parts: dict[str, gpu_parts.Part] = {
        f"{kept}-{size}": partial(measure, kept, size, tiny=given.tiny) for kept in ("auto", "nf4") for size in SIZES
    }
    return gpu_parts.run_parts("nf4", parts, given.only or list(parts), given)


def measure(kept: str, size: int, say: Say, *, tiny: bool) -> None:
    import torch

    from stoker.cookbooks.language.compute import base_weights

    side = Side(Path(), tiny=tiny)
    side.shape = TINY if tiny else SHAPES["llama-8g"]
    files = _RandomFiles(side.device, getattr(torch, side.dtype))
    shape = base_weights.shape_of(side.shape)
    base = base_weights.assemble(shape, files, side.device, getattr(torch, side.dtype), kept)
    say("base_bytes", base.size_bytes)
    side.over(base, size, say)


class _RandomFiles:
    """Weights of any name and shape, made on the device: no file is read."""

    is_quantised = False

    def __init__(self, device: str, dtype: Any) -> None:
        self._how = {"device": device, "dtype": dtype}

    def has(self, name: str) -> bool:
        return not name.endswith(".bias")

    def saved(self, _name: str, *_shape: int) -> None:
        """Return None: nothing is quantised on disk."""

    def read(self, name: str, *shape: int) -> Any:
        import torch

        return torch.ones(shape, **self._how) if len(shape) == 1 else torch.randn(shape, **self._how) * 0.02


if __name__ == "__main__":
    sys.exit(main())

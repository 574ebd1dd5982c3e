"""What an adapter's training shares with its like on a machine that nobody has seen yet: its base, and how large."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stoker.cookbooks.language.asking import Load, placed_needs
from stoker.cookbooks.language.base_words import company_word
from stoker.cookbooks.language.bases import CONFIG, find_base
from stoker.cookbooks.language.engine.shapes import shape_of
from stoker.cookbooks.language.settings import DEFAULT_TOKENS, Dtype
from stoker.hardware.estimate.company import Where
from stoker.hardware.estimate.shape import ModelShape
from stoker.model.errors import BadInput
from stoker.model.frozen import frozen
from stoker.plan.authoring import SharedBase


class _Asked(Protocol):
    """Those arguments of language/lora that say how large it is."""

    @property
    def base(self) -> str: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def rank(self) -> int: ...
    @property
    def targets(self) -> tuple[str, ...]: ...
    @property
    def batch(self) -> int: ...
    @property
    def max_seq_len(self) -> int | None: ...


@frozen
class _Base:
    shape: ModelShape
    positions: int
    files: tuple[str, ...]


def shared_by_lora(args: _Asked, digest_of: Callable[[str], str]) -> SharedBase:
    """Give the base that an adapter is trained over, by content, with what it takes on a device and on a CPU."""
    base = _base_at(args.base)
    load = Load(
        rank=args.rank,
        targets=args.targets,
        rows=args.batch,
        tokens=min(args.max_seq_len or DEFAULT_TOKENS, base.positions),
        dtype=args.dtype,
    )
    on_device, on_cpu = placed_needs(base.shape, load, Where.CUDA), placed_needs(base.shape, load, Where.CPU)
    return SharedBase(
        word=company_word(map(digest_of, base.files), args.dtype),
        base_bytes=on_device.base_bytes,
        member_bytes=on_device.member_bytes,
        base_ram_bytes=on_cpu.base_bytes,
        member_ram_bytes=on_cpu.member_bytes,
    )


def _base_at(text: str) -> _Base:
    """Look at a base; of one that is fetched where it is trained, only config.json is here, and says enough."""
    config = Path(text) / CONFIG
    try:
        base = find_base(text)
    except BadInput:
        if not config.is_file():
            raise
        shape = shape_of(json.loads(config.read_bytes()))
        return _Base(shape=shape.model, positions=shape.positions, files=(str(config),))
    files = tuple(str(base.folder / name) for name in base.files)
    return _Base(shape=base.shape, positions=base.positions, files=files)

"""What an adapter's training shares with its like on a machine that nobody has seen yet: its base, and how large."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stoker.cookbooks.language.asking import Load, placed_needs
from stoker.cookbooks.language.base_facts import base_facts
from stoker.cookbooks.language.base_words import company_word
from stoker.cookbooks.language.bases import CONFIG, FoundBase, Outline, read_config_alone
from stoker.cookbooks.language.checking import Checking
from stoker.cookbooks.language.finding import find_base
from stoker.cookbooks.language.settings import DEFAULT_TOKENS, LORA, Dtype
from stoker.cookbooks.language.settled import settled_dtype
from stoker.hardware.estimate.company import CompanyNeeds, Where
from stoker.model.errors import BadInput
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
    @property
    def gpus(self) -> int | None: ...


def shared_by_lora(args: _Asked, digest_of: Callable[[str], str]) -> SharedBase:
    """Give the base that an adapter is trained over, by content, with what it takes on a device and on a CPU."""
    base = _base_at(args.base)
    if isinstance(base, Outline):
        _judge(args, base)
        files, about = [str(Path(args.base) / CONFIG)], ""
    else:
        files, about = [str(base.folder / name) for name in base.files], base_facts(base, digest_of)

    def needs(where: Where) -> CompanyNeeds:
        load = Load(
            rank=args.rank,
            targets=args.targets,
            rows=args.batch,
            tokens=min(args.max_seq_len or DEFAULT_TOKENS, base.positions),
            dtype=settled_dtype(args.dtype, on_gpu=where is Where.CUDA),
        )
        return placed_needs(base.shape, load, where)

    on_device, on_cpu = needs(Where.CUDA), needs(Where.CPU)
    # Bases are looked for on devices alone: who does not say is named as if it had one.
    dtype = settled_dtype(args.dtype, on_gpu=args.gpus != 0)
    return SharedBase(
        word=company_word(map(digest_of, files), dtype),
        base_bytes=on_device.base_bytes,
        member_bytes=on_device.member_bytes,
        base_ram_bytes=on_cpu.base_bytes,
        member_ram_bytes=on_cpu.member_bytes,
        about=about,
    )


def _judge(args: _Asked, base: Outline) -> None:
    """Refuse what a base can't be asked for that is not here: its plan was made with another one."""
    checking = Checking(LORA)
    checking.length(args.max_seq_len, base)
    checking.targets(args.targets, base.shape, args.rank)
    checking.refuse()


def _base_at(text: str) -> FoundBase | Outline:
    """Look at a base; of one that is fetched where it is trained, only config.json is here, and says enough."""
    try:
        return find_base(text)
    except BadInput:
        if not (Path(text) / CONFIG).is_file():
            raise
        return read_config_alone(Path(text), "this base")

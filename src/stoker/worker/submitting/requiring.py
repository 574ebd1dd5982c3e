"""What a job asks of its machine: as the manifest says, else as its recipe's stages need it.

Pure. A number that a person wrote always wins over one that a recipe declares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from stoker.config.manifest import JobEntry
from stoker.model.frozen import changed
from stoker.model.requirements import Requirements, Wish
from stoker.model.resources import Needs
from stoker.model.units import parse_size
from stoker.wire.orders import RequirementsBody

_MOST_CORES = 65_536
ABOUT_DEVICES = frozenset({"require_cuda", "prefer_cuda", "min_vram_gib", "gpus", "shares", "base"})


def required_of_entry(entry: JobEntry, said: Collection[str], needs: Needs) -> RequirementsBody:
    """Give what a manifest's job requires; `said` are the keys that it has, `needs` those of its stages."""
    wanted = entry.wanted().requirements
    if ABOUT_DEVICES.isdisjoint(said) and needs.gpu:
        wanted = _on_device(wanted, needs)
    if "min_ram_gib" not in said and needs.memory_bytes:
        wanted = changed(wanted, ram_bytes=needs.memory_bytes)
    if "min_cores" not in said and needs.cpu > 1:
        wanted = changed(wanted, cores=needs.cpu)
    return body_of(wanted)


def required_of_needs(needs: Needs) -> RequirementsBody:
    """Give what a recipe's job requires about which nobody said more: nothing declared is nothing required."""
    wanted = Requirements(ram_bytes=needs.memory_bytes, cores=needs.cpu if needs.cpu > 1 else 0)
    return body_of(_on_device(wanted, needs) if needs.gpu else wanted)


def required_of_program(args: Mapping[str, Any]) -> RequirementsBody:
    """Give what a program requires by its settings: gpus=, ranks=, vram=, shares=, memory=, cpus=.

    Without a word about devices it gets one if one fits, as `stoker run` gives it one if there are any.
    """
    gpus, vram = args.get("gpus"), args.get("vram") or ""
    wish = Wish.NEVER if gpus == 0 else Wish.REQUIRE if gpus or vram else Wish.PREFER
    memory = args.get("memory") or ""
    return body_of(
        Requirements(
            wish=wish,
            device_count=gpus or args.get("ranks") or 1,
            vram_bytes=parse_size(vram) if vram else 0,
            ram_bytes=parse_size(memory) if memory else 0,
            cores=min(args.get("cpus") or 0, _MOST_CORES),
            may_share=bool(args.get("shares")) and gpus != 0,
        )
    )


def body_of(wanted: Requirements) -> RequirementsBody:
    """Give requirements as they travel."""
    return _made(tuple(getattr(wanted, name) for name in _FIELDS))


_FIELDS = tuple(RequirementsBody.model_fields)


@lru_cache(maxsize=256)
def _made(values: tuple[Any, ...]) -> RequirementsBody:
    """Give the same for the same: ten thousand jobs have a handful of them."""
    return RequirementsBody(**dict(zip(_FIELDS, values, strict=True)))


def _on_device(wanted: Requirements, needs: Needs) -> Requirements:
    return changed(
        wanted,
        wish=Wish.REQUIRE,
        device_count=needs.gpu,
        vram_bytes=needs.vram_bytes,
        may_share=needs.shares,
    )

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
from stoker.model.resources import GIB, Needs
from stoker.model.units import parse_size
from stoker.plan.sharing import SharedBase
from stoker.wire.orders import RequirementsBody

_MOST_CORES = 65_536
ABOUT_DEVICES = frozenset({"require_cuda", "prefer_cuda", "min_vram_gib", "gpus", "shares", "base"})
_WISHES = frozenset({"require_cuda", "prefer_cuda", "gpus"})
_MOST_ON_CPU_BYTES = 8 * GIB
"""What needs more RAM than this on a CPU goes to a device, unless somebody says otherwise."""
_PROCESS_RAM_BYTES = 4 * GIB
_MEMBER_RAM_BYTES = GIB // 4
"""What the process takes of RAM that works on a device for all jobs of one base, and what each of them takes beside."""


def required_of_entry(
    entry: JobEntry, said: Collection[str], needs: Needs, shared: SharedBase | None = None, gpus: int | None = None
) -> RequirementsBody:
    """Give what a manifest's job requires; `said` are the keys that it has, `needs` those of its stages.

    Of one that `shared` a base, `gpus` is what its arguments say of devices.
    """
    wanted = entry.wanted().requirements
    if shared is not None:
        wanted = _sharing(wanted, said, shared, gpus)
    elif ABOUT_DEVICES.isdisjoint(said) and needs.gpu:
        wanted = _on_device(wanted, needs)
    if "min_ram_gib" not in said and needs.memory_bytes and shared is None:
        wanted = changed(wanted, ram_bytes=needs.memory_bytes)
    if "min_cores" not in said and needs.cpu > 1:
        wanted = changed(wanted, cores=needs.cpu)
    return body_of(wanted)


def required_of_needs(needs: Needs, shared: SharedBase | None = None, gpus: int | None = None) -> RequirementsBody:
    """Give what a recipe's job requires about which nobody said more: nothing declared is nothing required."""
    wanted = Requirements(ram_bytes=needs.memory_bytes, cores=needs.cpu if needs.cpu > 1 else 0)
    if shared is not None:
        return body_of(_sharing(wanted, (), shared, gpus))
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


def _sharing(wanted: Requirements, said: Collection[str], shared: SharedBase, gpus: int | None) -> Requirements:
    """Give what a job requires that shares a base. What the submitting machine has of devices is no part of it."""
    on_cpu_bytes = shared.base_ram_bytes + shared.member_ram_bytes
    wish = wanted.wish if not _WISHES.isdisjoint(said) else _wish(gpus, on_cpu_bytes)
    base_ram, own_ram = shared.base_ram_bytes, shared.member_ram_bytes
    if wish is Wish.REQUIRE:
        base_ram, own_ram = _PROCESS_RAM_BYTES, _MEMBER_RAM_BYTES
    found: dict[str, Any] = {"wish": wish}
    ram_bytes = wanted.ram_bytes if "min_ram_gib" in said else base_ram + own_ram
    found |= {"ram_bytes": ram_bytes, "base_ram_bytes": min(base_ram, ram_bytes)}
    if "base" not in said:
        found["base"] = shared.word
    if "gpus" not in said and gpus:
        found["device_count"] = gpus
    if wish is not Wish.NEVER:
        if "min_vram_gib" not in said:
            found["vram_bytes"] = shared.base_bytes + shared.member_bytes
        if "shares" not in said:
            found["may_share"] = True
        if "base_gib" not in said:
            found["base_bytes"] = shared.base_bytes
    return changed(wanted, **found)


def _wish(gpus: int | None, on_cpu_bytes: int) -> Wish:
    if gpus is None:
        return Wish.PREFER if on_cpu_bytes <= _MOST_ON_CPU_BYTES else Wish.REQUIRE
    return Wish.REQUIRE if gpus else Wish.NEVER


def _on_device(wanted: Requirements, needs: Needs) -> Requirements:
    return changed(
        wanted,
        wish=Wish.REQUIRE,
        device_count=needs.gpu,
        vram_bytes=needs.vram_bytes,
        may_share=needs.shares,
    )

"""What the stages of this cookbook ask of the machine: device memory where they compute on a GPU, else its own."""

from __future__ import annotations

from stoker.cookbooks.language.bases import FoundBase
from stoker.cookbooks.language.finding import bases_here, find_base
from stoker.cookbooks.language.settings import LoraArgs, SettledDtype
from stoker.hardware.estimate.company import (
    IMPORTS_BYTES,
    MANY,
    Company,
    CompanyEstimate,
    CompanyNeeds,
    Where,
    company_of_many,
    estimate_company,
    steady_base_bytes,
)
from stoker.hardware.estimate.seating import Room, no_room, smaller
from stoker.hardware.estimate.shape import ModelShape
from stoker.model.errors import NoRoom
from stoker.model.frozen import changed, frozen
from stoker.model.resources import GIB
from stoker.model.units import format_size
from stoker.plan.authoring import Needs
from stoker.plan.surroundings import surroundings

_WORDS = {"adapters": "most", "rows": "batch", "sequence": "max_seq_len", "rank": "rank"}
"""What this cookbook calls a company's numbers."""


@frozen
class Load:
    """How much a training has before it at a time."""

    rank: int
    targets: tuple[str, ...]
    rows: int
    tokens: int
    """Of each row."""
    dtype: SettledDtype


def member_needs(shape: ModelShape, load: Load, where: Where) -> CompanyNeeds:
    """Give what a base takes once, and one adapter beside it."""
    return estimate_company(_company(shape, load, where)).needs


def placed_needs(shape: ModelShape, load: Load, where: Where) -> CompanyNeeds:
    """Give the same for machines that are elsewhere: there members of any size have to agree on what the base takes."""
    company = _company(shape, load, where)
    found = estimate_company(company).needs
    return CompanyNeeds(base_bytes=max(steady_base_bytes(company), found.base_bytes), member_bytes=found.member_bytes)


def _company(shape: ModelShape, load: Load, where: Where) -> Company:
    return company_of_many(
        shape,
        dtype=load.dtype,
        rank=load.rank,
        targets=load.targets,
        rows=load.rows,
        sequence=load.tokens,
        where=where,
    )


def too_large(base: FoundBase, load: Load, *, gpus: int) -> NoRoom | None:
    """Say why nothing here could ever hold one adapter over a base, and what would fit; nothing if something could.

    On a GPU its devices have to, else the machine's own memory. Of what nobody knows how large it is, nothing is said.
    """
    there = rooms_here(gpus=gpus)
    company = _company(base.shape, load, Where.CUDA if gpus else Where.CPU)
    return no_room(company, there, _as_asked, _WORDS, lambda: _shapes(load)) if there else None


def what_fits(args: LoraArgs, room_bytes: int) -> str:
    """Say which of an adapter's numbers would fit into so much of the machine's memory, its base with it."""
    base = find_base(args.base)
    load = Load(rank=args.rank, targets=args.targets, rows=args.batch, tokens=args.max_seq_len, dtype=args.dtype)
    company = changed(_company(base.shape, load, Where.CPU), adapters=1)
    return "; ".join(map(str, smaller(room_bytes, company, _as_asked, _WORDS)))


def _as_asked(company: Company) -> CompanyEstimate:
    """Foretell as it is asked for: with what many hold once, since nobody knows how many will come."""
    return changed(estimate_company(changed(company, adapters=MANY)), adapters=company.adapters)


def rooms_here(*, gpus: int) -> list[Room]:
    """Give how much memory there is at the most: of each device, or else of the machine; none of what nobody knows."""
    return _devices() if gpus else _machine()


def _devices() -> list[Room]:
    here = surroundings()
    rooms = here.rooms() if here.count_gpus() else {}
    return [Room(name=name, room_bytes=size_bytes) for name, size_bytes in rooms.items()]


def _machine() -> list[Room]:
    memory = surroundings().memory()
    if memory is None or memory.total_bytes is None or memory.most_bytes is None:
        return []
    why = f"of {format_size(memory.total_bytes)}, the rest stays with the machine"
    if memory.room_bytes is not None:
        why += f"; {format_size(memory.room_bytes)} of it free now"
    return [Room(name="this machine", room_bytes=memory.most_bytes, why=why)]


def _shapes(load: Load) -> dict[str, ModelShape]:
    return {name: one.shape for name, one in bases_at_hand(load).items()}


def bases_at_hand(load: Load) -> dict[str, FoundBase]:
    """Give the bases at hand that read rows of such a length."""
    return {name: one for name, one in bases_here().items() if one.positions >= load.tokens}


def lora_needs(base: FoundBase, load: Load, *, gpus: int, most: int = 0) -> Needs:
    """Give what an adapter asks: in company the base counts once."""
    if not gpus:
        found = member_needs(base.shape, load, Where.CPU)
        return Needs(memory_gib=found.total_bytes / GIB, base_memory_gib=found.base_bytes / GIB, most=most)
    company, here = _company(base.shape, load, Where.CUDA), surroundings()
    remembered = here.remembered(company)
    found = estimate_company(company, gpu=next(iter(here.rooms()), ""), correction=remembered.correction).needs
    return Needs(
        gpu=gpus,
        vram_gib=found.total_bytes / GIB,
        base_gib=found.base_bytes / GIB,
        shares=True,
        most=most,
        peaks=remembered.names,
        foretold_percent=100.0 if remembered.correction is None else remembered.correction.percent,
    )


def sample_needs(base: FoundBase, load: Load, *, gpus: int) -> Needs:
    """Give what completing prompts asks, one row at a time."""
    one = changed(load, rows=1)
    total_gib = member_needs(base.shape, one, Where.CUDA if gpus else Where.CPU).total_bytes / GIB
    return Needs(gpu=gpus, vram_gib=total_gib, shares=True) if gpus else Needs(memory_gib=total_gib)


def reading_needs(base: FoundBase) -> Needs:
    """Give what holding a base in memory for a moment asks."""
    return Needs(memory_gib=(2 * base.size_bytes + IMPORTS_BYTES) / GIB)

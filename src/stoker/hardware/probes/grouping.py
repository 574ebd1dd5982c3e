"""Which sightings mean the same device. Pure.

Sightings are the same device by UUID, else by PCI address. Those that carry neither are matched by their place and name
to devices that are known, if that leaves no choice; else they are devices of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.hardware.probes.precedence import UNIFIED_FRAGMENTS, WITNESSES, order_of
from stoker.hardware.probes.sighting import Sighting, Statement
from stoker.model.devices import Backend

TORCH = "torch"
_UNKNOWN_PLACE = 1 << 30

Group = dict[str, Sighting]
"""One device: what each witness says of it."""


def group(statements: Iterable[Statement]) -> list[Group]:
    """Give the devices, in their drivers' order, parts right after their wholes.

    Sightings of torch that carry no address are left out: see `pair`.
    """
    groups: list[Group] = []
    loose: list[tuple[str, list[Sighting]]] = []
    for statement in sorted(statements, key=lambda one: _rank(one.witness)):
        without = [one for one in statement.sightings if not _join(groups, statement.witness, one)]
        if without and statement.witness != TORCH:
            loose.append((statement.witness, without))
    for witness, sightings in loose:
        for backend in dict.fromkeys(one.backend for one in sightings):
            _match_loose(groups, witness, [one for one in sightings if one.backend is backend])
    return _in_order(groups)


def pair(groups: Sequence[Group], statement: Statement) -> int:
    """Give sightings of torch that carry no address to the devices that it can see; say how many found none.

    `groups` are the visible devices in their order. Without addresses, the names must agree one by one.
    """
    loose = [one for one in statement.sightings if not (one.uuid or one.pci)]
    for backend in dict.fromkeys(one.backend for one in loose):
        rows = [one for one in loose if one.backend is backend]
        open_groups = [one for one in groups if backend_of(one) is backend and TORCH not in one]
        names = [[name.lower() for name in _names(one)] for one in open_groups]
        if len(rows) == len(open_groups) and all(
            row.name.lower() in said or len(rows) == 1 for row, said in zip(rows, names, strict=True)
        ):
            for row, place in zip(rows, open_groups, strict=True):
                place[TORCH] = row
            loose = [one for one in loose if one.backend is not backend]
    return len(loose)


def backend_of(of: Group) -> Backend:
    """Give the backend that a device is spoken to through."""
    return next(iter(of.values())).backend


def first_of(of: Group, field: str) -> tuple[object, str]:
    """Give what the most trusted witness says about a field, and who that is; nothing and nobody if none does."""
    for witness in order_of(field):
        sighting = of.get(witness)
        value = getattr(sighting, field) if sighting is not None else None
        if value is not None and value != "":
            return value, witness
    return None, ""


def is_unified(of: Group) -> bool:
    """Whether a device's names say that it works in the machine's memory."""
    return any(fragment in name.lower() for name in _names(of) for fragment in UNIFIED_FRAGMENTS)


def _rank(witness: str) -> int:
    return WITNESSES.index(witness) if witness in WITNESSES else len(WITNESSES)


def _join(groups: list[Group], witness: str, sighting: Sighting) -> bool:
    """Put a sighting with its device; not if it carries no address."""
    if not (sighting.uuid or sighting.pci):
        return False
    for one in groups:
        if witness not in one and any(_is_same(sighting, other) for other in one.values()):
            one[witness] = sighting
            return True
    groups.append({witness: sighting})
    return True


def _is_same(one: Sighting, other: Sighting) -> bool:
    if one.backend is not other.backend:
        return False
    if one.uuid and other.uuid:
        return _bare(one.uuid) == _bare(other.uuid)
    return bool(one.pci) and one.pci == other.pci


def _bare(uuid: str) -> str:
    # torch knows the digits but not the vendor's prefix.
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _match_loose(groups: list[Group], witness: str, rows: list[Sighting]) -> None:
    wholes = [
        one
        for one in groups
        if backend_of(one) is rows[0].backend and witness not in one and not first_of(one, "parent")[0]
    ]
    for row in rows:
        fitting = [
            one for one in wholes if witness not in one and _may_be(row, one, is_only=len(wholes) == len(rows) == 1)
        ]
        if len(fitting) == 1:
            fitting[0][witness] = row
        else:
            groups.append({witness: row})


def _may_be(row: Sighting, of: Group, *, is_only: bool) -> bool:
    if is_only:
        # A board may carry a card as well, which is not the GPU in its chip.
        return is_unified(of) or not first_of(of, "pci")[0]
    has_place = row.index is not None and any(one.index == row.index for one in of.values())
    return has_place and row.name.lower() in [name.lower() for name in _names(of)]


def _names(of: Group) -> list[str]:
    return [one.name for one in of.values() if one.name]


def _in_order(groups: list[Group]) -> list[Group]:
    backends = list(Backend)

    def place(of: Group) -> tuple[int, int, str]:
        index, _ = first_of(of, "index")
        return backends.index(backend_of(of)), _number(index), str(first_of(of, "pci")[0] or "")

    wholes = sorted((one for one in groups if not first_of(one, "parent")[0]), key=place)
    parts = sorted((one for one in groups if first_of(one, "parent")[0]), key=place)
    ordered: list[Group] = []
    for whole in wholes:
        uuid = first_of(whole, "uuid")[0]
        own = [part for part in parts if uuid and first_of(part, "parent")[0] == uuid]
        parts = [part for part in parts if not any(part is one for one in own)]
        ordered += [whole, *own]
    return [*ordered, *parts]


def _number(value: object) -> int:
    return value if isinstance(value, int) else _UNKNOWN_PLACE

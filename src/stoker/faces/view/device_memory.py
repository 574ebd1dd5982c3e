"""Who holds how much of which device, and who waits, as lines. Pure."""

from __future__ import annotations

from stoker.faces.view.tables import table
from stoker.hardware.ledger.state import DeviceState, HeldBase, Holder, State, Waiter
from stoker.model.frozen import frozen
from stoker.model.units import format_duration, format_size

_LISTED = 5


@frozen
class NotMeasured:
    """A device that was found, but of whose size nobody could say anything: nothing of it can be promised."""

    uuid: str
    name: str


def memory_lines(state: State, unknown: tuple[NotMeasured, ...] = (), *, columns: int = 0) -> list[str]:
    """Lay the ledger out: each device with its holders, then the line."""
    lines: list[str] = []
    for device in state.devices:
        lines += ["", *_device_lines(device, columns)]
    for one in unknown:
        lines += ["", f"{one.uuid}  {one.name}: nobody knows its memory, so none of it can be promised"]
    if state.waiting:
        lines += ["", "waiting", *table([_waiter(one) for one in state.waiting], columns=columns, indent="  ")]
    return lines[1:] or ["no accelerator was found here, and nobody holds one"]


def _device_lines(state: DeviceState, columns: int) -> list[str]:
    device = state.device
    label = "  (invented by STOKER_GPU_FAKE)" if device.is_fake else ""
    shared = (
        f"  usable {device.memory_type.usable_percent} % = {format_size(device.usable_bytes)} to share; "
        f"reserved {_reserved(state)}, available {format_size(state.available_bytes)}"
    )
    together = {id(holder) for held in state.bases for holder in held.holders}
    rows = [row for held in state.bases for row in _company(held)]
    rows += [_holder(one) for one in state.holders if id(one) not in together]
    holders = table(rows, columns=columns, indent="  ")
    return [
        f"{device.uuid}  {device.name + '  ' if device.name else ''}total {format_size(device.total_bytes)}{label}",
        shared,
        f"  {_measured(state)}",
        *(holders or ["  nobody holds any of it"]),
    ]


def _reserved(state: DeviceState) -> str:
    return "whole" if state.is_taken else format_size(state.reserved_bytes)


def _measured(state: DeviceState) -> str:
    if state.free_bytes is None:
        return "not measured: no driver here says what is free"
    told = f"measured free {format_size(state.free_bytes)}"
    outside = sorted(state.outside.items(), key=lambda one: -one[1])
    if outside:
        users = ", ".join(f"process {pid} ({format_size(size)})" for pid, size in outside[:_LISTED])
        more = f" and {len(outside) - _LISTED} more" if len(outside) > _LISTED else ""
        told += f"; used without a reservation by {users}{more}"
    if state.unseen_bytes:
        told += f"; {format_size(state.unseen_bytes)} by processes that can't be seen from here"
    return told


def _company(held: HeldBase) -> list[list[str]]:
    """Lay out who has a base in common: the base once, then what each adds."""
    pids = list(dict.fromkeys(holder.entry.owner.pid for holder in held.holders))
    count = len(held.holders)
    actual = held.actual_bytes
    return [
        [
            f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids[:_LISTED]))}",
            f"budget {format_size(held.promised_bytes)}, {format_size(held.base_bytes)} of it the base, once",
            "measuring" if actual is None else f"actual {format_size(actual)}",
            f"held {format_duration(max(holder.held_s for holder in held.holders))}",
            f"{count} on one base" if count > 1 else "1 on its base",
        ],
        *(
            [
                "",
                f"  + {format_size(holder.own_bytes)}",
                "",
                f"held {format_duration(holder.held_s)}",
                "; ".join([holder.entry.job, *_notes(holder)]),
            ]
            for holder in held.holders
        ),
    ]


def _holder(holder: Holder) -> list[str]:
    share, entry = holder.share, holder.entry
    budget = format_size(share.promised_bytes) if share.promised_bytes else "undeclared"
    whole = ", has it whole" if share.is_exclusive else ""
    base = f", {format_size(entry.base_bytes)} of it its base" if entry.base_bytes else ""
    return [
        f"process {entry.owner.pid}",
        f"budget {budget}{base}{whole}",
        "measuring" if share.measured_bytes is None else f"actual {format_size(share.measured_bytes)}",
        f"held {format_duration(holder.held_s)}",
        "; ".join([entry.job, *_notes(holder)]),
    ]


def _notes(holder: Holder) -> list[str]:
    if holder.left_behind is not None:
        return [f"ended; process {holder.left_behind} of it is still there"]
    return ["its lease is late, and its process lives"] if holder.is_late else []


def _waiter(waiter: Waiter) -> list[str]:
    ticket = waiter.ticket
    size = format_size(ticket.vram_bytes) if ticket.vram_bytes else "undeclared"
    how = "shared" if ticket.may_share else "whole"
    where = ", ".join(ticket.uuids[:2]) + (" …" if len(ticket.uuids) > 2 else "")
    count = f"{ticket.count} of " if ticket.count > 1 else ""
    asleep = "; does not look, and holds nobody up" if waiter.is_asleep else ""
    return [
        f"place {waiter.place}",
        f"process {ticket.owner.pid}",
        f"{size}, {how}, on {count}{where}",
        f"waits {format_duration(waiter.waited_s)}",
        f"{ticket.job}{asleep}",
    ]

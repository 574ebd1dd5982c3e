"""Devices, memory reservations, checks and gang self-tests as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.core.capability import Capability
from stoker.core.device import GIB, Device
from stoker.core.frozen import frozen
from stoker.core.text import counted, format_duration, format_size
from stoker.devices.checkup import Check, CheckStatus
from stoker.devices.ledger.snapshot import DeviceHolder, DeviceState, DeviceWaiter, HeldBase, LedgerState
from stoker.gang.gang_check import COLLECTIVE, GangSelfTest, RankSelfTest, last_phase
from stoker.gang.mailbox import Phase
from stoker.views.text_tables import Signs, table

_LISTED = 5


@frozen
class UnmeasuredDevice:
    """A device whose memory size is unknown: nothing of it can be reserved."""

    uuid: str
    name: str


def memory_lines(state: LedgerState, unknown: tuple[UnmeasuredDevice, ...] = (), *, columns: int = 0) -> list[str]:
    """Return the ledger as lines: each device with its reservations, then the queue."""
    lines: list[str] = []
    for device in state.devices:
        lines += ["", *_device_lines(device, columns)]
    for one in unknown:
        lines += ["", f"{one.uuid}  {one.name}: memory size unknown, no reservations possible"]
    if state.waiting:
        lines += ["", "waiting", *table([_waiter(one) for one in state.waiting], columns=columns, indent="  ")]
    return lines[1:] or ["no accelerators found, no reservations"]


def _device_lines(state: DeviceState, columns: int) -> list[str]:
    device = state.device
    label = "  (invented by STOKER_GPU_FAKE)" if device.is_fake else ""
    shared = (
        f"  usable {device.memory_type.usable_percent} % = {format_size(device.usable_bytes)} sharable; "
        f"reserved {_reserved(state)}, available {format_size(state.available_bytes)}"
    )
    together = {id(holder) for held in state.bases for holder in held.holders}
    rows = [row for held in state.bases for row in _shared_process(held)]
    rows += [_holder(one) for one in state.holders if id(one) not in together]
    holders = table(rows, columns=columns, indent="  ")
    return [
        f"{device.uuid}  {device.name + '  ' if device.name else ''}total {format_size(device.total_bytes)}{label}",
        shared,
        f"  {_measured(state)}",
        *(holders or ["  no reservations"]),
    ]


def _reserved(state: DeviceState) -> str:
    return "whole" if state.is_taken else format_size(state.reserved_bytes)


def _measured(state: DeviceState) -> str:
    if state.free_bytes is None:
        return "not measured: the driver does not report free memory"
    texts = f"measured free {format_size(state.free_bytes)}"
    outside = sorted(state.outside.items(), key=lambda one: -one[1])
    if outside:
        users = ", ".join(f"process {pid} ({format_size(size)})" for pid, size in outside[:_LISTED])
        more = f" and {len(outside) - _LISTED} more" if len(outside) > _LISTED else ""
        texts += f"; used without a reservation by {users}{more}"
    if state.unseen_bytes:
        texts += f"; {format_size(state.unseen_bytes)} by processes that are not visible here"
    return texts


def _shared_process(held: HeldBase) -> list[list[str]]:
    """Return rows for the holders of a shared base: the base once, then the memory of each."""
    pids = list(dict.fromkeys(holder.entry.owner.pid for holder in held.holders))
    count = len(held.holders)
    actual = held.actual_bytes
    return [
        [
            f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids[:_LISTED]))}",
            f"reserved {format_size(held.promised_bytes)}, of that {format_size(held.base_bytes)} for the base",
            "measuring" if actual is None else f"actual {format_size(actual)}",
            f"held {format_duration(max(holder.held_s for holder in held.holders))}",
            f"{count} share a base" if count > 1 else "1 with a base",
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


def _holder(holder: DeviceHolder) -> list[str]:
    share, entry = holder.share, holder.entry
    budget = format_size(share.promised_bytes) if share.promised_bytes else "undeclared"
    whole = ", exclusive" if share.is_exclusive else ""
    base = f", of that {format_size(entry.base_bytes)} for the base" if entry.base_bytes else ""
    return [
        f"process {entry.owner.pid}",
        f"reserved {budget}{base}{whole}",
        "measuring" if share.measured_bytes is None else f"actual {format_size(share.measured_bytes)}",
        f"held {format_duration(holder.held_s)}",
        "; ".join([entry.job, *_notes(holder)]),
    ]


def _notes(holder: DeviceHolder) -> list[str]:
    if holder.left_behind is not None:
        return [f"ended; its child process {holder.left_behind} is still running"]
    return ["lease renewal is late, process is alive"] if holder.is_late else []


def _waiter(waiter: DeviceWaiter) -> list[str]:
    ticket = waiter.ticket
    size = format_size(ticket.vram_bytes) if ticket.vram_bytes else "undeclared"
    how = "shared" if ticket.may_share else "whole"
    where = ", ".join(ticket.uuids[:2]) + (" …" if len(ticket.uuids) > 2 else "")
    count = f"{ticket.count} of " if ticket.count > 1 else ""
    asleep = "; not polling, skipped" if waiter.is_asleep else ""
    return [
        f"position {waiter.place}",
        f"process {ticket.owner.pid}",
        f"{size}, {how}, on {count}{where}",
        f"waiting {format_duration(waiter.waited_s)}",
        f"{ticket.job}{asleep}",
    ]


# Prefixes that are left out of device names.
_NOISE = ("NVIDIA GeForce ", "NVIDIA ", "AMD Radeon ", "AMD ")
_MOST_LISTED = 3


def devices_text(devices: Sequence[Device]) -> str:
    """Return devices as text: `RTX 4090, 23.1 of 24.0 GiB free`; equal ones together."""
    kinds: dict[tuple[str, int | None], list[Device]] = {}
    for device in devices:
        kinds.setdefault((short_name(device), device.total_bytes), []).append(device)
    return ", ".join(_kind_text(name, total, alike) for (name, total), alike in kinds.items())


def ram_text(capability: Capability) -> str:
    """Return the RAM of a machine: `20.0 GiB of 32.0 GiB free`, as far as known."""
    total, available = capability.ram_total_bytes, capability.ram_available_bytes
    if total is None:
        return "unknown"
    return format_size(total) if available is None else f"{format_size(available)} of {format_size(total)} free"


def short_name(device: Device) -> str:
    """Return a device's name without its vendor's."""
    for noise in _NOISE:
        if device.name.startswith(noise):
            return device.name.removeprefix(noise)
    return device.name or str(device.backend)


def _kind_text(name: str, total_bytes: int | None, alike: Sequence[Device]) -> str:
    what = f"{len(alike)} x {name}" if len(alike) > 1 else name
    if total_bytes is None:
        return what
    free = [device.free_bytes for device in alike if device.free_bytes is not None]
    if len(free) < len(alike):
        return f"{what}, {_gib(total_bytes)} GiB"
    shown = [_gib(one) for one in free]
    if len(set(shown)) == 1:
        texts = shown[0]
    elif len(shown) <= _MOST_LISTED:
        texts = f"{', '.join(shown[:-1])} and {shown[-1]}"
    else:
        texts = f"{_gib(min(free))} to {_gib(max(free))}"
    return f"{what}, {texts} of {_gib(total_bytes)} GiB free"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f}"


_COLOURS = {CheckStatus.OK: "green", CheckStatus.WARN: "yellow", CheckStatus.BAD: "red"}


def check_lines(checks: Sequence[Check], *, signs: Signs, columns: int, paint: Callable[[str, str], str]) -> list[str]:
    """Return checks as lines. `columns` is the width of the terminal, 0 for no limit; `paint` colours a sign."""
    by_state = {CheckStatus.OK: signs.ran, CheckStatus.WARN: signs.warned, CheckStatus.BAD: signs.failed}
    rows = []
    for check in checks:
        rows.append([check.name, check.message])
        if check.hint:
            rows.append(["", f"hint: {check.hint}"])
    before = iter([paint(by_state[check.verdict], _COLOURS[check.verdict]) for check in checks])
    # The first column is filled only where a check begins.
    return [
        f"{next(before)} {line[2:]}" if line[2:3].strip() else line
        for line in table(rows, columns=columns, indent="  ")
    ]


def summary(checks: Sequence[Check]) -> str:
    """Return the result of the checks in one line."""
    bad = sum(check.verdict is CheckStatus.BAD for check in checks)
    warned = sum(check.verdict is CheckStatus.WARN for check in checks)
    if not bad and not warned:
        return "no problems"
    texts = [counted(bad, "problem")] if bad else []
    texts += [counted(warned, "warning")] if warned else []
    return f"{' and '.join(texts)}{'' if bad else ', no problems'}"


_PHASES = (*(phase.name for phase in Phase if phase < Phase.READY), COLLECTIVE)
_TOGETHER = frozenset({"COMM", COLLECTIVE})
"""Phases in which all ranks wait for the last one, so that a long time is not one rank's fault."""
_MOST_RANKS_LISTED = 8
_SLOW_S = 0.1
_SLOW_FACTOR = 3


@frozen
class _Fault:
    """The rank that failed, if there is one."""

    rank: int = -1
    phase: str = ""
    how: str = ""


def check_gang(test: GangSelfTest) -> tuple[Check, ...]:
    """Return the checks of a gang self-test: one for the whole, one for each phase with all times."""
    fault = _fault(test)
    return (_whole(test), *(check for name in _PHASES if (check := _phase(name, test, fault)) is not None))


def _whole(test: GangSelfTest) -> Check:
    what, error = str(test.trial), test.error
    if error is not None:
        return Check(name="gang", verdict=CheckStatus.BAD, message=f"{what}: {error.message}", hint=error.hint)
    warm = f" after importing torch ({_time(test.import_s)})" if test.import_s else ""
    up = "" if test.up_s is None else f": up in {_time(test.up_s)}{warm}, correct sum"
    return Check(name="gang", verdict=CheckStatus.OK, message=what + up)


def _phase(name: str, test: GangSelfTest, fault: _Fault) -> Check | None:
    """Check one phase; `None`: no rank reached it."""
    done = [one for one in test.ranks if name in one.phases_s]
    inside = [one for one in test.ranks if name not in one.phases_s and last_phase(one.phases_s) == name]
    is_here = fault.phase == name
    if not done and not is_here:
        return None
    texts = [_times(done, name)] if done else []
    if is_here:
        texts += [f"{_who(one)} {fault.how}" for one in inside if one.rank == fault.rank]
        waiting = [str(one.rank) for one in inside if one.rank != fault.rank]
        texts += [f"rank {', '.join(waiting)} waiting"] if waiting else []
        return Check(name=f"gang {name}", verdict=CheckStatus.BAD, message="; ".join(texts))
    slowest = max(done, key=lambda one: one.phases_s[name])
    is_slow = name not in _TOGETHER and _is_slow(slowest, done, name)
    hint = f"{_who(slowest)} is slow; compare it with the others" if is_slow else ""
    return Check(
        name=f"gang {name}",
        verdict=CheckStatus.WARN if is_slow else CheckStatus.OK,
        message="; ".join(texts),
        hint=hint,
    )


def _times(done: Sequence[RankSelfTest], name: str) -> str:
    slowest = max(done, key=lambda one: one.phases_s[name])
    if len(done) > _MOST_RANKS_LISTED:
        median_s = sorted(one.phases_s[name] for one in done)[len(done) // 2]
        return f"{len(done)} ranks, median {_time(median_s)}, slowest {_who(slowest)} {_time(slowest.phases_s[name])}"
    listed = ", ".join(f"rank {one.rank} {_time(one.phases_s[name])}" for one in done)
    return listed if len(done) == 1 else f"{listed}; slowest {_who(slowest)}"


def _is_slow(slowest: RankSelfTest, done: Sequence[RankSelfTest], name: str) -> bool:
    others = sorted(one.phases_s[name] for one in done if one is not slowest)
    if not others:
        return False
    return slowest.phases_s[name] > max(_SLOW_S, _SLOW_FACTOR * others[len(others) // 2])


def _fault(test: GangSelfTest) -> _Fault:
    data = {} if test.error is None else test.error.data
    rank, phase = data.get("rank"), data.get("phase")
    if not isinstance(rank, int) or not isinstance(phase, str):
        return _Fault()
    how = {"silent": "timed out", "ended": "exited"}.get(str(data.get("how", "")), "failed")
    # The phase after all are ready is the collective.
    return _Fault(rank=rank, phase=COLLECTIVE if phase == Phase.RUN.name else phase, how=how)


def _who(one: RankSelfTest) -> str:
    return f"rank {one.rank} ({one.device})"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
